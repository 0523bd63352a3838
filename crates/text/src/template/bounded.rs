//! Steps whose result can be larger than all that goes in, with a check before they are taken.
//!
//! Everything else that minijinja computes gives at most a small multiple of what it reads, which [`super::budget`]
//! weighs. Filters are minijinja's own behind the check.

use minijinja::{
    Environment, Error, ErrorKind, State, Value, filters,
    value::{Rest, ValueKind, ValueOrKwargs},
};

use super::budget::{Use, elements, over, weigh};

/// Bytes that a step may make of less.
const GROWN: usize = 16 << 20;

/// Elements that a step may make of fewer.
const GROWN_ELEMENTS: usize = 1 << 18;

type Check = fn(&[Value]) -> Result<(), Error>;

/// Replaces minijinja's filters of that kind, and adds multiplication.
pub(super) fn install(env: &mut Environment<'_>) {
    let filters: [(&'static str, Value, Check); 6] = [
        ("join", Value::from_function(filters::join), check_join),
        ("replace", Value::from_function(filters::replace), check_replace),
        ("indent", Value::from_function(filters::indent), check_indent),
        ("format", Value::from_function(filters::format), check_format),
        ("batch", Value::from_function(filters::batch), check_count),
        ("slice", Value::from_function(filters::slice), check_count),
    ];
    for (name, filter, check) in filters {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            check(&args)?;
            filter.call(state, &args)
        });
    }
    env.add_function(super::guard::TIMES, times);
}

/// Checks a method of strings that grows as a filter does.
pub(super) fn check_method(text: &Value, name: &str, args: &[Value]) -> Result<(), Error> {
    let with_text = || -> Vec<Value> { std::iter::once(text.clone()).chain(args.iter().cloned()).collect() };
    match name {
        "replace" => check_replace(&with_text()),
        "format" => check_format(&with_text()),
        // The separator is the text that the method belongs to.
        "join" => check_join(&args.iter().cloned().chain([text.clone()]).collect::<Vec<_>>()),
        _ => Ok(()),
    }
}

fn grown(bytes: usize) -> Result<(), Error> {
    if bytes <= GROWN { Ok(()) } else { Err(over("a result", GROWN)) }
}

/// Every argument, those given by name among them.
fn flat(args: &[Value]) -> Vec<Value> {
    let by_name = |arg: &Value| -> Vec<Value> {
        let names = arg.try_iter().into_iter().flatten();
        names.filter_map(|name| arg.get_item(&name).ok()).collect()
    };
    let each = |arg: &Value| if arg.is_kwargs() { by_name(arg) } else { vec![arg.clone()] };
    args.iter().flat_map(each).collect()
}

fn length(value: &Value) -> Result<usize, Error> {
    value.as_str().map_or_else(|| weigh(value, Use::Text), |text| Ok(text.len()))
}

/// The items with the separator between them.
fn check_join(args: &[Value]) -> Result<(), Error> {
    let Some((items, rest)) = args.split_first() else { return Ok(()) };
    let count = items.as_str().map_or_else(|| elements(items), |text| Ok(text.len()))?;
    let separator = flat(rest).iter().filter_map(Value::as_str).map(str::len).max().unwrap_or(0);
    grown(count.saturating_mul(separator))
}

/// The text, with every occurrence of one string replaced by another.
fn check_replace(args: &[Value]) -> Result<(), Error> {
    let [text, from, to, ..] = args else { return Ok(()) };
    let shortest = length(from)?.max(1);
    let most = length(text)? / shortest + 1;
    let counted = match (text.as_str(), from.as_str()) {
        (Some(text), Some(from)) if !from.is_empty() => text.matches(from).count(),
        _ => most,
    };
    grown(counted.saturating_mul(length(to)?))
}

/// Every line, with spaces before it.
fn check_indent(args: &[Value]) -> Result<(), Error> {
    let Some((text, rest)) = args.split_first() else { return Ok(()) };
    let lines = text.as_str().map_or(0, |text| text.matches('\n').count()) + 1;
    let width = largest(&flat(rest));
    grown(lines.saturating_mul(width))
}

/// A format with widths, and arguments that it may name any number of times.
fn check_format(args: &[Value]) -> Result<(), Error> {
    let Some((Some(format), rest)) = args.split_first().map(|(format, rest)| (format.as_str(), rest)) else {
        return Ok(());
    };
    if format.contains('*') && format.contains('%') {
        return Err(Error::new(ErrorKind::InvalidOperation, "format: expected widths in digits, found `*`"));
    }
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widths = numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    let places = format.matches(['%', '{']).count();
    let longest =
        flat(rest).iter().map(length).try_fold(0, |most, found| found.map(|found| most.max(found)))?;
    grown(widths.saturating_add(places.saturating_mul(longest)))
}

/// Rows or columns that are filled up to a number.
fn check_count(args: &[Value]) -> Result<(), Error> {
    let count = largest(&flat(args.get(1..).unwrap_or_default()));
    if count <= GROWN_ELEMENTS {
        return Ok(());
    }
    let detail = format!("expected a count of at most {GROWN_ELEMENTS}, found {count}");
    Err(Error::new(ErrorKind::InvalidOperation, detail))
}

/// The largest whole number among the arguments.
fn largest(args: &[Value]) -> usize {
    args.iter().filter_map(Value::as_usize).max().unwrap_or(0)
}

/// `left * right`: numbers, or a string or list as many times as the other says.
fn times(left: Value, right: Value) -> Result<Value, Error> {
    let repeats =
        |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable);
    let (many, count) = if repeats(&left) { (&left, &right) } else { (&right, &left) };
    if !repeats(many) {
        return product(&left, &right);
    }
    let Some(count) = count.as_usize() else {
        let detail = format!("expected a whole number of times, found {}", count.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    };
    if let Some(text) = many.as_str() {
        grown(text.len().saturating_mul(count))?;
        return Ok(Value::from(text.repeat(count)));
    }
    let length = elements(many)?;
    check_count(&[Value::UNDEFINED, Value::from(length.saturating_mul(count))])?;
    let once: Vec<Value> = many.try_iter()?.collect();
    Ok(Value::from(once.iter().cycle().take(length.saturating_mul(count)).cloned().collect::<Vec<_>>()))
}

fn product(left: &Value, right: &Value) -> Result<Value, Error> {
    let wrong = || {
        let kinds = format!("expected numbers to multiply, found {} and {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, kinds)
    };
    if let (Ok(a), Ok(b)) = (i128::try_from(left.clone()), i128::try_from(right.clone()))
        && (left.is_integer() || left.kind() == ValueKind::Bool)
        && (right.is_integer() || right.kind() == ValueKind::Bool)
    {
        let product = a.checked_mul(b).ok_or_else(wrong)?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
        (Ok(a), Ok(b)) => Ok(Value::from(a * b)),
        _ => Err(wrong()),
    }
}
