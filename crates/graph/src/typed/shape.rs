//! Arithmetic of shapes whose dimensions may be symbols. Symbols compare by name.

use narthex_spec::dtype::Dim;

use crate::formula;

const ONE: Dim = Dim::Fixed(1);

/// Returns an axis counted from the front.
pub(super) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Returns the shape to which both broadcast; `None` if two dimensions differ and neither is 1.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = long.to_vec();
    for (dim, other) in shape.iter_mut().rev().zip(short.iter().rev()) {
        if *dim == ONE {
            other.clone_into(dim);
        } else if dim != other && *other != ONE {
            return None;
        }
    }
    Some(shape)
}

/// Splits a symbol with an added number, as [`sum`] writes it: `sequence`, `sequence+1`.
fn terms(symbol: &str) -> (&str, i64) {
    match symbol.rsplit_once(['+', '-']) {
        Some((name, _)) => match symbol[name.len()..].parse() {
            Ok(number) => (name, number),
            Err(_) => (symbol, 0),
        },
        None => (symbol, 0),
    }
}

/// Returns a dimension plus a number, which may be negative; `None` if the result is not a valid extent.
pub(super) fn add(dim: &Dim, number: i64) -> Option<Dim> {
    match dim {
        Dim::Fixed(extent) => extent.checked_add_signed(number).map(Dim::Fixed),
        Dim::Symbol(symbol) => {
            let (name, known) = terms(symbol);
            Some(match known.checked_add(number)? {
                0 => Dim::symbol(name),
                number => Dim::Symbol(format!("{name}{number:+}")),
            })
        }
    }
}

/// Returns the dimension of two tensors after concatenation.
pub(super) fn sum(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        (dim, Dim::Fixed(number)) | (Dim::Fixed(number), dim) => add(dim, i64::try_from(*number).ok()?),
        (Dim::Symbol(a), Dim::Symbol(b)) => Some(Dim::Symbol(format!("{a}+{b}"))),
    }
}

/// A number of elements: the product of a number and symbols, in order.
#[derive(Debug, PartialEq)]
struct Count<'a> {
    number: u64,
    symbols: Vec<&'a str>,
}

impl<'a> Count<'a> {
    fn of(shape: impl IntoIterator<Item = &'a Dim>) -> Option<Self> {
        let mut count = Self { number: 1, symbols: Vec::new() };
        for dim in shape {
            match dim {
                Dim::Fixed(extent) => count.number = count.number.checked_mul(*extent)?,
                Dim::Symbol(symbol) => {
                    for factor in factors(symbol) {
                        match factor.parse::<u64>() {
                            Ok(number) => count.number = count.number.checked_mul(number)?,
                            Err(_) => count.symbols.push(factor),
                        }
                    }
                }
            }
        }
        count.symbols.sort_unstable();
        Some(count)
    }

    /// Returns the dimension that has this count when multiplied by `rest`.
    fn divided_by(mut self, rest: &Self) -> Option<Dim> {
        for symbol in &rest.symbols {
            let at = self.symbols.iter().position(|own| own == symbol)?;
            self.symbols.remove(at);
        }
        let number =
            self.number.checked_div(rest.number).filter(|_| self.number.is_multiple_of(rest.number))?;
        Some(match (number, self.symbols.as_slice()) {
            (number, []) => Dim::Fixed(number),
            (1, [symbol]) => Dim::symbol(symbol),
            (number, symbols) => {
                let number = (number != 1).then(|| number.to_string());
                let symbols = symbols
                    .iter()
                    .map(|symbol| if is_sum(symbol) { format!("({symbol})") } else { (*symbol).to_owned() });
                Dim::Symbol(number.into_iter().chain(symbols).collect::<Vec<_>>().join("*"))
            }
        })
    }
}

/// Returns the factors of a symbol: those of a product, or the whole of a sum.
fn factors(symbol: &str) -> Vec<&str> {
    if is_sum(symbol) {
        return vec![symbol];
    }
    let factors = formula::split(symbol, '*').into_iter();
    factors.map(|factor| formula::inside(factor).unwrap_or(factor)).collect()
}

