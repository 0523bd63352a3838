//! Divisors of numbers.

/// Returns the largest number that divides both; the other one if one of them is 0.
pub fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_the_largest() {
        let check = |a, b, expect| assert_eq!(greatest_common_divisor(a, b), expect, "{a} and {b}");
        check(12, 18, 6);
        check(18, 12, 6);
        check(7, 5, 1);
        check(0, 4, 4);
        check(4, 0, 4);
        check(usize::MAX, usize::MAX, usize::MAX);
    }
}
