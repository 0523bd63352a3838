//! The dynamic variant of an encoder, on the CPU or a GPU. It implements the engine's [`Encoder`].

mod input;
mod tables;

use std::{
    ffi::{CStr, CString},
    path::Path,
};

use narthex_engine::{
    encoder::{Batching, Encoder, EncoderLimits, EncoderOutput, Rows, Text},
    executor::StepError,
};
use narthex_spec::{
    DType,
    arch::{EmbedderArch, EncoderArch, EncoderHead, ImportedEncoder, Structure},
    manifest::{GraphEntry, Manifest, Slot},
};

use crate::{
    ep::Device,
    error::DeviceError,
    inventory,
    operators::{PaddedInputs, ROW_OFFSETS},
    ort::{Binding, Session, SessionOptions, Tensor},
    package,
    packed_weights::PackedWeights,
    placement::Placement,
    runtime::Runtime,
};

pub(crate) use input::EncoderInput;
pub(crate) use tables::EncoderTables;

/// Options of an encoder.
#[derive(Debug, Clone, Copy)]
pub struct EncoderOptions<'a> {
    /// Number of threads. 0 means one per physical core that this process may use.
    pub threads: usize,
    /// Maximum number of tokens in one batch. Padding counts unless the graph packs texts.
    pub max_batch_tokens: usize,
    /// Folder with the packed weights that an earlier load of the package has stored. See
    /// [`DynamicEncoder::packed_weights`].
    pub packed_weights: Option<&'a Path>,
}

/// An encoder on one device.
pub struct DynamicEncoder {
    limits: EncoderLimits,
    feed: EncoderInput,
    names: EncoderNames,
    mask: Vec<i32>,
    /// Index of each text's first row and the number of rows, if the graph packs texts.
    offsets: Vec<i32>,
    /// Indices of the requested rows among the batch's rows.
    requested: Vec<i64>,
    binding: Binding,
    // Declared after the binding, so that it is dropped after it: the binding belongs to it.
    session: Session,
}

/// Names of the graph's inputs and output.
struct EncoderNames {
    /// Input for embedded tokens, or for token numbers.
    first: CString,
    /// Input for position rows, for positions, or for segments.
    second: Option<CString>,
    mask: CString,
    requested: Option<CString>,
    output: CString,
}

impl DynamicEncoder {
    /// Loads a package's encoder on a device. The limit for a batch is raised, if necessary, to one text of the maximum
    /// length.
    ///
    /// # Errors
    /// [`DeviceError::Variant`] for a device that takes only graphs of fixed shape, [`DeviceError::NoDevice`] for an
    /// absent device, [`DeviceError::Package`] and [`DeviceError::Read`] for a package that is not a whole encoder of
    /// the dynamic variant, [`DeviceError::Ort`] for a graph that ONNX Runtime refuses.
    pub fn open(
        runtime: &Runtime,
        package: &Path,
        manifest: &Manifest,
        device: &Device,
        options: &EncoderOptions<'_>,
    ) -> Result<Self, DeviceError> {
        package::takes_dynamic(device, manifest)?;
        let EncoderParts { entry, output_rows: (rows, width), feed, names } =
            EncoderParts::read(package, manifest)?;
        let session = SessionOptions::on(device, inventory::threads(options.threads));
        let row_inputs = names.row_inputs();
        let padded = matches!(feed, EncoderInput::Rows { .. }).then(|| names.padded(&row_inputs));
        let session = SessionOptions { packed_weights: options.packed_weights, padded, ..session };
        let session = Session::open(runtime, &package::path(package, &entry.file)?, session)?;
        session.check_names(entry)?;

        Ok(Self {
            limits: EncoderLimits {
                max_length: manifest.max_length,
                max_batch_tokens: options.max_batch_tokens.max(manifest.max_length),
                batching: if session.packs_rows() { Batching::Packed } else { Batching::Padded },
                rows,
                width,
            },
            feed,
            names,
            mask: Vec::new(),
            offsets: Vec::new(),
            requested: Vec::new(),
            binding: Binding::new(&session).map_err(DeviceError::binding)?,
            session,
        })
    }

    /// Returns the placement of the graph's nodes.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    /// Returns the packed weights of the graph, if the CPU computes with packed weights. A later load of the same
    /// package need not pack them again if they are stored and passed in its options.
    pub fn packed_weights(&self) -> Option<&PackedWeights> {
        self.session.packed_weights()
    }

