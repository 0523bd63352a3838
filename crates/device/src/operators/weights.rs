//! Weights of linear layers, packed when a graph is loaded, or by an earlier load.

use std::{borrow::Cow, ops::Range, path::Path, sync::Arc, thread};

use half::f16;
use memmap2::MmapMut;
use narthex_graph::{Element, Initializer, onnx::files::DataFiles};
use narthex_kernels::{Bits, BlockedWeights, PackedMatrix, Scales, SharedBytes};
use narthex_spec::DType;
use parking_lot::Mutex;

use crate::packed_weights::{PackedWeights, zeroed};

/// First line of the header of packed weights; the number is the version of the header.
const FORMAT: &str = "narthex packed weights 1\n";

/// Multiple of bytes at which packed matrices start.
const ALIGNMENT: usize = 64;

/// Constants of a linear layer in the graph.
pub(super) struct LinearSource {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) block: usize,
    pub(super) bits: Bits,
    /// Rows of the constants that are its outputs.
    pub(super) rows: SourceRows,
    pub(super) quants: Initializer,
    /// Scales in half or single precision.
    pub(super) scales: Initializer,
    pub(super) zeros: Option<Initializer>,
    /// Offsets in half precision, `[blocks, outputs]`.
    pub(super) offsets: Option<Initializer>,
    /// Bias in single precision, with as many elements as the constants have rows.
    pub(super) bias: Option<Initializer>,
}

/// Rows of constants: `first`, and every `step`-th row after it. The constants have `step` rows for each output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceRows {
    pub(super) first: usize,
    pub(super) step: usize,
}

impl SourceRows {
    /// All rows.
    pub(super) const ALL: Self = Self { first: 0, step: 1 };

    /// Returns the rows of a constant of a layer with `outputs` outputs.
    fn of(self, bytes: &[u8], outputs: usize) -> Cow<'_, [u8]> {
        if self == Self::ALL {
            return Cow::Borrowed(bytes);
        }
        let row = bytes.len() / (outputs * self.step).max(1);
        let rows = bytes.chunks_exact(row.max(1)).skip(self.first).step_by(self.step);
        Cow::Owned(rows.flatten().copied().collect())
    }
}

/// A linear layer.
pub(super) struct Linear {
    pub(super) weights: PackedMatrix,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Returns the number of inputs, and that of inputs in a block.
    pub(super) fn layout(&self) -> (usize, usize) {
        (self.weights.inputs(), self.weights.block())
    }

    /// Adds the bias of some columns to a row.
    pub(super) fn add_bias(&self, row: &mut [f32], columns: Range<usize>) {
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(&bias[columns]).for_each(|(x, bias)| *x += bias);
        }
    }
}

impl LinearSource {
    /// Returns the weights without their data, which is sufficient to compute their size.
    fn shape(&self) -> BlockedWeights<'_> {
        let half = self.scales.dtype == Element::from(DType::F16);
        BlockedWeights {
            outputs: self.outputs,
            inputs: self.inputs,
            block: self.block,
            bits: self.bits,
            quants: &[],
            scales: if half { Scales::F16(&[]) } else { Scales::F32(&[]) },
            zeros: self.zeros.as_ref().map(|_| &[][..]),
            offsets: self.offsets.as_ref().map(|_| &[][..]),
        }
    }

    /// Packs the weights into `out`, which has their packed size.
    fn pack(&self, folder: &Path, files: &mut DataFiles, out: &mut [u8]) -> Option<()> {
        let zeros = match &self.zeros {
            Some(zeros) => Some(self.rows.of(files.bytes(folder, zeros).ok()?, self.outputs).into_owned()),
            None => None,
        };
        let offsets = match &self.offsets {
            Some(offsets) => Some(transposed(&halves(files.bytes(folder, offsets).ok()?), self.outputs)),
            None => None,
        };

        let scales = self.rows.of(files.bytes(folder, &self.scales).ok()?, self.outputs);
        let (half, single): (Vec<f16>, Vec<f32>);
        let scales = match self.shape().scales {
            Scales::F16(_) => {
                half = halves(&scales);
                Scales::F16(&half)
            }
            Scales::F32(_) => {
                single = floats(&scales);
                Scales::F32(&single)
            }
        };

        let quants = self.rows.of(files.bytes(folder, &self.quants).ok()?, self.outputs);
        let weights = BlockedWeights {
            quants: &quants,
            scales,
            zeros: zeros.as_deref(),
            offsets: offsets.as_deref(),
            ..self.shape()
        };
        PackedMatrix::pack_into(&weights, out).ok()
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn halves(bytes: &[u8]) -> Vec<f16> {
    bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes)).collect()
}

/// Returns the elements of a matrix with `columns` columns in the order of its columns.
fn transposed(elements: &[f16], columns: usize) -> Vec<f16> {
    (0..columns).flat_map(|column| elements.iter().skip(column).step_by(columns).copied()).collect()
}

