//! `narthex fill`: masked tokens, predicted by a masked language model, or a continuation of the text.

use narthex_gateway::{
    Gateway,
    models::ModelKind,
    request::{Filling, Fillings, MaskPredictOutput, MaskRequest, RefineRequest},
};
use serde::Serialize;

use crate::{args::FillArgs, bars::Bars, interrupt, output};

#[derive(Serialize)]
struct Masks<'a> {
    model: &'a str,
    text: &'a str,
    masks: Vec<Vec<Token<'a>>>,
}

#[derive(Serialize)]
struct GeneratedText<'a> {
    model: &'a str,
    text: &'a str,
    generated: &'a str,
    tokens: Vec<Token<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    token: u32,
    text: &'a str,
    score: f64,
}

impl<'a> From<&'a Filling> for Token<'a> {
    fn from(filling: &'a Filling) -> Self {
        Self { token: filling.token, text: &filling.text, score: filling.score }
    }
}

/// Predicts masked tokens, or generates the requested number of tokens.
pub(crate) fn run(gateway: &Gateway, args: &FillArgs) -> anyhow::Result<()> {
    super::check_texts("text", &[&args.text], "pass it as an argument")?;
    let cancel = interrupt::cancel();
    let model = super::load(gateway, &args.model, &[ModelKind::Masked], &Bars::new())?.id();
    match args.generate {
        Some(tokens) => {
            let request = RefineRequest { rounds: args.rounds, ..RefineRequest::new(&args.text, tokens) };
            print_generated(args, &gateway.refine(&model, &request, cancel)?)
        }
        None => {
            let request = MaskRequest { text: args.text.clone(), top_k: args.top_k };
            print_masks(args, &gateway.fill(&model, &request, cancel)?)
        }
    }
}

fn print_generated(args: &FillArgs, found: &MaskPredictOutput) -> anyhow::Result<()> {
    if !args.json {
        return output::line(&found.text);
    }
    output::json(&GeneratedText {
        model: &args.model,
        text: &found.text,
        generated: &found.generated,
        tokens: found.tokens.iter().map(Token::from).collect(),
    })
}

fn print_masks(args: &FillArgs, found: &Fillings) -> anyhow::Result<()> {
    if args.json {
        let masks = found.masks.iter().map(|mask| mask.iter().map(Token::from).collect()).collect();
        return output::json(&Masks { model: &args.model, text: &args.text, masks });
    }
    for (number, mask) in (1..).zip(&found.masks) {
        for filling in mask {
            output::line(format!("{number}\t{:.4}\t{}", filling.score, filling.text.trim()))?;
        }
    }
    Ok(())
}
