//! Variant A of an encoder, on the CPU or a GPU: implements the engine's [`Encoder`].

mod input;

use std::{ffi::CString, path::Path};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput, Rows, Text},
    executor::StepError,
};
use narthex_spec::{
    DType,
    arch::{EncoderArch, EncoderHead, Factored, ImportedEncoder, Structure},
    manifest::{GraphEntry, Manifest, Slot, TableRole},
};

use crate::{
    ep::Device,
    error::DeviceError,
    inventory,
    ort::{Binding, Session, SessionOptions, Tensor},
    package,
    placement::Placement,
    runtime::Runtime,
    table::Table,
};

pub(crate) use input::EncoderInput;

/// Bounds of an encoder.
#[derive(Debug, Clone, Copy)]
pub struct EncoderOptions {
    /// Threads; 0 takes one per physical core that this process may use.
    pub threads: usize,
    /// The most padded tokens in one batch.
    pub max_batch_tokens: usize,
}

/// An encoder on one device.
pub struct DynamicEncoder {
    limits: EncoderLimits,
    feed: EncoderInput,
    names: EncoderNames,
    mask: Vec<i32>,
    /// Rows asked for, of the batch's padded rows.
    asked: Vec<i64>,
    binding: Binding,
    // Dropped last: the binding belongs to it.
    session: Session,
}

/// The graph's names of its inputs and its output.
struct EncoderNames {
    /// Embedded tokens, or tokens.
    first: CString,
    /// Position rows, or segments.
    second: Option<CString>,
    mask: CString,
    asked: Option<CString>,
    output: CString,
}

