//! The dynamic variant of a model that transcribes speech, on the CPU. It implements the engine's [`SpeechModel`].
//!
//! The encoder writes the keys and values of a window into buffers that the decoder reads. The decoder updates its own
//! cache in place.

mod window;

use std::{borrow::Cow, ffi::CString, path::Path};

use narthex_engine::{
    executor::StepError,
    speech::{SpeechLimits, SpeechModel, check_decode, encoder_rows},
};
use narthex_spec::{
    DType, TokenId, Variant,
    arch::{SpeechArch, Structure},
    manifest::{GraphEntry, Manifest, Part, Slot, TableRole},
};

use crate::{
    ep::Device,
    error::DeviceError,
    inventory, operators,
    ort::{Binding, Session, SessionOptions, Tensor},
    package,
    packed_weights::PackedWeights,
    placement::GraphPlacement,
    runtime::Runtime,
    table::Table,
};
use window::SpeechWindow;

/// Options of a model for speech.
#[derive(Debug, Clone, Copy)]
pub struct SpeechOptions<'a> {
    /// Number of threads. 0 means one per physical core that this process may use.
    pub threads: usize,
    /// Folder with the packed weights that an earlier load of the package has stored. See
    /// [`DynamicSpeech::packed_weights`].
    pub packed_weights: Option<&'a Path>,
}

/// A model for speech on the CPU, with the state of one window.
pub struct DynamicSpeech {
    arch: SpeechArch,
    limits: SpeechLimits,
    tables: SpeechTables,
    /// Keys and values of each layer of the decoder. Only sessions read and write them.
    _cache: Vec<Vec<f32>>,
    /// Number of tokens in the decoder's cache.
    length: usize,
    /// Number of tokens of the last step.
    tokens: usize,
    inputs: StepInputs,
    logits: Vec<f32>,
    queries: Vec<LayerQueries>,
    names: StepNames,
    encoder_binding: Binding,
    decoder_binding: Binding,
    // Declared after the bindings that use its memory.
    window: SpeechWindow,
    // Declared after the bindings, so that they are dropped after them: the bindings belong to them.
    encoder: LoadedSide,
    decoder: LoadedSide,
}

/// Queries of the last step in a layer with alignment heads.
pub(crate) struct LayerQueries {
    pub(crate) layer: usize,
    /// `[tokens, hidden]`, with room for the longest sequence.
    pub(crate) queries: Vec<f32>,
}

impl LayerQueries {
    /// Returns the memory of each layer with alignment heads. The manifest's consistency, which bounds the sizes, has been
    /// checked.
    pub(crate) fn of(arch: &SpeechArch) -> Vec<Self> {
        let queries = vec![0.0; arch.target_positions * arch.hidden];
        let layers = arch.alignment_layers().into_iter();
        layers.map(|layer| Self { layer, queries: queries.clone() }).collect()
    }
}

/// Returns the limits of a model with whole windows and sequences of at most `context` tokens.
pub(crate) fn limits(arch: &SpeechArch, context: usize) -> SpeechLimits {
    SpeechLimits {
        bins: arch.bins,
        frames: arch.frames(),
        positions: arch.source_positions,
        takes_short_windows: false,
        context,
        vocab: arch.vocab,
        alignment_heads: arch.alignment_heads.len(),
    }
}

/// Returns the attention of the alignment heads from each of `tokens` tokens to the `rows` of the encoder, `[heads, tokens,
/// rows]`. `keys` returns the keys of a head of a layer, `[rows, size]`.
pub(crate) fn alignment<'a>(
    arch: &SpeechArch,
    queries: &[LayerQueries],
    [tokens, rows]: [usize; 2],
    keys: impl Fn(usize, usize) -> Cow<'a, [f32]>,
) -> Vec<f32> {
    let size = arch.head_size();
    let scale = (size as f32).sqrt().recip();
    let mut weights = vec![0.0; arch.alignment_heads.len() * tokens * rows];
    let mut places = weights.chunks_exact_mut(rows.max(1));
    let kernels = operators::kernels();
    for &[layer, head] in &arch.alignment_heads {
        let Some(of_layer) = queries.iter().find(|queries| queries.layer == layer) else { continue };
        let keys = keys(layer, head);
        for query in of_layer.queries.chunks_exact(arch.hidden).take(tokens) {
            let query = &query[head * size..][..size];
            let Some(row) = places.next() else { continue };
            for (weight, key) in row.iter_mut().zip(keys.chunks_exact(size)) {
                *weight = query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale;
            }
            kernels.softmax(row);
        }
    }
    weights
}

