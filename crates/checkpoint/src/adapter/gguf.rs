//! Adapters in GGUF, as `convert_lora_to_gguf.py` of llama.cpp writes them: for the weight `blk.0.attn_q.weight`, the
//! matrices `blk.0.attn_q.weight.lora_a` and `….lora_b`.

use std::path::Path;

use super::{AdapterFiles, AdapterFormat, Matrix};
use crate::{
    error::Result,
    gguf::parts::GgufFiles,
    limits::{malformed, unsupported},
};

/// Opens the adapter in the file `path`.
pub(super) fn open(path: &Path) -> Result<AdapterFiles> {
    let GgufFiles { maps, metadata, tensors, .. } = GgufFiles::open(path)?;
    let kind = [metadata.text("general.type")?, metadata.text("adapter.type")?];
    if kind != [Some("adapter"), Some("lora")] {
        let found = kind.map(|name| name.unwrap_or("no type")).join(", ");
        let expected = "a LoRA adapter (general.type adapter, adapter.type lora)";
        return Err(unsupported("content of the adapter", expected, found).in_file(path));
    }
    let Some(alpha) = metadata.float("adapter.lora.alpha")? else {
        return Err(malformed(path, "the key adapter.lora.alpha", "none"));
    };
    let Some(map) = maps.into_iter().next() else { return Err(malformed(path, "tensors", "none")) };

    let mut matrices = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let matrix = [("lora_a", Matrix::Down), ("lora_b", Matrix::Up)]
            .into_iter()
            .find_map(|(end, matrix)| Some((name.strip_suffix(end)?.strip_suffix('.')?, matrix)));
        match matrix {
            Some((weight, matrix)) => matrices.push((weight.to_owned(), matrix, tensor)),
            None => {
                let expected = "only lora_a and lora_b of linear layers; merge the adapter with its own tool";
                return Err(unsupported("tensor of the adapter", expected, name).in_file(path));
            }
        }
    }
    // llama.cpp takes an alpha of 0 for an adapter that states none.
    let factor = |_: &str, rank: usize| Ok(if alpha == 0.0 { 1.0 } else { (alpha / rank as f64) as f32 });
    AdapterFiles::new(AdapterFormat::Gguf, path.to_owned(), map, matrices, factor)
}
