//! Memory of a model for a number of conversations of one length, on each device of this machine.

use narthex_engine::executor::KvLimits;
use narthex_spec::Scheme;
use serde::Serialize;

use super::{
    fit::{CPU, Memory, NPU, token_bytes},
    model_estimate::{ModelEstimate, SchemeEstimate},
};
use crate::config::{KV_STEP, RESERVED};

/// Conversations for which the memory is planned.
///
/// ```
/// use narthex_gateway::plan::Conversations;
///
/// let conversations = Conversations { context: Some(8192), users: 4 };
/// assert_eq!(conversations.users, 4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversations {
    /// Tokens of each; `None` for the maximum of the model.
    pub context: Option<u64>,
    /// Number of conversations at the same time.
    pub users: u64,
}

/// Memory of a model for a number of conversations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Tokens of each conversation.
    pub context: u64,
    /// Number of conversations at the same time.
    pub users: u64,
    /// Devices of this machine.
    pub devices: Vec<DeviceMemory>,
}

/// Memory of a model on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// `cpu`, `gpu` or `npu`.
    pub device: &'static str,
    /// Name for people.
    pub text: String,
    /// Bytes of memory, or of the NPU's address space, if they are known.
    pub memory: Option<u64>,
    /// Way in which the device gets the weights.
    pub weights: WeightsMemory,
    /// Memory in each scheme.
    pub schemes: Vec<SchemeMemory>,
}

/// Way in which a device gets the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsMemory {
    /// Weights are mapped from files: the system reads them when they are used, and may drop them without writing.
    Mapped,
    /// Weights are copied to the memory of the device.
    Copied,
}

/// Memory of a model in one scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SchemeMemory {
    /// Scheme.
    pub scheme: Scheme,
    /// Bytes of weights, without those of towers on a CPU or GPU.
    pub weights: u64,
    /// Bytes of the towers' weights; 0 on an NPU, whose weights include those of the towers that it runs.
    pub towers: u64,
    /// Bytes of the KV caches of all conversations.
    pub kv: u64,
    /// Bytes for the system, the program and activations.
    pub buffers: u64,
    /// Presence of enough memory, if the memory is known.
    pub fits: Option<bool>,
    /// Maximum tokens of each conversation that fit, if the memory is known; 0 if the weights do not fit.
    pub longest: Option<u64>,
}

impl SchemeMemory {
    /// Returns all bytes.
    pub fn total(&self) -> u64 {
        [self.towers, self.kv, self.buffers].into_iter().fold(self.weights, u64::saturating_add)
    }
}

impl MemoryPlan {
    /// Plans the memory on each device. Encoders have no KV cache.
    pub(super) fn new(estimate: &ModelEstimate, memories: &[Memory], conversations: Conversations) -> Self {
        let context = conversations.context.unwrap_or(estimate.longest as u64);
        let users = conversations.users;
        let devices = memories.iter().map(|memory| DeviceMemory::new(estimate, memory, context, users));
        Self { context, users, devices: devices.collect() }
    }
}

impl DeviceMemory {
    fn new(estimate: &ModelEstimate, memory: &Memory, context: u64, users: u64) -> Self {
        let token = match memory.device {
            NPU => estimate.npu_token_bytes,
            other => token_bytes(estimate, other),
        };
        // Without a limit: the plan says how many bytes the limit must have.
        let kv = KvLimits {
            bytes_per_token: token as usize,
            bytes_per_slot: estimate.state_bytes as usize,
            step: KV_STEP,
            budget: usize::MAX,
        };
        let capacity = kv.capacity_for(context as usize, estimate.longest.max(1));
        let buffers = if memory.device == NPU { 0 } else { RESERVED };

        let on = |scheme: &SchemeEstimate| {
            let (all, towers) = match &memory.target {
                None => (scheme.bytes, scheme.tower_bytes),
                Some(target) => {
                    let known = scheme.targets.iter().find(|known| known.target == *target);
                    (known.filter(|known| known.runs())?.npu_bytes, 0)
                }
            };
            let room = memory.bytes.map(|bytes| bytes.saturating_sub(buffers).checked_sub(all));
            let states = estimate.state_bytes.saturating_mul(users);
            let longest = room.map(|room| {
                let room = room.and_then(|room| room.checked_sub(states));
                longest(room, token.saturating_mul(users), estimate.longest as u64)
            });
            let kv = (kv.bytes(1, capacity) as u64).saturating_mul(users);
            let weights = all.saturating_sub(towers);
            let scheme = scheme.scheme;
            let planned = SchemeMemory { scheme, weights, towers, kv, buffers, fits: None, longest };
            Some(SchemeMemory { fits: memory.bytes.map(|bytes| planned.total() <= bytes), ..planned })
        };
        Self {
            device: memory.device,
            text: memory.text.clone(),
            memory: memory.bytes,
            weights: if memory.device == CPU { WeightsMemory::Mapped } else { WeightsMemory::Copied },
            schemes: estimate.schemes.iter().filter_map(on).collect(),
        }
    }
}