/// Inputs of a step of the decoder. Their memory is bound.
struct StepInputs {
    embeds: Vec<f32>,
    /// Number of past and new tokens minus one.
    last: Vec<i32>,
    /// Number of past and new tokens.
    total: Vec<i32>,
    rows: Vec<i64>,
}

/// Names that are bound in every step.
struct StepNames {
    embeds: CString,
    rows: CString,
    logits: CString,
    queries: Vec<CString>,
}

/// Tables that the host reads.
struct SpeechTables {
    tokens: Table,
    positions: Table,
}

/// A loaded graph and its file.
struct LoadedSide {
    file: String,
    session: Session,
}

impl LoadedSide {
    fn open(
        runtime: &Runtime,
        package: &Path,
        entry: &GraphEntry,
        options: SessionOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let session = Session::open(runtime, &package::path(package, &entry.file)?, options)?;
        session.check_names(entry)?;
        Ok(Self { file: entry.file.clone(), session })
    }
}

impl SpeechTables {
    fn open(package: &Path, manifest: &Manifest, arch: &SpeechArch) -> Result<Self, DeviceError> {
        let tokens = [arch.vocab, arch.hidden];
        let positions = [arch.target_positions, arch.hidden];
        Ok(Self {
            tokens: Table::of_shape(package, manifest, TableRole::Token, tokens)?,
            positions: Table::of_shape(package, manifest, TableRole::Position, positions)?,
        })
    }

    fn check(&self) -> Result<(), StepError> {
        self.tokens.check().and_then(|()| self.positions.check())
    }
}

/// Parts of a package other than the graphs, and the entries of the graphs.
pub(crate) struct SpeechParts<'a> {
    pub(crate) arch: &'a SpeechArch,
    tables: SpeechTables,
    encoder: &'a GraphEntry,
    decoder: &'a GraphEntry,
}

impl<'a> SpeechParts<'a> {
    /// Reads and checks the parts. The manifest's consistency, which bounds the sizes, has been checked.
    pub(crate) fn read(package: &Path, manifest: &'a Manifest) -> Result<Self, DeviceError> {
        let Structure::Speech(arch) = &manifest.architecture else {
            return Err(DeviceError::package("a model for speech", "another model"));
        };
        let graph = |part: Part| {
            let is_part = |entry: &&GraphEntry| entry.part == part && entry.variant == Variant::Dynamic;
            let found = manifest.graphs.iter().find(is_part);
            found.ok_or_else(|| DeviceError::package(format!("a graph of {part:?}"), "none"))
        };
        Ok(Self {
            arch,
            tables: SpeechTables::open(package, manifest, arch)?,
            encoder: graph(Part::Encoder)?,
            decoder: graph(Part::Decoder)?,
        })
    }
}

