//! The reader of a file, as the demuxers need it.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

/// Bytes of the start of a file in error messages.
const START: u64 = 12;

/// A reader of a file that can be decoded.
pub trait Source: Read + Seek + Send + Sync {}

impl<T: Read + Seek + Send + Sync> Source for T {}

/// A reader with its length.
pub(super) struct SizedSource<S> {
    reader: S,
    length: u64,
}

impl<S: Source> SizedSource<S> {
    /// Measures a reader, and moves it to its start.
    pub(super) fn new(mut reader: S) -> io::Result<Self> {
        let length = reader.seek(SeekFrom::End(0))?;
        reader.rewind()?;
        Ok(Self { reader, length })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the first bytes as text with escapes.
    pub(super) fn start(&mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.reader.by_ref().take(START).read_to_end(&mut bytes)?;
        self.reader.rewind()?;
        Ok(bytes.escape_ascii().to_string())
    }
}

impl<S: Read> Read for SizedSource<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl<S: Seek> Seek for SizedSource<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

impl<S: Source> MediaSource for SizedSource<S> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.length)
    }
}
