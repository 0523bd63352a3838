//! An encoder of fixed graphs: implements the engine's [`Encoder`], one text after another in the shortest bucket.

use std::path::Path;

use half::f16;
use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput},
    executor::StepError,
};
use narthex_spec::{
    TokenId,
    arch::{Architecture, Pooling},
    manifest::{Manifest, Part, Slot},
};

use super::{HIDDEN, Place, graph::FixedGraph, open};
use crate::{
    encoder::{EncoderTables, check_texts},
    error::DeviceError,
    placement::GraphPlacement,
    runtime::Runtime,
};

/// An encoder in fixed graphs on one device.
pub struct FixedEncoder {
    limits: EncoderLimits,
    tables: EncoderTables,
    pooling: Pooling,
    normalize: bool,
    /// By length, rising.
    buckets: Vec<(usize, FixedGraph)>,
}

impl FixedEncoder {
    /// Loads a package's fixed encoder on a device. A batch holds any number of texts; they run one after another.
    ///
    /// # Errors
    /// As for [`FixedExecutor::open`](super::FixedExecutor::open).
    pub fn open(
        runtime: &Runtime,
        folder: &Path,
        manifest: &Manifest,
        place: Place<'_>,
    ) -> Result<Self, DeviceError> {
        let Architecture::Encoder(arch) = &manifest.architecture else {
            return Err(DeviceError::package("an encoder", "a decoder"));
        };
        let mut buckets = Vec::new();
        for entry in &manifest.graphs {
            if let Part::Bucket { length } = entry.part {
                let session = open(runtime, folder, manifest, entry, place)?;
                buckets.push((length, FixedGraph::new(entry, session)?));
            }
        }
        buckets.sort_by_key(|(length, _)| *length);
        let longest = buckets.last().map(|(length, _)| *length);
        let longest = longest.ok_or_else(|| DeviceError::package("an encoder in fixed graphs", "none"))?;
        let max_length = longest.min(manifest.max_length);
        let limits = EncoderLimits { max_length, max_batch_tokens: usize::MAX, width: arch.hidden };
        let tables = EncoderTables::open(folder, manifest, arch)?;
        Ok(Self { limits, tables, pooling: arch.pooling, normalize: arch.normalize, buckets })
    }

    /// Where the nodes of each graph run.
    pub fn placements(&self) -> Vec<GraphPlacement> {
        self.buckets.iter().map(|(_, graph)| graph.placement()).collect()
    }

    fn encode(&mut self, text: &[TokenId], out: &mut [f32]) -> Result<(), StepError> {
        let Some((_, graph)) = self.buckets.iter_mut().find(|(length, _)| *length >= text.len()) else {
            return Err(StepError::BadPlan { reason: format!("no graph takes {} tokens", text.len()) });
        };
        let (hidden, count) = (self.limits.width, text.len());
        let embeds = graph.input(Slot::Embeds);
        embeds[count * hidden..].fill(f16::ZERO);
        let mut row = vec![0.0; hidden];
        for (position, (&token, out)) in text.iter().zip(embeds.chunks_exact_mut(hidden)).enumerate() {
            self.tables.read(token, position, &mut row);
            row.iter().zip(out).for_each(|(value, out)| *out = f16::from_f32(*value));
        }
        let mask = graph.input(Slot::Mask { window: None });
        mask[..count].fill(f16::ZERO);
        mask[count..].fill(f16::from_f32(HIDDEN));
        let pool = graph.input(Slot::PoolWeights);
        pool.fill(f16::ZERO);
        match self.pooling {
            Pooling::Mean => pool[..count].fill(f16::from_f32(1.0 / count as f32)),
            Pooling::Cls => pool[..1].fill(f16::ONE),
        }
        graph.run()?;
        let vector = graph.output(Slot::Embedding);
        vector.iter().zip(out.iter_mut()).for_each(|(value, out)| *out = value.to_f32());
        if self.normalize {
            let length = out.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            out.iter_mut().for_each(|x| *x /= length);
        }
        Ok(())
    }
}

impl Encoder for FixedEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[&[TokenId]]) -> Result<EncoderOutput, StepError> {
        check_texts(&self.limits, self.tables.vocab(), texts)?;
        let width = self.limits.width;
        let mut data = vec![0.0; texts.len() * width];
        for (text, out) in texts.iter().zip(data.chunks_exact_mut(width)) {
            self.encode(text, out)?;
        }
        Ok(EncoderOutput { data, width })
    }
}