/// Layers of a graph.
pub(super) struct LinearLayers {
    pub(super) linears: Vec<Linear>,
    /// Their packed weights; `None` if there are no layers.
    pub(super) packed: Option<PackedWeights>,
}

/// Loads the layers of the graph in the file `graph`. Their weights come from the folder `stored` if it has them, and
/// are otherwise packed on `threads` threads. Returns `None` if a constant cannot be read.
pub(super) fn load(
    sources: &[LinearSource],
    graph: &Path,
    stored: Option<&Path>,
    threads: usize,
) -> Option<LinearLayers> {
    if sources.is_empty() {
        return Some(LinearLayers { linears: Vec::new(), packed: None });
    }
    let folder = graph.parent()?;
    let layout = FileLayout::of(sources)?;
    let stored = stored.and_then(|stored| PackedWeights::open(stored, graph, &layout.header, layout.length));
    if let Some(packed) = stored
        && let Some(linears) = layout.linears(sources, folder, packed.bytes())
    {
        return Some(LinearLayers { linears, packed: Some(packed) });
    }
    let packed = PackedWeights::new(graph, Arc::new(pack(sources, folder, &layout, threads)?));
    let linears = layout.linears(sources, folder, packed.bytes())?;
    Some(LinearLayers { linears, packed: Some(packed) })
}

/// Layout of the packed weights of some layers in a file and in memory.
struct FileLayout {
    /// Text that names the constants and shapes of the layers, padded to a multiple of [`ALIGNMENT`].
    header: Vec<u8>,
    /// Bytes of each layer's packed weights.
    ranges: Vec<Range<usize>>,
    length: usize,
}

impl FileLayout {
    fn of(sources: &[LinearSource]) -> Option<Self> {
        let mut text = FORMAT.to_owned();
        for source in sources {
            let names = [Some(&source.quants), Some(&source.scales), source.zeros.as_ref()];
            let names = names.map(|constant| constant.map_or("", |constant| constant.name.as_str()));
            let names = names.into_iter().chain(source.offsets.iter().map(|offsets| offsets.name.as_str()));
            let names: Vec<&str> = names.collect();
            let LinearSource { outputs, inputs, block, bits, .. } = source;
            text += &format!("{names:?} {outputs} {inputs} {block} {bits:?}");
            if let SourceRows { first, step: 2.. } = source.rows {
                text += &format!(" {first}");
            }
            text.push('\n');
        }
        let mut header = text.into_bytes();
        header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
        let mut length = header.len();
        let mut ranges = Vec::with_capacity(sources.len());
        for source in sources {
            let end = length.checked_add(source.shape().packed_bytes().ok()?)?;
            ranges.push(length..end);
            length = end;
        }
        Some(Self { header, ranges, length })
    }

    /// Returns the layers over these bytes; `None` if the bytes have other layers, or a bias cannot be read.
    fn linears(&self, sources: &[LinearSource], folder: &Path, bytes: &SharedBytes) -> Option<Vec<Linear>> {
        let mut files = DataFiles::default();
        let linears = sources.iter().zip(&self.ranges).map(|(source, range)| {
            let weights = PackedMatrix::from_bytes(Arc::clone(bytes), range.clone()).ok()?;
            let found = (weights.outputs(), weights.inputs(), weights.block(), weights.bits());
            if found != (source.outputs, source.inputs, source.block, source.bits) {
                return None;
            }
            let bias = match &source.bias {
                Some(bias) => Some(floats(&source.rows.of(files.bytes(folder, bias).ok()?, source.outputs))),
                None => None,
            };
            Some(Linear { weights, bias })
        });
        linears.collect()
    }
}

/// Packs layers on several threads; `None` if a constant cannot be read.
fn pack(sources: &[LinearSource], folder: &Path, layout: &FileLayout, threads: usize) -> Option<MmapMut> {
    let mut memory = zeroed(layout.length).ok()?;
    let (header, mut rest) = memory.split_at_mut(layout.header.len());
    header.copy_from_slice(&layout.header);

    let mut jobs = Vec::with_capacity(sources.len());
    for (source, range) in sources.iter().zip(&layout.ranges) {
        let (place, others) = rest.split_at_mut(range.len());
        jobs.push((source, place));
        rest = others;
    }

    let jobs = Mutex::new(jobs);
    thread::scope(|scope| {
        // If the system starts no more threads, this one packs all that is left.
        let others: Vec<_> = (1..threads)
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, || pack_jobs(&jobs, folder)).ok())
            .collect();
        let result = pack_jobs(&jobs, folder);
        others.into_iter().fold(result, |all, other| all.and(other.join().ok().flatten()))
    })?;
    Some(memory)
}

/// Packs layers until none is left; `None` if a constant cannot be read.
fn pack_jobs(jobs: &Mutex<Vec<(&LinearSource, &mut [u8])>>, folder: &Path) -> Option<()> {
    let mut files = DataFiles::default();
    loop {
        let Some((source, out)) = jobs.lock().pop() else { return Some(()) };
        source.pack(folder, &mut files, out)?;
    }
}
