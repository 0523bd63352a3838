//! Weights of linear layers, packed for this processor when a graph is loaded.

use std::{
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use half::f16;
use memmap2::MmapMut;
use narthex_graph::{Element, Initializer, onnx::files::DataFiles};
use narthex_kernels::{Bits, BlockedWeights, PackedMatrix, Scales, SharedBytes};
use narthex_spec::DType;

/// Constants of a linear layer in the graph.
pub(super) struct LinearSource {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) block: usize,
    pub(super) bits: Bits,
    pub(super) quants: Initializer,
    /// Scales in half or single precision.
    pub(super) scales: Initializer,
    pub(super) zeros: Option<Initializer>,
    /// Bias in single precision.
    pub(super) bias: Option<Initializer>,
}

/// A linear layer.
pub(super) struct Linear {
    pub(super) weights: PackedMatrix,
    bias: Option<Vec<f32>>,
}

impl Linear {
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
        }
    }

    /// Packs the weights into `out`, which has their packed size.
    fn pack(&self, folder: &Path, files: &mut DataFiles, out: &mut [u8]) -> Option<()> {
        let mut read = |constant: &Initializer| Some(files.bytes(folder, constant).ok()?.to_vec());
        let zeros = match &self.zeros {
            Some(zeros) => Some(read(zeros)?),
            None => None,
        };
        let scales = read(&self.scales)?;
        let (halves, singles): (Vec<f16>, Vec<f32>);
        let scales = match self.shape().scales {
            Scales::F16(_) => {
                halves = scales.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes)).collect();
                Scales::F16(&halves)
            }
            Scales::F32(_) => {
                singles = floats(&scales);
                Scales::F32(&singles)
            }
        };
        let quants = files.bytes(folder, &self.quants).ok()?;
        let weights = BlockedWeights { quants, scales, zeros: zeros.as_deref(), ..self.shape() };
        PackedMatrix::pack_into(&weights, out).ok()
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Packs layers on several threads, in consecutive memory; `None` if a constant cannot be read.
pub(super) fn pack(sources: &[LinearSource], folder: &Path, threads: usize) -> Option<Vec<Linear>> {
    let sizes = sources.iter().map(|source| source.shape().packed_bytes().ok());
    let sizes: Vec<usize> = sizes.collect::<Option<_>>()?;
    let total = sizes.iter().try_fold(0usize, |total, &size| total.checked_add(size))?;
    let mut memory = MmapMut::map_anon(total.max(1)).ok()?;
    advise(&memory);
    let (mut rest, mut jobs) = (&mut memory[..total], Vec::with_capacity(sources.len()));
    for (source, &size) in sources.iter().zip(&sizes) {
        let (place, others) = rest.split_at_mut(size);
        jobs.push((source, place));
        rest = others;
    }
    let jobs = Mutex::new(jobs);
    let work = || {
        let mut files = DataFiles::default();
        loop {
            let Some((source, place)) = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop() else {
                return Some(());
            };
            source.pack(folder, &mut files, place)?;
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        others.into_iter().fold(own, |all, other| all.and(other.join().ok().flatten()))
    })?;
    let memory: SharedBytes = Arc::new(memory);
    let (mut at, mut files) = (0, DataFiles::default());
    let linears = sources.iter().zip(sizes).map(|(source, size)| {
        at += size;
        let bias = match &source.bias {
            Some(bias) => Some(floats(files.bytes(folder, bias).ok()?)),
            None => None,
        };
        Some(Linear { weights: PackedMatrix::from_bytes(Arc::clone(&memory), at - size..at).ok()?, bias })
    });
    linears.collect()
}

/// Requests large pages. A product of one row reads all weights once, and small pages halve its speed.
fn advise(memory: &MmapMut) {
    // A system that refuses uses small pages.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}
