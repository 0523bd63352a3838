//! Writer of an external data file. It writes one tensor at a time, so that only one is in memory.

use std::io::{self, Write};

/// Alignment of tensors in bytes, for memory mapping and wide loads.
const ALIGNMENT: u64 = 64;

/// Appends tensors to a file.
#[derive(Debug)]
pub struct ExternalWriter<W> {
    file: W,
    offset: u64,
}

/// Range of a tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl<W: Write> ExternalWriter<W> {
    /// Creates a writer at the beginning of an empty file.
    pub fn new(file: W) -> Self {
        Self { file, offset: 0 }
    }

    /// Appends one tensor.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<ByteRange> {
        let range = self.begin(bytes.len() as u64)?;
        self.append(bytes)?;
        Ok(range)
    }

    /// Begins a tensor of `length` bytes, which [`Self::append`] then writes in pieces.
    pub fn begin(&mut self, length: u64) -> io::Result<ByteRange> {
        let padding = self.offset.next_multiple_of(ALIGNMENT) - self.offset;
        self.file.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
        let range = ByteRange { offset: self.offset + padding, length };
        self.offset = range.offset + length;
        Ok(range)
    }

    /// Appends the next bytes of the tensor that was begun last.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Returns the end of the tensor that was begun last.
    pub fn length(&self) -> u64 {
        self.offset
    }

    /// Returns the file.
    pub fn file(&self) -> &W {
        &self.file
    }

    /// Flushes and returns the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.file.flush()?;
        Ok(self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned() {
        let mut writer = ExternalWriter::new(Vec::new());
        assert_eq!(writer.write(&[1; 3]).unwrap(), ByteRange { offset: 0, length: 3 });
        assert_eq!(writer.write(&[2; 64]).unwrap(), ByteRange { offset: 64, length: 64 });
        assert_eq!(writer.write(&[3; 1]).unwrap(), ByteRange { offset: 128, length: 1 });
        assert_eq!(writer.begin(2).unwrap(), ByteRange { offset: 192, length: 2 });
        for piece in [[4], [5]] {
            writer.append(&piece).unwrap();
        }
        assert_eq!(writer.length(), 194);
        let bytes = writer.finish().unwrap();
        assert_eq!((bytes.len(), bytes[2], bytes[3], bytes[64], bytes[128]), (194, 1, 0, 2, 3));
        assert_eq!(bytes[192..], [4, 5]);
    }
}
