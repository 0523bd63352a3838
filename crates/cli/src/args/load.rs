//! Options of commands that load a model.

use clap::{Args as ClapArgs, Parser};
use narthex_gateway::Config;
use narthex_spec::{
    DeviceMap, DeviceOrder, KvCacheDtype, NpuOptions, NpuPolicy, PlacementChoice, Power, Scheme,
};

use super::{Args, Command};

/// Heading of the options that only chat and text models have.
const DECODERS: &str = "Options for loading a chat or text model";

/// Smallest number of tokens of a conversation.
const MIN_CONTEXT: usize = 16;

/// Smallest memory for the KV cache of a model in MiB. With less, even the smallest chat models hold only a few tokens.
const MIN_KV_BUDGET: usize = 4;

/// Options of loading any model.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(next_help_heading = "Options for loading a model")]
pub(crate) struct LoadArgs {
    /// Weight scheme: w8, w4, f16, f32, w8a16, w8a8 or w4a16 [default: the installed one, or w8]
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,

    /// Devices to try in order, as in qnn,directml,cpu; or a preset: auto, snapdragon, ryzen-ai, core-ultra, apple,
    /// nvidia
    #[arg(long, default_value = "auto", value_name = "ORDER")]
    pub(crate) providers: DeviceOrder,

    /// Devices that parts of a model must run on, or a kind of device: layers=npu; for chat and text models also
    /// layers=npu,head=cpu or prefill=npu,decode=cpu. A model that cannot run there is not loaded
    #[arg(long, value_name = "PART=DEVICE,...")]
    pub(crate) device_map: Option<DeviceMap>,

    /// NPU policy: require, prefer or off
    #[arg(long, default_value = "prefer", value_name = "POLICY")]
    pub(crate) npu: NpuPolicy,

    /// With --npu require: minimum share of multiply-accumulates on the NPU, 0 to 1
    #[arg(long, default_value_t = Config::standard().npu_share, value_name = "SHARE", value_parser = share)]
    pub(crate) npu_share: f64,

    /// Power preset of NPUs and GPUs: burst, balanced or saver
    #[arg(long, default_value_t = Power::Burst, value_name = "PRESET")]
    pub(crate) power: Power,

    /// Options of Qualcomm's NPUs: priority=low|normal|high, vtcm=MIB, rpc-latency=MICROSECONDS [default: normal, all
    /// of the chip's memory, the value of the power preset]
    #[arg(long, value_name = "NAME=VALUE,...")]
    pub(crate) npu_option: Option<NpuOptions>,

    /// Compute threads; 0 uses one per physical core, without the slow cores of a processor that has several kinds
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = threads)]
    pub(crate) threads: usize,
}

/// Options of loading a chat or text model.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub(crate) struct DecoderLoadArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,

    /// Split the model between devices: prefill=qnn,decode=cpu or layers=qnn,head=cpu; auto measures the devices
    /// once and selects the fastest, or the fastest pair for prefill and decode
    #[arg(long, help_heading = DECODERS, value_name = "WHAT=DEVICE,...|auto", conflicts_with = "device_map")]
    pub(crate) place: Option<PlacementChoice>,

    /// Element type of the KV cache on the CPU: i8, f16, f32, or auto, which is the smallest with which the model's
    /// answers stay the same
    #[arg(long, help_heading = DECODERS, default_value_t = Config::standard().kv_cache_dtype, value_name = "DTYPE")]
    pub(crate) kv_cache_dtype: KvCacheDtype,

    /// Maximum number of tokens of a conversation, at least 16; a KV budget that does not hold them is refused [default:
    /// the model's context, or what --kv-budget holds]
    #[arg(long, help_heading = DECODERS, value_name = "TOKENS", value_parser = context)]
    pub(crate) context: Option<usize>,

    /// Memory for the KV cache of each model, in MiB, at least 4 [default: a quarter of the free memory, from 512 to
    /// 16384]
    #[arg(long, help_heading = DECODERS, value_name = "MIB", value_parser = kv_budget)]
    pub(crate) kv_budget: Option<usize>,

    /// Draft model for speculative decoding: an installed small chat model with the same vocabulary; greedy answers
    /// stay the same
    #[arg(long, help_heading = DECODERS, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,

    /// State of the command line before settings were added: `true` if it had no option but the scheme. `None` if no
    /// settings were added.
    #[arg(skip)]
    pub(crate) states_nothing: Option<bool>,
}

impl DecoderLoadArgs {
    /// Returns whether the command line had no option but the scheme.
    pub(crate) fn is_standard(&self) -> bool {
        if let Some(states_nothing) = self.states_nothing {
            return states_nothing;
        }
        let standard = Args::try_parse_from(["narthex", "chat"]).ok().and_then(|args| match args.command {
            Some(Command::Chat(chat)) => Some(chat.load),
            _ => None,
        });
        let mut own = self.clone();
        own.load.scheme = None;
        standard == Some(own)
    }
}

/// Parses a share.
fn share(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    found.ok_or_else(|| format!("expected a number from 0 to 1, found {text:?}"))
}

/// Parses a number of tokens of a conversation.
fn context(text: &str) -> Result<usize, String> {
    let found = text.parse::<usize>().ok().filter(|tokens| *tokens >= MIN_CONTEXT);
    found.ok_or_else(|| format!("expected a number of tokens of at least {MIN_CONTEXT}, found {text:?}"))
}

/// Parses the memory for a KV cache in MiB.
pub(super) fn kv_budget(text: &str) -> Result<usize, String> {
    let found = text.parse::<usize>().ok().filter(|mib| *mib >= MIN_KV_BUDGET);
    found.ok_or_else(|| {
        format!("expected at least {MIN_KV_BUDGET} MiB for the tokens of a conversation, found {text:?}")
    })
}

/// Parses a number of threads. Far more threads than cores only wait for each other.
fn threads(text: &str) -> Result<usize, String> {
    let most = std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(8);
    let found = text.parse::<usize>().ok().filter(|threads| *threads <= most);
    found.ok_or_else(|| format!("expected 0 to {most} threads on this machine, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_threads_that_no_machine_has_are_refused() {
        assert_eq!((threads("0"), threads("8")), (Ok(0), Ok(8)));
        assert!(threads("5000").unwrap_err().contains("on this machine, found \"5000\""));
    }

    #[test]
    fn memory_and_lengths_that_hold_no_conversation_are_refused() {
        assert_eq!((context("16"), kv_budget("4")), (Ok(16), Ok(4)));
        assert!(context("15").unwrap_err().contains("at least 16, found \"15\""));
        assert!(kv_budget("3").unwrap_err().contains("at least 4 MiB"));
    }

    #[test]
    fn options_of_loading_are_told_from_their_defaults() {
        let standard = |words: &[&str]| {
            let args = Args::try_parse_from([&["narthex", "chat"], words].concat()).unwrap();
            let Some(Command::Chat(chat)) = args.command else { panic!("not chat") };
            chat.load.is_standard()
        };
        assert!(standard(&[]) && standard(&["--scheme", "w4"]) && standard(&["--temperature", "0"]));
        assert!(!standard(&["--providers", "cpu"]) && !standard(&["--draft-model", "smollm2:135m"]));
    }
}