impl DynamicSpeech {
    /// Loads a package's model on a device.
    ///
    /// # Errors
    /// [`DeviceError::Speech`] for a device other than the CPU, [`DeviceError::Package`] and [`DeviceError::Read`] for a
    /// package that is not a whole model for speech, [`DeviceError::Ort`] for a graph that ONNX Runtime refuses.
    pub fn open(
        runtime: &Runtime,
        package: &Path,
        manifest: &Manifest,
        device: &Device,
        options: &SpeechOptions<'_>,
    ) -> Result<Self, DeviceError> {
        package::takes_dynamic(device, manifest)?;
        let SpeechParts { arch, tables, encoder: encoder_entry, decoder: decoder_entry } =
            SpeechParts::read(package, manifest)?;
        let settings = SessionOptions::on(device, inventory::threads(options.threads));
        let settings = SessionOptions { packed_weights: options.packed_weights, ..settings };
        let encoder = LoadedSide::open(runtime, package, encoder_entry, settings)?;
        let decoder = LoadedSide::open(runtime, package, decoder_entry, settings)?;

        let context = manifest.max_length;
        let mut window = SpeechWindow::new(arch, encoder_entry, decoder_entry)?;
        let mut cache = vec![vec![0.0f32; context * arch.hidden]; 2 * arch.decoder.layers];
        let mut inputs = StepInputs {
            embeds: vec![0.0; context * arch.hidden],
            last: vec![0],
            total: vec![0],
            rows: Vec::new(),
        };
        let mut encoder_binding = Binding::new(&encoder.session).map_err(DeviceError::binding)?;
        let mut decoder_binding = Binding::new(&decoder.session).map_err(DeviceError::binding)?;
        let mut buffers = DecoderBuffers { cache: &mut cache, inputs: &mut inputs };
        // SAFETY: the buffers belong to the value that owns the bindings. They are neither resized nor dropped before
        // it, moving a vector does not move its elements, and nothing accesses the elements while a session runs.
        unsafe {
            buffers.bind(arch, decoder_entry, &mut decoder_binding)?;
            let rows = arch.source_positions;
            window.bind(rows, &mut encoder_binding, &mut decoder_binding).map_err(DeviceError::binding)?;
        }

        let names = StepNames {
            embeds: package::input(decoder_entry, Slot::Embeds)?,
            rows: package::input(decoder_entry, Slot::LogitsRows)?,
            logits: package::output(decoder_entry, Slot::Logits)?,
            queries: arch
                .alignment_layers()
                .into_iter()
                .map(|layer| package::output(decoder_entry, Slot::CrossQuery { layer }))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            limits: SpeechLimits {
                takes_short_windows: window.takes_short_windows(),
                ..limits(arch, context)
            },
            queries: LayerQueries::of(arch),
            arch: arch.clone(),
            tables,
            window,
            _cache: cache,
            length: 0,
            tokens: 0,
            inputs,
            logits: Vec::new(),
            names,
            encoder_binding,
            decoder_binding,
            encoder,
            decoder,
        })
    }

    /// Returns the placement of the nodes of each graph.
    pub fn placements(&self) -> Vec<GraphPlacement> {
        let placed = |side: &LoadedSide| GraphPlacement {
            graph: side.file.clone(),
            placement: side.session.placement().clone(),
        };
        vec![placed(&self.encoder), placed(&self.decoder)]
    }

    /// Returns the packed weights of the graphs that have any. A later load of the same package need not pack them again
    /// if they are stored and passed in its options.
    pub fn packed_weights(&self) -> Vec<PackedWeights> {
        let sides = [&self.encoder, &self.decoder];
        sides.into_iter().filter_map(|side| side.session.packed_weights().cloned()).collect()
    }

    /// Binds what differs from step to step.
    fn bind_step(&mut self, tokens: usize) -> Result<(), StepError> {
        let width = self.arch.hidden;
        let count = tokens as i64;
        let rows = self.inputs.rows.len() as i64;
        let shape = [1, count, width as i64];
        let logits = [rows, self.limits.vocab as i64];
        let binding = &mut self.decoder_binding;
        // SAFETY: the memory belongs to this value. It is bound again before each run, and not accessed during a run.
        unsafe {
            let embeds = &mut self.inputs.embeds[..tokens * width];
            binding.input(&self.names.embeds, Tensor::new(embeds, DType::F32, &shape))?;
            binding.input(&self.names.rows, Tensor::new(&mut self.inputs.rows, DType::I64, &[rows]))?;
            binding.output(&self.names.logits, Tensor::new(&mut self.logits, DType::F32, &logits))?;
            for (name, LayerQueries { queries, .. }) in self.names.queries.iter().zip(&mut self.queries) {
                let queries = &mut queries[..tokens * width];
                binding.output(name, Tensor::new(queries, DType::F32, &shape))?;
            }
        }
        Ok(())
    }
}

