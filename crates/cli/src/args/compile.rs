//! Arguments of `compile` and `check`.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args as ClapArgs, Parser};
use narthex_gateway::check::NpuTarget;
use narthex_spec::{
    BlockSize, Budget, Calibration, ContextFactor, LayerList, MatFormer, ModelName, Pass, RangeMethod,
    RoundingMethod, ScalingMethod, Scheme, Target,
    adapter::{AdapterScale, BadAdapterScale},
    arch::Pooling,
    target::UnknownTarget,
};

use super::StoreArgs;

/// `narthex compile`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompileArgs {
    /// The model: a name, hf:owner/repo, or a path
    pub(crate) model: String,

    /// Name of the package [default: the model's name; for a path, the name of the file or folder]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<ModelName>,

    /// Weight scheme: w8, w4, f16, f32, w8a16, w8a8 or w4a16 [default: that of the name, as in model@w4, or w8]
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,

    /// Elements of a weight that share one scale: 16, 32, 64, 128, 256, or channel for one scale per output [default: 32, or
    /// what the scheme and the target's compiler accept]
    #[arg(long, value_name = "N")]
    pub(crate) block: Option<BlockSize>,

    /// Text for the calibration in w8, w8a16, w8a8, w4a16 and by GPTQ and AWQ: standard, none, or a file of text or of JSON lines
    /// (.jsonl) with texts and conversations
    #[arg(long, default_value = "standard", value_name = "CALIBRATION")]
    pub(crate) calibrate: CalibrationChoice,

    /// Ranges of integer activations, from a text: min-max, percentile (without one value of 10,000 at each end), or mse
    /// (with the least squared error) [default: min-max]
    #[arg(long, value_name = "METHOD")]
    pub(crate) ranges: Option<RangeMethod>,

    /// Rounding of 4-bit weights: nearest, or gptq, which compensates errors by the inputs that a text gives to each layer and
    /// takes longer [default: nearest]
    #[arg(long, value_name = "METHOD")]
    pub(crate) rounding: Option<RoundingMethod>,

    /// Scales of the channels between layers, folded into the weights: powers (of two, for weights of 8 bits), none, smooth
    /// (SmoothQuant: balances the ranges of activations and weights), or awq (finer integers for the large channels of 4-bit
    /// weights, searched on a text) [default: powers]
    #[arg(long, value_name = "METHOD")]
    pub(crate) scaling: Option<ScalingMethod>,

    /// Keep 8 bits in the layers that lose most in 4: as many as make the package N percent larger (size=+15%), or as few as
    /// keep the divergence from 8 bits below X nats, estimated on a text (kl=0.05) [default: none]
    #[arg(long, value_name = "LIMIT")]
    pub(crate) budget: Option<Budget>,

    /// Read the bits of each layer, 4 or 8, from a file that --write-plan wrote
    #[arg(long, value_name = "FILE", conflicts_with = "budget")]
    pub(crate) plan: Option<PathBuf>,

    /// Write the bits of each layer, and what it loses in 4 bits, to a file that --plan reads
    #[arg(long, value_name = "FILE")]
    pub(crate) write_plan: Option<PathBuf>,

    /// Print what --write-plan writes
    #[arg(long)]
    pub(crate) print_plan: bool,

    /// Add a LoRA adapter to the weights: a folder of PEFT, a GGUF file for a model in GGUF, or hf:owner/repo; with a factor,
    /// as in poems:0.5. Repeat the option to add several
    #[arg(long, value_name = "ADAPTER[:FACTOR]")]
    pub(crate) lora: Vec<LoraOption>,

    /// Extract a smaller model from Gemma 3n E4B: e2b, or inner widths of the kept layers (one for all, or one for
    /// each) and dropped layers, as in ffn=8192*10+16384*20,skip=20-24 or ffn=12288
    #[arg(long, value_name = "SIZE")]
    pub(crate) matformer: Option<MatFormer>,

    /// Extend the context by this factor with YaRN, as the model cards of Qwen 2.5 describe; `narthex plan` states the
    /// factor of a model. Answers to short prompts may be worse
    #[arg(long, value_name = "FACTOR")]
    pub(crate) yarn: Option<ContextFactor>,

    /// Drop layers, as in 3,7,12-14, counted from 0, and measure the loss
    #[arg(long, value_name = "LAYER,...", conflicts_with = "matformer")]
    pub(crate) drop_layers: Option<LayerList>,

    /// Restrict the vocabulary to the tokens of a text, or to a list of ids in JSON (.json), plus special and byte
    /// tokens, and measure the loss
    #[arg(long, value_name = "FILE")]
    pub(crate) prune_vocabulary: Option<PathBuf>,

    /// Size of the restricted vocabulary: the most frequent tokens, or the first of the list
    #[arg(long, value_name = "N", requires = "prune_vocabulary", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) vocabulary_size: Option<usize>,

    /// Rewrite graphs for compilers that prefer another form, and measure the loss: grouped-projections, split-heads,
    /// linear-as-conv
    #[arg(long = "pass", value_name = "PASS,...", value_delimiter = ',')]
    pub(crate) passes: Vec<Pass>,

    /// Pooling of an embedding model, which makes one vector of a text's rows: mean, cls, max or last [default: as its files state]
    #[arg(long, value_name = "POOLING")]
    pub(crate) pooling: Option<Pooling>,

    /// Compile a language model as a reranker, with the template of Qwen3-Reranker: a document has the probability of the answer
    /// yes. Models with this name or template need no option
    #[arg(long, conflicts_with = "pooling")]
    pub(crate) rerank: bool,

    /// Measure the loss against the model in f32, even if that is large; by default it is measured if the f32 model fits
    /// in free memory and has at most 4 GB
    #[arg(long)]
    pub(crate) certify: bool,

    /// Measure the loss, and keep the package even if the loss is above the bound of its scheme
    #[arg(long)]
    pub(crate) accept_loss: bool,

    /// Write intermediate stages to this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) keep_stages: Option<PathBuf>,

    /// Also compile for an NPU: qnn:x-elite, several chips as in qnn:x-elite,8-elite, openvino:npu for graphs that Intel's
    /// compiler accepts when it loads them, or an Intel chip: openvino:meteor-lake, openvino:arrow-lake, openvino:lunar-lake,
    /// openvino:panther-lake or openvino:npu-5020
    #[arg(long, value_name = "PROVIDER:CHIP", value_parser = aot_target)]
    pub(crate) target: Option<Target>,

    /// Maximum sequence length on the NPU, in tokens; several, as in 512,4096, add faster graphs for shorter sequences
    /// [default: 2048, or the model's maximum]
    #[arg(long = "context", value_name = "N,...", value_delimiter = ',', value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=1 << 20))]
    pub(crate) contexts: Vec<usize>,

    /// Prompt tokens per run of the NPU; several, as in 32,128, add graphs, and the last tokens of a prompt use the
    /// shortest that fits [default: by the model's size]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=1 << 20))]
    pub(crate) prefill: Vec<usize>,

    /// Maximum weights of one NPU graph; larger models are split into parts [default: the limit of the NPU]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) part_bytes: Option<u64>,
}

