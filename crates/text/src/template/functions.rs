//! The filters, tests and functions that a template may use: those of Jinja in `transformers`, each measured by
//! [`super::limits`].

use minijinja::{
    Environment, Error, State, Value, filters, functions, tests,
    value::{Rest, ValueOrKwargs},
};

use super::{FUEL, limits, origin::Read, python, syntax};

/// Returns an environment without templates.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    // Only the functions listed here exist, so that a new version of minijinja adds none that is not measured.
    let mut env = Environment::empty();
    env.set_syntax(syntax()?);
    env.set_debug(false);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(100);
    env.set_unknown_method_callback(python::method);
    add_filters(&mut env);
    add_tests(&mut env);
    let dict = Value::from_function(functions::dict);
    let namespace = Value::from_function(functions::namespace);
    for (name, function) in [("dict", dict), ("namespace", namespace)] {
        env.add_function(name, limits::measured(name, Read::Characters, function));
    }
    // The items of a range are created each time that it is read, so it becomes a list.
    let range = Value::from_function(functions::range);
    env.add_function("range", limits::measured("range", Read::FirstLevel, range));
    env.add_function("raise_exception", python::raise);
    limits::install(&mut env);
    Ok(env)
}

fn add_filters(env: &mut Environment<'_>) {
    macro_rules! add {
        ($read:expr, $($name:literal = $filter:expr),+ $(,)?) => {
            $(env.add_filter($name, limits::measured($name, $read, Value::from_function($filter)));)+
        };
    }
    add!(
        Read::FirstLevel,
        "abs" = filters::abs,
        "attr" = filters::attr,
        "bool" = filters::bool,
        "count" = filters::length,
        "d" = filters::default,
        "default" = filters::default,
        "first" = filters::first,
        "items" = filters::items,
        "last" = filters::last,
        "length" = filters::length,
        "round" = filters::round,
    );
    add!(
        Read::Text,
        "capitalize" = filters::capitalize,
        "e" = filters::escape,
        "escape" = filters::escape,
        "float" = filters::float,
        "format" = filters::format,
        "fromjson" = python::from_json,
        "indent" = filters::indent,
        "int" = filters::int,
        "lower" = filters::lower,
        "pprint" = filters::pprint,
        "replace" = filters::replace,
        "safe" = filters::safe,
        "string" = filters::string,
        "title" = filters::title,
        "tojson" = python::to_json,
        "trim" = python::trim,
        "upper" = filters::upper,
    );

    add!(
        Read::Characters,
        "batch" = filters::batch,
        "dictsort" = filters::dictsort,
        "groupby" = filters::groupby,
        "join" = filters::join,
        "lines" = filters::lines,
        "list" = filters::list,
        "map" = filters::map,
        "max" = filters::max,
        "min" = filters::min,
        "reject" = filters::reject,
        "rejectattr" = filters::rejectattr,
        "reverse" = filters::reverse,
        "select" = filters::select,
        "selectattr" = filters::selectattr,
        "slice" = filters::slice,
        "sort" = filters::sort,
        "split" = filters::split,
        "sum" = filters::sum,
        "unique" = filters::unique,
        "zip" = filters::zip,
    );
}

fn add_tests(env: &mut Environment<'_>) {
    macro_rules! add {
        ($($name:literal = $test:expr),+ $(,)?) => {
            $(env.add_test($name, $test);)+
        };
    }
    add!(
        "boolean" = tests::is_boolean,
        "defined" = tests::is_defined,
        "divisibleby" = tests::is_divisibleby,
        "escaped" = tests::is_safe,
        "even" = tests::is_even,
        "false" = tests::is_false,
        "filter" = tests::is_filter,
        "float" = tests::is_float,
        "int" = tests::is_integer,
        "integer" = tests::is_integer,
        "iterable" = python::is_iterable,
        "mapping" = tests::is_mapping,
        "none" = tests::is_none,
        "number" = tests::is_number,
        "odd" = tests::is_odd,
        "safe" = tests::is_safe,
        "sameas" = limits::is_same,
        "sequence" = python::is_sequence,
        "string" = tests::is_string,
        "test" = tests::is_test,
        "true" = tests::is_true,
        "undefined" = tests::is_undefined,
    );

    let eq = Value::from_function(tests::is_eq);
    let ne = Value::from_function(tests::is_ne);
    let lt = Value::from_function(tests::is_lt);
    let le = Value::from_function(tests::is_le);
    let gt = Value::from_function(tests::is_gt);
    let ge = Value::from_function(tests::is_ge);
    let comparisons: [(&[&'static str], Value); 11] = [
        (&["eq", "equalto", "=="], eq),
        (&["ne", "!="], ne),
        (&["lt", "lessthan", "<"], lt),
        (&["le", "<="], le),
        (&["gt", "greaterthan", ">"], gt),
        (&["ge", ">="], ge),
        (&["in"], Value::from_function(tests::is_in)),
        (&["lower"], Value::from_function(tests::is_lower)),
        (&["upper"], Value::from_function(tests::is_upper)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
    ];
    for (names, test) in comparisons {
        for &name in names {
            let test = limits::measured(name, Read::Text, test.clone());
            env.add_test(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                test(state, args).map(|value| value.is_true())
            });
        }
    }
}