/// Buffers of the decoder that are bound once.
struct DecoderBuffers<'a> {
    /// Keys and values of each layer of the decoder.
    cache: &'a mut [Vec<f32>],
    inputs: &'a mut StepInputs,
}

impl DecoderBuffers<'_> {
    /// # Safety
    /// The conditions of [`Binding::input`] apply.
    unsafe fn bind(
        &mut self,
        arch: &SpeechArch,
        entry: &GraphEntry,
        binding: &mut Binding,
    ) -> Result<(), DeviceError> {
        let failed = DeviceError::binding;
        let heads = arch.decoder.heads as i64;
        let size = arch.head_size() as i64;
        for (at, buffer) in self.cache.iter_mut().enumerate() {
            let layer = at / 2;
            let (past, present) = match at % 2 {
                0 => (Slot::PastKey { layer }, Slot::PresentKey { layer }),
                _ => (Slot::PastValue { layer }, Slot::PresentValue { layer }),
            };
            let shape = [1, heads, buffer.len() as i64 / (heads * size).max(1), size];
            let past = package::input(entry, past)?;
            let present = package::output(entry, present)?;
            // SAFETY: the caller guarantees the conditions. The operator updates the cache in place.
            unsafe {
                binding.input(&past, Tensor::new(buffer, DType::F32, &shape)).map_err(failed)?;
                binding.output(&present, Tensor::new(buffer, DType::F32, &shape)).map_err(failed)?;
            }
        }

        let last = package::input(entry, Slot::SeqlensK)?;
        let total = package::input(entry, Slot::TotalLength)?;
        // SAFETY: as above.
        unsafe {
            binding.input(&last, Tensor::new(&mut self.inputs.last, DType::I32, &[1])).map_err(failed)?;
            binding.input(&total, Tensor::new(&mut self.inputs.total, DType::I32, &[])).map_err(failed)
        }
    }
}

impl SpeechModel for DynamicSpeech {
    fn limits(&self) -> &SpeechLimits {
        &self.limits
    }

    fn encode(&mut self, features: &[f32]) -> Result<(), StepError> {
        let rows = encoder_rows(&self.limits, features.len())?;
        self.length = 0;
        self.tokens = 0;
        // SAFETY: the window belongs to the value that owns the bindings, and is dropped after them.
        unsafe { self.window.bind(rows, &mut self.encoder_binding, &mut self.decoder_binding)? };
        self.window.set_features(features);
        self.encoder_binding.run(&mut self.encoder.session)
    }

    fn decode(&mut self, at: usize, tokens: &[TokenId], rows: &[usize]) -> Result<&[f32], StepError> {
        check_decode(&self.limits, self.length, at, tokens, rows)?;
        let width = self.arch.hidden;
        let places = self.inputs.embeds.chunks_exact_mut(width);
        for ((position, &token), out) in (at..).zip(tokens).zip(places) {
            self.tables.tokens.read_row(token as usize, out);
            self.tables.positions.add_row(position, out);
        }
        self.tables.check()?;

        let total = at + tokens.len();
        self.inputs.last[0] = total as i32 - 1;
        self.inputs.total[0] = total as i32;
        self.inputs.rows.clear();
        self.inputs.rows.extend(rows.iter().map(|&row| row as i64));
        self.logits.resize(rows.len() * self.limits.vocab, 0.0);
        self.bind_step(tokens.len())?;
        self.length = at;
        self.tokens = 0;
        self.decoder_binding.run(&mut self.decoder.session)?;
        self.length = total;
        self.tokens = tokens.len();
        Ok(&self.logits)
    }

    fn alignment(&mut self) -> Result<Vec<f32>, StepError> {
        let keys = |layer, head| self.window.head_keys(layer, head).into();
        Ok(alignment(&self.arch, &self.queries, [self.tokens, self.window.rows()], keys))
    }
}
