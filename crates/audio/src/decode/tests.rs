//! Files of every format, invalid files, and streams with changing parameters.

use std::{f64::consts::PI, fs, io::Cursor, path::Path};

use super::*;
use crate::Pcm;

/// Duration of the tones in seconds.
const SECONDS: f64 = 0.6;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn decode(bytes: Vec<u8>) -> Result<Vec<f32>, AudioError> {
    let mut samples = Vec::new();
    for chunk in Decoder::open(Cursor::new(bytes))? {
        samples.extend(chunk?);
    }
    Ok(samples)
}

/// Amplitude of the tone of 1 kHz in samples, and the root mean square of the rest.
fn tone(samples: &[f32]) -> (f64, f64) {
    let step = 2.0 * PI * 1_000.0 / f64::from(SPEECH_RATE);
    let mean = |part: fn(f64) -> f64| {
        let sum: f64 =
            samples.iter().enumerate().map(|(at, sample)| f64::from(*sample) * part(step * at as f64)).sum();
        2.0 * sum / samples.len() as f64
    };
    let (sine, cosine) = (mean(f64::sin), mean(f64::cos));
    let rest = samples.iter().enumerate().map(|(at, sample)| {
        let angle = step * at as f64;
        (f64::from(*sample) - sine * angle.sin() - cosine * angle.cos()).powi(2)
    });
    (sine.hypot(cosine), (rest.sum::<f64>() / samples.len() as f64).sqrt())
}

/// Checks that samples are the tone, with at most some seconds of silence beside it.
fn assert_tone(name: &str, samples: &[f32], silence: f64) {
    let seconds = samples.len() as f64 / f64::from(SPEECH_RATE);
    assert!((seconds - SECONDS).abs() <= silence, "{name}: {seconds} s");
    // Whole periods from the middle, away from the silence.
    let (amplitude, rest) = tone(&samples[2_400..2_400 + 4_000]);
    assert!((amplitude - 0.5).abs() < 0.03, "{name}: amplitude {amplitude}");
    assert!(rest < 0.03, "{name}: other sound {rest}");
}

