//! Lists of layers, written `3,7,12-14`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::name::string_form;

/// Maximum number of layers. A larger number is treated as a mistake.
pub(crate) const MAX_LAYERS: usize = 1024;

/// Maximum length of a list inside a name, in bytes.
const MAX_SLUG: usize = 48;

/// Layers of a model: at least one, without repetitions, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerList(Vec<usize>);

/// A string that is not a [`LayerList`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLayerList {
    /// The string is not a list of layers.
    #[error("{found:?} is not a list of layers: expected numbers from 0, as in 3,7,12-14")]
    Text {
        /// The string, shortened.
        found: String,
    },
    /// A layer is repeated, which is probably a typing error.
    #[error("layer {layer} is listed twice in {found:?}: expected each layer once, as in 3,7,12-14")]
    Twice {
        /// The layer.
        layer: usize,
        /// The string, shortened.
        found: String,
    },
}

impl LayerList {
    /// Returns the layers in ascending order.
    pub fn layers(&self) -> &[usize] {
        &self.0
    }

    /// Returns the suffix of the name of a model without these layers: `drop3.7.12-14`, or a hash of a long list.
    pub fn slug(&self) -> String {
        let text = self.to_string();
        short(&text, "drop").unwrap_or_else(|| format!("drop{}", text.replace(',', ".")))
    }
}

/// Parses `3+20-24`, or the same with another separator, to six layers in the written order.
pub(crate) fn numbers(text: &str, separator: char) -> Option<Vec<usize>> {
    let mut layers = Vec::new();
    for run in text.split(separator) {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let run: RangeInclusive<usize> = first.trim().parse().ok()?..=last.trim().parse().ok()?;
        if run.is_empty() || *run.end() >= MAX_LAYERS || layers.len() >= MAX_LAYERS {
            return None;
        }
        layers.extend(run);
    }
    Some(layers)
}

/// Formats ascending layers in the form that [`numbers`] parses.
pub(crate) fn written(layers: &[usize], separator: &str) -> String {
    runs(layers, 1)
        .iter()
        .map(|&(first, count)| match count {
            1 => first.to_string(),
            _ => format!("{first}-{}", first + count - 1),
        })
        .collect::<Vec<_>>()
        .join(separator)
}

/// Groups equal numbers (`step` 0) or consecutive numbers (`step` 1) into runs: the first number and the length.
pub(crate) fn runs(numbers: &[usize], step: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + step * *count == number => *count += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

/// Returns a name for a text that is too long for one: `kind` and its hash (FNV-1a, 64 bits); `None` for shorter texts.
pub(crate) fn short(text: &str, kind: &str) -> Option<String> {
    (text.len() > MAX_SLUG).then(|| format!("{kind}-{:016x}", hash(text.as_bytes())))
}

/// Returns the FNV-1a hash (64 bits).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte: &u8| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl FromStr for LayerList {
    type Err = BadLayerList;

    fn from_str(text: &str) -> Result<Self, BadLayerList> {
        let found: String = text.chars().take(200).collect();
        let Some(mut layers) = numbers(text.trim(), ',') else { return Err(BadLayerList::Text { found }) };
        layers.sort_unstable();
        match layers.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(BadLayerList::Twice { layer: pair[0], found }),
            None => Ok(Self(layers)),
        }
    }
}

impl fmt::Display for LayerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&written(&self.0, ","))
    }
}

string_form!(LayerList);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_in_one_form() {
        let check = |text: &str, layers: &[usize], written: &str, slug: &str| {
            let list: LayerList = text.parse().unwrap();
            let found = (list.layers(), list.to_string(), list.slug());
            assert_eq!(found, (layers, written.to_owned(), slug.to_owned()), "{text}");
            let json = serde_json::to_string(&list).unwrap();
            assert_eq!(serde_json::from_str::<LayerList>(&json).unwrap(), list);
        };
        check("3", &[3], "3", "drop3");
        check("12-14, 7,3", &[3, 7, 12, 13, 14], "3,7,12-14", "drop3.7.12-14");
        check("0,1,2", &[0, 1, 2], "0-2", "drop0-2");
        let long: Vec<String> = (0..40).map(|layer| (2 * layer).to_string()).collect();
        let slug = long.join(",").parse::<LayerList>().unwrap().slug();
        assert_eq!((slug.len(), &slug[..5]), (21, "drop-"));
    }

    #[test]
    fn other_texts_are_refused() {
        let check = |text: &str, expect: &str| {
            let error = text.parse::<LayerList>().unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
        };
        for text in ["", "a", "3,", "-1", "5-4", "1024", "0-18446744073709551615", "3+4"] {
            check(text, "is not a list of layers: expected numbers from 0, as in 3,7,12-14");
        }
        check("3,4,3", "layer 3 is listed twice");
        check("1-5,5", "layer 5 is listed twice");
        check(&["0-1023"; 9].join(","), "is not a list of layers");
    }
}
