//! Rows of a package's host tables, read directly from a memory map.

use std::path::Path;

use half::f16;
use narthex_engine::{
    executor::{StepError, StepPlan},
    position::Position,
};
use narthex_files::MappedFile;
use narthex_spec::{
    DType,
    arch::DecoderArch,
    manifest::{FileRange, HostTable, Manifest, TableEncoding, TableRole},
};

use crate::{error::DeviceError, package};

/// A host table of a package.
pub(crate) struct Table {
    rows: usize,
    cols: usize,
    data: Data,
}

enum Data {
    F32(MappedBytes),
    F16(MappedBytes),
    /// `(q - 128) · scale`.
    W8 {
        block: usize,
        quants: MappedBytes,
        scales: MappedBytes,
    },
}

/// Embedding of tokens: the rows of the token table; the rows of learned positions, if the model has them, which are
/// added to these; and the rows that each layer receives in addition, if the model has them.
pub(crate) struct Embedding {
    tokens: Table,
    positions: Option<Table>,
    per_layer: Option<Table>,
}

impl Embedding {
    /// Opens the embedding of a decoder.
    pub(crate) fn open(package: &Path, manifest: &Manifest, arch: &DecoderArch) -> Result<Self, DeviceError> {
        Ok(Self {
            tokens: Table::of_shape(package, manifest, TableRole::Token, [arch.vocab, arch.hidden])?,
            positions: match arch.learned_positions() {
                true => {
                    let shape = [arch.context, arch.hidden];
                    Some(Table::of_shape(package, manifest, TableRole::Position, shape)?)
                }
                false => None,
            },
            per_layer: match &arch.per_layer {
                Some(rows) => {
                    let shape = [rows.vocab, arch.layers.len().saturating_mul(rows.width)];
                    Some(Table::of_shape(package, manifest, TableRole::PerLayer, shape)?)
                }
                None => None,
            },
        })
    }

    /// Returns the size of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        self.tokens.rows
    }

    /// Returns the number of elements of an embedded token.
    pub(crate) fn width(&self) -> usize {
        self.tokens.cols
    }

    /// Writes the embedding of a token, or the row of a medium, to `out`. It is the token `at` of its sequence.
    pub(crate) fn write(&self, plan: &StepPlan, token: Position, at: usize, out: &mut [f32]) {
        match plan.row(token) {
            Some(row) => out.copy_from_slice(row),
            None => self.tokens.read_row(token.as_token().unwrap_or(0) as usize, out),
        }
        if let Some(positions) = &self.positions {
            positions.add_row(at, out);
        }
    }

    /// Fails if a file changed after it was opened, because the rows that were read may be wrong.
    pub(crate) fn check(&self) -> Result<(), StepError> {
        let others = [&self.positions, &self.per_layer].into_iter().flatten();
        [&self.tokens].into_iter().chain(others).try_for_each(Table::check)
    }

    /// Returns the number of elements of a token's rows for all layers; 0 if the model has none.
    pub(crate) fn per_layer_width(&self) -> usize {
        self.per_layer.as_ref().map_or(0, |table| table.cols)
    }

    /// Writes a token's rows for all layers to `out`. A token that is not in the table, and the row of a medium, have the
    /// rows of token 0.
    pub(crate) fn write_per_layer(&self, token: Position, out: &mut [f32]) {
        if let Some(table) = &self.per_layer {
            let row = token.as_token().unwrap_or(0) as usize;
            table.read_row(if row < table.rows { row } else { 0 }, out);
        }
    }
}

/// Tables of cosines and sines of rotary angles.
pub(crate) const SHORT: [TableRole; 2] = [TableRole::Cos, TableRole::Sin];

/// Tables of cosines and sines for long sequences.
pub(crate) const LONG: [TableRole; 2] = [TableRole::LongCos, TableRole::LongSin];

/// Opens two tables, which must have the same shape.
pub(crate) fn pair(
    package: &Path,
    manifest: &Manifest,
    roles: [TableRole; 2],
) -> Result<[Table; 2], DeviceError> {
    let [first, second] = roles.map(|role| Table::of_role(package, manifest, role));
    let first = first?;
    let second = second?;
    if (first.rows, first.cols) != (second.rows, second.cols) {
        let expected = format!("tables {roles:?} of one shape");
        return Err(DeviceError::package(expected, format!("{} and {} rows", first.rows, second.rows)));
    }
    Ok([first, second])
}

struct MappedBytes {
    map: MappedFile,
    start: usize,
    length: usize,
}