/// Calibration of a compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CalibrationChoice {
    /// Without a text, or with the one that ships with Narthex.
    Shipped(Calibration),
    /// With the text of a file.
    File(PathBuf),
}

impl CalibrationChoice {
    pub(crate) fn calibration(&self) -> Calibration {
        match self {
            Self::Shipped(calibration) => *calibration,
            Self::File(_) => Calibration::Standard,
        }
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::Shipped(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

impl FromStr for CalibrationChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::File(text.into()), Self::Shipped))
    }
}

/// Adapter of a compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoraOption {
    pub(crate) reference: String,
    pub(crate) scale: AdapterScale,
}

impl FromStr for LoraOption {
    type Err = BadAdapterScale;

    fn from_str(text: &str) -> Result<Self, BadAdapterScale> {
        match text.rsplit_once(':') {
            // What follows the colon of a drive in Windows is no number.
            Some((path, factor)) if factor.parse::<f64>().is_ok() => {
                Ok(Self { reference: path.to_owned(), scale: factor.parse()? })
            }
            _ => Ok(Self { reference: text.to_owned(), scale: AdapterScale::default() }),
        }
    }
}

/// `narthex check`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    /// An ONNX file, a folder with ONNX files, a checkpoint, or a model name
    pub(crate) model: String,

    /// The NPU: qnn:x-elite, several chips as in qnn:x-elite,8-elite, openvino:npu, openvino:lunar-lake, or ryzen-ai
    #[arg(long, default_value = "qnn:x-elite", value_name = "PROVIDER:CHIP")]
    pub(crate) target: NpuTarget,

    /// Set a symbolic dimension, as in batch=1; repeatable
    #[arg(long, value_name = "DIMENSION=N", value_parser = extent)]
    pub(crate) set: Vec<(String, u64)>,

    /// Write the model with Narthex's fixes to this folder; the exit code refers to the fixed model
    #[arg(long, value_name = "DIR")]
    pub(crate) fix: Option<PathBuf>,

    /// Use rules only, even if the vendor's compiler is installed
    #[arg(long)]
    pub(crate) rules_only: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// First argument of the process in which `check` runs a vendor's compiler, so that a crash of the compiler does not
