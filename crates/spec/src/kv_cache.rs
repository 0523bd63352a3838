//! The setting for the element type of the KV cache.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::{DType, name::named_set};

/// Element type of a decoder's KV cache on the CPU. Graphs for other devices state their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum KvCacheDtype {
    /// The smallest type with which a comparison with single precision finds the same answers.
    #[default]
    Auto,
    /// Integers of eight bits with a scale for each key and value.
    I8,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvCacheDtype {
    /// Every setting.
    pub const ALL: [Self; 4] = [Self::Auto, Self::I8, Self::F16, Self::F32];

    /// Returns the precision, if the setting names one.
    pub fn precision(self) -> Option<KvPrecision> {
        match self {
            Self::Auto => None,
            Self::I8 => Some(KvPrecision::I8),
            Self::F16 => Some(KvPrecision::F16),
            Self::F32 => Some(KvPrecision::F32),
        }
    }
}

named_set!(KvCacheDtype, "element type of the KV cache");

/// Precision in which attention on the CPU keeps keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPrecision {
    /// Integers of eight bits with a scale for each key and value.
    I8,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvPrecision {
    /// Returns the element type of the cache.
    pub fn dtype(self) -> DType {
        match self {
            Self::I8 => DType::I8,
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}

impl From<KvPrecision> for KvCacheDtype {
    fn from(precision: KvPrecision) -> Self {
        match precision {
            KvPrecision::I8 => Self::I8,
            KvPrecision::F16 => Self::F16,
            KvPrecision::F32 => Self::F32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_element_types() {
        for (text, expected) in [
            ("auto", None),
            ("i8", Some(KvPrecision::I8)),
            ("f16", Some(KvPrecision::F16)),
            (" F32", Some(KvPrecision::F32)),
        ] {
            assert_eq!(text.parse::<KvCacheDtype>().unwrap().precision(), expected, "{text}");
        }
        let error = "q4_0".parse::<KvCacheDtype>().unwrap_err().to_string();
        assert!(error.ends_with("expected auto, i8, f16 or f32"), "{error}");
        for setting in KvCacheDtype::ALL {
            assert_eq!(setting.to_string().parse(), Ok(setting));
            assert_eq!(setting.precision().map_or(KvCacheDtype::Auto, KvCacheDtype::from), setting);
        }
    }
}
