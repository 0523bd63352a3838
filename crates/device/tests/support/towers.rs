//! Towers of tiny checkpoints and chats with media, compared with the reference implementation.

use std::{fs, path::PathBuf};

use narthex_device::{
    ep::Device,
    precompile::FallbackPolicy,
    static_shapes::{Form, GraphLoad},
    tower::TowerOptions,
    vision::VisionTower,
};
use narthex_engine::{
    executor::{Executor, LogitRows, StepError, StepPlan},
    position::{MediaRows, Position},
};
use narthex_spec::{Recipe, Scheme, SlotId, TokenId, recipe::FixedShapes};

use super::{Package, distance, farthest, relative, runtime};

/// Elements of a row.
pub(crate) const WIDTH: usize = 32;

/// The graph of a tower of fixed shape, on the CPU.
pub(crate) const ON_CPU: GraphLoad<'static> =
    GraphLoad { device: &Device::Cpu, threads: 1, form: Form::Graph, fallback: FallbackPolicy::Refused };

pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens").join(name)
}

pub(crate) fn numbers_of(model: &str, name: &str) -> Vec<f32> {
    let bytes = fs::read(golden(model).join(name)).unwrap();
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

pub(crate) fn package_of(model: &str, recipe: Recipe) -> Package {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        fs::copy(golden(model).join(file), folder.path().join(file)).unwrap();
    }
    fs::copy(golden("families/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    Package::make(folder.path().to_owned(), Recipe { accuracy_level: 0, ..recipe })
}

pub(crate) fn shapes(prefill: usize) -> FixedShapes {
    FixedShapes { context: 96, shorter: vec![], prefill: vec![prefill], buckets: vec![16] }
}

/// Options of a tower in tests.
pub(crate) const OPTIONS: TowerOptions<'_> = TowerOptions { threads: 1, packed_weights: None };

pub(crate) fn vision_tower(package: &Package) -> VisionTower {
    VisionTower::open(runtime(), package.folder.path(), &package.manifest, &Device::Cpu, &OPTIONS)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns rows as the decoder's graph multiplies them: by the embedding scale.
pub(crate) fn scaled(rows: Vec<f32>) -> Vec<f32> {
    rows.into_iter().map(|x| x * (WIDTH as f32).sqrt()).collect()
}

/// Compares the rows of a medium with those of the reference, to `bound` as a whole. In `f32`, each element is within 1e-3.
pub(crate) fn check_rows(rows: &[f32], expected: &[f32], scheme: Scheme, bound: f32) {
    let farthest = distance(rows, expected);
    assert!(scheme != Scheme::F32 || farthest < 1e-3, "{farthest}");
    let distance = relative(rows, expected);
    assert!(distance <= bound, "{scheme}: {distance}");
}

/// Returns media with these rows, whose digests are bytes that count from `digest`.
pub(crate) fn media(digest: u8, rows: impl Iterator<Item = Vec<f32>>) -> Vec<MediaRows> {
    rows.zip(digest..).map(|(rows, byte)| MediaRows::new([byte; 32], WIDTH, rows.into()).unwrap()).collect()
}

/// Returns the positions of a chat. Tokens from `first_medium` on stand for the media, in order.
pub(crate) fn positions(tokens: &[TokenId], first_medium: TokenId, media: &[MediaRows]) -> Vec<Position> {
    let mut media = media.iter();
    let mut positions = Vec::new();
    for &token in tokens {
        if token < first_medium {
            positions.push(Position::token(token));
        } else {
            positions.extend(media.next().unwrap().positions());
        }
    }
    positions
}

/// Runs positions in spans of these lengths. Returns the logits after each of them.
pub(crate) fn run(
    executor: &mut dyn Executor,
    positions: &[Position],
    media: &[MediaRows],
    lengths: &[usize],
) -> Result<Vec<Vec<f32>>, StepError> {
    let mut rows = Vec::new();
    let mut at = 0;
    for &length in lengths {
        let mut plan = StepPlan { media: media.to_vec(), ..StepPlan::default() };
        let part = &positions[at..at + length];
        plan.push_span(SlotId(0), at, part.iter().copied(), LogitRows::All);
        let logits = executor.step(&plan)?;
        rows.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
        at += length;
    }
    assert_eq!(at, positions.len());
    executor.truncate(SlotId(0), 0)?;
    Ok(rows)
}

/// Compares the logits of a chat with those of the reference, to `bound`. In `f32`, each row is within 1e-3.
pub(crate) fn check_logits(
    found: &[Vec<f32>],
    expected: &[Vec<f32>],
    scheme: Scheme,
    bound: f32,
    chat: &str,
) {
    let farthest = farthest(found, expected);
    assert!(farthest <= bound, "{chat} in {scheme}: {farthest}");
    let most = found.iter().zip(expected).map(|(a, b)| distance(a, b)).fold(0.0, f32::max);
    assert!(scheme != Scheme::F32 || most < 1e-3, "{chat}: {most}");
}

/// Checks that the first two media, each in the same chat, whose first medium follows four positions, give other logits from
/// the medium on. `positions` returns the chat.
pub(crate) fn check_other_medium(
    package: &Package,
    media: &[MediaRows],
    positions: impl Fn(&[MediaRows]) -> Vec<Position>,
    length: usize,
) {
    let mut executor = package.executor();
    let [first, second] = [0, 1].map(|index: usize| {
        let media = &media[index..=index];
        run(&mut executor, &positions(media), media, &[length]).unwrap()
    });
    assert_eq!(first[..4], second[..4]);
    assert!(first[4..].iter().zip(&second[4..]).all(|(a, b)| relative(a, b) > 0.01));
}
