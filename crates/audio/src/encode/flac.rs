//! FLAC streams (RFC 9639), whose header states no length.

use flac_codec::encode::{FlacStreamWriter, Options};

use crate::{AudioError, encode::output::Output, pcm::to_i16};

/// Number of samples in a frame.
const FRAME: u16 = 4_096;

/// Bits of a sample.
const BITS: u8 = 16;

pub(super) struct FlacStream {
    rate: u32,
    writer: FlacStreamWriter<Output>,
    output: Output,
    /// Samples of the next frame.
    pending: Vec<i32>,
}

impl FlacStream {
    pub(super) fn new(rate: u32) -> Self {
        use std::io::Write;

        let mut output = Output::default();
        // Writing to memory cannot fail.
        let _ = output.write_all(&header(rate));
        let writer = FlacStreamWriter::new(output.clone(), Options::default());
        Self { rate, writer, output, pending: Vec::new() }
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, AudioError> {
        self.pending.extend(samples.iter().map(|sample| i32::from(to_i16(*sample))));
        let whole = self.pending.len() / usize::from(FRAME) * usize::from(FRAME);
        let rest = self.pending.split_off(whole);
        let frames = std::mem::replace(&mut self.pending, rest);
        for frame in frames.chunks_exact(usize::from(FRAME)) {
            self.write(frame)?;
        }
        Ok(self.output.take())
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>, AudioError> {
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.write(&last)?;
        }
        Ok(self.output.take())
    }

    fn write(&mut self, samples: &[i32]) -> Result<(), AudioError> {
        self.writer
            .write(self.rate, 1, u32::from(BITS), samples)
            .map_err(|error| AudioError::Encode { format: "flac", reason: error.to_string() })
    }
}

/// Returns the signature and the block of stream information of a mono stream. Unknown values are 0.
fn header(rate: u32) -> Vec<u8> {
    let mut header = b"fLaC".to_vec();
    // The last block, of type 0, with 34 bytes.
    header.extend([0x80, 0, 0, 34]);
    header.extend(FRAME.to_be_bytes());
    header.extend(FRAME.to_be_bytes());
    // The sizes of frames.
    header.extend([0; 6]);
    // 20 bits of the rate, 3 of the channels, 5 of the bits of a sample, and 36 of the number of samples.
    let fields = u64::from(rate) << 44 | u64::from(BITS - 1) << 36;
    header.extend(fields.to_be_bytes());
    // The digest of the samples.
    header.extend([0; 16]);
    header
}
