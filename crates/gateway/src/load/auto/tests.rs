//! Measurement of fake devices, and validity of stored measurements.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use narthex_engine::executor::{KvBlock, Limits, Logits, StepError, StepPlan};
use narthex_spec::{DevicePlacement, Ep, NpuPolicy, SlotId};
use narthex_testkit::executor::{FakeExecutor, Fault, KV};

use super::*;
use crate::{fixtures::snapdragon, report::fallback::FallbackNodes};

const NPU: DeviceName = DeviceName::Qnn;
const GPU: DeviceName = DeviceName::WebGpu;
const CPU: DeviceName = DeviceName::Cpu;

/// Executor whose steps and handovers advance a clock by a given number of microseconds.
struct TimedExecutor {
    inner: FakeExecutor,
    step: fn(usize) -> u64,
    handover: u64,
    clock: Arc<AtomicU64>,
}

impl Executor for TimedExecutor {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.clock.fetch_add((self.step)(plan.tokens.len()), Ordering::Relaxed);
        self.inner.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.inner.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.inner.truncate(slot, len)
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        self.clock.fetch_add(self.handover * range.len() as u64, Ordering::Relaxed);
        self.inner.read_kv(slot, range)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        self.inner.write_kv(slot, at, block)
    }
}

/// Fake device: an NPU takes 4 ms for a step of up to 64 tokens, a GPU 1 ms per token, and a CPU 3 ms per token.
/// `handover` is in microseconds per token.
fn load(device: DeviceName, handover: u64, clock: &Arc<AtomicU64>) -> TimedExecutor {
    let chunk = if device == NPU { 64 } else { 256 };
    let step: fn(usize) -> u64 = match device {
        NPU => |_| 4_000,
        GPU => |tokens| 1_000 * tokens as u64,
        _ => |tokens| 3_000 * tokens as u64,
    };
    let inner = FakeExecutor::new(Limits { slots: 1, context: 512, chunk, batch: 1, vocab: 32, kv: KV });
    TimedExecutor { inner, step, handover, clock: clock.clone() }
}

/// Measures the three devices. `spoil` may change a loaded device, or refuse it.
fn measure(
    handover: u64,
    spoil: &dyn Fn(DeviceName, &mut TimedExecutor) -> Option<DeviceRefusal>,
) -> (MeasurementOutcome, Vec<DeviceName>) {
    let (clock, mut loads) = (Arc::new(AtomicU64::new(0)), Vec::new());
    let mut load = |device| {
        loads.push(device);
        let mut executor = load(device, handover, &clock);
        Ok(match spoil(device, &mut executor) {
            None => DecoderAttempt::Opened(Box::new(executor)),
            Some(refusal) => DecoderAttempt::Refused(refusal),
        })
    };
    let mut now = || Duration::from_micros(clock.load(Ordering::Relaxed));
    let found = measure_all(&[NPU, GPU, CPU], &mut load, &mut now).unwrap();
    (found, loads)
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
}

#[test]
fn devices_are_measured_in_turn_and_the_best_two_together() {
    let (found, loads) = measure(10, &|_, _| None);
    assert_eq!(loads, [NPU, GPU, CPU, NPU, GPU]);
    let [npu, gpu, cpu] = found.measured.devices.as_slice() else { panic!("{found:?}") };
    near(npu.chunk_ms, 4.0);
    near(npu.short_ms, 4.0);
    near(npu.token_ms, 4.0);
    near(gpu.chunk_ms, 256.0);
    near(cpu.short_ms, 6.0);
    let handover = found.measured.handover.unwrap();
    assert_eq!((handover.prefill, handover.decode), (NPU, GPU));
    near(handover.token_ms, 0.01);
    let split = PhaseSplit { prefill: NPU, decode: GPU };
    // The GPU reads four tokens in the 4 ms of an NPU step, and the handover adds to the NPU's time, so the NPU wins
    // from five on.
    assert_eq!(found.measured.break_even(split), Some(5));
    assert_eq!(found.measured.choose().unwrap().place, DevicePlacement::Phases(split));
    // A handover of 1 ms per token costs as much as reading the token on the GPU.
    let (dear, _) = measure(1_000, &|_, _| None);
    assert_eq!(dear.measured.choose().unwrap().place, DevicePlacement::Single(GPU));
}

