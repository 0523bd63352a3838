//! JSON values of limited size, counted while they are parsed.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

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

/// Reads the value of a field and adds its number of values to `count`.
pub(super) fn next_value<'de, A: MapAccess<'de>>(
    map: &mut A,
    count: &mut usize,
    most: usize,
) -> Result<Value, A::Error> {
    let mut more = 0;
    let value = map.next_value_seed(LimitedValue(&mut more))?;
    add_values(count, more, most)?;
    Ok(value)
}

/// Parser of a value of limited size. Adds the number of values in it, itself and the names of fields included.
struct LimitedValue<'a>(&'a mut usize);

impl LimitedValue<'_> {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.0 += 1;
        if *self.0 > MAX_VALUES { Err(too_many("values in a field", MAX_VALUES)) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for LimitedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LimitedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        if text.len() > MAX_TEXT { Err(too_many("bytes of a string", MAX_TEXT)) } else { Ok(text.into()) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(LimitedValue(&mut *self.0))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key()? {
            self.count()?;
            fields.insert(name, map.next_value_seed(LimitedValue(&mut *self.0))?);
        }
        Ok(Value::Object(fields))
    }
}
