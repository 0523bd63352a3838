//! Operands from the bytes of an input.

use half::f16;

/// Error for inputs that end before all shapes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the input is too short for the shapes of its operands: use a longer one")]
pub(super) struct TooShort;

/// Numbers that kernels treat specially, or from which they could: zeros, numbers without an inverse or a square, the
/// bounds of `exp`, of GELU and of rounding, and those that are not finite.
const SPECIAL: [f32; 16] = [
    0.0,
    -0.0,
    1e-45,
    -1e-39,
    f32::MIN_POSITIVE,
    9.9e-37,
    1e-20,
    127.5,
    -87.0,
    88.0,
    16.0,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// The bytes of an input. Shapes and choices are read first. All other bytes are the elements of the operands, and are
/// repeated as often as needed.
#[derive(Debug)]
pub(super) struct Input<'a> {
    rest: &'a [u8],
    /// Position of the next element, modulo the number of bytes.
    next: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest, next: 0 }
    }

    /// Returns a number from 0 to 65,535, of two bytes.
    fn short(&mut self) -> Result<usize, TooShort> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(TooShort)?;
        self.rest = rest;
        Ok(usize::from(u16::from_le_bytes(*bytes)))
    }

    /// Reads a number from `least` to `most`.
    pub(super) fn number(&mut self, least: usize, most: usize) -> Result<usize, TooShort> {
        Ok(least + self.short()? % (most - least + 1))
    }

    /// Reads one byte, and returns the element that it selects.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Result<T, TooShort> {
        let (byte, rest) = self.rest.split_first().ok_or(TooShort)?;
        self.rest = rest;
        Ok(from[usize::from(*byte) % from.len()])
    }

    /// Returns the bytes that were not read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns elements of one byte.
    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let bytes = (0..len).map(|_| self.element().map_or(0, |[byte]| byte));
        bytes.collect()
    }

    /// Returns elements in half precision.
    pub(super) fn halves(&mut self, len: usize) -> Vec<f16> {
        (0..len).map(|_| self.element().map_or(f16::ZERO, f16::from_le_bytes)).collect()
    }

    /// Returns elements in single precision. A byte states their distribution: any bits, any bits in half precision,
    /// moderate numbers, or moderate and special numbers.
    pub(super) fn floats(&mut self, len: usize) -> Result<Vec<f32>, TooShort> {
        let moderate = |byte: u8| (f32::from(byte) - 120.0) / 32.0;
        let mixed = |byte: u8| match byte.checked_sub(240) {
            Some(index) => SPECIAL[usize::from(index)],
            None => moderate(byte),
        };
        let kind = self.pick(&[0, 1, 2, 3])?;
        let next = |_| match kind {
            0 => self.element().map_or(0.0, f32::from_le_bytes),
            1 => self.element().map_or(0.0, |bytes| f16::from_le_bytes(bytes).to_f32()),
            2 => self.element().map_or(0.0, |[byte]| moderate(byte)),
            _ => self.element().map_or(0.0, |[byte]| mixed(byte)),
        };
        Ok((0..len).map(next).collect())
    }

    /// Returns the bytes of the next element, or `None` if no bytes are left for elements.
    fn element<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = *self.rest.get(self.next.checked_rem(self.rest.len())?)?;
            self.next += 1;
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_elements_repeat() {
        let mut input = Input::new(&[3, 9, 0, 2, 120, 152, 255]);
        assert_eq!(input.pick(&['a', 'b']), Ok('b'));
        assert_eq!(input.number(2, 6), Ok(6));
        assert_eq!(input.floats(4), Ok(vec![0.0, 1.0, 4.21875, 0.0]));
        assert_eq!(input.bytes(3), [152, 255, 120]);
        assert_eq!(input.rest(), [120, 152, 255]);
    }

    #[test]
    fn special_numbers_occur() {
        let floats = Input::new(&[3, 240, 241, 253, 255, 119]).floats(5).unwrap();
        assert_eq!(floats[..3], [0.0, -0.0, f32::INFINITY]);
        assert!(floats[1].is_sign_negative() && floats[3].is_nan() && floats[4] == -0.03125);
        assert_eq!(Input::new(&[0, 0, 0, 128, 63]).floats(1), Ok(vec![1.0]));
        assert_eq!(Input::new(&[1, 0, 60]).floats(1), Ok(vec![1.0]));
    }

    #[test]
    fn an_input_without_elements_gives_zeros() {
        let mut input = Input::new(&[0]);
        assert_eq!(input.floats(2), Ok(vec![0.0; 2]));
        assert_eq!((input.bytes(2), input.halves(1)), (vec![0; 2], vec![f16::ZERO]));
        assert_eq!((input.number(0, 1), input.floats(1)), (Err(TooShort), Err(TooShort)));
    }
}