#[test]
fn a_device_that_refuses_or_fails_is_not_chosen() {
    let (found, loads) = measure(10, &|device, executor| {
        if device == GPU {
            let lost = StepError::Device { message: "lost".to_owned() };
            executor.inner.faults = [Fault::Error(lost)].into();
        }
        let reason = "in quarantine".to_owned();
        let refused =
            DeviceRefusal { device, reason, fix: None, announced: true, fallback: FallbackNodes::default() };
        (device == NPU).then_some(refused)
    });
    assert_eq!(loads, [NPU, GPU, CPU]);
    let reasons: Vec<(DeviceName, &str)> =
        found.refused.iter().map(|passed| (passed.device, passed.reason.as_str())).collect();
    assert_eq!(reasons, [(NPU, "in quarantine"), (GPU, "the device failed: lost")]);
    assert_eq!(found.measured.choose(), None);
}

#[test]
fn a_record_is_valid_until_a_device_changes() {
    let made = |device: DeviceName, provider: &str| CacheKey {
        device,
        runtime: "1.31.1".into(),
        provider: provider.into(),
        driver: "unknown".into(),
        settings: BTreeMap::new(),
    };
    let keys = vec![made(NPU, "onnxruntime-qnn 2.7.0"), made(CPU, "onnxruntime")];
    let (outcome, _) = measure(10, &|_, _| None);
    let record = MeasurementRecord { version: MEASUREMENT_VERSION, keys: keys.clone(), threads: 0, outcome };
    let read: MeasurementRecord = serde_json::from_slice(&to_json(&record).unwrap()).unwrap();
    assert_eq!(read, record);
    assert!(read.is_valid(&keys, 0) && read.is_valid(&keys[1..], 0));
    assert!(!read.is_valid(&keys, 2), "other threads");
    assert!(!read.is_valid(&[made(NPU, "onnxruntime-qnn 2.8.0")], 0), "another driver");
    assert!(!read.is_valid(&[made(GPU, "onnxruntime")], 0), "another device");
    assert!(
        !MeasurementRecord { version: MEASUREMENT_VERSION + 1, ..read }.is_valid(&keys, 0),
        "another version"
    );
}

#[test]
fn present_and_allowed_devices_but_stand_ins_may_be_chosen() {
    let facts = snapdragon([(Ep::Qnn, "/q/plugin.so".into()), (Ep::OpenVino, "/o/plugin.so".into())]);
    let check = |providers: &str, npu, expected: &[DeviceName]| {
        let config = Config { providers: providers.parse().unwrap(), npu, ..Config::standard() };
        let (found, passed_over) = usable(&config, &facts);
        assert_eq!(found, expected, "{providers}, {npu}");
        passed_over
    };
    check("auto", NpuPolicy::Prefer, &[NPU, CPU]);
    check("auto", NpuPolicy::Off, &[CPU]);
    check("auto", NpuPolicy::Require, &[NPU]);
    let named = check("cpu,openvino:cpu,qnn:emulation,qnn", NpuPolicy::Prefer, &[CPU, NPU]);
    assert!(named.len() == 2 && named.iter().all(|passed| passed.announced), "{named:?}");
    // A missing NPU runtime is worth a warning; absent GPUs are not.
    let facts = Facts { libraries: BTreeMap::new(), ..facts.clone() };
    let (_, passed_over) = usable(&Config::standard(), &facts);
    let told: Vec<DeviceName> =
        passed_over.iter().filter(|passed| passed.announced).map(|passed| passed.device).collect();
    assert_eq!(told, [NPU]);
}
