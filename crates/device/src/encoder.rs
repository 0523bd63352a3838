//! Variant A of an encoder, on the CPU or a GPU: implements the engine's [`Encoder`].

use std::{ffi::CString, path::Path};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput},
    executor::StepError,
};
use narthex_spec::{
    DType, TokenId,
    arch::{Architecture, EncoderArch},
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
    hidden: usize,
    tables: EncoderTables,
    names: [CString; 3],
    embeds: Vec<f32>,
    mask: Vec<i32>,
    binding: Binding,
    // Dropped last: the binding belongs to it.
    session: Session,
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
        package::takes_dynamic(device)?;
        let Parts { entry, hidden, tables, names } = Parts::read(package, manifest)?;
        let session = SessionOptions::on(device, inventory::threads(options.threads));
        let session = Session::open(runtime, &package::path(package, &entry.file)?, session)?;
        Ok(Self {
            limits: EncoderLimits {
                max_length: manifest.max_length,
                max_batch_tokens: options.max_batch_tokens.max(manifest.max_length),
                width: hidden,
            },
            hidden,
            tables,
            names,
            embeds: Vec::new(),
            mask: Vec::new(),
            binding: Binding::new(&session).map_err(DeviceError::binding)?,
            session,
        })
    }

    /// Where the graph's nodes run.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    /// Writes embedded tokens and mask; padding is all zeros.
    fn fill(&mut self, texts: &[&[TokenId]], longest: usize) {
        self.embeds.clear();
        self.embeds.resize(texts.len() * longest * self.hidden, 0.0);
        self.mask.clear();
        self.mask.resize(texts.len() * longest, 0);
        for (row, text) in texts.iter().enumerate() {
            for (index, &token) in text.iter().enumerate() {
                let at = row * longest + index;
                self.mask[at] = 1;
                let out = &mut self.embeds[at * self.hidden..(at + 1) * self.hidden];
                self.tables.read(token, index, out);
            }
        }
    }
}

/// What an encoder takes from its package beside the graph.
pub(crate) struct Parts<'a> {
    entry: &'a GraphEntry,
    hidden: usize,
    pub(crate) tables: EncoderTables,
    names: [CString; 3],
}

impl<'a> Parts<'a> {
    /// Reads and checks all of it.
    pub(crate) fn read(package: &Path, manifest: &'a Manifest) -> Result<Self, DeviceError> {
        let Architecture::Encoder(arch) = &manifest.architecture else {
            return Err(DeviceError::package("an encoder", "a decoder"));
        };
        let entry = package::graph(manifest)?;
        let tables = EncoderTables::open(package, manifest, arch)?;
        let names = [
            package::input(entry, Slot::Embeds)?,
            package::input(entry, Slot::PaddingMask)?,
            package::output(entry, Slot::Embedding)?,
        ];
        Ok(Self { entry, hidden: arch.hidden, tables, names })
    }
}

/// The tables that an encoder's tokens are looked up in.
pub(crate) struct EncoderTables {
    pub(crate) token: Table,
    /// What a position adds to its token: the position's row and the first segment's.
    position: Vec<f32>,
}

impl EncoderTables {
    pub(crate) fn open(package: &Path, manifest: &Manifest, arch: &EncoderArch) -> Result<Self, DeviceError> {
        let hidden = arch.hidden;
        if manifest.max_length == 0 {
            return Err(DeviceError::package("a length of at least 1 token", 0));
        }
        let table = |role, rows: usize| {
            let table = package::table(package, manifest, role)?;
            if table.cols() != hidden || table.rows() < rows {
                let found = format!("{} x {}", table.rows(), table.cols());
                let expected = format!("a {role:?} table of at least {rows} x {hidden}");
                return Err(DeviceError::package(expected, found));
            }
            Ok(table)
        };
        let token = table(TableRole::Token, arch.vocab)?;
        let positions = table(TableRole::Position, manifest.max_length)?;
        let types = table(TableRole::TokenType, 1)?;
        let mut position = vec![0.0; manifest.max_length * hidden];
        for (row, out) in position.chunks_exact_mut(hidden).enumerate() {
            positions.read_row(row, out);
            types.add_row(0, out);
        }
        Ok(Self { token, position })
    }

    /// Entries of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        self.token.rows()
    }

    /// Writes a token's row at a position.
    pub(crate) fn read(&self, token: TokenId, position: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.position[position * out.len()..][..out.len()]);
        self.token.add_row(token as usize, out);
    }
}

/// The longest text's tokens, if all texts are within the limits.
pub(crate) fn check_texts(
    limits: &EncoderLimits,
    vocab: usize,
    texts: &[&[TokenId]],
) -> Result<usize, StepError> {
    let bad = |reason: String| Err(StepError::BadPlan { reason });
    let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    if texts.iter().any(|text| text.is_empty()) || longest == 0 || longest > limits.max_length {
        return bad(format!("texts of 1 to {} tokens are expected", limits.max_length));
    }
    if texts.len() * longest > limits.max_batch_tokens {
        let most = limits.max_batch_tokens;
        return bad(format!("{} texts of {longest} tokens are over {most}", texts.len()));
    }
    match texts.iter().flat_map(|text| text.iter()).find(|&&token| token as usize >= vocab) {
        Some(token) => bad(format!("token {token} is not below {vocab}")),
        None => Ok(longest),
    }
}

impl Encoder for DynamicEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[&[TokenId]]) -> Result<EncoderOutput, StepError> {
        let longest = check_texts(&self.limits, self.tables.vocab(), texts)?;
        self.fill(texts, longest);
        let mut data = vec![0.0; texts.len() * self.hidden];
        let (batch, sequence, hidden) = (texts.len() as i64, longest as i64, self.hidden as i64);
        let [embeds, mask, embedding] = &self.names;
        // SAFETY: all three tensors are bound anew for every run and live until it is over.
        unsafe {
            let shape = [batch, sequence, hidden];
            self.binding.input(embeds, Tensor::new(&mut self.embeds, DType::F32, &shape))?;
            self.binding.input(mask, Tensor::new(&mut self.mask, DType::I32, &[batch, sequence]))?;
            self.binding.output(embedding, Tensor::new(&mut data, DType::F32, &[batch, hidden]))?;
        }
        self.binding.run(&mut self.session)?;
        Ok(EncoderOutput { data, width: self.hidden })
    }
}
