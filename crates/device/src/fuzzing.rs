//! Entry points for fuzz targets: the parts of a package that executors read before ONNX Runtime does, and traces of
//! providers. Not part of the product.

use std::path::Path;

use narthex_engine::{executor::StepPlan, position::Position};
use narthex_spec::{KvPrecision, TokenId, arch::Structure, manifest::Manifest};

use crate::{
    DeviceError,
    dynamic::{self, ExecutorOptions},
    encoder,
    inventory::nvidia,
    speech,
    table::Table,
    trace,
    vocab_subset::VocabSubset,
};

/// Options of an executor that are similar to the product's. No thread is started.
const OPTIONS: ExecutorOptions<'_> = ExecutorOptions {
    threads: 1,
    slots: 4,
    kv_budget: 2 << 30,
    kv_step: 256,
    chunk: 256,
    kv_precision: KvPrecision::F32,
    packed_weights: None,
};

/// Opens a package's tables and names as an executor does, and reads the first and last rows.
///
/// # Errors
/// The errors of [`dynamic::DynamicExecutor::open`] and [`encoder::DynamicEncoder::open`].
pub fn read_package(package: &Path, manifest: &Manifest) -> Result<(), DeviceError> {
    match &manifest.architecture {
        Structure::Decoder(_) | Structure::ImportedDecoder(_) => {
            let parts = dynamic::DecoderParts::read(package, manifest, &OPTIONS)?;
            if let dynamic::DecoderInput::Rows { embedding, .. } = &parts.feed {
                let mut row = vec![0.0; embedding.width()];
                let plan = StepPlan::default();
                let last = Position::token(embedding.vocab() as u32 - 1);
                embedding.write(&plan, Position::token(0), 0, &mut row);
                embedding.write(&plan, last, parts.limits.context - 1, &mut row);
            }
            let kv = &parts.limits.kv;
            kv.bytes(parts.limits.slots, kv.capacity_for(parts.limits.context, parts.limits.context));
        }
        Structure::Encoder(_) | Structure::Embedder(_) | Structure::ImportedEncoder(_) => {
            if let encoder::EncoderInput::Rows { tables, .. } =
                encoder::EncoderParts::read(package, manifest)?.feed
            {
                read_rows(&tables.token);
            }
        }
        Structure::Speech(_) => drop(speech::SpeechParts::read(package, manifest)?),
        // These have no tables.
        Structure::ImportedVoice(_) | Structure::ImportedTranscriber(_) => {}
    }
    Ok(())
}

/// Reads what `nvidia-smi` prints, and returns the number of cards.
pub fn read_cards(bytes: &[u8]) -> usize {
    nvidia::parse(bytes).len()
}

/// Parses a provider's trace, and returns the number of nodes that the provider refused.
pub fn read_trace(bytes: &[u8]) -> usize {
    trace::parse(bytes).len()
}

/// Number of tokens in the vocabulary of [`read_kept_tokens`].
const VOCAB: usize = 1000;

/// Reads the list of the tokens that a package's head keeps, and moves two rows of their logits. Returns the number of
/// tokens.
///
/// # Errors
/// The reason if the list cannot belong to a vocabulary of 1000 tokens.
pub fn read_kept_tokens(bytes: &[u8]) -> Result<usize, String> {
    let tokens: Vec<TokenId> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let subset = VocabSubset::new(VOCAB, tokens).ok_or("the tokens are not a subset")?;
    subset.scatter(&mut [0.0; 2 * VOCAB]);
    Ok(subset.width())
}

fn read_rows(table: &Table) {
    let mut row = vec![0.0; table.cols()];
    table.read_row(0, &mut row);
    table.add_row(table.rows() - 1, &mut row);
}

#[cfg(test)]
mod tests {
    use narthex_compile::pipeline::{self, CompileJob};
    use narthex_spec::{Recipe, Scheme, manifest::Provenance, progress::Quiet};

    use super::*;

    #[test]
    fn cards_are_counted() {
        assert_eq!(read_cards(b"NVIDIA H200, 143771\nno card\n\xff, 1\n"), 2);
    }

    #[test]
    fn numbers_of_a_manifest_are_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let (checkpoint, out) = (folder.path().join("tiny.gguf"), folder.path().join("package"));
        std::fs::write(&checkpoint, narthex_testkit::checkpoint::tiny_llama_gguf(1)).unwrap();
        std::fs::create_dir(&out).unwrap();
        let provenance = Provenance {
            source: "a test".to_owned(),
            checkpoint: [].into(),
            license: None,
            compiler: "0".to_owned(),
        };
        let job = CompileJob {
            checkpoint: &checkpoint,
            name: "tiny".parse().unwrap(),
            recipe: Recipe::new(Scheme::W8),
            runner: None,
            text: None,
            vocabulary: None,
            widths: None,
            measured_bytes: 0,
            out: &out,
            adapters: &[],
            pooling: None,
            rerank: false,
            keep_stages: None,
            provenance,
        };
        let whole = pipeline::compile(job, &Quiet, &false.into()).unwrap();
        read_package(&out, &whole).unwrap();

        let mut heavy = whole.clone();
        heavy.graphs[0].kv[0].heads = 1 << 62;
        heavy.graphs[0].kv[1].head_size = usize::MAX;
        read_package(&out, &heavy).unwrap();

        let mut long = whole.clone();
        long.max_length = usize::MAX;
        assert!(read_package(&out, &long).unwrap_err().to_string().contains("a length of 1 to"));
        let mut tall = whole;
        tall.tables[0].rows = usize::MAX;
        assert!(read_package(&out, &tall).is_err());
    }
}
