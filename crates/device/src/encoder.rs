//! Variant A of an encoder on the CPU: implements the engine's [`Encoder`].

use std::{ffi::CString, path::Path};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput},
    executor::StepError,
};
use narthex_spec::{
    DType, TokenId,
    arch::Architecture,
    manifest::{Manifest, Slot, TableRole},
};

use crate::{
    dynamic::threads,
    error::DeviceError,
    ort::{Binding, Session, SessionOptions, Tensor},
    placement::Placement,
    runtime::Runtime,
    table::Table,
};

/// Bounds of an encoder.
#[derive(Debug, Clone, Copy)]
pub struct EncoderOptions {
    /// Threads; 0 takes one per usable core.
    pub threads: usize,
    /// The most padded tokens in one batch.
    pub max_batch_tokens: usize,
}

/// An encoder on the CPU.
pub struct DynamicEncoder {
    limits: EncoderLimits,
    hidden: usize,
    token: Table,
    /// What a position adds to its token: the position's row and the first segment's.
    position: Vec<f32>,
    names: [CString; 3],
    embeds: Vec<f32>,
    mask: Vec<i32>,
    binding: Binding,
    // Dropped last: the binding belongs to it.
    session: Session,
}

impl DynamicEncoder {
    /// Loads a package's encoder.
    pub fn open(
        runtime: &Runtime,
        package: &Path,
        manifest: &Manifest,
        options: &EncoderOptions,
    ) -> Result<Self, DeviceError> {
        let unusable =
            |expected: &str, found: String| DeviceError::Package { expected: expected.to_owned(), found };
        let Architecture::Encoder(arch) = &manifest.architecture else {
            return Err(unusable("an encoder", "a decoder".to_owned()));
        };
        let entry = manifest.graphs.first().ok_or_else(|| unusable("a graph", "none".to_owned()))?;
        let table = |role: TableRole, rows: usize| {
            let described = manifest.tables.iter().find(|table| table.role == role);
            let table = Table::open(package, described.ok_or_else(|| unusable("host tables", format!("no {role:?}")))?)?;
            if table.cols() != arch.hidden || table.rows() < rows {
                let found = format!("{} x {}", table.rows(), table.cols());
                return Err(unusable(&format!("a {role:?} table of at least {rows} x {}", arch.hidden), found));
            }
            Ok(table)
        };
        let name = |slot: Slot| {
            let binding = entry.input(slot).or_else(|| entry.output(slot));
            let name = binding.and_then(|binding| CString::new(binding.name.as_str()).ok());
            name.ok_or_else(|| unusable("a tensor for every slot", format!("none for {slot:?}")))
        };
        let token = table(TableRole::Token, arch.vocab)?;
        let positions = table(TableRole::Position, manifest.max_length)?;
        let types = table(TableRole::TokenType, 1)?;
        let mut position = vec![0.0; manifest.max_length * arch.hidden];
        for (row, out) in position.chunks_exact_mut(arch.hidden).enumerate() {
            positions.read_row(row, out);
            types.add_row(0, out);
        }
        let session_options = SessionOptions { threads: threads(options.threads) };
        let session = Session::open(runtime, &package.join(&entry.file), session_options)?;
        let binding = Binding::new(&session)
            .map_err(|error| DeviceError::Ort { what: "make a binding", message: error.to_string() })?;
        Ok(Self {
            limits: EncoderLimits {
                max_length: manifest.max_length,
                max_batch_tokens: options.max_batch_tokens.max(manifest.max_length),
                width: arch.hidden,
            },
            hidden: arch.hidden,
            token,
            position,
            names: [name(Slot::Embeds)?, name(Slot::PaddingMask)?, name(Slot::Embedding)?],
            embeds: Vec::new(),
            mask: Vec::new(),
            binding,
            session,
        })
    }

    /// Where the graph's nodes run.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    fn check(&self, texts: &[&[TokenId]]) -> Result<usize, StepError> {
        let bad = |reason: String| Err(StepError::BadPlan { reason });
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        if texts.iter().any(|text| text.is_empty()) || longest == 0 || longest > self.limits.max_length {
            return bad(format!("texts of 1 to {} tokens are expected", self.limits.max_length));
        }
        if texts.len() * longest > self.limits.max_batch_tokens {
            let most = self.limits.max_batch_tokens;
            return bad(format!("{} texts of {longest} tokens are over {most}", texts.len()));
        }
        match texts.iter().flat_map(|text| text.iter()).find(|&&token| token as usize >= self.token.rows()) {
            Some(token) => bad(format!("token {token} is not below {}", self.token.rows())),
            None => Ok(longest),
        }
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
                out.copy_from_slice(&self.position[index * self.hidden..(index + 1) * self.hidden]);
                self.token.add_row(token as usize, out);
            }
        }
    }
}

impl Encoder for DynamicEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[&[TokenId]]) -> Result<EncoderOutput, StepError> {
        let longest = self.check(texts)?;
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
