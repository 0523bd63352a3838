//! Graphs of fixed shapes on a device, compared with the same graphs on the CPU.

use std::path::PathBuf;

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    DeviceError,
    ep::Device,
    precompile::FallbackPolicy,
    static_shapes::{Form, GraphLoad, StaticEncoder, StaticExecutor, StaticOptions, StaticSpeech},
};
use narthex_engine::{
    encoder::Encoder,
    executor::{Executor, KvCopy, LogitRows, StepPlan},
};
use narthex_spec::{Ep, SlotId, TokenId, recipe::FixedShapes};

use super::{Package, prompt, relative, runtime};

/// Returns a plugin's library, located in the same way as by the product.
pub(crate) fn plugin(kind: Ep) -> PathBuf {
    let store = Store::open(None).unwrap_or_else(|error| panic!("{error}"));
    let info = runtimes::locate(&store, kind);
    let command = if kind == Ep::Qnn { "test --only store" } else { "npu" };
    info.unwrap_or_else(|| panic!("no {kind} runtime: `cargo xtask {command}` installs it")).library
}

/// Returns small shapes: one prefill length, one bucket.
pub(crate) fn shapes() -> FixedShapes {
    FixedShapes { context: 32, shorter: vec![], prefill: vec![8], buckets: vec![16] }
}

/// Opens a package's fixed decoder.
pub(crate) fn open(
    package: &Package,
    device: &Device,
    form: Form<'_>,
) -> Result<StaticExecutor, DeviceError> {
    let place = GraphLoad { device, threads: 1, form, fallback: FallbackPolicy::Refused };
    let options = StaticOptions { slots: 3, kv_budget: 1 << 30 };
    StaticExecutor::open(runtime(), package.folder.path(), &package.manifest, place, &options)
}

/// Opens a package's fixed encoder.
pub(crate) fn open_encoder(package: &Package, device: &Device) -> StaticEncoder {
    let place = GraphLoad { device, threads: 1, form: Form::Graph, fallback: FallbackPolicy::Refused };
    StaticEncoder::open(runtime(), package.folder.path(), &package.manifest, place)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a package's fixed model for speech.
pub(crate) fn open_speech(package: &Package, device: &Device) -> StaticSpeech {
    let place = GraphLoad { device, threads: 1, form: Form::Graph, fallback: FallbackPolicy::Refused };
    StaticSpeech::open(runtime(), package.folder.path(), &package.manifest, place)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the logits after each of thirteen tokens, run as a whole chunk, a part of one, and single steps.
pub(crate) fn logits(executor: &mut dyn Executor, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let mut at = 0;
    for (slot, length) in [(0, 8), (1, 3), (1, 1), (1, 1)] {
        let mut plan = StepPlan::default();
        plan.push(SlotId(slot), at, &tokens[at..at + length], LogitRows::All);
        let logits = executor.step(&plan).unwrap();
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
        at += length;
        if slot == 0 {
            // The remaining tokens continue from a copy.
            executor.copy_kv(&KvCopy { from: SlotId(0), to: SlotId(1), tokens: 0..at }).unwrap();
        }
    }
    [0, 1].into_iter().for_each(|slot| executor.truncate(SlotId(slot), 0).unwrap());
    rows
}

/// Returns the vectors of texts of several lengths, run in one batch.
pub(crate) fn vectors(encoder: &mut dyn Encoder) -> Vec<Vec<f32>> {
    let text = |n: u32| prompt(n, n as usize).iter().map(|token| token % 40).collect::<Vec<TokenId>>();
    let texts = [2, 16, 9].map(text);
    let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
    let output = encoder.run_tokens(&texts).unwrap();
    output.data.chunks(output.width).map(<[f32]>::to_vec).collect()
}

/// Checks rows of another device: they are within `bound` of the CPU's as relative L2, but not equal. Returns the
/// largest distance.
pub(crate) fn agree(found: &[Vec<f32>], expected: &[Vec<f32>], bound: f32) -> f32 {
    assert_eq!(found.len(), expected.len());
    let mut largest = 0.0_f32;
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = relative(found, expected);
        assert!(distance <= bound, "row {index}: {distance}");
        // Another device's arithmetic never gives equal bits; equal ones would mean that the CPU provider computed
        // them.
        assert!(distance > 0.0, "row {index} is the CPU provider's");
        largest = largest.max(distance);
    }
    largest
}
