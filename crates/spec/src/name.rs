//! Names of the members of closed sets, as users write them on the command line and in settings.

/// A string that is not one of a set's names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {found:?}: expected {expected}")]
pub struct UnknownName {
    /// Singular noun for the members of the set: `scheme`, `device`.
    pub what: &'static str,
    /// The string, shortened.
    pub found: String,
    /// All names of the set, as a list for sentences.
    pub expected: String,
}

impl UnknownName {
    /// Returns the member of a set with the name `text`. Case and surrounding whitespace are ignored.
    ///
    /// # Errors
    /// [`UnknownName`] with the names in the order of `set`.
    pub fn find<T>(what: &'static str, text: &str, set: &[T]) -> Result<T, Self>
    where
        T: Copy + Into<&'static str>,
    {
        let name = text.trim().to_ascii_lowercase();
        let named = set.iter().copied().find(|&value| value.into() == name);
        named.ok_or_else(|| Self::new(what, text, set.iter().copied().map(Into::into)))
    }

    /// Creates the error for a string that is not among these names.
    pub fn new(what: &'static str, text: &str, names: impl IntoIterator<Item = &'static str>) -> Self {
        let expected = alternatives(names.into_iter().map(str::to_owned));
        Self { what, found: text.chars().take(80).collect(), expected }
    }
}

/// Returns a list of names for sentences: `a, b or c`.
pub(crate) fn alternatives(names: impl IntoIterator<Item = String>) -> String {
    let mut names: Vec<String> = names.into_iter().collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last } else { format!("{} or {last}", names.join(", ")) }
}

/// Implements `FromStr` for a set of named values. The noun is for errors.
macro_rules! parse_by_name {
    ($set:ty, $noun:literal) => {
        impl std::str::FromStr for $set {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::UnknownName::find($noun, text, &Self::ALL)
            }
        }
    };
}

/// Implements `as_str` and `FromStr` for an enum with names from strum. The noun is for errors.
macro_rules! named_set {
    ($set:ty, $noun:literal) => {
        impl $set {
            /// Name on the command line and in JSON.
            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }

        $crate::name::parse_by_name!($set, $noun);
    };
}

/// Implements the conversions with which serde represents a type as the string of its `Display` and `FromStr`.
macro_rules! string_form {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

pub(crate) use {named_set, parse_by_name, string_form};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Calibration, DeviceName, Ep, NpuPolicy, Pass, Power, RangeMethod, RoundingMethod, ScalingMethod,
        Scheme,
    };

    fn round_trips<T>(set: &[T])
    where
        T: Copy + Into<&'static str> + std::str::FromStr<Err = UnknownName> + PartialEq + std::fmt::Debug,
        T: serde::Serialize,
    {
        for &value in set {
            let name: &str = value.into();
            assert_eq!(format!(" {} ", name.to_ascii_uppercase()).parse(), Ok(value));
            assert_eq!(serde_json::to_value(value).unwrap(), name);
        }
        assert!("unheard-of".parse::<T>().unwrap_err().expected.contains(set[0].into()));
    }

    #[test]
    fn names_read_as_they_are_written() {
        round_trips(&Calibration::ALL);
        round_trips(&DeviceName::ALL);
        round_trips(&Ep::ALL);
        round_trips(&NpuPolicy::ALL);
        round_trips(&Pass::ALL);
        round_trips(&Power::ALL);
        round_trips(&RangeMethod::ALL);
        round_trips(&RoundingMethod::ALL);
        round_trips(&ScalingMethod::ALL);
        round_trips(&Scheme::ALL);
    }

    #[test]
    fn errors_list_every_name() {
        let error = "full".parse::<Calibration>().unwrap_err();
        assert_eq!(error.to_string(), "unknown calibration \"full\": expected standard or none");
        let error = "w5".parse::<Scheme>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown scheme \"w5\": expected w8, w4, f16, f32, w8a16, w8a8 or w4a16"
        );
    }
}
