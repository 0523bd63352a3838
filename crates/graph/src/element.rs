//! Element types of ONNX tensors.
//!
//! Graphs that Narthex builds use [`DType`]. This wider set is for reading and checking other graphs.

use std::fmt;

use narthex_spec::DType;

/// Element type of a tensor, as an ONNX code (`TensorProto.DataType`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element(i32);

/// Code, name and number of bits of every type whose elements have a size.
const TYPES: &[(i32, &str, u32)] = &[
    (1, "f32", 32),
    (2, "u8", 8),
    (3, "i8", 8),
    (4, "u16", 16),
    (5, "i16", 16),
    (6, "i32", 32),
    (7, "i64", 64),
    (9, "bool", 8),
    (10, "f16", 16),
    (11, "f64", 64),
    (12, "u32", 32),
    (13, "u64", 64),
    (14, "complex64", 64),
    (15, "complex128", 128),
    (16, "bf16", 16),
    (17, "f8e4m3", 8),
    (18, "f8e4m3fnuz", 8),
    (19, "f8e5m2", 8),
    (20, "f8e5m2fnuz", 8),
    (21, "u4", 4),
    (22, "i4", 4),
    (23, "f4e2m1", 4),
    (24, "f8e8m0", 8),
    (25, "u2", 2),
    (26, "i2", 2),
];

impl Element {
    /// No type: the value is not a tensor.
    pub const NONE: Self = Self(0);
    /// String.
    pub const STRING: Self = Self(8);
    /// IEEE 754 double precision.
    pub const F64: Self = Self(11);
    /// Unsigned integer of 16 bits.
    pub const U16: Self = Self(4);
    /// Unsigned integer of 4 bits, two in a byte.
    pub const U4: Self = Self(21);

    /// Returns the type with an ONNX code.
    pub fn from_code(code: i32) -> Self {
        Self(code)
    }

    /// Returns the ONNX code.
    pub fn code(self) -> i32 {
        self.0
    }

    /// Returns the type as a [`DType`], if Narthex computes with it.
    pub fn dtype(self) -> Option<DType> {
        let all =
            [DType::F32, DType::F16, DType::Bf16, DType::U8, DType::I8, DType::I32, DType::I64, DType::Bool];
        all.into_iter().find(|&dtype| self == dtype)
    }

    /// Returns the number of bits of one element, or `None` for strings and unknown types.
    pub fn bits(self) -> Option<u32> {
        TYPES.iter().find(|(code, ..)| *code == self.0).map(|&(_, _, bits)| bits)
    }

    /// Returns the number of bytes of `count` elements. Elements smaller than a byte are packed.
    pub fn bytes(self, count: u64) -> Option<u64> {
        Some(count.checked_mul(u64::from(self.bits()?))?.div_ceil(8))
    }
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Self {
        Self(match dtype {
            DType::F32 => 1,
            DType::U8 => 2,
            DType::I8 => 3,
            DType::I32 => 6,
            DType::I64 => 7,
            DType::Bool => 9,
            DType::F16 => 10,
            DType::Bf16 => 16,
        })
    }
}

impl PartialEq<DType> for Element {
    fn eq(&self, other: &DType) -> bool {
        *self == Self::from(*other)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TYPES.iter().find(|(code, ..)| *code == self.0) {
            Some((_, name, _)) => f.write_str(name),
            None if *self == Self::STRING => f.write_str("string"),
            None if *self == Self::NONE => f.write_str("no tensor"),
            None => write!(f, "type {}", self.0),
        }
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype() {
            Some(dtype) => write!(f, "{dtype:?}"),
            None => write!(f, "{self}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names() {
        let check = |element: Element, name: &str, three: Option<u64>| {
            assert_eq!((element.to_string().as_str(), element.bytes(3)), (name, three));
        };
        check(DType::F32.into(), "f32", Some(12));
        check(DType::Bool.into(), "bool", Some(3));
        check(Element::from_code(22), "i4", Some(2));
        check(Element::F64, "f64", Some(24));
        check(Element::STRING, "string", None);
        check(Element::from_code(99), "type 99", None);
        assert_eq!(Element::F64.bytes(u64::MAX), None);
        assert_eq!(
            (Element::from_code(16).dtype(), Element::from_code(22).dtype()),
            (Some(DType::Bf16), None)
        );
    }
}
