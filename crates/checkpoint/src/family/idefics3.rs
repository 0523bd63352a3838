//! Idefics3, as SmolVLM is one: a Llama, and a vision tower whose pictures are divided into tiles.

use serde::Deserialize;
use serde_json::json;

use super::{Decoder, HfFamily, HfReader, gemma::SIGLIP_NAMES, llama};
use crate::{
    error::Result,
    hf::{config::Config, vision},
    limits::unsupported,
    names::NameTable,
};

/// `Idefics3ForConditionalGeneration` (`Idefics3Config`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Idefics3ForConditionalGeneration"],
    model_type: "idefics3",
    names: &HF_NAMES,
    read: HfReader::Decoder(hf),
};

const SIGLIP: NameTable = NameTable { base: Some(&llama::HF_NAMES), outer: SIGLIP_NAMES, ..NameTable::NONE };

const HF_NAMES: NameTable = NameTable {
    base: Some(&SIGLIP),
    prefixes: &["model.text_model.", "model.vision_model.", "model.", ""],
    outer: &[("connector.linear", "connector.modality_projection.proj")],
    ..llama::HF_NAMES
};

/// Keys of the whole model.
#[derive(Debug, Deserialize)]
struct Idefics3Keys {
    #[serde(default)]
    tie_word_embeddings: bool,
}

fn hf(config: &Config) -> Result<Decoder> {
    let vision = vision::idefics3(config)?;
    let Idefics3Keys { tie_word_embeddings } = config.keys()?;
    let text = config.part("text_config", json!({}))?;
    match text.model_type() {
        None | Some("llama") => {}
        Some(other) => return Err(unsupported("text_config.model_type", "llama", other)),
    }
    let mut decoder = llama::hf(&text.with(json!({"tie_word_embeddings": tie_word_embeddings}))?)?;
    decoder.arch.vision = vision.map(Box::new);
    Ok(decoder)
}