/// end `check`. It is not a subcommand, so that help, suggestions and completions do not show it.
pub(crate) const TRY_OUT: &str = "try-out";

/// The arguments after [`TRY_OUT`].
#[derive(Debug, Parser)]
#[command(name = TRY_OUT)]
pub(crate) struct TryOutArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// The NPU
    pub(crate) target: Target,

    /// The graph's file
    pub(crate) graph: PathBuf,

    /// Output file for the outcome, as JSON
    pub(crate) answer: PathBuf,

    /// Folder for the compiler's traces; the outcome is then that of the provider's control backend
    pub(crate) folder: Option<PathBuf>,
}

/// Parses the target of a compile. Errors list only the targets with graphs of their own, which excludes OpenVINO's other
/// devices.
fn aot_target(text: &str) -> Result<Target, String> {
    text.parse().map_err(|error: UnknownTarget| error.of_compiles())
}

/// Parses `batch=1` as a dimension and its extent.
fn extent(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('=').map(|(name, extent)| (name.trim(), extent.trim().parse()));
    match parts {
        Some((name, Ok(extent))) if !name.is_empty() && (1..=i64::MAX as u64).contains(&extent) => {
            Ok((name.to_owned(), extent))
        }
        _ => Err("expected a dimension name and a positive integer, as in batch=1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_may_have_a_factor() {
        let check = |text: &str, path: &str, scale: &str| {
            let expected = LoraOption { reference: path.to_owned(), scale: scale.parse().unwrap() };
            assert_eq!(text.parse(), Ok(expected));
        };
        check("poems", "poems", "1");
        check("poems:0.5", "poems", "0.5");
        check("C:\\poems", "C:\\poems", "1");
        check("C:\\poems:-2", "C:\\poems", "-2");
        check("hf:owner/poems", "hf:owner/poems", "1");
        check("hf:owner/poems:.5", "hf:owner/poems", "0.5");
        assert!("poems:1e9".parse::<LoraOption>().is_err());
    }

    #[test]
    fn a_wrong_target_of_a_compile_names_those_that_it_takes() {
        assert!(aot_target("qnn:x-elite,8-elite").is_ok());
        let told = aot_target("qnn:x-elit").unwrap_err();
        assert!(told.contains("x-elite, x2-elite") && told.ends_with("panther-lake or npu-5020"), "{told}");
    }

    #[test]
    fn extents_have_a_name_and_a_number() {
        let check = |text: &str, expect: Option<(&str, u64)>| {
            let found = extent(text).ok();
            assert_eq!(found, expect.map(|(name, extent)| (name.to_owned(), extent)), "{text}");
        };
        check("batch=1", Some(("batch", 1)));
        check(" past_length = 448 ", Some(("past_length", 448)));
        check("a=b=2", Some(("a=b", 2)));
        for wrong in ["batch", "batch=", "=1", "batch=0", "batch=-1", "batch=99999999999999999999"] {
            check(wrong, None);
        }
    }
}
