//! The numerics check over fake executors.

use narthex_engine::executor::{Limits, Logits};
use narthex_testkit::executor::{FakeExecutor, KV};

use super::*;

fn executor(chunk: usize) -> FakeExecutor {
    FakeExecutor::new(Limits { slots: 1, context: 96, chunk, batch: 1, vocab: 50, kv: KV })
}

/// Returns texts of one, five and seventy tokens.
fn texts() -> Vec<Vec<TokenId>> {
    [1, 5, 70].map(|count| (0..count).map(|i| i * 7 % 50).collect()).into()
}

#[test]
fn the_same_arithmetic_in_other_chunks_agrees_everywhere() {
    let positions =
        compare_decoders(&mut executor(16), &mut executor(64), &texts(), &|| (), &Cancel::new()).unwrap();
    assert_eq!(positions.len(), 3 * (1 + STEPS));
    assert!(positions.iter().all(|p| p.agrees && p.divergence == Some(0.0)), "{positions:?}");
    let at: Vec<usize> = positions[8..].iter().map(|position| position.at).collect();
    assert_eq!(at, [70, 71, 72, 73]);
    assert_eq!(compare::decoder_verdict(&positions), None);
}

/// Executor whose rows are rotated by one element, as with a wrong layout.
struct RotatedRows(FakeExecutor, Vec<f32>);

impl Executor for RotatedRows {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.1 = self.0.step(plan)?.row(0).to_vec();
        self.1.rotate_right(1);
        Ok(())
    }

    fn logits(&self) -> Logits<'_> {
        Logits::new(&self.1, self.0.limits().vocab)
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.0.truncate(slot, len)
    }
}

#[test]
fn a_record_states_the_figures_of_a_check_that_passed() {
    let position =
        |divergence, agrees| Position { text: 0, at: 1, divergence: Some(divergence), margin: 0.1, agrees };
    let text = |cosine| TextSimilarity { text: 0, tokens: 4, cosine: Some(cosine) };
    let figures = |positions: Vec<Position>, texts: Vec<TextSimilarity>| {
        let key = CacheKey {
            device: DeviceName::Qnn,
            runtime: "1.31.1".into(),
            provider: "onnxruntime-qnn 2.7.0".into(),
            driver: "unknown".into(),
            settings: std::collections::BTreeMap::new(),
        };
        let record = Verification { version: CHECK_VERSION, key, quarantine: None, positions, texts };
        match record.result(DeviceName::Qnn) {
            CheckResult::Passed(NumericsCheck { device: DeviceName::Qnn, figures }) => Some(figures),
            _ => None,
        }
    };
    let positions = vec![position(0.01, true), position(0.03, false)];
    let expected = NumericsFigures::Decoder { positions: 2, divergence: 0.02, agreement: 0.5 };
    assert_eq!(figures(positions, Vec::new()), Some(expected));
    let expected = NumericsFigures::Encoder { texts: 2, lowest_cosine: 0.9995 };
    assert_eq!(figures(Vec::new(), vec![text(0.9999), text(0.9995)]), Some(expected));
    assert_eq!(figures(Vec::new(), Vec::new()), None);
}

#[test]
fn other_arithmetic_is_found_out() {
    let mut turned = RotatedRows(executor(16), Vec::new());
    let positions =
        compare_decoders(&mut turned, &mut executor(16), &texts(), &|| (), &Cancel::new()).unwrap();
    assert!(positions.iter().all(|position| !position.agrees), "{positions:?}");
    assert!(compare::decoder_verdict(&positions).is_some());
}

#[test]
fn every_bucket_of_an_encoder_is_run() {
    let check = |buckets: &[usize], lengths: &[usize], expected: &[usize]| {
        let texts = lengths.iter().map(|&length| (1..).take(length).collect()).collect();
        let filled = fill_buckets(texts, 72, &buckets.iter().copied().collect());
        let found: Vec<usize> = filled.iter().map(Vec::len).collect();
        assert_eq!(found, expected, "{buckets:?} {lengths:?}");
        assert!(filled.iter().flatten().all(|&token| (1..=72).contains(&token)));
    };
    check(&[64, 128, 256, 512], &[5, 30, 90], &[5, 30, 72, 256, 512]);
    check(&[512, 64], &[5, 30, 90], &[5, 30, 72]);
    check(&[32, 64, 128], &[90], &[72, 32, 64]);
    // A text longer than every bucket uses none of them, so a text for the bucket of 32 is added.
    check(&[16, 32], &[5, 90], &[5, 72, 32]);
    check(&[], &[5], &[5]);
    check(&[64], &[], &[]);
}

#[test]
fn every_context_of_a_decoder_is_run() {
    let lengths = |contexts: &[usize]| -> Vec<usize> {
        let texts = exceed_contexts(&[1, 2, 3], &contexts.iter().copied().collect());
        assert!(texts.iter().all(|text| text.starts_with(&[1, 2, 3, 1])));
        texts.iter().map(Vec::len).collect()
    };
    assert_eq!(lengths(&[512, 4096, 1024]), [513, 1025]);
    assert!(lengths(&[2048]).is_empty() && lengths(&[]).is_empty());
    assert!(exceed_contexts(&[], &[8, 16].into()).is_empty());
}

/// Executor that cancels in its second step.
struct Cancelling {
    inner: FakeExecutor,
    steps: usize,
    cancel: Cancel,
}

impl Executor for Cancelling {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        self.steps += 1;
        if self.steps == 2 {
            self.cancel.cancel();
        }
        self.inner.execute(plan)
    }

    fn logits(&self) -> Logits<'_> {
        self.inner.logits()
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.inner.truncate(slot, len)
    }
}

#[test]
fn a_cancelled_check_ends_before_the_next_step() {
    let cancel = Cancel::new();
    let mut device = Cancelling { inner: executor(16), steps: 0, cancel: cancel.clone() };
    let ended = compare_decoders(&mut device, &mut executor(16), &texts(), &|| (), &cancel);
    assert!(matches!(ended, Err(Error::Cancelled)) && device.steps == 2);
}

#[test]
fn a_record_is_valid_until_the_key_changes() {
    let home = tempfile::tempdir().unwrap();
    let store = narthex_catalog::store::Store::open(Some(home.path().join("home"))).unwrap();
    let package = home.path().join("package");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("manifest.json"), "{}").unwrap();
    let folder = store.machine(&package, "qnn").unwrap();
    let key = CacheKey {
        device: DeviceName::Qnn,
        runtime: "1.31.1".into(),
        provider: "onnxruntime-qnn 2.7.0".into(),
        driver: "unknown".into(),
        settings: std::collections::BTreeMap::new(),
    };
    let cache = DeviceCache { folder, key };
    let record = |cache: &DeviceCache| cache.record::<Verification>(RECORD, CHECK_VERSION).unwrap();
    assert!(record(&cache).is_none());
    quarantine(&cache, "it returned logits that are not finite".into());
    let CheckResult::Quarantined(refusal) = record(&cache).unwrap().result(DeviceName::Qnn) else {
        panic!("the record has no quarantine")
    };
    assert!(refusal.reason.contains("quarantine") && refusal.reason.contains("not finite"), "{refusal:?}");
    let newer = CacheKey { provider: "onnxruntime-qnn 2.8.0".into(), ..cache.key.clone() };
    let newer = DeviceCache { key: newer, ..cache.clone() };
    assert!(record(&newer).is_none());
    cache.folder.write(RECORD, b"{\"version\": 1").unwrap();
    assert!(record(&cache).is_none());
}
