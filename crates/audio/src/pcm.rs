//! Samples in memory, their encodings without a file, and WAV files of 16-bit samples.

/// Mono samples in -1 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Pcm {
    /// Samples per second.
    pub sample_rate: u32,
    /// The samples.
    pub samples: Vec<f32>,
}

/// Bytes of a sample in a WAV file.
const SAMPLE_BYTES: u32 = 2;

/// Bytes of the header of a WAV file, and those of them that the size of the file does not count.
const HEADER_BYTES: u32 = 44;
const UNCOUNTED_BYTES: u32 = 8;

impl Pcm {
    /// Duration in seconds.
    pub fn duration(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }

    /// Returns a WAV file of 16-bit samples.
    pub fn to_wav(&self) -> Vec<u8> {
        let mut bytes = wav_header(self.sample_rate, Some(self.samples.len())).to_vec();
        bytes.extend(to_i16_le(&self.samples));
        bytes
    }
}

/// Returns the header of a mono WAV file of 16-bit samples, which follow it as [`to_i16_le`] returns them.
///
/// Without a number of samples, or if the file is larger than 4 GiB, the sizes in the header are the largest possible
/// ones; players then read to the end of the stream.
pub fn wav_header(sample_rate: u32, samples: Option<usize>) -> [u8; 44] {
    let counted = HEADER_BYTES - UNCOUNTED_BYTES;
    let data = samples
        .and_then(|samples| u32::try_from(samples).ok()?.checked_mul(SAMPLE_BYTES))
        .filter(|data| data.checked_add(counted).is_some());

    let mut header = [0; HEADER_BYTES as usize];
    header[0..4].copy_from_slice(b"RIFF");
    header[4..8].copy_from_slice(&data.map_or(u32::MAX, |data| data + counted).to_le_bytes());
    header[8..16].copy_from_slice(b"WAVEfmt ");
    header[16..20].copy_from_slice(&16_u32.to_le_bytes());
    header[20..22].copy_from_slice(&1_u16.to_le_bytes());
    header[22..24].copy_from_slice(&1_u16.to_le_bytes());
    header[24..28].copy_from_slice(&sample_rate.to_le_bytes());
    header[28..32].copy_from_slice(&sample_rate.saturating_mul(SAMPLE_BYTES).to_le_bytes());
    header[32..34].copy_from_slice(&2_u16.to_le_bytes());
    header[34..36].copy_from_slice(&16_u16.to_le_bytes());
    header[36..40].copy_from_slice(b"data");
    header[40..44].copy_from_slice(&data.unwrap_or(u32::MAX).to_le_bytes());
    header
}

/// Returns samples as 16-bit integers in little-endian order. Samples beyond -1 to 1 are clipped.
pub fn to_i16_le(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|sample| to_i16(*sample).to_le_bytes()).collect()
}

/// Returns a sample as a 16-bit integer. A sample beyond -1 to 1 is clipped; NaN is silence.
pub(crate) fn to_i16(sample: f32) -> i16 {
    (sample * 32_767.0).round() as i16
}

/// Returns the samples of 16-bit integers in little-endian order. A byte at the end without the other is left out.
pub fn from_i16_le(bytes: &[u8]) -> Vec<f32> {
    let integers =
        bytes.chunks_exact(SAMPLE_BYTES as usize).map(|pair| i16::from_le_bytes([pair[0], pair[1]]));
    integers.map(from_i16).collect()
}

/// Returns the samples of bytes in the μ-law of ITU-T G.711.
pub fn from_mu_law(bytes: &[u8]) -> Vec<f32> {
    /// Offset that makes the segments powers of two.
    const BIAS: i16 = 0x84;
    let sample = |byte: &u8| {
        let code = !byte;
        let magnitude = ((i16::from(code & 0x0f) << 3) + BIAS) << ((code >> 4) & 0x07);
        from_i16(if code & 0x80 == 0 { magnitude - BIAS } else { BIAS - magnitude })
    };
    bytes.iter().map(sample).collect()
}

/// Returns the samples of bytes in the A-law of ITU-T G.711.
pub fn from_a_law(bytes: &[u8]) -> Vec<f32> {
    let sample = |byte: &u8| {
        // Every second bit is inverted.
        let code = byte ^ 0x55;
        let mantissa = (i16::from(code & 0x0f) << 4) + 8;
        let magnitude = match (code >> 4) & 0x07 {
            0 => mantissa,
            segment => (mantissa + 0x100) << (segment - 1),
        };
        from_i16(if code & 0x80 == 0 { -magnitude } else { magnitude })
    };
    bytes.iter().map(sample).collect()
}

/// Returns a 16-bit integer as a sample.
fn from_i16(integer: i16) -> f32 {
    f32::from(integer) / 32_768.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_without_a_file_have_the_samples_of_the_standard() {
        assert_eq!(from_i16_le(&[0, 0x40, 0, 0x80, 7]), [0.5, -1.0]);
        let integers = |samples: Vec<f32>| samples.iter().map(|x| (x * 32_768.0) as i32).collect::<Vec<_>>();
        // Values of the tables of G.711, in 16 bits.
        assert_eq!(integers(from_mu_law(&[0x00, 0x7f, 0x80, 0xff, 0xef])), [-32_124, 0, 32_124, 0, 132]);
        assert_eq!(integers(from_a_law(&[0xd5, 0x55, 0xaa, 0x2a, 0x80])), [8, -8, 32_256, -32_256, 5_504]);
    }

    #[test]
    fn a_wav_file_has_the_sizes_of_its_samples() {
        let pcm = Pcm { sample_rate: 24_000, samples: vec![0.0, 1.0, -1.0, 2.0, f32::NAN, 0.5] };

        let wav = pcm.to_wav();

        assert_eq!(wav.len(), 44 + 12);
        assert_eq!(&wav[..4], b"RIFF");
        assert_eq!(wav[4..8], (36_u32 + 12).to_le_bytes());
        assert_eq!(wav[24..28], 24_000_u32.to_le_bytes());
        assert_eq!(wav[28..32], 48_000_u32.to_le_bytes());
        assert_eq!(wav[40..44], 12_u32.to_le_bytes());
        let samples: Vec<i16> =
            wav[44..].chunks_exact(2).map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]])).collect();
        assert_eq!(samples, [0, 32_767, -32_767, 32_767, 0, 16_384]);
        assert_eq!(pcm.duration(), 6.0 / 24_000.0);
    }

    #[test]
    fn a_stream_of_unknown_length_has_the_largest_sizes() {
        let header = wav_header(16_000, None);
        assert_eq!(header[4..8], [0xff; 4]);
        assert_eq!(header[40..44], [0xff; 4]);
        assert_eq!(wav_header(16_000, Some(1 << 31)), header);
    }
}