#[test]
fn every_format_gives_the_tone() {
    let exact = 0.001;
    let files = [
        ("tone.flac", exact),
        ("flac.ogg", exact),
        ("alac.m4a", exact),
        ("mulaw.wav", exact),
        ("tone.aiff", exact),
        ("adpcm.wav", 0.17),
        ("tone.mp3", exact),
        ("tone.ogg", exact),
        ("tone.mkv", 0.03),
        ("tone.opus", exact),
        ("surround.opus", exact),
        ("tone.webm", 0.03),
        ("opus.mp4", 0.03),
        ("live.webm", 0.03),
        // The encoder's delay is not removed.
        ("tone.m4a", 0.06),
        ("tone.aac", 0.06),
        ("live.mp4", 0.06),
    ];
    for (name, silence) in files {
        match decode(fixture(name)) {
            Ok(samples) => assert_tone(name, &samples, silence),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// A WAV file with the fields of its format, and its data.
struct Wav {
    format: u16,
    channels: u16,
    rate: u32,
    bits: u16,
    /// Size of the data in the header.
    stated: u32,
    data: Vec<u8>,
}

impl Wav {
    /// The tone in all channels, as integers or floats (format 3) of a width.
    fn tone(format: u16, channels: u16, rate: u32, bits: u16) -> Self {
        let count = (f64::from(rate) * SECONDS) as usize;
        let mut data = Vec::new();
        for at in 0..count {
            let sample = 0.5 * (2.0 * PI * 1_000.0 * at as f64 / f64::from(rate)).sin();
            let scaled = sample * 2_f64.powi(i32::from(bits) - 1);
            let bytes = match (format, bits) {
                (3, 32) => (sample as f32).to_le_bytes().to_vec(),
                (3, _) => sample.to_le_bytes().to_vec(),
                // 8-bit samples are unsigned.
                (_, 8) => vec![(scaled + 128.0) as u8],
                _ => (scaled as i32).to_le_bytes()[..usize::from(bits / 8)].to_vec(),
            };
            (0..channels).for_each(|_| data.extend(&bytes));
        }
        Self { format, channels, rate, bits, stated: data.len() as u32, data }
    }

    fn bytes(&self) -> Vec<u8> {
        let block = self.channels.wrapping_mul(self.bits / 8);
        let mut bytes = b"RIFF".to_vec();
        bytes.extend(self.stated.saturating_add(36).to_le_bytes());
        bytes.extend(b"WAVEfmt ");
        bytes.extend(16_u32.to_le_bytes());
        bytes.extend(self.format.to_le_bytes());
        bytes.extend(self.channels.to_le_bytes());
        bytes.extend(self.rate.to_le_bytes());
        bytes.extend(self.rate.wrapping_mul(u32::from(block)).to_le_bytes());
        bytes.extend(block.to_le_bytes());
        bytes.extend(self.bits.to_le_bytes());
        bytes.extend(b"data");
        bytes.extend(self.stated.to_le_bytes());
        bytes.extend(&self.data);
        bytes
    }
}

#[test]
fn wav_files_of_every_width_rate_and_number_of_channels_are_read() {
    for (format, bits) in [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)] {
        for (rate, channels) in [(8_000, 1), (16_000, 1), (44_100, 2), (48_000, 8), (192_000, 3)] {
            let name = format!("format {format}, {bits} bits, {rate} Hz, {channels} channels");
            let samples = decode(Wav::tone(format, channels, rate, bits).bytes()).expect(&name);
            // The channel of low-frequency effects is silent in the mix.
            assert_tone(&name, &samples, 0.001);
        }
    }
}

#[test]
fn our_own_files_are_read() {
    let samples: Vec<f32> = (0..16_000).map(|at| (at as f32 * 0.1).sin() * 0.9).collect();
    let decoded = decode(Pcm { sample_rate: SPEECH_RATE, samples: samples.clone() }.to_wav()).unwrap();
    assert_eq!(decoded.len(), samples.len());
    assert!(samples.iter().zip(&decoded).all(|(left, right)| (left - right).abs() < 1e-4));

    // A stream of unknown length ends with its data.
    let mut stream = crate::pcm::wav_header(SPEECH_RATE, None).to_vec();
    stream.extend(crate::pcm::to_i16_le(&samples));
    assert_eq!(decode(stream).unwrap(), decoded);
}

#[test]
fn invalid_files_are_explained() {
    let wav = |change: fn(&mut Wav)| {
        let mut wav = Wav::tone(1, 1, 16_000, 16);
        change(&mut wav);
        wav.bytes()
    };
    let cases = [
        (Vec::new(), "found an empty file"),
        (b"Dear Sir or Madam, please find ...".to_vec(), "found a file that starts with \"Dear Sir or "),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec(), "found a file that starts with"),
        (wav(|wav| wav.rate = 0), "found"),
        (wav(|wav| wav.rate = 7_999), "found 7999 Hz"),
        (wav(|wav| wav.rate = 192_001), "found 192001 Hz"),
        (wav(|wav| wav.rate = u32::MAX), "found 4294967295 Hz"),
        (wav(|wav| wav.channels = 0), "found"),
        (wav(|wav| wav.channels = 9), "found 9"),
        (wav(|wav| wav.channels = u16::MAX), "found"),
        (wav(|wav| wav.format = 0x161), "unsupported wave format"),
        (wav(|wav| wav.data.truncate(9_600)), "found its end after 0.3 s of audio"),
        (wav(|wav| (wav.stated, wav.data) = (0, Vec::new())), "found a WAV file without samples"),
        (fixture("tone.m4a")[..200].to_vec(), "expected"),
        (fixture("tone.webm")[..100].to_vec(), "expected"),
    ];
    for (bytes, expect) in cases {
        let error = decode(bytes).map(|samples| samples.len()).expect_err(expect).to_string();
        assert!(error.contains("expected ") && error.contains(expect), "{error}, not {expect}");
    }
}

#[test]
fn a_file_that_is_too_long_is_refused_in_time() {
    let wav = Pcm { sample_rate: SPEECH_RATE, samples: vec![0.1; 5 * SPEECH_RATE as usize] }.to_wav();
    let decode = |limit| Decoder::open(Cursor::new(wav.clone())).unwrap().at_most(limit).collect::<Vec<_>>();

    let refused = decode(2);
    assert!(refused.len() <= 3);
    assert!(matches!(refused.last(), Some(Err(AudioError::TooLong { seconds: 2 }))));
    assert!(decode(5).iter().all(Result::is_ok));
}

#[test]
fn a_failing_reader_is_an_error() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    impl std::io::Seek for Failing {
        fn seek(&mut self, _: std::io::SeekFrom) -> std::io::Result<u64> {
            Ok(7)
        }
    }
    let error = Decoder::open(Failing).err().unwrap();
    assert_eq!(error.to_string(), "reading the audio failed: the disk is gone");
}

#[test]
fn the_stated_duration_is_known_before_the_end() {
    for name in ["tone.flac", "mulaw.wav", "tone.mp3", "tone.m4a", "tone.webm", "tone.opus"] {
        let decoder = Decoder::open(Cursor::new(fixture(name))).unwrap();
        let seconds = decoder.stated_duration().expect(name);
        assert!((seconds - SECONDS).abs() < 0.05, "{name}: {seconds}");
    }
}

#[test]
fn files_that_end_early_are_errors_unless_they_are_streams() {
    let files = [
        ("tone.flac", false),
        ("mulaw.wav", false),
        ("adpcm.wav", false),
        ("tone.aiff", false),
        ("tone.m4a", false),
        ("alac.m4a", false),
        ("tone.ogg", false),
        ("tone.opus", false),
        ("flac.ogg", false),
        ("tone.webm", false),
        ("tone.mkv", false),
        ("tone.mp3", true),
        ("tone.aac", true),
        ("live.webm", true),
    ];
    for (name, stream) in files {
        let mut bytes = fixture(name);
        bytes.truncate(bytes.len() * 4 / 5);
        match decode(bytes) {
            Ok(samples) => {
                assert!(stream, "{name} is accepted");
                let share = samples.len() as f64 / f64::from(SPEECH_RATE) / SECONDS;
                assert!((0.6..0.9).contains(&share), "{name}: {share}");
            }
            Err(error) => assert!(!stream && error.to_string().contains("expected "), "{name}: {error}"),
        }
    }
}
