//! JSON values of limited size, counted while they are parsed and not kept.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};

/// Maximum number of JSON values inside one value, and inside all fields of a file together.
pub(super) const MAX_VALUES: usize = 1 << 16;

/// Maximum number of bytes of a string. The largest ones are compiled normalisations.
pub(super) const MAX_TEXT: usize = 8 << 20;

/// Returns the error for a list that is too long.
pub(super) fn too_many<E: Error>(what: &str, limit: usize) -> E {
    E::custom(format!("expected at most {limit} {what}, found more"))
}

/// Adds the number of values of a field to the sum of all fields.
pub(super) fn add_values<E: Error>(sum: &mut usize, more: usize, limit: usize) -> Result<(), E> {
    *sum = sum.saturating_add(more);
    if *sum > limit { Err(too_many("values in all fields", limit)) } else { Ok(()) }
}

/// Number of values in a value that is not kept and has a limited size.
#[derive(Debug)]
pub(super) struct LimitedValue(pub(super) usize);

struct CountValues<'a>(&'a mut usize);

impl<'de> Deserialize<'de> for LimitedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut count = 0;
        CountValues(&mut count).deserialize(deserializer)?;
        Ok(Self(count))
    }
}

impl CountValues<'_> {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.0 += 1;
        if *self.0 > MAX_VALUES { Err(too_many("values in a field", MAX_VALUES)) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for CountValues<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<(), D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountValues<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if text.len() > MAX_TEXT { Err(too_many("bytes of a string", MAX_TEXT)) } else { Ok(()) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(CountValues(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(CountValues(&mut *self.0))?.is_some() {
            map.next_value_seed(CountValues(&mut *self.0))?;
        }
        Ok(())
    }
}
