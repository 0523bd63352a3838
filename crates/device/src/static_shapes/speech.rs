//! A model that transcribes speech in graphs of fixed shapes. It implements the engine's [`SpeechModel`].

use std::path::Path;

use half::f16;
use narthex_engine::{
    executor::{StepError, StepPlan},
    position::Position,
    speech::{SpeechLimits, SpeechModel, check_decode, encoder_rows},
};
use narthex_spec::{
    SlotId, TokenId, Variant,
    arch::{SpeechArch, Structure},
    manifest::{GraphEntry, KvLayout, Manifest, Part, Slot},
};

use super::{
    GraphLoad,
    cache::StaticKvCache,
    graph::StaticGraph,
    layers::{Layers, in_order, run_parts},
    open,
    step::{Tables, TokenRun},
    window::WindowCache,
};
use crate::{
    error::DeviceError,
    placement::GraphPlacement,
    rope_switch::RopeFactors,
    runtime::Runtime,
    speech::{LayerQueries, alignment, limits},
    table::Embedding,
};

/// Slot of the transcript in the cache.
const SLOT: SlotId = SlotId(0);

/// A model for speech on an NPU, on an emulation of one, or on the CPU as their reference.
pub struct StaticSpeech {
    arch: SpeechArch,
    limits: SpeechLimits,
    tables: Tables,
    encoder: StaticGraph,
    layers: Layers,
    head: StaticGraph,
    /// Number of tokens of the last step.
    tokens: usize,
    logits: Vec<f32>,
    queries: Vec<LayerQueries>,
    // Declared after the graphs that are bound to them, so that they are dropped after them.
    cache: StaticKvCache,
    window: WindowCache,
}

/// The graphs of a package.
#[derive(Default)]
struct SpeechGraphs {
    encoder: Option<StaticGraph>,
    layers: Layers,
    head: Option<StaticGraph>,
}

impl SpeechGraphs {
    /// Opens every graph, and binds those of the encoder and of the layers to the window.
    fn open(
        runtime: &Runtime,
        folder: &Path,
        manifest: &Manifest,
        place: GraphLoad<'_>,
        window: &mut WindowCache,
    ) -> Result<Self, DeviceError> {
        let mut graphs = Self::default();
        let is_static = |entry: &&GraphEntry| entry.variant == Variant::Static;
        for entry in manifest.graphs.iter().filter(is_static) {
            let mut graph = StaticGraph::new(entry, open(runtime, folder, manifest, entry, place)?)?;
            match entry.part {
                Part::Encoder => {
                    graph.bind_window(entry, window)?;
                    graphs.encoder = Some(graph);
                }
                Part::Layers { tokens, past, .. } => {
                    graph.bind_window(entry, window)?;
                    graphs.layers.entry(past).or_default().entry(tokens).or_default().push(graph);
                }
                Part::Head { .. } => graphs.head = Some(graph),
                Part::Whole
                | Part::Chunk { .. }
                | Part::Bucket { .. }
                | Part::Decoder
                | Part::Vision
                | Part::Audio => {}
            }
        }
        Ok(graphs)
    }
}

impl StaticSpeech {
    /// Loads a package's model on a device.
    ///
    /// # Errors
    /// The errors of [`StaticExecutor::open`](super::StaticExecutor::open).
    pub fn open(
        runtime: &Runtime,
        folder: &Path,
        manifest: &Manifest,
        place: GraphLoad<'_>,
    ) -> Result<Self, DeviceError> {
        let Structure::Speech(arch) = &manifest.architecture else {
            return Err(DeviceError::package("a model for speech", "another model"));
        };
        let embedding = Embedding::open(folder, manifest, &arch.outer_decoder())?;
        let mut window = WindowCache::new(arch);
        let SpeechGraphs { encoder, mut layers, head } =
            SpeechGraphs::open(runtime, folder, manifest, place, &mut window)?;
        let (Some(mut encoder), Some((&past, _)), Some(head)) = (encoder, layers.last_key_value(), head)
        else {
            return Err(DeviceError::package(
                "a model for speech in fixed graphs",
                "one without some graphs",
            ));
        };

        check_whole(manifest, arch)?;
        let limits = limits(arch, past.min(manifest.max_length));
        encoder_rows(&limits, encoder.input(Slot::Features).len())
            .map_err(|error| DeviceError::package("features of a window", error))?;
        let given = head.output(Slot::Logits).len();
        if given != arch.vocab {
            return Err(DeviceError::package(format!("a head of {} tokens", arch.vocab), given));
        }
        for (tokens, parts) in layers.values_mut().flatten() {
            in_order(parts, arch.decoder.layers, tokens.saturating_mul(arch.hidden))?;
        }

        let layout = KvLayout::plain(arch.decoder.heads, arch.head_size());
        let cache = StaticKvCache::new(&vec![layout; arch.decoder.layers], past, 1);
        Ok(Self {
            limits,
            queries: LayerQueries::of(arch),
            arch: arch.clone(),
            tables: Tables { embedding, angles: Vec::new() },
            encoder,
            layers,
            head,
            tokens: 0,
            logits: Vec::new(),
            cache,
            window,
        })
    }

    /// Returns the placement of the nodes of each graph.
    pub fn placements(&self) -> Vec<GraphPlacement> {
        let layers = self.layers.values().flat_map(|lengths| lengths.values()).flatten();
        [&self.encoder].into_iter().chain(layers).chain([&self.head]).map(StaticGraph::placement).collect()
    }

