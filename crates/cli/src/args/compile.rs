//! What can be typed behind `compile` and `check`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narthex_spec::{Calibration, LayerList, MatFormer, Pass, Scheme, Target, target::UnknownTarget};

/// `narthex compile`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompileArgs {
    /// The model: a name, hf:owner/repo, or a path
    pub(crate) model: String,

    /// Weight scheme: w8, w4, f16 or f32
    #[arg(long, default_value = "w8")]
    pub(crate) scheme: Scheme,

    /// Scale channels by what the layers of a chat model in w8 see in a text: standard or none
    #[arg(long, default_value = "standard", value_name = "CALIBRATION")]
    pub(crate) calibrate: Calibration,

    /// A smaller model out of Gemma 3n E4B: e2b, or inner widths of the layers kept (one for all, or one for each) and
    /// layers left out, as in ffn=8192*10+16384*20,skip=20-24 or ffn=12288
    #[arg(long, value_name = "SIZE")]
    pub(crate) matformer: Option<MatFormer>,

    /// Leave layers out, as in 3,7,12-14, counted from 0, and measure what that costs
    #[arg(long, value_name = "LAYER,...", conflicts_with = "matformer")]
    pub(crate) drop_layers: Option<LayerList>,

    /// Give only the tokens that a text has, or those of a list of ids in JSON (.json), besides special tokens and bytes,
    /// and measure what that costs
    #[arg(long, value_name = "FILE")]
    pub(crate) prune_vocabulary: Option<PathBuf>,

    /// The most tokens of a pruned vocabulary: the most frequent ones, or the first of the list
    #[arg(long, value_name = "N", requires = "prune_vocabulary", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) vocabulary_size: Option<usize>,

    /// Change the graphs for compilers that run the changed form better, and measure what that costs:
    /// grouped-projections, split-heads, linear-as-conv; precomputed-positions holds of every graph and is checked
    #[arg(long = "pass", value_name = "PASS,...", value_delimiter = ',')]
    pub(crate) passes: Vec<Pass>,

    /// Write the stages between checkpoint and package to this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) keep_stages: Option<PathBuf>,

    /// Also compile for an NPU: qnn:x-elite, or several chips as in qnn:x-elite,8-elite
    #[arg(long, value_name = "PROVIDER:CHIP", value_parser = ahead)]
    pub(crate) target: Option<Target>,

    /// The longest sequence on the NPU, in tokens; several, as in 512,4096, give shorter sequences graphs of their own, which
    /// run sooner [default: 2048, or the model's own]
    #[arg(long = "context", value_name = "N,...", value_delimiter = ',', value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=1 << 20))]
    pub(crate) contexts: Vec<usize>,

    /// How many tokens of a prompt the NPU reads at once; several, as in 32,128, are graphs of their own, and a prompt's last
    /// tokens go through the shortest that takes them [default: as suits the model's size]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=1 << 20))]
    pub(crate) prefill: Vec<usize>,

    /// The most bytes of weights in one of the NPU's graphs, beyond which the layers are divided [default: what the NPU
    /// holds]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) part_bytes: Option<u64>,
}

/// `narthex check`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    /// An ONNX file, a folder with some, a checkpoint, or a model's name
    pub(crate) model: String,

    /// The NPU: qnn:x-elite, several chips as in qnn:x-elite,8-elite, or openvino:npu
    #[arg(long, default_value = "qnn:x-elite", value_name = "PROVIDER:CHIP")]
    pub(crate) target: Target,

    /// Give an open dimension an extent, as in batch=1; may be given several times
    #[arg(long, value_name = "DIMENSION=N", value_parser = extent)]
    pub(crate) set: Vec<(String, u64)>,

    /// Write the model with Narthex's own fixes to this folder; the exit code is then for what was written
    #[arg(long, value_name = "DIR")]
    pub(crate) fix: Option<PathBuf>,

    /// Go by the rules alone, even where the vendor's compiler is installed
    #[arg(long)]
    pub(crate) rules_only: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex try-out`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TryOutArgs {
    /// The NPU
    pub(crate) target: Target,

    /// The graph's file
    pub(crate) graph: PathBuf,

    /// The file for the outcome, as JSON
    pub(crate) answer: PathBuf,

    /// A folder for what the compiler tells on the way; the outcome is then that of the provider's control backend
    pub(crate) folder: Option<PathBuf>,
}

/// The target of a compile. What is none is told those that are compiled for ahead of time, and not OpenVINO's.
fn ahead(text: &str) -> Result<Target, String> {
    text.parse().map_err(|error: UnknownTarget| error.ahead_of_time())
}

/// `batch=1` as a dimension's name and its extent.
fn extent(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('=').map(|(name, extent)| (name.trim(), extent.trim().parse()));
    match parts {
        Some((name, Ok(extent))) if !name.is_empty() && (1..=i64::MAX as u64).contains(&extent) => {
            Ok((name.to_owned(), extent))
        }
        _ => Err("expected a dimension's name and a whole number above zero, as in batch=1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_target_of_a_compile_names_those_that_it_takes() {
        assert!(ahead("qnn:x-elite,8-elite").is_ok());
        let told = ahead("qnn:x-elit").unwrap_err();
        assert!(told.contains("x-elite, x2-elite") && !told.contains("openvino"), "{told}");
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