impl DynamicEncoder {
    /// Loads a package's encoder on a device. A batch may always hold one text of the greatest length.
    ///
    /// # Errors
    /// [`DeviceError::Variant`] for a device that takes graphs of fixed shape alone, [`DeviceError::NoDevice`] for one that
    /// is not there, [`DeviceError::Package`] and [`DeviceError::Read`] for a package that is not a whole encoder of variant A,
    /// [`DeviceError::Ort`] for a graph that ONNX Runtime refuses.
    pub fn open(
        runtime: &Runtime,
        package: &Path,
        manifest: &Manifest,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Self, DeviceError> {
        package::takes_dynamic(device, manifest)?;
        let EncoderParts { entry, gives: (rows, width), feed, names } =
            EncoderParts::read(package, manifest)?;
        let session = SessionOptions::on(device, inventory::threads(options.threads));
        let session = Session::open(runtime, &package::path(package, &entry.file)?, session)?;
        Ok(Self {
            limits: EncoderLimits {
                max_length: manifest.max_length,
                max_batch_tokens: options.max_batch_tokens.max(manifest.max_length),
                rows,
                width,
            },
            feed,
            names,
            mask: Vec::new(),
            asked: Vec::new(),
            binding: Binding::new(&session).map_err(DeviceError::binding)?,
            session,
        })
    }

    /// Where the graph's nodes run.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    /// Writes what goes in for tokens, the mask and the rows asked for.
    fn fill(&mut self, texts: &[Text<'_>], longest: usize) {
        let rows = texts.len() * longest;
        self.feed.clear(rows);
        self.mask.clear();
        self.mask.resize(rows, 0);
        self.asked.clear();
        for (row, text) in texts.iter().enumerate() {
            for index in 0..text.tokens.len() {
                let at = row * longest + index;
                self.mask[at] = 1;
                self.feed.write(at, text, index);
            }
            self.asked.extend(text.asked.iter().map(|&place| (row * longest + place) as i64));
        }
    }
}

/// Which rows an encoder gives, and their width.
pub(crate) fn gives(arch: &EncoderArch) -> (Rows, usize) {
    rows_of(&arch.head, arch.hidden, arch.vocab)
}

/// Which rows a head gives, and their width; its vectors have `hidden` elements.
fn rows_of(head: &EncoderHead, hidden: usize, vocab: usize) -> (Rows, usize) {
    match *head {
        EncoderHead::Embedding { .. } => (Rows::Text, hidden),
        EncoderHead::Score { labels, .. } => (Rows::Text, labels),
        EncoderHead::Spans {} => (Rows::Tokens, 2),
        EncoderHead::MaskedLm { .. } => (Rows::Asked, vocab),
    }
}

/// The output that an encoder's rows come out by.
pub(crate) fn output_slot(head: &EncoderHead) -> Slot {
    match head {
        EncoderHead::Embedding { .. } => Slot::Embedding,
        EncoderHead::Score { .. } => Slot::Scores,
        EncoderHead::Spans {} => Slot::Spans,
        EncoderHead::MaskedLm { .. } => Slot::Logits,
    }
}

/// Parts of an encoder's package beside the graph.
pub(crate) struct EncoderParts<'a> {
    entry: &'a GraphEntry,
    gives: (Rows, usize),
    pub(crate) feed: EncoderInput,
    names: EncoderNames,
}

impl<'a> EncoderParts<'a> {
    /// Reads and checks all of it.
    pub(crate) fn read(package: &Path, manifest: &'a Manifest) -> Result<Self, DeviceError> {
        let feed = EncoderInput::open(package, manifest)?;
        let (head, gives) = match &manifest.architecture {
            Structure::Encoder(arch) => (&arch.head, gives(arch)),
            Structure::ImportedEncoder(ImportedEncoder { vocab, width, head }) => {
                (head, rows_of(head, *width, *vocab))
            }
            _ => return Err(DeviceError::package("an encoder", "a decoder")),
        };
        let entry = package::graph(manifest)?;
        let only = |wanted: bool, slot| wanted.then(|| package::input(entry, slot)).transpose();
        let (first, second) = match &feed {
            EncoderInput::Rows { tables, .. } => {
                (Slot::Embeds, only(tables.factored.is_some(), Slot::PositionEmbeds)?)
            }
            // A model may have no segments.
            EncoderInput::Tokens { .. } => {
                (Slot::Tokens, only(entry.input(Slot::Segments).is_some(), Slot::Segments)?)
            }
        };
        let names = EncoderNames {
            first: package::input(entry, first)?,
            second,
            mask: package::input(entry, Slot::PaddingMask)?,
            asked: only(matches!(head, EncoderHead::MaskedLm { .. }), Slot::LogitsRows)?,
            output: package::output(entry, output_slot(head))?,
        };
        Ok(Self { entry, gives, feed, names })
    }
}

/// The tables that an encoder's tokens are looked up in.
pub(crate) struct EncoderTables {
    pub(crate) token: Table,
    /// For each segment, what a position adds to its token: the position's row and the segment's.
    positions: Vec<Vec<f32>>,
    hidden: usize,
    factored: Option<Factored>,
    /// Elements that go into the graph for a token.
    pub(crate) input: usize,
}

/// Labels of a classifier at most; a table vouches for every other width.
const MAX_LABELS: usize = 1 << 20;

/// Segments that texts have at most.
const SEGMENTS: usize = 2;

impl EncoderTables {
    pub(crate) fn open(package: &Path, manifest: &Manifest, arch: &EncoderArch) -> Result<Self, DeviceError> {
        let (hidden, width) = (arch.hidden, arch.token_width());
        if manifest.max_length == 0 {
            return Err(DeviceError::package("a length of at least 1 token", 0));
        }
        if let EncoderHead::Score { labels, .. } = arch.head
            && !(1..=MAX_LABELS).contains(&labels)
        {
            return Err(DeviceError::package(format!("1 to {MAX_LABELS} labels"), labels));
        }
        let table = |role, rows: usize, cols: usize| {
            let table = Table::of_role(package, manifest, role)?;
            if table.cols() != cols || table.rows() < rows {
                let found = format!("{} x {}", table.rows(), table.cols());
                let expected = format!("a {role:?} table of at least {rows} x {cols}");
                return Err(DeviceError::package(expected, found));
            }
            Ok(table)
        };
        let token = table(TableRole::Token, arch.vocab, width)?;
        let positions = table(TableRole::Position, manifest.max_length, hidden)?;
        let types = (arch.types > 0).then(|| table(TableRole::TokenType, 1, hidden)).transpose()?;
        let segments = types.as_ref().map_or(1, |types| types.rows().min(SEGMENTS));
        let segment = |segment: usize| {
            let mut rows = vec![0.0; manifest.max_length * hidden];
            for (row, out) in rows.chunks_exact_mut(hidden).enumerate() {
                positions.read_row(row, out);
                if let Some(types) = &types {
                    types.add_row(segment, out);
                }
            }
            rows
        };
        let positions = (0..segments).map(segment).collect();
        let input = arch.factored.as_ref().map_or(hidden, Factored::input);
        Ok(Self { token, positions, hidden, factored: arch.factored, input })
    }