/// Returns the maximum tokens of each conversation whose caches fit into `room` bytes, in whole pages; `None` is no room
/// for the weights.
fn longest(room: Option<u64>, token_bytes: u64, model: u64) -> u64 {
    let Some(room) = room else { return 0 };
    let Some(tokens) = room.checked_div(token_bytes) else { return model };
    if tokens >= model { model } else { tokens - tokens % KV_STEP as u64 }
}

#[cfg(test)]
mod tests {
    use narthex_spec::{QnnChip, Target};

    use super::{super::tests::estimate, *};

    const GB: u64 = 1_000_000_000;

    fn planned(device: &'static str, bytes: Option<u64>, conversations: Conversations) -> DeviceMemory {
        let target = (device == NPU).then(|| Target::Qnn(vec![QnnChip::XElite]));
        let memory = Memory { device, text: String::new(), bytes, target };
        MemoryPlan::new(&estimate(100_000), &[memory], conversations).devices.remove(0)
    }

    #[test]
    fn every_conversation_has_whole_pages_of_its_own() {
        // Tokens take 0.5 MB on the CPU and 1 MB on a GPU.
        let conversations = Conversations { context: Some(1000), users: 2 };
        let cpu = planned(CPU, Some(8 * GB + RESERVED + 1_023_999_999), conversations);
        let [w8, w4] = cpu.schemes.as_slice() else { panic!("{cpu:?}") };
        assert_eq!((w8.weights, w8.towers), (7 * GB, GB));
        assert_eq!((w8.kv, w8.buffers), (2 * 1024 * 500_000, RESERVED));
        assert_eq!(w8.total(), 8 * GB + w8.kv + RESERVED);
        assert_eq!((w8.fits, w8.longest), (Some(false), Some(768)));
        assert_eq!((w4.weights + w4.towers, w4.fits, w4.longest), (4 * GB, Some(true), Some(4864)));
        let gpu = planned("gpu", Some(4 * GB), conversations);
        assert_eq!((gpu.schemes[0].kv, gpu.schemes[0].longest), (2 * 1024 * 1_000_000, Some(0)));
        assert_eq!((cpu.weights, gpu.weights), (WeightsMemory::Mapped, WeightsMemory::Copied));
    }

    #[test]
    fn an_npu_has_the_schemes_that_it_runs_and_unknown_memory_has_no_verdict() {
        let conversations = Conversations { context: None, users: 1 };
        let npu = planned(NPU, Some(5 * GB), conversations);
        let [w4] = npu.schemes.as_slice() else { panic!("{npu:?}") };
        assert_eq!((w4.scheme, w4.kv, w4.buffers), (Scheme::W4, 100_000 * 500_000, 0));
        assert_eq!((w4.weights, w4.towers), (4 * GB, 0), "the weights on an NPU include those of towers");
        assert_eq!((w4.fits, w4.longest), (Some(false), Some(1792)));
        let unknown = planned("gpu", None, conversations);
        assert!(unknown.schemes.iter().all(|scheme| (scheme.fits, scheme.longest) == (None, None)));
    }
}
