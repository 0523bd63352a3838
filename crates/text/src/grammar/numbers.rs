//! Numeric keywords of JSON schemas, in a form that the compiler holds exactly.
//!
//! The compiler reads every number of a schema as `f64`, and computes the bounds of integers in `i64`. Bounds that are not
//! exact in both become narrower, so that every answer is still valid: `[-2^63, 2^64]` allows the integers from -2^63 + 1024
//! to 2^63 - 1. An exclusive bound becomes the next number, because the digits that remain would round to the bound.
//! Constants that are not exact are refused.

use serde_json::{Map, Number, Value};

use super::{GrammarError, schema::parts};

/// Largest bound that is exact as `f64` and as `i64`.
const MAX_BOUND: f64 = 9_223_372_036_854_774_784.0;

/// Upper bound of integers that the compiler reads as the largest `i64`.
const MAX_INTEGER: f64 = 9_223_372_036_854_775_808.0;

/// Integers up to this one are all exact as `f64`.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Bound from which the compiler needs one on the other side of it, because it reads another digit as a larger `i64`.
const NEEDS_END: f64 = 1e18;

/// Bounds of the multiples of decimals, if none are stated. Their digits are exact as `f64`.
const MAX_DECIMAL: f64 = 1e12;

/// Smallest positive bound. Its digits fit in an answer ([`super::digits`]).
const MIN_BOUND: f64 = 1e-20;

/// Maximum number of decimal places of a `multipleOf`.
const MAX_PLACES: u32 = 8;

/// Rewrites the numeric keywords of a schema and of its parts.
///
/// # Errors
/// A keyword has no number, or its number cannot be enforced.
pub(super) fn make_exact(schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
    let divisor = schema.get("multipleOf").map(decimal_of).transpose()?;
    make_bounds_exact(schema, divisor)?;
    if let Some(value) = schema.get("const") {
        check_constant("const", value)?;
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        values.iter().try_for_each(|value| check_constant("enum", value))?;
    }
    parts(schema).into_iter().try_for_each(make_exact)
}

/// A lower bound. An upper bound is the negative of one.
#[derive(Debug, Clone, Copy)]
struct LowerBound {
    /// The number as an integer, if it is one.
    integer: Option<i128>,
    value: f64,
    is_exclusive: bool,
}

impl LowerBound {
    fn new(number: &Number, is_upper: bool, is_exclusive: bool) -> Self {
        let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        let value = number.as_f64().unwrap_or_default();
        if is_upper {
            Self { integer: integer.map(|integer| -integer), value: -value, is_exclusive }
        } else {
            Self { integer, value, is_exclusive }
        }
    }

    /// Returns the number as the schema states it.
    fn stated(self, is_upper: bool) -> String {
        match (self.integer, is_upper) {
            (Some(integer), false) => integer.to_string(),
            (Some(negative), true) => (-negative).to_string(),
            (None, false) => Value::from(self.value).to_string(),
            (None, true) => Value::from(-self.value).to_string(),
        }
    }

    /// Returns the smallest inclusive bound that the compiler holds and that is not below this one.
    fn inclusive(self, of_integers: bool) -> f64 {
        let bound = match self.integer {
            Some(integer) if of_integers => at_least(integer + i128::from(self.is_exclusive)),
            Some(integer) => {
                let bound = at_least(integer);
                let is_same = bound as i128 == integer;
                if self.is_exclusive && is_same { bound.next_up() } else { bound }
            }
            None if self.is_exclusive => self.value.next_up(),
            None => self.value,
        };
        if bound > 0.0 {
            bound.max(MIN_BOUND)
        } else if bound > -MIN_BOUND {
            0.0
        } else {
            bound.max(-MAX_BOUND)
        }
    }
}

/// Returns the smallest `f64` that is not below an integer.
fn at_least(integer: i128) -> f64 {
    let nearest = integer as f64;
    if (nearest as i128) < integer { nearest.next_up() } else { nearest }
}