    /// Entries of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        self.token.rows()
    }

    /// Elements of a position that go into the graph by an input of their own.
    pub(crate) fn apart(&self) -> usize {
        if self.factored.is_some() { self.hidden } else { 0 }
    }

    /// Writes what goes into the graph for the token at a place: [`Self::input`] and [`Self::apart`] elements.
    pub(crate) fn read(&self, text: &Text<'_>, place: usize, embeds: &mut [f32], apart: &mut [f32]) {
        // A model that knows one segment takes a pair's second text for the first.
        let segment = usize::from(place >= text.second).min(self.positions.len() - 1);
        let position = &self.positions[segment][place * self.hidden..][..self.hidden];
        let Some(factored) = self.factored else {
            embeds.copy_from_slice(position);
            self.token.add_row(text.tokens[place] as usize, embeds);
            return;
        };
        apart.copy_from_slice(position);
        let places = [place.checked_add(1), Some(place), place.checked_sub(1)];
        let places = if factored.trigram { &places[..] } else { &places[1..2] };
        for (at, out) in places.iter().zip(embeds.chunks_exact_mut(factored.width)) {
            match at.and_then(|at| text.tokens.get(at)) {
                Some(&token) => self.token.read_row(token as usize, out),
                // Beyond its ends a text has zeros.
                None => out.fill(0.0),
            }
        }
    }
}

/// The longest text's tokens, if all texts are within the limits.
pub(crate) fn check_texts(
    limits: &EncoderLimits,
    vocab: usize,
    texts: &[Text<'_>],
) -> Result<usize, StepError> {
    let bad = |reason: String| Err(StepError::BadPlan { reason });
    let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
    if texts.iter().any(|text| text.tokens.is_empty()) || longest == 0 || longest > limits.max_length {
        return bad(format!("texts of 1 to {} tokens are expected", limits.max_length));
    }
    if texts.len() * longest > limits.max_batch_tokens {
        let most = limits.max_batch_tokens;
        return bad(format!("{} texts of {longest} tokens are over {most}", texts.len()));
    }
    for text in texts {
        if let Some(place) = text.asked.iter().find(|&&place| place >= text.tokens.len()) {
            return bad(format!("place {place} is asked of a text of {} tokens", text.tokens.len()));
        }
    }
    match texts.iter().flat_map(|text| text.tokens.iter()).find(|&&token| token as usize >= vocab) {
        Some(token) => bad(format!("token {token} is not below {vocab}")),
        None => Ok(longest),
    }
}

impl Encoder for DynamicEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        let longest = check_texts(&self.limits, self.feed.vocab(), texts)?;
        let (rows, width) = (self.limits.rows, self.limits.width);
        if rows == Rows::Asked && texts.iter().all(|text| text.asked.is_empty()) {
            return Ok(EncoderOutput { data: Vec::new(), width });
        }
        self.fill(texts, longest);
        let (batch, sequence) = (texts.len() as i64, longest as i64);
        let asked = self.asked.len() as i64;
        let shape = match rows {
            Rows::Text => vec![batch, width as i64],
            Rows::Tokens => vec![batch, sequence, width as i64],
            Rows::Asked => vec![asked, width as i64],
        };
        let mut data = vec![0.0; shape.iter().product::<i64>() as usize];
        let EncoderNames { mask, asked: rows_asked, output, .. } = &self.names;
        // SAFETY: every tensor is bound again for every run and lives until it is over.
        unsafe {
            self.feed.bind(&mut self.binding, &self.names, [batch, sequence])?;
            self.binding.input(mask, Tensor::new(&mut self.mask, DType::I32, &[batch, sequence]))?;
            if let Some(name) = rows_asked {
                self.binding.input(name, Tensor::new(&mut self.asked, DType::I64, &[asked]))?;
            }
            self.binding.output(output, Tensor::new(&mut data, DType::F32, &shape))?;
        }
        self.binding.run(&mut self.session)?;
        if rows == Rows::Tokens {
            data = without_padding(&data, texts, longest * width, width);
        }
        Ok(EncoderOutput { data, width })
    }
}

/// The rows of tokens alone, out of texts of `stride` elements each.
fn without_padding(data: &[f32], texts: &[Text<'_>], stride: usize, width: usize) -> Vec<f32> {
    let texts = data.chunks_exact(stride).zip(texts);
    texts.flat_map(|(rows, text)| &rows[..text.tokens.len() * width]).copied().collect()
}
