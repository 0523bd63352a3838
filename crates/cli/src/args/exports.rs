//! Arguments of `import` and `export`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use narthex_gateway::ExportFormat;
use narthex_spec::{ModelName, arch::Pooling};

/// `narthex import`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ImportArgs {
    /// A folder with an ONNX export (onnxruntime-genai, including a `decoder-pipeline` of Olive or AI Hub,
    /// AMD's `model_generate`, Optimum, transformers.js, sentence-transformers), with a voice (hibari, Kokoro, Piper) or with a
    /// model that transcribes (NeMo, Moonshine),
    /// one file of it, or a file that `narthex export --package` wrote
    pub(crate) path: PathBuf,

    /// Name of the package [default: the name of the folder, or of the file for a voice of Piper]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<ModelName>,

    /// The graph to import if there are several, as in onnx/model_q4.onnx [default: the one without a suffix]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<String>,

    /// Pooling of an embedding model, which makes one vector of a text's rows: mean, cls, max or last [default: as its files state]
    #[arg(long, value_name = "POOLING")]
    pub(crate) pooling: Option<Pooling>,
}

/// `narthex export`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ExportArgs {
    /// The model: a package, with @w4 for one scheme, for genai; for quark a catalogue name, hf:owner/repo or a path
    pub(crate) model: String,

    /// Runtime that reads the export
    #[arg(long, default_value = "genai")]
    pub(crate) format: Format,

    /// Write the package itself into one file, for `narthex import` on another machine
    #[arg(long, conflicts_with_all = ["format", "group"])]
    pub(crate) package: bool,

    /// Group size of the quantisation for quark: 128, 64 or 32 [default: 128]
    #[arg(long, value_name = "N")]
    pub(crate) group: Option<usize>,

    /// Output folder, which must be new or empty; with --package a new file that ends in .narthex
    pub(crate) out: PathBuf,
}

/// Runtime that reads an export.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// onnxruntime-genai
    Genai,
    /// Ryzen AI's model_generate, which makes models for AMD's NPUs: a checkpoint as AMD Quark writes it
    Quark,
}

impl From<Format> for ExportFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Genai => Self::Genai,
            Format::Quark => Self::Quark,
        }
    }
}