/// Replaces the bounds of a schema by inclusive ones that the compiler holds.
///
/// Multiples get bounds on both sides, because their last digits cannot be limited.
fn make_bounds_exact(
    schema: &mut Map<String, Value>,
    divisor: Option<DecimalDivisor>,
) -> Result<(), GrammarError> {
    let lower = bound(schema, "minimum", "exclusiveMinimum")?;
    let upper = bound(schema, "maximum", "exclusiveMaximum")?;
    let of_integers = allows_only_integers(schema);
    let lowest = lower.map(|bound| bound.inclusive(of_integers));
    let highest = upper.map(|bound| -bound.inclusive(of_integers));
    if let (Some(lower), Some(lowest)) = (lower, lowest)
        && lowest > MAX_BOUND
    {
        return Err(out_of_range("minimum", &lower.stated(false)));
    }
    if let (Some(upper), Some(highest)) = (upper, highest)
        && highest < -MAX_BOUND
    {
        return Err(out_of_range("maximum", &upper.stated(true)));
    }
    if let (Some(lower), Some(upper), Some(lowest), Some(highest)) = (lower, upper, lowest, highest)
        && lowest > highest
        && lower.value <= -upper.value
        && lowest.abs().max(highest.abs()) > MAX_EXACT
    {
        return Err(out_of_range("minimum", &lower.stated(false)));
    }

    schema.shift_remove("exclusiveMinimum");
    schema.shift_remove("exclusiveMaximum");
    let of_multiples = divisor.map(|divisor| if divisor.places > 0 { MAX_DECIMAL } else { MAX_EXACT });
    let other_side = |bound: Option<f64>| match (bound, of_multiples) {
        (Some(bound), _) if bound >= NEEDS_END => Some(MAX_BOUND),
        (Some(bound), Some(_)) if bound >= MAX_DECIMAL => Some(MAX_BOUND),
        _ => of_multiples,
    };
    if let Some(lowest) = lowest.or_else(|| other_side(highest.map(|bound| -bound)).map(|bound| -bound)) {
        schema.insert("minimum".to_owned(), number(lowest));
    }
    if let Some(highest) = highest.or_else(|| other_side(lowest)) {
        let reaches_last = upper.is_some_and(|upper| match upper.integer {
            Some(negative) => -negative >= i128::from(i64::MAX),
            None => -upper.value > MAX_BOUND,
        });
        let last = if of_integers && reaches_last { MAX_INTEGER } else { MAX_BOUND };
        let highest = if highest >= MAX_BOUND { last } else { highest };
        schema.insert("maximum".to_owned(), number(highest));
    }
    Ok(())
}

fn out_of_range(keyword: &str, found: &str) -> GrammarError {
    let reason =
        "expected bounds from -2^63 to 2^63 - 1, with a number between them that is exact in 64 bits";
    GrammarError::unsupported(format!("the schema's \"{keyword}\": {found}"), reason)
}

/// Returns the stricter one of two bounds, of which the second is exclusive. In old drafts, the second is a boolean that
/// makes the first one exclusive.
fn bound(
    schema: &Map<String, Value>,
    inclusive: &str,
    exclusive: &str,
) -> Result<Option<LowerBound>, GrammarError> {
    let is_upper = inclusive == "maximum";
    let read = |keyword: &str, is_exclusive| match schema.get(keyword) {
        None | Some(Value::Bool(_)) => Ok(None),
        Some(Value::Number(number)) => Ok(Some(LowerBound::new(number, is_upper, is_exclusive))),
        Some(other) => {
            let reason = "expected a number".to_owned();
            Err(GrammarError::unsupported(format!("the schema's \"{keyword}\": {other}"), reason))
        }
    };
    let is_exclusive = schema.get(exclusive) == Some(&Value::Bool(true));
    Ok(match (read(inclusive, is_exclusive)?, read(exclusive, true)?) {
        (Some(first), Some(second)) => Some(if second.value >= first.value { second } else { first }),
        (first, second) => first.or(second),
    })
}

/// Returns true if a schema states the type `integer`, and not `number`.
fn allows_only_integers(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "integer",
        Some(Value::Array(names)) => {
            names.iter().any(|name| name == "integer") && names.iter().all(|name| name != "number")
        }
        _ => false,
    }
}

fn number(value: f64) -> Value {
    let is_exact = value.fract() == 0.0 && value.abs() <= MAX_BOUND;
    if is_exact { Value::from(value as i64) } else { Value::from(value) }
}