impl MappedBytes {
    fn open(package: &Path, range: &FileRange, expected: usize) -> Result<Self, DeviceError> {
        let path = package::path(package, &range.file)?;
        let map = narthex_files::map(&path)
            .map_err(|error| DeviceError::Read { path, reason: error.to_string() })?;
        let end = range.offset.checked_add(range.length).filter(|&end| end <= map.len() as u64);
        if end.is_none() || range.length != expected as u64 {
            return Err(DeviceError::Package {
                expected: format!("{expected} bytes of a table in {}", range.file),
                found: format!("{} bytes at {} of {}", range.length, range.offset, map.len()),
            });
        }
        Ok(Self { start: range.offset as usize, length: expected, map })
    }

    fn check(&self) -> Result<(), StepError> {
        self.map
            .watch()
            .check()
            .map_err(|error| StepError::Device { message: format!("a file of the package: {error}") })
    }

    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        &self.map[self.start..self.start + self.length][at..at + length]
    }
}

fn number(half: &[u8]) -> f32 {
    f16::from_le_bytes([half[0], half[1]]).to_f32()
}

impl Table {
    /// Maps the package's table with a role.
    pub(crate) fn of_role(package: &Path, manifest: &Manifest, role: TableRole) -> Result<Self, DeviceError> {
        let described = manifest.tables.iter().find(|table| table.role == role);
        Self::open(
            package,
            described.ok_or_else(|| DeviceError::package(format!("a {role:?} table"), "none"))?,
        )
    }

    /// Maps the table of a role, which must have this shape.
    pub(crate) fn of_shape(
        package: &Path,
        manifest: &Manifest,
        role: TableRole,
        [rows, cols]: [usize; 2],
    ) -> Result<Self, DeviceError> {
        let table = Self::of_role(package, manifest, role)?;
        if (table.rows, table.cols) != (rows, cols) {
            let found = format!("{} x {}", table.rows, table.cols);
            return Err(DeviceError::package(format!("a {role:?} table of {rows} x {cols}"), found));
        }
        Ok(table)
    }

