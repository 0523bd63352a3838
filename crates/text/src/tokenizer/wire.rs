//! The wire format of Protocol Buffers, as far as `sentencepiece` needs it: the fields of one message, one after another.

use super::TokenizerError;

/// A field's content.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    /// Integers, flags and enumerations.
    Varint(u64),
    /// Texts, bytes and messages.
    Bytes(&'a [u8]),
    /// The bits of a float.
    Fixed32(u32),
    /// Eight bytes, which no field read here has.
    Fixed64,
}

/// Walks the fields of a message; what is malformed ends the walk.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take(1)? else { return None };
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// The next field and its number.
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed64)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), TokenizerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| TokenizerError::BadModel {
            expected: "fields of a protobuf message".to_owned(),
            found: "an end or a kind that is none".to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_walked_to_the_end_or_the_first_error() {
        let check = |bytes: &[u8], expect: &[Option<(u64, Field<'_>)>]| {
            let found: Vec<_> = Fields::of(bytes).map(Result::ok).collect();
            assert_eq!(found, expect, "{bytes:?}");
        };
        check(&[], &[]);
        check(&[0x08, 0xAC, 0x02], &[Some((1, Field::Varint(300)))]);
        check(
            &[0x12, 2, b'h', b'i', 0x1D, 0, 0, 0x80, 0x3F],
            &[Some((2, Field::Bytes(b"hi"))), Some((3, Field::Fixed32(1f32.to_bits())))],
        );
        check(&[0x09, 1, 2, 3, 4, 5, 6, 7, 8], &[Some((1, Field::Fixed64))]);
        check(&[0x08, 1, 0x12, 3, b'h'], &[Some((1, Field::Varint(1))), None]);
        check(&[0x0B], &[None]);
        check(&[0x08, 0x80], &[None]);
        check(&[0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], &[None]);
    }
}