    /// Writes the inputs for the tokens, the mask and the requested rows. Returns the first two extents of rows.
    fn fill(&mut self, texts: &[Text<'_>], longest: usize) -> [i64; 2] {
        let packs = self.limits.batching == Batching::Packed;
        let shape = if packs { [1, self.limits.tokens_of(texts)] } else { [texts.len(), longest] };
        self.feed.clear(shape[0] * shape[1]);
        self.mask.clear();
        self.mask.resize(texts.len() * longest, 0);
        self.offsets.clear();
        self.requested.clear();
        let mut next = 0;
        for (index, text) in texts.iter().enumerate() {
            let padded = index * longest;
            let length = text.tokens.len();
            let first = if packs { next } else { padded };
            self.mask[padded..padded + length].fill(1);
            (0..length).for_each(|position| self.feed.write(first + position, text, position));
            self.requested.extend(text.requested.iter().map(|&position| (first + position) as i64));
            self.offsets.push(next as i32);
            next += length;
        }
        self.offsets.push(next as i32);
        shape.map(|extent| extent as i64)
    }
}

impl EncoderNames {
    /// Returns the names of the inputs with a row for each token.
    fn row_inputs(&self) -> Vec<&str> {
        [Some(&self.first), self.second.as_ref()].into_iter().flatten().map(|name| text(name)).collect()
    }

    /// Returns the inputs of a graph that reads rows.
    fn padded<'a>(&'a self, rows: &'a [&'a str]) -> PaddedInputs<'a> {
        PaddedInputs { rows, mask: text(&self.mask), requested: self.requested.as_deref().map(text) }
    }
}

/// Returns a name of the manifest as text.
fn text(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}

/// Returns the kind of an encoder's rows, and their width.
pub(crate) fn output_rows(arch: &EncoderArch) -> (Rows, usize) {
    rows_of(&arch.head, arch.hidden, arch.vocab)
}

/// Returns the kind of rows of an embedding model or a classifier with the layers of a decoder, and their width.
pub(crate) fn embedder_rows(arch: &EmbedderArch) -> (Rows, usize) {
    rows_of(&arch.head, arch.width(), arch.decoder.vocab)
}

/// Returns the kind of a head's rows, and their width. The vectors before the head have `hidden` elements.
fn rows_of(head: &EncoderHead, hidden: usize, vocab: usize) -> (Rows, usize) {
    match *head {
        EncoderHead::Embedding { .. } => (Rows::Text, hidden),
        EncoderHead::Score { labels, .. } => (Rows::Text, labels),
        EncoderHead::Spans {} => (Rows::Tokens, 2),
        EncoderHead::Tokens { labels } => (Rows::Tokens, labels),
        EncoderHead::MaskedLm { .. } => (Rows::Requested, vocab),
    }
}

/// Returns the output that has an encoder's rows.
pub(crate) fn output_slot(head: &EncoderHead) -> Slot {
    match head {
        EncoderHead::Embedding { .. } => Slot::Embedding,
        EncoderHead::Score { .. } => Slot::Scores,
        EncoderHead::Spans {} => Slot::Spans,
        EncoderHead::Tokens { .. } => Slot::TokenScores,
        EncoderHead::MaskedLm { .. } => Slot::Logits,
    }
}

/// Parts of an encoder's package other than the graph.
pub(crate) struct EncoderParts<'a> {
    entry: &'a GraphEntry,
    output_rows: (Rows, usize),
    pub(crate) feed: EncoderInput,
    names: EncoderNames,
}

impl<'a> EncoderParts<'a> {
    /// Reads and checks the parts.
    pub(crate) fn read(package: &Path, manifest: &'a Manifest) -> Result<Self, DeviceError> {
        let feed = EncoderInput::open(package, manifest)?;
        let (head, output_rows) = match &manifest.architecture {
            Structure::Encoder(arch) => (&arch.head, output_rows(arch)),
            Structure::Embedder(arch) => (&arch.head, embedder_rows(arch)),
            Structure::ImportedEncoder(ImportedEncoder { vocab, width, head, .. }) => {
                (head, rows_of(head, *width, *vocab))
            }
            _ => return Err(DeviceError::package("an encoder", "a decoder")),
        };

        let entry = package::graph(manifest)?;
        let (first, second) = match &feed {
            EncoderInput::Rows { tables, .. } => (Slot::Embeds, tables.second_input()),
            // Some models have no segments.
            EncoderInput::Tokens { .. } => {
                (Slot::Tokens, Some(Slot::Segments).filter(|slot| entry.input(*slot).is_some()))
            }
        };
        let requested = matches!(head, EncoderHead::MaskedLm { .. }).then_some(Slot::LogitsRows);

        let names = EncoderNames {
            first: package::input(entry, first)?,
            second: second.map(|slot| package::input(entry, slot)).transpose()?,
            mask: package::input(entry, Slot::PaddingMask)?,
            requested: requested.map(|slot| package::input(entry, slot)).transpose()?,
            output: package::output(entry, output_slot(head))?,
        };
        Ok(Self { entry, output_rows, feed, names })
    }
}