    /// Maps a table that the manifest describes.
    pub(crate) fn open(package: &Path, table: &HostTable) -> Result<Self, DeviceError> {
        let rows = table.rows;
        let cols = table.cols;
        // The largest encoding takes four bytes for each element. A table that exceeds the address space cannot be in a
        // file.
        let elements = rows
            .checked_mul(cols)
            .filter(|elements| *elements > 0 && elements.checked_mul(4).is_some())
            .ok_or_else(|| DeviceError::package("a table of some rows", format!("{rows} x {cols}")))?;

        let data = match &table.encoding {
            TableEncoding::Plain { dtype: DType::F32, data } => {
                Data::F32(MappedBytes::open(package, data, elements * 4)?)
            }
            TableEncoding::Plain { dtype: DType::F16, data } => {
                Data::F16(MappedBytes::open(package, data, elements * 2)?)
            }
            TableEncoding::Plain { dtype, .. } => {
                return Err(DeviceError::package("a table of f32, f16 or w8", format!("{dtype:?}")));
            }
            TableEncoding::W8 { block, .. } if *block == 0 || !cols.is_multiple_of(*block) => {
                let found = format!("{cols} elements in blocks of {block}");
                return Err(DeviceError::package("rows of whole blocks", found));
            }
            TableEncoding::W8 { block, quants, scales } => Data::W8 {
                block: *block,
                quants: MappedBytes::open(package, quants, elements)?,
                scales: MappedBytes::open(package, scales, elements / block * 2)?,
            },
        };
        Ok(Self { rows: table.rows, cols: table.cols, data })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of elements in a row.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Fails if the file changed after it was opened, because the rows that were read may be wrong.
    pub(crate) fn check(&self) -> Result<(), StepError> {
        match &self.data {
            Data::F32(data) | Data::F16(data) => data.check(),
            Data::W8 { quants, scales, .. } => quants.check().and_then(|()| scales.check()),
        }
    }

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
                out.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(out, half)| put(out, number(half)));
            }
            Data::W8 { block, quants, scales } => {
                let quants = quants.bytes(row * cols, cols).chunks_exact(*block);
                let scales = scales.bytes(row * cols / block * 2, cols / block * 2).chunks_exact(2);
                for ((out, quants), scale) in out.chunks_exact_mut(*block).zip(quants).zip(scales) {
                    let scale = number(scale);
                    out.iter_mut().zip(quants).for_each(|(out, q)| put(out, (f32::from(*q) - 128.0) * scale));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::manifest::TableRole;

    use super::*;

    fn range(offset: u64, length: u64) -> FileRange {
        FileRange { file: "data".to_owned(), offset, length }
    }

    fn table(rows: usize, cols: usize, encoding: TableEncoding) -> HostTable {
        HostTable { role: TableRole::Token, rows, cols, encoding }
    }

    fn plain(dtype: DType, data: FileRange) -> TableEncoding {
        TableEncoding::Plain { dtype, data }
    }

    fn w8(block: usize) -> TableEncoding {
        TableEncoding::W8 { block, quants: range(0, 8), scales: range(8, 8) }
    }

    fn folder(bytes: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("data"), bytes).unwrap();
        folder
    }

    fn halves(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
    }

    #[test]
    fn rows_of_every_encoding() {
        let check = |bytes: &[u8], encoding: TableEncoding, expected: [f32; 4]| {
            let folder = folder(bytes);
            let table = Table::open(folder.path(), &table(2, 4, encoding)).unwrap();
            let mut row = [1.0; 4];
            table.read_row(1, &mut row);
            assert_eq!(row, expected);
            table.add_row(1, &mut row);
            assert_eq!(row, expected.map(|x| x + x));
        };
        let values = [0.0, 0.0, 0.0, 0.0, 1.5, -2.0, 0.25, 8.0];
        let expected = [1.5, -2.0, 0.25, 8.0];
        check(bytemuck::cast_slice(&values), plain(DType::F32, range(0, 32)), expected);
        let shifted = [vec![9, 9, 9], halves(&values)].concat();
        check(&shifted, plain(DType::F16, range(3, 16)), expected);
        let quants = [0, 0, 0, 0, 131, 124, 129, 160];
        let blocks = [quants.to_vec(), halves(&[9.0, 9.0, 0.5, 0.25])].concat();
        check(&blocks, w8(2), expected);
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let check = |table: HostTable, word: &str| {
            let folder = folder(&[0; 16]);
            let error = Table::open(folder.path(), &table).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(word)), "{table:?}: {error:?}");
        };
        check(table(2, 4, plain(DType::F32, range(0, 32))), "found 32 bytes at 0 of 16");
        check(table(2, 2, plain(DType::F32, range(0, 12))), "expected 16 bytes");
        check(table(2, 2, plain(DType::F32, range(8, 16))), "found 16 bytes at 8 of 16");
        check(table(2, 2, plain(DType::F32, range(u64::MAX, 16))), "of 16");
        check(table(usize::MAX, 2, plain(DType::F32, range(0, 16))), "a table of some rows");
        check(table(0, 4, plain(DType::F32, range(0, 0))), "a table of some rows");
        check(table(4, 4, plain(DType::I8, range(0, 16))), "I8");
        check(table(2, 4, w8(3)), "blocks of 3");
        check(table(2, 4, w8(0)), "blocks of 0");
        let outside = FileRange { file: "../data".to_owned(), offset: 0, length: 16 };
        check(table(2, 2, plain(DType::F32, outside)), "inside the package");
        let missing = FileRange { file: "none".to_owned(), offset: 0, length: 16 };
        check(table(2, 2, plain(DType::F32, missing)), "cannot read");
    }

    #[cfg(unix)]
    #[test]
    fn a_table_whose_file_shrinks_does_not_end_the_process() {
        let values = |value: f32| bytemuck::cast_slice(&vec![value; 1 << 18]).to_vec();
        let (folder, other) = (folder(&values(7.0)), folder(&values(5.0)));
        let described = table(2, 1 << 17, plain(DType::F32, range(0, 1 << 20)));
        let open = |folder: &tempfile::TempDir| Table::open(folder.path(), &described).unwrap();
        let (shrunk, whole) = (open(&folder), open(&other));
        let file = std::fs::File::options().write(true).open(folder.path().join("data")).unwrap();
        file.set_len(1 << 19).unwrap();
        let last = |table: &Table| {
            let mut row = vec![1.0; 1 << 17];
            table.read_row(1, &mut row);
            row.iter().sum::<f32>()
        };
        // The rows are zeros, which must not become an answer.
        assert_eq!(last(&shrunk), 0.0);
        let error = shrunk.check().unwrap_err().to_string();
        assert!(error.contains("it had 1048576 bytes and now has 524288"), "{error}");
        assert_eq!((last(&whole), whole.check()), ((5 << 17) as f32, Ok(())));
    }
}
