//! Buffers that start at a cache line, so that no vector load crosses a line.

/// Size of a cache line and of the widest vector.
pub(crate) const LINE: usize = 64;

/// Buffer of bytes that starts at a multiple of [`LINE`].
#[derive(Debug, Default)]
pub(crate) struct AlignedBytes {
    buffer: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// Creates a buffer of `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let buffer = vec![0; len + LINE - 1];
        // An interpreter such as Miri may not support `align_offset`. Alignment affects only the speed.
        let start = Some(buffer.as_ptr().align_offset(LINE)).filter(|start| *start < LINE).unwrap_or(0);
        Self { buffer, start, len }
    }

    /// Ensures that the buffer has `len` bytes, and returns them. Their contents are unspecified.
    pub(crate) fn reserve(&mut self, len: usize) -> &mut [u8] {
        if self.len < len {
            *self = Self::zeros(len);
        }
        &mut self.as_mut_slice()[..len]
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.start + self.len]
    }
}
