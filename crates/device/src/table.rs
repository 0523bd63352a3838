//! Rows of a package's host tables, read straight from a memory map.

use std::{fs::File, path::Path};

use half::f16;
use memmap2::Mmap;
use narthex_spec::{
    DType,
    manifest::{FileRange, HostTable, TableEncoding},
};

use crate::error::DeviceError;

/// A table of the package.
pub(crate) struct Table {
    rows: usize,
    cols: usize,
    data: Data,
}

enum Data {
    F32(Mapped),
    F16(Mapped),
    /// `(q - 128) · scale`.
    W8 {
        block: usize,
        quants: Mapped,
        scales: Mapped,
    },
}

struct Mapped {
    map: Mmap,
    start: usize,
    length: usize,
}

impl Mapped {
    fn open(package: &Path, range: &FileRange, expected: usize) -> Result<Self, DeviceError> {
        let path = package.join(&range.file);
        let read = |reason: String| DeviceError::Read { path: path.clone(), reason };
        let file = File::open(&path).map_err(|error| read(error.to_string()))?;
        // SAFETY: packages are immutable: the store renames whole folders into place and never rewrites a file. Every
        // access below is checked against the map's own length.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| read(error.to_string()))?;
        let end = range.offset.checked_add(range.length).filter(|&end| end <= map.len() as u64);
        if end.is_none() || range.length != expected as u64 {
            return Err(DeviceError::Package {
                expected: format!("{expected} bytes of a table in {}", range.file),
                found: format!("{} bytes at {} of {}", range.length, range.offset, map.len()),
            });
        }
        Ok(Self { start: range.offset as usize, length: expected, map })
    }

    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        &self.map[self.start..self.start + self.length][at..at + length]
    }
}

fn half_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

impl Table {
    /// Maps a table that the manifest describes.
    pub(crate) fn open(package: &Path, table: &HostTable) -> Result<Self, DeviceError> {
        let elements = table.rows * table.cols;
        let data = match &table.encoding {
            TableEncoding::Plain { dtype: DType::F32, data } => Data::F32(Mapped::open(package, data, elements * 4)?),
            TableEncoding::Plain { dtype: DType::F16, data } => Data::F16(Mapped::open(package, data, elements * 2)?),
            TableEncoding::Plain { dtype, .. } => {
                let expected = "a table of f32, f16 or w8".to_owned();
                return Err(DeviceError::Package { expected, found: format!("{dtype:?}") });
            }
            TableEncoding::W8 { block, .. } if *block == 0 || !table.cols.is_multiple_of(*block) => {
                let expected = "rows of whole blocks".to_owned();
                return Err(DeviceError::Package { expected, found: format!("{} in blocks of {block}", table.cols) });
            }
            TableEncoding::W8 { block, quants, scales } => Data::W8 {
                block: *block,
                quants: Mapped::open(package, quants, elements)?,
                scales: Mapped::open(package, scales, elements / block * 2)?,
            },
        };
        Ok(Self { rows: table.rows, cols: table.cols, data })
    }

    /// Rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Adds row `row` to `out`.
    pub(crate) fn add_row(&self, row: usize, out: &mut [f32]) {
        self.each(row, out, |out, value| *out += value);
    }

    /// Writes row `row` to `out`.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        self.each(row, out, |out, value| *out = value);
    }

    fn each(&self, row: usize, out: &mut [f32], put: impl Fn(&mut f32, f32)) {
        let cols = self.cols;
        match &self.data {
            Data::F32(data) => {
                let bytes = data.bytes(row * cols * 4, cols * 4);
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    put(out, f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                }
            }
            Data::F16(data) => {
                let bytes = data.bytes(row * cols * 2, cols * 2);
                out.iter_mut().enumerate().for_each(|(index, out)| put(out, half_at(bytes, index)));
            }
            Data::W8 { block, quants, scales } => {
                let quants = quants.bytes(row * cols, cols);
                let scales = scales.bytes(row * cols / block * 2, cols / block * 2);
                for (index, (out, quant)) in out.iter_mut().zip(quants).enumerate() {
                    put(out, (f32::from(*quant) - 128.0) * half_at(scales, index / block));
                }
            }
        }
    }
}