/// Refuses numbers in a constant that the compiler does not hold exactly.
fn check_constant(keyword: &str, value: &Value) -> Result<(), GrammarError> {
    match value {
        Value::Number(number) => {
            let value = number.as_f64().unwrap_or(f64::INFINITY);
            let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            let is_exact = match integer {
                Some(integer) => value.abs() <= MAX_BOUND && value as i128 == integer,
                None => value.abs() <= MAX_EXACT,
            };
            if is_exact {
                return Ok(());
            }
            let reason =
                "the number is not exact in 64 bits; expected one up to 9007199254740992, or a string";
            Err(GrammarError::unsupported(format!("the schema's \"{keyword}\": {number}"), reason))
        }
        Value::Array(values) => values.iter().try_for_each(|value| check_constant(keyword, value)),
        Value::Object(fields) => fields.values().try_for_each(|value| check_constant(keyword, value)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// A positive number as an integer, divided by a power of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecimalDivisor {
    pub(super) coefficient: u32,
    pub(super) places: u32,
}

/// Returns the decimal that the compiler reads in a `multipleOf`.
///
/// # Errors
/// The value is not a positive number with few digits.
pub(super) fn decimal_of(divisor: &Value) -> Result<DecimalDivisor, GrammarError> {
    let Some(mut value) = divisor.as_f64().filter(|value| *value > 0.0) else {
        return Err(GrammarError::unsupported(
            format!("the schema's \"multipleOf\": {divisor}"),
            "expected a number above 0",
        ));
    };
    // The compiler multiplies in the same way, and loses digits in the same way.
    let mut places = 0;
    while value.fract() != 0.0 && places < MAX_PLACES {
        value *= 10.0;
        places += 1;
    }
    if value.fract() != 0.0 || value > f64::from(u32::MAX) {
        let reason = "its digits are too many; expected a number such as 5, 0.25 or 0.01";
        return Err(GrammarError::unsupported(format!("the schema's \"multipleOf\": {divisor}"), reason));
    }
    Ok(DecimalDivisor { coefficient: value as u32, places })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bounds_become_inclusive_and_exact() {
        let check = |mut schema: Value, expect: Value| {
            let given = schema.to_string();
            make_exact(schema.as_object_mut().unwrap()).unwrap();
            assert_eq!(schema, expect, "{given}");
            // What is exact stays.
            make_exact(schema.as_object_mut().unwrap()).unwrap();
            assert_eq!(schema, expect, "{given}");
        };
        let integers =
            |lowest: Value, highest: Value| json!({"type": "integer", "minimum": lowest, "maximum": highest});
        let last = json!(MAX_INTEGER);
        let first = json!(-9_223_372_036_854_774_784_i64);
        check(integers(json!(i64::MIN), json!(i64::MAX)), integers(first.clone(), last.clone()));
        check(integers(json!(0), json!(u64::MAX)), integers(json!(0), last));
        check(
            integers(json!(-1e300), json!(9_007_199_254_740_993_i64)),
            integers(first, json!(9_007_199_254_740_992_i64)),
        );
        check(
            json!({"type": "integer", "exclusiveMinimum": 1, "maximum": 9, "exclusiveMaximum": true}),
            integers(json!(2), json!(8)),
        );
        check(
            json!({"items": {"exclusiveMinimum": 1, "minimum": 0, "exclusiveMaximum": 0.5, "maximum": 1}}),
            json!({"items": {"minimum": 1.000_000_000_000_000_2, "maximum": 0.499_999_999_999_999_94}}),
        );
        check(
            json!({"multipleOf": 7}),
            json!({"multipleOf": 7, "minimum": -MAX_EXACT as i64, "maximum": MAX_EXACT as i64}),
        );
        check(json!({"maximum": -1e18}), json!({"maximum": -NEEDS_END as i64, "minimum": -MAX_BOUND as i64}));
        check(json!({"exclusiveMinimum": 0}), json!({"minimum": MIN_BOUND}));
        check(json!({"exclusiveMaximum": 0.0}), json!({"maximum": -MIN_BOUND}));
        check(
            json!({"minimum": 1e-300, "maximum": 1e300}),
            json!({"minimum": MIN_BOUND, "maximum": MAX_BOUND as i64}),
        );
        check(
            json!({"const": 1e300_f64.recip(), "default": 1e300}),
            json!({"const": 1e300_f64.recip(), "default": 1e300}),
        );
    }

    #[test]
    fn numbers_that_cannot_be_held_are_refused() {
        for (schema, expect) in [
            (
                json!({"const": 1_234_567_890_123_456_789_i64}),
                "\"const\": 1234567890123456789 cannot be enforced",
            ),
            (json!({"enum": [1, {"a": [u64::MAX]}]}), "\"enum\": 18446744073709551615"),
            (json!({"const": i64::MIN}), "\"const\": -9223372036854775808"),
            (json!({"properties": {"a": {"const": 1e30}}}), "\"const\": 1e+30"),
            (json!({"minimum": 1e300}), "\"minimum\": 1e+300 cannot"),
            (json!({"type": "integer", "maximum": -1e20}), "\"maximum\""),
            (
                json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MIN}),
                "\"maximum\": -9223372036854775808 cannot",
            ),
            (json!({"minimum": "5"}), "expected a number"),
            (json!({"multipleOf": 0}), "above 0"),
            (json!({"multipleOf": 0.07}), "digits"),
            (json!({"multipleOf": 1e-12}), "digits"),
            (json!({"multipleOf": 4_294_967_296_u64}), "digits"),
        ] {
            let error = make_exact(&mut schema.as_object().unwrap().clone()).unwrap_err().to_string();
            assert!(error.contains(expect), "{schema}: {error}");
        }
        assert_eq!(decimal_of(&json!(0.25)), Ok(DecimalDivisor { coefficient: 25, places: 2 }));
    }
}