/// Returns true for a symbol that [`sum`] writes.
fn is_sum(symbol: &str) -> bool {
    formula::split(symbol, '+').len() > 1 || terms(symbol).1 != 0
}

/// Returns a dimension divided by a number, if the number divides it.
pub(super) fn divided(dim: &Dim, divisor: u64) -> Option<Dim> {
    Count::of([dim])?.divided_by(&Count { number: divisor, symbols: Vec::new() })
}

/// Returns the output shape of `Reshape`: 0 keeps a dimension, one -1 takes the remaining elements. The result is
/// `None` if the numbers of elements differ.
pub(super) fn reshape(shape: &[Dim], extents: &[i64]) -> Option<Vec<Dim>> {
    let free = extents.iter().position(|&extent| extent == -1);
    let mut made = Vec::with_capacity(extents.len());
    for (axis, &extent) in extents.iter().enumerate() {
        made.push(match extent {
            0 => shape.get(axis)?.clone(),
            _ if Some(axis) == free => ONE,
            _ => Dim::Fixed(u64::try_from(extent).ok()?),
        });
    }
    let left = Count::of(shape)?.divided_by(&Count::of(&made)?)?;
    match free {
        Some(axis) => made[axis] = left,
        None if left == ONE => {}
        None => return None,
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a shape such as `batch 1 64`.
    fn shape(text: &str) -> Vec<Dim> {
        let dim = |word: &str| word.parse().map_or_else(|_| Dim::symbol(word), Dim::Fixed);
        text.split_whitespace().map(dim).collect()
    }

    #[test]
    fn shapes_broadcast_by_name() {
        let check = |a: &str, b: &str, expected: Option<&str>| {
            assert_eq!(broadcast(&shape(a), &shape(b)), expected.map(shape), "{a} with {b}");
        };
        check("batch sequence 64", "64", Some("batch sequence 64"));
        check("1 4 8 36", "1 1 8 36", Some("1 4 8 36"));
        check("batch 1", "1 sequence", Some("batch sequence"));
        check("batch 64", "sequence 64", None);
        check("8 64", "8 32", None);
        check("", "2 3", Some("2 3"));
    }

    #[test]
    fn dimensions_add() {
        let check = |a: &str, b: &str, expected: &str| {
            assert_eq!(sum(&shape(a)[0], &shape(b)[0]), Some(shape(expected)[0].clone()));
        };
        check("3", "4", "7");
        check("past", "1", "past+1");
        check("1", "past+1", "past+2");
        check("past", "sequence", "past+sequence");
        assert_eq!(add(&Dim::symbol("n+1"), -1), Some(Dim::symbol("n")));
        assert_eq!(add(&Dim::Fixed(1), -2), None);
    }

    #[test]
    fn reshapes_keep_the_elements() {
        let check = |from: &str, extents: &[i64], expected: Option<&str>| {
            assert_eq!(reshape(&shape(from), extents), expected.map(shape), "{from} to {extents:?}");
        };
        check("batch sequence 64", &[0, 0, 4, 16], Some("batch sequence 4 16"));
        check("batch sequence 64", &[-1, 64], Some("batch*sequence 64"));
        check("batch*sequence 64", &[-1, 16], Some("4*batch*sequence 16"));
        check("1 8 64", &[1, 8, -1], Some("1 8 64"));
        check("batch past+sequence 64", &[-1, 32], Some("2*batch*(past+sequence) 32"));
        check("2*batch*(past+sequence) 32", &[-1, 64], Some("batch*(past+sequence) 64"));
        check("1 12*units+2 64", &[0, -1, 32], Some("1 2*(12*units+2) 32"));
        check("12*units+2 64", &[-1, 128], None);
        check("2*(n-1) 8", &[-1, 16], Some("n-1 16"));
        check("batch sequence 64", &[0, 0, 4, 8], None);
        check("batch sequence 64", &[3, -1], None);
        check("1 8", &[3, -1], None);
        check("2 0", &[0, 0], None);
    }
}
