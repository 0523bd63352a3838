//! Comparison of a model's figures with the memory of devices. Only [`memories`] reads the machine.

use narthex_check::{Verdict, graph_limit};
use narthex_device::inventory::{self, Accelerator, AcceleratorKind};
use narthex_engine::executor::KvLimits;
use narthex_spec::{OpenVinoDevice, QnnChip, Scheme, Target};
use serde::Serialize;

use super::model_estimate::ModelEstimate;
use crate::config::{KV_STEP, RESERVED};

/// Minimum sequence length that counts as fitting, in tokens.
const SHORTEST: u64 = 512;

/// Name of the CPU.
pub(super) const CPU: &str = "cpu";

/// Name of NPUs.
pub(super) const NPU: &str = "npu";

/// A device of this machine with the sequences that fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceFit {
    /// `cpu`, `gpu` or `npu`.
    pub device: &'static str,
    /// Name for people.
    pub text: String,
    /// Memory in bytes, if the system reports it or the NPU's limit is known.
    pub memory: Option<u64>,
    /// Sequences that fit in each scheme, if the memory is known.
    pub schemes: Vec<SchemeFit>,
}

/// Sequences that fit on a device in one scheme.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SchemeFit {
    /// Scheme.
    pub scheme: Scheme,
    /// Maximum sequence length in tokens; `None` if the model does not fit.
    pub context: Option<u64>,
    /// Reason why the model does not fit.
    pub reason: Option<String>,
}

impl DeviceFit {
    /// Returns whether the model fits in some scheme.
    pub fn fits(&self) -> bool {
        self.schemes.iter().any(|fit| fit.context.is_some())
    }
}

/// Minimum memory for a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MinimumMemory {
    /// Smallest scheme.
    pub scheme: Scheme,
    /// Bytes of memory of a CPU.
    pub memory: u64,
    /// Sequence length in tokens.
    pub context: u64,
}

/// Bytes of a model's weights, of a token in its cache, and of the states of a sequence.
#[derive(Clone, Copy)]
struct ModelSize {
    weights: u64,
    token: u64,
    state: u64,
}

/// A device and its memory.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub(super) device: &'static str,
    pub(super) text: String,
    pub(super) bytes: Option<u64>,
    /// Target of an NPU in the rules.
    pub(super) target: Option<Target>,
}

/// Returns the devices of this machine.
pub(super) fn memories() -> Vec<Memory> {
    let bytes = inventory::memory_bytes();
    let cpu = Memory { device: CPU, text: inventory::cpu().name, bytes, target: None };
    std::iter::once(cpu).chain(inventory::measured().into_iter().map(accelerator)).collect()
}

/// Returns a GPU or NPU. The driver of a Hexagon NPU does not report the chip, so the smallest chip is assumed.
fn accelerator(found: Accelerator) -> Memory {
    let target = match found.driver.as_str() {
        "fastrpc" => Some(Target::Qnn(vec![QnnChip::XElite])),
        "intel_vpu" => Some(Target::OpenVino(OpenVinoDevice::Npu)),
        _ => None,
    };
    let npu = found.kind == AcceleratorKind::Npu;
    let bytes = if npu { target.as_ref().map(graph_limit) } else { found.memory };
    Memory { device: found.kind.describe(), text: found.text, bytes, target: target.filter(|_| npu) }
}

/// Returns the sequences that fit on each device, within a KV budget in bytes.
pub(super) fn machine(estimate: &ModelEstimate, memories: &[Memory], kv_budget: usize) -> Vec<DeviceFit> {
    let mut devices = machine_without_budget(estimate, memories);
    for device in &mut devices {
        let token = match device.device {
            NPU => estimate.npu_token_bytes,
            other => token_bytes(estimate, other),
        };
        let kv = KvLimits {
            bytes_per_token: token as usize,
            bytes_per_slot: estimate.state_bytes as usize,
            step: KV_STEP,
            budget: kv_budget,
        };
        let longest = kv.longest(estimate.longest) as u64;
        device.schemes.iter_mut().for_each(|fit| fit.context = fit.context.map(|tokens| tokens.min(longest)));
    }
    devices
}

