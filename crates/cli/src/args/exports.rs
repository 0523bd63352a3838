//! What can be typed of exports: `narthex import`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narthex_spec::ModelName;

/// `narthex import`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ImportArgs {
    /// A folder with an ONNX export (onnxruntime-genai, Optimum, transformers.js, sentence-transformers), or one file of it
    pub(crate) path: PathBuf,

    /// The package's name [default: the folder's]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<ModelName>,

    /// The graph to take of several, as in onnx/model_q4.onnx [default: the one without a suffix]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<String>,
}
