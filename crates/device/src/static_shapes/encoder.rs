//! An encoder in graphs of fixed shapes: implements the engine's [`Encoder`], one text after another in the smallest
//! bucket that holds it.

use std::path::Path;

use half::f16;
use narthex_engine::{
    encoder::{Batching, Encoder, EncoderLimits, EncoderOutput, Rows, Text},
    executor::StepError,
};
use narthex_spec::{
    arch::{EncoderHead, Pooling, Structure},
    manifest::{Manifest, Part, Slot},
};

use super::{GraphLoad, HIDDEN, graph::StaticGraph, open};
use crate::{
    encoder::{EncoderTables, check_texts, embedder_rows, output_rows, output_slot},
    error::DeviceError,
    placement::GraphPlacement,
    runtime::Runtime,
};

/// An encoder in graphs of fixed shapes on one device.
pub struct StaticEncoder {
    limits: EncoderLimits,
    tables: EncoderTables,
    output: Slot,
    /// Pooling of a text's rows into one row.
    pooling: Pooling,
    normalize: bool,
    /// Graphs by maximum length in tokens, in ascending order.
    buckets: Vec<(usize, StaticGraph)>,
    /// Graph that turns a row into logits, for models with a separate head.
    head: Option<StaticGraph>,
    /// Inputs of the graph for one token, before rounding to half precision.
    row: Vec<f32>,
    apart: Vec<f32>,
}

impl StaticEncoder {
    /// Loads a package's encoder of fixed shapes on a device. A batch may have any number of texts; they run one after
    /// another.
    ///
    /// # Errors
    /// The errors of [`StaticExecutor::open`](super::StaticExecutor::open).
    pub fn open(
        runtime: &Runtime,
        folder: &Path,
        manifest: &Manifest,
        place: GraphLoad<'_>,
    ) -> Result<Self, DeviceError> {
        let (tables, (rows, width), text_head) = match &manifest.architecture {
            Structure::Encoder(arch) => {
                (EncoderTables::open(folder, manifest, arch)?, output_rows(arch), arch.head)
            }
            Structure::Embedder(arch) => {
                let tables = EncoderTables::of_embedder(folder, manifest, arch)?;
                (tables, embedder_rows(arch), arch.head)
            }
            _ => return Err(DeviceError::package("an encoder", "a decoder")),
        };

        let mut buckets = Vec::new();
        let mut head = None;
        for entry in &manifest.graphs {
            if !matches!(entry.part, Part::Bucket { .. } | Part::Head { .. }) {
                continue;
            }
            let graph = StaticGraph::new(entry, open(runtime, folder, manifest, entry, place)?)?;
            match entry.part {
                Part::Bucket { length } => buckets.push((length, graph)),
                _ => head = Some(graph),
            }
        }

        buckets.sort_by_key(|(length, _)| *length);
        let longest = buckets.last().map(|(length, _)| *length);
        let longest = longest.ok_or_else(|| DeviceError::package("an encoder in fixed graphs", "none"))?;
        let max_length = longest.min(manifest.max_length);
        if rows == Rows::Requested && head.is_none() {
            return Err(DeviceError::package("a head in a fixed graph", "none"));
        }

        let limits = EncoderLimits {
            max_length,
            max_batch_tokens: usize::MAX,
            batching: Batching::Padded,
            rows,
            width,
        };

        let (pooling, normalize) = match text_head {
            EncoderHead::Embedding { pooling, normalize } => (pooling, normalize),
            _ => (classifier_pooling(&manifest.architecture), false),
        };
        let row = vec![0.0; tables.input];
        let apart = vec![0.0; tables.position_elements()];
        let output = if rows == Rows::Requested { Slot::Hidden } else { output_slot(&text_head) };
        Ok(Self { limits, tables, output, pooling, normalize, buckets, head, row, apart })
    }

    /// Returns the placement of the nodes of each graph.
    pub fn placements(&self) -> Vec<GraphPlacement> {
        self.buckets.iter().map(|(_, graph)| graph).chain(&self.head).map(StaticGraph::placement).collect()
    }

    /// Appends a text's rows.
    fn encode(&mut self, text: &Text<'_>, out: &mut Vec<f32>) -> Result<(), StepError> {
        let count = text.tokens.len();
        let Some((_, graph)) = self.buckets.iter_mut().find(|(length, _)| *length >= count) else {
            return Err(StepError::BadPlan { reason: format!("no graph has {count} tokens") });
        };

        let width = self.row.len();
        let apart = self.apart.len();
        graph.input(Slot::Embeds)[count * width..].fill(f16::ZERO);
        graph.input(Slot::PositionEmbeds).fill(f16::ZERO);

        for position in 0..count {
            self.tables.read(text, position, &mut self.row, &mut self.apart);
            round(&self.row, &mut graph.input(Slot::Embeds)[position * width..]);
            round(&self.apart, &mut graph.input(Slot::PositionEmbeds)[position * apart..]);
        }

        self.tables.check()?;
        let mask = graph.input(Slot::Mask { window: None });
        mask[..count].fill(f16::ZERO);
        mask[count..].fill(f16::from_f32(HIDDEN));

        let pool = graph.input(Slot::PoolWeights);
        if !pool.is_empty() {
            pool.fill(f16::ZERO);
            match self.pooling {
                Pooling::Mean => pool[..count].fill(f16::from_f32(1.0 / count as f32)),
                Pooling::Cls => pool[0] = f16::ONE,
                Pooling::Last => pool[count - 1] = f16::ONE,
                // The graph takes the maximum of the rows and needs no weights.
                Pooling::Max => {}
            }
        }

        graph.run()?;
        let found = graph.output(self.output);
        let from = out.len();

        match (self.limits.rows, &mut self.head) {
            (Rows::Requested, Some(head)) => {
                for &position in text.requested {
                    let row = head.input(Slot::Hidden);
                    let hidden = row.len();
                    row.copy_from_slice(&found[position * hidden..][..hidden]);
                    head.run()?;
                    out.extend(head.output(Slot::Logits).iter().map(|value| value.to_f32()));
                }
            }
            (rows, _) => {
                let elements = rows.of(text) * self.limits.width;
                out.extend(found[..elements].iter().map(|value| value.to_f32()));
            }
        }

        if self.normalize {
            let vector = &mut out[from..];
            let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            vector.iter_mut().for_each(|x| *x /= length);
        }
        Ok(())
    }
}

/// Returns the pooling before the layers of a classifier.
fn classifier_pooling(structure: &Structure) -> Pooling {
    match structure {
        Structure::Embedder(arch) => arch.classifier.map_or(Pooling::Cls, |layers| layers.pooling),
        _ => Pooling::Cls,
    }
}

fn round(values: &[f32], out: &mut [f16]) {
    values.iter().zip(out).for_each(|(value, out)| *out = f16::from_f32(*value));
}

impl Encoder for StaticEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        check_texts(&self.limits, self.tables.vocab(), texts)?;
        let mut data = Vec::new();
        for text in texts {
            self.encode(text, &mut data)?;
        }
        Ok(EncoderOutput { data, width: self.limits.width })
    }
}