/// Returns the sequences that fit into the memory of each device.
fn machine_without_budget(estimate: &ModelEstimate, memories: &[Memory]) -> Vec<DeviceFit> {
    let of_cpu = memories.iter().find(|memory| memory.device == CPU).and_then(|memory| memory.bytes);
    memories
        .iter()
        .map(|memory| DeviceFit {
            device: memory.device,
            text: memory.text.clone(),
            memory: memory.bytes,
            schemes: match (memory.bytes, &memory.target) {
                (None, _) => Vec::new(),
                (Some(_), Some(target)) => on_npu(estimate, target, of_cpu),
                (Some(bytes), None) => in_memory(estimate, bytes, token_bytes(estimate, memory.device)),
            },
        })
        .collect()
}

/// Returns the bytes of a token in the KV cache of a CPU or GPU.
pub(super) fn token_bytes(estimate: &ModelEstimate, device: &str) -> u64 {
    if device == CPU { estimate.cpu_token_bytes() } else { estimate.token_bytes() }
}

fn in_memory(estimate: &ModelEstimate, memory: u64, token: u64) -> Vec<SchemeFit> {
    estimate
        .schemes
        .iter()
        .map(|found| {
            let size = ModelSize { weights: found.bytes, token, state: estimate.state_bytes };
            let context = longest(estimate, memory.saturating_sub(RESERVED), size);
            let reason = context.is_none().then(|| short(estimate, size));
            SchemeFit { scheme: found.scheme, context, reason }
        })
        .collect()
}

/// Returns the reason for too little memory.
fn short(estimate: &ModelEstimate, size: ModelSize) -> String {
    format!("it needs {:.1} GB of memory", needs(estimate, size) as f64 / 1e9)
}

/// Returns the sequences that fit on an NPU. Its weights and cache are in the CPU's memory, which limits them as well.
fn on_npu(estimate: &ModelEstimate, target: &Target, of_cpu: Option<u64>) -> Vec<SchemeFit> {
    estimate
        .schemes
        .iter()
        .filter_map(|found| {
            let on_target = found.targets.iter().find(|known| known.target == *target)?;
            // Each graph holds its weights and the cache of its layers; all graphs share the limit of a program.
            let context = on_target
                .held
                .iter()
                .map(|held| {
                    longest(
                        estimate,
                        held.limit,
                        ModelSize { weights: held.bytes, token: held.token_bytes, state: 0 },
                    )
                })
                .min()
                .flatten()
                .filter(|_| on_target.runs());

            let weights = found.fixed_bytes.unwrap_or(found.bytes);
            let size = ModelSize { weights, token: estimate.npu_token_bytes, state: 0 };
            let beside =
                of_cpu.map_or(context, |memory| longest(estimate, memory.saturating_sub(RESERVED), size));
            let reason = match &on_target.verdict {
                Verdict::Refused { reason } => Some(reason.clone()),
                _ if context.is_none() => Some("its weights leave no room for a cache".to_owned()),
                _ if beside.is_none() => Some(short(estimate, size)),
                _ => None,
            };
            Some(SchemeFit { scheme: found.scheme, context: context.min(beside), reason })
        })
        .collect()
}

/// Returns the maximum sequence length whose cache fits in memory with the weights, up to the model's own.
fn longest(estimate: &ModelEstimate, memory: u64, size: ModelSize) -> Option<u64> {
    let left = memory.checked_sub(size.weights.saturating_add(size.state))?;
    let most = estimate.longest as u64;
    let context = left.checked_div(size.token).map_or(most, |tokens| tokens.min(most));
    (context >= SHORTEST.min(most)).then_some(context)
}

