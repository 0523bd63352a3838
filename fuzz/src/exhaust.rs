//! Use of everything that a parser has accepted, which reveals defects that the parser has missed.

use narthex_checkpoint::{Checkpoint, WeightSource};
use narthex_compile::quant::Plan;
use narthex_spec::{Recipe, Scheme};
use narthex_text::{
    template::ChatTemplate,
    tokenizer::{Specials, Tokenizer},
};

/// Text with everything that tokenizers treat specially: letters, digits, combining marks, spaces, special tokens, and
/// characters of four bytes.
const TEXT: &str =
    "Hello wörld 123,  it's\t<|im_start|>user\n[CLS] 漢字 🙂 e\u{301} \u{FDD0}<0x0A>\r\n▁the end";

/// Maximum number of elements of a tensor that are decoded.
const ELEMENTS: usize = 1 << 16;

/// Reads the weights, the tokenizer and the chat template of an opened checkpoint.
pub fn checkpoint(checkpoint: &Checkpoint) {
    let recipe = Recipe::new(Scheme::W8);
    for planned in Plan::new(&checkpoint.architecture, &recipe).weights {
        weight(checkpoint.weights.as_ref(), &planned.name, planned.rows, planned.cols);
    }
    if let Ok(tokenizer) = checkpoint.tokenizer.tokenizer() {
        self::tokenizer(&tokenizer, &checkpoint.tokenizer.package_json().expect("the file of a package"));
    }
    if let Some(template) = &checkpoint.chat_template {
        let _ = ChatTemplate::new(template, checkpoint.special.texts.clone());
    }
}

/// Checks that an opened checkpoint has a weight of its plan in the planned shape.
fn weight(weights: &dyn WeightSource, name: &str, rows: usize, cols: usize) {
    let weight = weights.weight(name).expect("a weight that the census has seen");
    assert_eq!((weight.rows_len(), weight.cols()), (rows, cols), "{name}");
    let mut row = vec![0.0; cols.min(ELEMENTS)];
    if cols <= ELEMENTS {
        weight.read_row(0, &mut row);
        weight.read_row(rows - 1, &mut row);
    }
    if rows.saturating_mul(cols) <= ELEMENTS {
        assert_eq!(weight.to_f32().len(), rows * cols);
    }
}

/// Encodes and decodes texts. `stored` is the `tokenizer.json` that a package would store. It must be accepted and give the
/// same tokens.
pub fn tokenizer(tokenizer: &Tokenizer, stored: &[u8]) {
    let size = tokenizer.vocab_size();
    let again = Tokenizer::from_json(stored).expect("the tokenizer of the file of a package");
    for specials in [Specials::Parse, Specials::AsText] {
        if let Ok(tokens) = tokenizer.encode(TEXT, specials) {
            assert!(tokens.iter().all(|&token| (token as usize) < size), "{tokens:?} of {size}");
            assert_eq!(again.encode(TEXT, specials).ok().as_ref(), Some(&tokens));
            tokenizer.decode(&tokens);
        }
    }
    let _ = tokenizer.encode_document(TEXT);
    tokenizer.decode(&[0, u32::MAX, size as u32]);
    for token in 0..size.min(512) as u32 {
        tokenizer.token_bytes(token);
        tokenizer.id_text(token);
    }
}
