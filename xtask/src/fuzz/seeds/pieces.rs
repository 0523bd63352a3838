//! SentencePiece models: one of each supported kind, and extreme lengths and numbers of pieces.

use super::Input;

/// Encodes a length-delimited field: its tag, the length in five bytes, the content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    bytes.extend(varint(content.len()));
    bytes.extend(content);
    bytes
}

/// Encodes a number as a varint of five bytes.
fn varint(number: usize) -> [u8; 5] {
    [0, 7, 14, 21, 28].map(|shift| (number >> shift) as u8 & 0x7F | if shift < 28 { 0x80 } else { 0 })
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [&[0x15][..], &score.to_le_bytes()].concat();
    field(1, &[field(1, text.as_bytes()), score, vec![0x18, kind]].concat())
}

/// Returns a model of a few letters, with a piece of every type.
fn model(trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
    let kinds = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("  ", 4), ("<x>", 5), ("<0x0A>", 6)];
    let letters = ["▁", "t", "h", "e", "n", "d", "he", "the", "en", "▁the", "▁e", "▁en", "▁end"];
    let mut bytes: Vec<u8> = kinds.iter().flat_map(|(text, kind)| piece(text, 0.0, *kind)).collect();
    bytes.extend(letters.iter().zip(1_u8..).flat_map(|(text, rank)| piece(text, -f32::from(rank), 1)));
    bytes.extend(field(2, trainer));
    bytes.extend(field(3, normalizer));
    bytes
}

/// Trainer settings: BPE with byte fallback.
const BPE: &[u8] = &[0x18, 2, 0x98, 2, 1];

pub(super) fn seeds() -> Vec<Input> {
    let charsmap =
        |units: usize| [&(units as u32 * 4).to_le_bytes()[..], &vec![0; units * 4], b"a\0"].concat();
    let whole = model(BPE, &[]);
    let giant = [&[0x0A][..], &varint(u32::MAX as usize)].concat();
    vec![
        Input::valid("bpe", whole.clone()),
        Input::valid("bpe-as-written", model(BPE, &[0x18, 0, 0x20, 0])),
        Input::valid("unigram", model(&[], &[])),
        Input::valid("charsmap", model(&[], &field(2, &charsmap(256)))),
        Input::bomb("charsmap-short", model(&[], &field(2, &charsmap(256)[..100]))),
        Input::bomb("charsmap-empty", model(&[], &field(2, &0_u32.to_le_bytes()))),
        Input::bomb("length", [whole.clone(), giant].concat()),
        Input::bomb("pieces", [whole, piece("a", 0.0, 1).repeat(600)].concat()),
        Input::bomb(
            "long",
            model(BPE, &[]).into_iter().chain(piece(&"then".repeat(2000), -1.0, 1)).collect::<Vec<_>>(),
        ),
    ]
}