/// Returns the bytes for weights and the shortest sequence.
fn needs(estimate: &ModelEstimate, size: ModelSize) -> u64 {
    let tokens = SHORTEST.min(estimate.longest as u64);
    let sequence = tokens.saturating_mul(size.token).saturating_add(size.state);
    RESERVED.saturating_add(size.weights).saturating_add(sequence)
}

/// Returns the minimum memory, if no device is known to have enough and the CPU is known not to.
pub(super) fn least(estimate: &ModelEstimate, machine: &[DeviceFit]) -> Option<MinimumMemory> {
    if machine.iter().any(DeviceFit::fits)
        || !machine.iter().any(|device| device.device == CPU && device.memory.is_some())
    {
        return None;
    }
    let smallest = estimate.schemes.iter().min_by_key(|found| found.bytes)?;
    Some(MinimumMemory {
        scheme: smallest.scheme,
        memory: needs(
            estimate,
            ModelSize {
                weights: smallest.bytes,
                token: estimate.cpu_token_bytes(),
                state: estimate.state_bytes,
            },
        ),
        context: SHORTEST.min(estimate.longest as u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::plan::{model_estimate::RequiredMemory, tests::estimate};

    fn contexts(longest: usize, memory: u64) -> Vec<Option<u64>> {
        let estimate = estimate(longest);
        let fits = in_memory(&estimate, memory + RESERVED, token_bytes(&estimate, "gpu"));
        fits.into_iter().map(|fit| fit.context).collect()
    }

    #[test]
    fn the_cache_takes_what_the_weights_leave() {
        assert_eq!(contexts(100_000, 10_000_000_000), [Some(2000), Some(6000)]);
        assert_eq!(contexts(4096, 10_000_000_000), [Some(2000), Some(4096)]);
        assert_eq!(contexts(100_000, 8_100_000_000), [None, Some(4100)]);
        assert_eq!(contexts(100, 8_100_000_000), [Some(100), Some(100)]);
        assert_eq!(contexts(100_000, 1_000_000_000), [None, None]);
    }

    #[test]
    fn the_states_of_a_sequence_take_their_room() {
        let estimate = ModelEstimate { state_bytes: 500_000_000, ..estimate(100_000) };
        let memory =
            Memory { device: CPU, text: String::new(), bytes: Some(10_000_000_000 + RESERVED), target: None };
        let context =
            |kv_budget| machine(&estimate, std::slice::from_ref(&memory), kv_budget)[0].schemes[0].context;
        // Tokens take 0.5 MB on the CPU. A budget has whole pages of 256 tokens.
        assert_eq!([1 << 40, 1_000_000_000].map(context), [Some(3000), Some(769)]);
        let minimum = least(&estimate, &machine(&estimate, &[Memory { bytes: Some(1), ..memory }], 1 << 40));
        assert_eq!(minimum.unwrap().memory, RESERVED + 4_000_000_000 + 512 * 500_000 + 500_000_000);
    }

    #[test]
    fn a_cpu_keeps_twice_the_tokens_of_a_gpu() {
        let of = |device| Memory {
            device,
            text: String::new(),
            bytes: Some(10_000_000_000 + RESERVED),
            target: None,
        };
        let found = machine_without_budget(&estimate(100_000), &[of(CPU), of("gpu")]);
        let contexts = found.iter().map(|device| device.schemes[0].context).collect::<Vec<_>>();
        assert_eq!(contexts, [Some(4000), Some(2000)]);
    }

    #[test]
    fn no_sequence_exceeds_the_kv_budget() {
        let memory = |device| Memory { device, text: String::new(), bytes: Some(1 << 40), target: None };
        let contexts = |kv_budget| {
            let found = machine(&estimate(100_000), &[memory(CPU), memory("gpu")], kv_budget);
            found.iter().map(|device| device.schemes[0].context.unwrap()).collect::<Vec<_>>()
        };
        // Whole pages of 256 tokens, and the newest token, which is not in the cache.
        assert_eq!(contexts(1_000_000_000), [1793, 769]);
        assert_eq!(contexts(1 << 40), [100_000, 100_000]);
    }

    #[test]
    fn npu_contexts_follow_the_verdict() {
        let npu = Memory {
            device: "npu",
            text: "Hexagon".to_owned(),
            bytes: Some(5_000_000_000),
            target: Some(Target::Qnn(vec![QnnChip::XElite])),
        };
        let unknown = Memory { bytes: None, target: None, ..npu.clone() };
        let found = machine_without_budget(&estimate(100_000), &[npu, unknown]);
        assert_eq!(found[0].schemes[0].reason.as_deref(), Some("too large"));
        assert_eq!(found[0].schemes[1].context, Some(2000));
        assert!(found[0].fits() && !found[1].fits() && found[1].schemes.is_empty());
    }

    #[test]
    fn a_graph_s_weights_share_their_room_with_its_own_layers_cache() {
        let context = |held: &[RequiredMemory]| {
            let mut estimate = estimate(100_000);
            let target = &mut estimate.schemes[1].targets[0];
            target.held = held.to_vec();
            let target = target.target.clone();
            on_npu(&estimate, &target, None)[1].context
        };
        let held = |bytes, token_bytes, limit| RequiredMemory { bytes, token_bytes, limit };
        let (one, two) =
            (held(1_000_000_000, 100_000, 2_000_000_000), held(500_000_000, 400_000, 2_000_000_000));
        assert_eq!(context(&[one]), Some(10_000));
        assert_eq!(context(&[one, two]), Some(3750));
        // A head has weights, but no KV cache.
        let head = held(1_999_999_999, 0, 2_000_000_000);
        assert_eq!(context(&[head, one, two]), Some(3750));
        // The last entry is the limit for all graphs of a process together.
        assert_eq!(context(&[one, two, held(1_500_000_000, 500_000, 2_500_000_000)]), Some(2000));
        assert_eq!(context(&[one, two, held(1_500_000_000, 500_000, 1_600_000_000)]), None);
        assert_eq!(context(&[]), None);
    }

    #[test]
    fn an_npu_has_no_more_room_than_the_machine() {
        let estimate = estimate(100_000);
        let cpu = Memory { device: CPU, text: String::new(), bytes: None, target: None };
        let target = Some(Target::Qnn(vec![QnnChip::XElite]));
        let npu = Memory { device: "npu", bytes: Some(5_000_000_000), target, ..cpu.clone() };
        let on = |memory: u64| {
            let cpu = Memory { bytes: Some(memory + RESERVED), ..cpu.clone() };
            let fit = machine_without_budget(&estimate, &[cpu, npu.clone()])[1].schemes[1].clone();
            (fit.context, fit.reason)
        };
        assert_eq!(on(8_000_000_000), (Some(2000), None));
        assert_eq!(on(4_400_000_000), (Some(800), None));
        assert_eq!(on(4_100_000_000), (None, Some("it needs 5.3 GB of memory".to_owned())));
        assert_eq!(on(0).0, None);
    }

    #[test]
    fn the_minimum_memory_is_exact() {
        let estimate = estimate(100_000);
        let device = |device, bytes| Memory { device, text: String::new(), bytes, target: None };
        let least = |memories: &[Memory]| least(&estimate, &machine_without_budget(&estimate, memories));
        let minimum = least(&[device(CPU, Some(1)), device("gpu", None)]).unwrap();
        assert_eq!((minimum.scheme, minimum.context), (Scheme::W4, 512));
        let context = |memory: u64| in_memory(&estimate, memory, token_bytes(&estimate, CPU))[1].context;
        assert_eq!((context(minimum.memory), context(minimum.memory - 1)), (Some(512), None));
        // There is no minimum if the CPU's memory is unknown or a device has enough memory.
        assert_eq!(least(&[device(CPU, None)]), None);
        assert_eq!(least(&[device(CPU, None), device("gpu", Some(1))]), None);
        assert_eq!(least(&[device(CPU, Some(1)), device("gpu", Some(1 << 40))]), None);
    }
}
