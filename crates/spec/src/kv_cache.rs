//! The setting for the element type of the KV cache.

use strum::{Display, IntoStaticStr};

use crate::name::named_set;

/// Element type of a decoder's KV cache on the CPU. Graphs for other devices state their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum KvCacheDtype {
    /// Half precision where a comparison with single precision finds the same answers, else single precision.
    #[default]
    Auto,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvCacheDtype {
    /// Every setting.
    pub const ALL: [Self; 3] = [Self::Auto, Self::F16, Self::F32];

    /// Returns the precision, if the setting names one.
    pub fn precision(self) -> Option<KvPrecision> {
        match self {
            Self::Auto => None,
            Self::F16 => Some(KvPrecision::Half),
            Self::F32 => Some(KvPrecision::Single),
        }
    }
}

named_set!(KvCacheDtype, "element type of the KV cache");

/// Precision in which attention on the CPU keeps keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvPrecision {
    /// Half precision.
    Half,
    /// Single precision.
    Single,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_element_types() {
        for (text, expected) in
            [("auto", None), ("f16", Some(KvPrecision::Half)), (" F32", Some(KvPrecision::Single))]
        {
            assert_eq!(text.parse::<KvCacheDtype>().unwrap().precision(), expected, "{text}");
        }
        let error = "q4_0".parse::<KvCacheDtype>().unwrap_err().to_string();
        assert!(error.ends_with("expected auto, f16 or f32"), "{error}");
        for setting in KvCacheDtype::ALL {
            assert_eq!(setting.to_string().parse(), Ok(setting));
        }
    }
}