/// Returns the length of the longest text in tokens, if all texts are within the limits.
pub(crate) fn check_texts(
    limits: &EncoderLimits,
    vocab: usize,
    texts: &[Text<'_>],
) -> Result<usize, StepError> {
    let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
    if texts.iter().any(|text| text.tokens.is_empty()) || longest == 0 || longest > limits.max_length {
        return Err(StepError::bad_plan(format!("expected texts of 1 to {} tokens", limits.max_length)));
    }
    if limits.tokens_of(texts) > limits.max_batch_tokens {
        let count = texts.len();
        let tokens = limits.tokens_of(texts);
        let limit = limits.max_batch_tokens;
        let reason = format!("{count} texts have {tokens} tokens; the limit of a batch is {limit}");
        return Err(StepError::bad_plan(reason));
    }

    for text in texts {
        if let Some(position) = text.requested.iter().find(|&&position| position >= text.tokens.len()) {
            let length = text.tokens.len();
            let reason = format!("the row of token {position} is requested for a text of {length} tokens");
            return Err(StepError::bad_plan(reason));
        }
    }

    match texts.iter().flat_map(|text| text.tokens.iter()).find(|&&token| token as usize >= vocab) {
        Some(token) => Err(StepError::bad_plan(format!("token {token} is not below {vocab}"))),
        None => Ok(longest),
    }
}

impl Encoder for DynamicEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let longest = check_texts(&self.limits, self.feed.vocab(), texts)?;
        let rows = self.limits.rows;
        let width = self.limits.width;
        if rows == Rows::Requested && texts.iter().all(|text| text.requested.is_empty()) {
            return Ok(EncoderOutput { data: Vec::new(), width });
        }

        let [batch, sequence] = self.fill(texts, longest);
        self.feed.check()?;
        let count = texts.len() as i64;
        let longest = longest as i64;
        let requested = self.requested.len() as i64;
        let offsets = self.offsets.len() as i64;
        let shape = match rows {
            Rows::Text => vec![count, width as i64],
            Rows::Tokens => vec![batch, sequence, width as i64],
            Rows::Requested => vec![requested, width as i64],
        };

        let mut data = vec![0.0; shape.iter().product::<i64>() as usize];
        let EncoderNames { mask, requested: rows_requested, output, .. } = &self.names;
        // SAFETY: every tensor is bound again for each run and outlives the run.
        unsafe {
            self.feed.bind(&mut self.binding, &self.names, [batch, sequence])?;
            self.binding.input(mask, Tensor::new(&mut self.mask, DType::I32, &[count, longest]))?;
            if self.limits.batching == Batching::Packed {
                let shape = [offsets];
                let offsets = Tensor::new(&mut self.offsets, DType::I32, &shape);
                self.binding.input(ROW_OFFSETS, offsets)?;
            }
            if let Some(name) = rows_requested {
                self.binding.input(name, Tensor::new(&mut self.requested, DType::I64, &[requested]))?;
            }
            self.binding.output(output, Tensor::new(&mut data, DType::F32, &shape))?;
        }

        self.binding.run(&mut self.session)?;
        if rows == Rows::Tokens && self.limits.batching == Batching::Padded {
            data = without_padding(&data, texts, longest as usize * width, width);
        }
        Ok(EncoderOutput { data, width })
    }
}

/// Returns the rows without those of padding. Each text has `stride` elements.
fn without_padding(data: &[f32], texts: &[Text<'_>], stride: usize, width: usize) -> Vec<f32> {
    let texts = data.chunks_exact(stride).zip(texts);
    texts.flat_map(|(rows, text)| &rows[..text.tokens.len() * width]).copied().collect()
}
