//! Sampling that the publisher of a model recommends.

use serde::{Deserialize, Serialize};

use super::Contradiction;

/// Sampling settings of a model's publisher. They apply where a request states nothing; an absent value changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PublishedSampling {
    /// Temperature, 0 (greedy) to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Nucleus sampling threshold, above 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Number of likeliest tokens to sample from; 0 for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Minimum probability relative to the likeliest token, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Penalty on repeated tokens as a factor, 0.01 to 100; 1 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
}

impl PublishedSampling {
    /// Returns true if no value is stated.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings without values outside their ranges, which files of publishers contain at times, such as a
    /// `top_p` of 0.
    pub fn within_ranges(self) -> Self {
        Self {
            temperature: self.temperature.filter(|value| (0.0..=2.0).contains(value)),
            top_p: self.top_p.filter(|value| *value > 0.0 && *value <= 1.0),
            top_k: self.top_k,
            min_p: self.min_p.filter(|value| (0.0..=1.0).contains(value)),
            repetition_penalty: self.repetition_penalty.filter(|value| (0.01..=100.0).contains(value)),
        }
    }

    /// Returns the name and the value of a setting outside its range.
    pub fn outside_range(&self) -> Option<(&'static str, String)> {
        let within = self.within_ranges();
        self.stated().find(|value| !within.stated().any(|other| other == *value))
    }

    /// Returns the stated values with their names in requests.
    pub fn stated(&self) -> impl Iterator<Item = (&'static str, String)> {
        let values = [
            ("temperature", self.temperature.map(|value| value.to_string())),
            ("top_p", self.top_p.map(|value| value.to_string())),
            ("top_k", self.top_k.map(|value| value.to_string())),
            ("min_p", self.min_p.map(|value| value.to_string())),
            ("repetition_penalty", self.repetition_penalty.map(|value| value.to_string())),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Fails if a value is outside its range.
pub(super) fn check(sampling: &PublishedSampling) -> Result<(), Contradiction> {
    match sampling.outside_range() {
        None => Ok(()),
        Some((name, value)) => Err(Contradiction::new(format!("a {name} in its range"), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_ranges_are_refused_by_name() {
        let check = |sampling: &str, expect: &str| {
            let sampling: PublishedSampling = serde_json::from_str(sampling).unwrap();
            let error = super::check(&sampling).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expect) && error.is_empty() == expect.is_empty(), "{error}");
            assert!(super::check(&sampling.within_ranges()).is_ok());
        };
        check("{}", "");
        check(r#"{"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1.05}"#, "");
        check(r#"{"temperature": 2.5}"#, "a temperature in its range, found 2.5");
        check(r#"{"top_p": 0}"#, "a top_p in its range, found 0");
        check(r#"{"min_p": -0.5}"#, "a min_p in its range, found -0.5");
        check(r#"{"repetition_penalty": 0}"#, "a repetition_penalty in its range, found 0");
    }

    #[test]
    fn absent_values_are_not_written() {
        let sampling = PublishedSampling { temperature: Some(0.2), top_p: Some(0.9), ..Default::default() };
        assert_eq!(serde_json::to_string(&sampling).unwrap(), r#"{"temperature":0.2,"top_p":0.9}"#);
        let stated: Vec<_> = sampling.stated().collect();
        assert_eq!(stated, [("temperature", "0.2".to_owned()), ("top_p", "0.9".to_owned())]);
    }
}
