//! Smaller models from a larger one that was trained to contain them (MatFormer, Devvrit et al. 2023,
//! arXiv:2310.07707).
//!
//! A feed-forward part keeps the first of its inner channels, and some layers are dropped. The compiler applies this to
//! a checkpoint.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    layers::{MAX_LAYERS, numbers, runs, short, written},
    name::string_form,
};

/// A smaller model from a MatFormer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MatFormer {
    /// Gemma 3n E2B from E4B: inner widths of 8192, and 30 of 35 layers.
    E2b,
    /// Any other combination of widths and layers.
    Mix(Mix),
}

/// Inner widths and dropped layers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Mix {
    /// Inner widths of the kept layers: empty if they stay unchanged, one for all layers, or one for each.
    pub widths: Vec<usize>,
    /// Dropped layers in ascending order, numbered as in the larger model.
    pub skip: Vec<usize>,
}

/// A string that is not a [`MatFormer`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a smaller model: expected e2b, or inner widths and dropped layers, as in ffn=8192, skip=20-24 or \
     ffn=8192*10+16384*20,skip=20-24"
)]
pub struct BadMatFormer {
    /// The string, shortened.
    pub found: String,
}

impl MatFormer {
    /// Number of layers of the model from which E2B is taken.
    pub const E2B_LAYERS: usize = 35;

    /// Returns the widths and layers.
    pub fn mix(&self) -> Mix {
        match self {
            Self::E2b => Mix { widths: vec![8192], skip: (20..=24).collect() },
            Self::Mix(mix) => mix.clone(),
        }
    }

    /// Returns the suffix of a model's name: `e2b`, `ffn8192x10.16384x20-skip20-24`, or the hash (FNV-1a, 64 bits) of a
    /// long text.
    pub fn slug(&self) -> String {
        let text = self.to_string();
        short(&text, "mix")
            .unwrap_or_else(|| text.replace('=', "").replace('*', "x").replace('+', ".").replace(',', "-"))
    }
}

/// Parses `8192*10+16384*20` to thirty widths.
fn widths(text: &str) -> Option<Vec<usize>> {
    let mut widths = Vec::new();
    for run in text.split('+') {
        let (width, count) = run.split_once('*').unwrap_or((run, "1"));
        let width: usize = width.parse().ok()?;
        let count: usize = count.parse().ok()?;
        if width == 0 || !(1..=MAX_LAYERS - widths.len()).contains(&count) {
            return None;
        }
        widths.extend(std::iter::repeat_n(width, count));
    }
    Some(widths)
}

/// Parses `3+20-24` to six layers in ascending order.
fn layers(text: &str) -> Option<Vec<usize>> {
    let mut layers = numbers(text, '+')?;
    layers.sort_unstable();
    layers.dedup();
    Some(layers)
}

impl FromStr for MatFormer {
    type Err = BadMatFormer;

    fn from_str(text: &str) -> Result<Self, BadMatFormer> {
        let bad = || BadMatFormer { found: text.chars().take(200).collect() };
        let wanted = text.trim().to_ascii_lowercase();
        if wanted == "e2b" {
            return Ok(Self::E2b);
        }
        let mut mix = Mix::default();
        for part in wanted.split(',') {
            let (place, found) = match part.split_once('=') {
                Some(("ffn", text)) => (&mut mix.widths, widths(text)),
                Some(("skip", text)) => (&mut mix.skip, layers(text)),
                _ => return Err(bad()),
            };
            if !place.is_empty() {
                return Err(bad());
            }
            *place = found.ok_or_else(bad)?;
        }
        Ok(Self::Mix(mix))
    }
}

impl fmt::Display for MatFormer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Mix(Mix { widths, skip }) = self else { return f.write_str("e2b") };
        let ffn: Vec<String> = runs(widths, 0)
            .iter()
            .map(|&(width, count)| match count {
                1 => width.to_string(),
                _ => format!("{width}*{count}"),
            })
            .collect();
        let parts = [("ffn", ffn.join("+")), ("skip", written(skip, "+"))];
        let parts = parts.into_iter().filter(|(_, runs)| !runs.is_empty());
        let parts: Vec<String> = parts.map(|(name, runs)| format!("{name}={runs}")).collect();
        f.write_str(&parts.join(","))
    }
}

string_form!(MatFormer);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written_in_one_form() {
        let check = |text: &str, (widths, skip): (&[usize], &[usize]), written: &str, slug: &str| {
            let found: MatFormer = text.parse().unwrap();
            assert_eq!(found.mix(), Mix { widths: widths.to_vec(), skip: skip.to_vec() }, "{text}");
            assert_eq!((found.to_string().as_str(), found.slug().as_str()), (written, slug));
            let json = serde_json::to_string(&found).unwrap();
            assert_eq!(serde_json::from_str::<MatFormer>(&json).unwrap(), found);
        };
        check("E2B", (&[8192], &[20, 21, 22, 23, 24]), "e2b", "e2b");
        check("ffn=8192", (&[8192], &[]), "ffn=8192", "ffn8192");
        check("skip=7+3-5+4", (&[], &[3, 4, 5, 7]), "skip=3-5+7", "skip3-5.7");
        let widths = [8, 8, 16, 8];
        check("skip=1,ffn=8+8*1+16+8", (&widths, &[1]), "ffn=8*2+16+8,skip=1", "ffn8x2.16.8-skip1");
    }

    #[test]
    fn long_texts_have_short_names_of_their_own() {
        let slug = |last: usize| {
            let widths: Vec<String> = (0..30).map(|layer| (4096 + 4096 * (layer % 2)).to_string()).collect();
            format!("ffn={}+{last}", widths.join("+")).parse::<MatFormer>().unwrap().slug()
        };
        assert_eq!((slug(64).len(), slug(64) == slug(64), slug(64) == slug(65)), (20, true, false));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "e3b",
            "ffn",
            "ffn=",
            "ffn=0",
            "ffn=8*0",
            "ffn=8*2000",
            "ffn=8*600+8*600",
            "ffn=8,ffn=8",
            "skip=5-4",
            "skip=a",
            "skip=1024",
            "skip=0-18446744073709551615",
            "ffn=-1",
            "ffn=8,",
            "ffn=99999999999999999999",
        ] {
            let error = text.parse::<MatFormer>().unwrap_err().to_string();
            assert!(error.contains("is not a smaller model: expected e2b"), "{text}: {error}");
        }
    }
}
