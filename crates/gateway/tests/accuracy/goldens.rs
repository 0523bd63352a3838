//! Reads the references that `bench/goldens/make.py` wrote; its README describes the files.

use std::{fs, path::PathBuf};

use narthex_spec::TokenId;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench/goldens")
}

/// Little-endian file that is read sequentially.
struct Bytes {
    data: Vec<u8>,
    at: usize,
}

impl Bytes {
    fn open(name: &str, magic: &[u8; 8]) -> Self {
        let data = fs::read(folder().join(name)).unwrap();
        assert_eq!(&data[..8], magic, "{name} is of another format; README.md says which");
        Self { data, at: 8 }
    }

    fn words<T>(&mut self, count: usize, read: impl Fn([u8; 4]) -> T) -> Vec<T> {
        let words = self.data[self.at..self.at + 4 * count].chunks_exact(4);
        self.at += 4 * count;
        words.map(|word| read(word.try_into().unwrap())).collect()
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        self.words(count, u32::from_le_bytes)
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        self.words(count, f32::from_le_bytes)
    }

    fn end(&self) {
        assert_eq!(self.at, self.data.len(), "the file is longer than its header says");
    }
}

/// Reference for one prompt.
pub(crate) struct Answer {
    /// Prompt, followed by the reference's greedy answer.
    pub(crate) tokens: Vec<TokenId>,
    /// Index of the answer's first token in `tokens`.
    pub(crate) start: usize,
    /// One position for each token of the answer, with the distribution that chose it.
    pub(crate) positions: Vec<Position>,
}

/// Parts of the reference's distribution at one position.
pub(crate) struct Position {
    /// Logarithm of the sum of the exponentials of all logits.
    pub(crate) log_sum_exp: f32,
    /// Some logits with their tokens: the largest ones, and those of fixed tokens.
    pub(crate) logits: Vec<(TokenId, f32)>,
}

/// Returns the width of a row of logits, and the answer to each prompt.
pub(crate) fn decoder() -> (usize, Vec<Answer>) {
    let mut file = Bytes::open("decoder.bin", b"NXDEC\0\0\x01");
    let [prompts, length, vocab, top, strided] = file.ids(5)[..] else { unreachable!() };
    let fixed = file.ids(strided as usize);
    let position = |file: &mut Bytes| {
        let log_sum_exp = file.floats(1)[0];
        let largest = file.ids(top as usize);
        let mut logits: Vec<_> = largest.into_iter().zip(file.floats(top as usize)).collect();
        logits.extend(fixed.iter().copied().zip(file.floats(strided as usize)));
        Position { log_sum_exp, logits }
    };
    let answers = (0..prompts)
        .map(|_| {
            let start = file.ids(1)[0] as usize;
            let tokens = file.ids(start + length as usize);
            Answer { tokens, start, positions: (0..length).map(|_| position(&mut file)).collect() }
        })
        .collect();
    file.end();
    (vocab as usize, answers)
}

/// Returns the texts and their vectors.
pub(crate) fn encoder() -> Vec<(String, Vec<f32>)> {
    let texts: Vec<String> = serde_json::from_slice(&fs::read(folder().join("texts.json")).unwrap()).unwrap();
    let mut file = Bytes::open("encoder.bin", b"NXENC\0\0\x01");
    let [count, width] = file.ids(2)[..] else { unreachable!() };
    assert_eq!(count as usize, texts.len());
    let vectors = texts.into_iter().map(|text| (text, file.floats(width as usize))).collect();
    file.end();
    vectors
}