    /// Runs as many of `tokens` as one graph takes, and returns their number. It selects the graphs with the shortest past
    /// that holds `at + tokens.len()` tokens, and of these the shortest that takes all of `tokens`, or else the longest.
    ///
    /// `at` is the number of tokens in the cache. `before` is the number of tokens of this call that ran before. Computes
    /// the logits of the tokens whose indices in the call are in `rows`.
    fn run(
        &mut self,
        at: usize,
        tokens: &[Position],
        before: usize,
        rows: &[usize],
    ) -> Result<usize, StepError> {
        let needed = at + tokens.len();
        let no_graph = || StepError::bad_plan(format!("no graph has a past of {needed} tokens"));
        let (&past, lengths) = self.layers.range_mut(needed..).next().ok_or_else(no_graph)?;
        let length = lengths.range(tokens.len()..).chain(lengths.range(..).rev()).next();
        let length = *length.ok_or_else(no_graph)?.0;
        let parts = lengths.get_mut(&length).ok_or_else(no_graph)?;

        self.cache.fit(SLOT, past, at)?;
        let count = length.min(tokens.len());
        let run = TokenRun {
            plan: &StepPlan::default(),
            at,
            past,
            rows: length,
            tokens: &tokens[..count],
            factors: RopeFactors::Short,
            bidirectional: false,
        };
        let states = run_parts(parts, &self.tables, run, &mut self.cache, SLOT)?;
        let hidden = self.arch.hidden;
        let vocab = self.limits.vocab;
        let states = &states[(length - count) * hidden..];
        for (&row, out) in rows.iter().zip(self.logits.chunks_exact_mut(vocab)) {
            let Some(state) = row.checked_sub(before).and_then(|row| states.chunks_exact(hidden).nth(row))
            else {
                continue;
            };
            self.head.input(Slot::Hidden).copy_from_slice(state);
            self.head.run()?;
            widen(self.head.output(Slot::Logits), out);
        }

        for LayerQueries { layer, queries } in &mut self.queries {
            let slot = Slot::CrossQuery { layer: *layer };
            let found = parts.iter().map(|part| part.output(slot)).find(|found| !found.is_empty());
            let places = queries[before * hidden..].chunks_exact_mut(hidden);
            let found = found.unwrap_or_default().chunks_exact(hidden).skip(length - count);
            found.zip(places).for_each(|(query, out)| widen(query, out));
        }
        Ok(count)
    }
}

/// Fails unless the graphs have the cache of the model, every key and value of a window, and the queries of its alignment
/// heads.
fn check_whole(manifest: &Manifest, arch: &SpeechArch) -> Result<(), DeviceError> {
    let layers = arch.decoder.layers;
    let head = [arch.decoder.heads, arch.head_size()];
    for entry in manifest.graphs.iter().filter(|entry| entry.variant == Variant::Static) {
        let lacking = match entry.part {
            Part::Encoder => (0..layers)
                .flat_map(|layer| [Slot::CrossKey { layer }, Slot::CrossValue { layer }])
                .find(|slot| entry.output(*slot).is_none()),
            Part::Layers { tokens, range, .. } => {
                let range = range.map_or(0..layers, |range| range.first..range.end);
                let elements = [1, tokens, arch.hidden].map(Into::into);
                let of_range = arch.alignment_layers().into_iter().filter(|layer| range.contains(layer));
                of_range
                    .map(|layer| Slot::CrossQuery { layer })
                    .find(|slot| entry.output(*slot).is_none_or(|found| found.shape != elements))
            }
            _ => None,
        };
        if let Some(slot) = lacking {
            return Err(DeviceError::package(
                format!("{slot:?} of {}", entry.file),
                "none, or another shape",
            ));
        }
        if let Some(other) = entry.kv.iter().find(|kv| [kv.heads, kv.head_size] != head) {
            let expected = format!("a cache of {} heads of {} elements in {}", head[0], head[1], entry.file);
            return Err(DeviceError::package(expected, format!("{} of {}", other.heads, other.head_size)));
        }
    }
    Ok(())
}

/// Converts half-precision numbers to single precision.
fn widen(values: &[f16], out: &mut [f32]) {
    values.iter().zip(out).for_each(|(value, out)| *out = value.to_f32());
}

impl SpeechModel for StaticSpeech {
    fn limits(&self) -> &SpeechLimits {
        &self.limits
    }

    fn encode(&mut self, features: &[f32]) -> Result<(), StepError> {
        encoder_rows(&self.limits, features.len())?;
        let input = self.encoder.input(Slot::Features);
        input.iter_mut().zip(features).for_each(|(place, value)| *place = f16::from_f32(*value));
        self.cache.set_length(SLOT, 0);
        self.tokens = 0;
        self.encoder.run()
    }

    fn decode(&mut self, at: usize, tokens: &[TokenId], rows: &[usize]) -> Result<&[f32], StepError> {
        check_decode(&self.limits, self.cache.length(SLOT), at, tokens, rows)?;
        let positions: Vec<Position> = tokens.iter().copied().map(Position::token).collect();
        self.logits.resize(rows.len() * self.limits.vocab, 0.0);
        self.cache.set_length(SLOT, at);
        self.tokens = 0;

        let mut done = 0;
        while done < positions.len() {
            done += self.run(at + done, &positions[done..], done, rows)?;
        }
        self.tables.check()?;
        self.cache.set_length(SLOT, at + done);
        self.tokens = done;
        Ok(&self.logits)
    }

    fn alignment(&mut self) -> Result<Vec<f32>, StepError> {
        let keys = |layer, head| self.window.head_keys(layer, head).into();
        Ok(alignment(&self.arch, &self.queries, [self.tokens, self.limits.positions], keys))
    }
}
