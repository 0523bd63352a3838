//! Weights that were rounded before a graph is emitted. They are in a temporary file, so that their number is not limited
//! by memory.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use half::f16;

use crate::{
    error::{CompileError, Result, unwritable},
    quant::block::{Form4, QuantRow},
};

/// Weights of 4 bits in a file, by canonical name.
#[derive(Debug, Default)]
pub(crate) struct RoundedWeights {
    file: Option<(PathBuf, File)>,
    length: u64,
    /// Where each weight begins.
    offsets: BTreeMap<String, u64>,
}

/// Shape of the rows of a weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowShape {
    /// Number of blocks in a row.
    pub(crate) blocks: usize,
    /// Number of elements in a block.
    pub(crate) block: usize,
    /// Form of the blocks.
    pub(crate) form: Form4,
}

impl RowShape {
    /// Returns the number of bytes of the zero points.
    fn zeros(self) -> usize {
        if self.form == Form4::Zeros { self.blocks.div_ceil(2) } else { 0 }
    }

    /// Returns the number of bytes in the file.
    pub(crate) fn bytes(self) -> usize {
        self.blocks * self.block / 2 + self.blocks * size_of::<f16>() + self.zeros()
    }
}

impl RoundedWeights {
    /// Creates the file.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(unwritable(path))?;
        Ok(Self { file: Some((path.to_owned(), file)), ..Self::default() })
    }

    /// Begins a weight. Its rows follow.
    pub(crate) fn begin(&mut self, name: &str) {
        self.offsets.insert(name.to_owned(), self.length);
    }

    /// Adds the next rows of a weight.
    pub(crate) fn append<'a>(&mut self, rows: impl Iterator<Item = &'a QuantRow>) -> Result<()> {
        let mut bytes = Vec::new();
        for row in rows {
            bytes.extend_from_slice(&row.quants);
            bytes.extend_from_slice(bytemuck::cast_slice(&row.scales));
            bytes.extend_from_slice(&row.zeros);
        }
        if let Some((path, file)) = &mut self.file {
            file.write_all(&bytes).map_err(unwritable(path))?;
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Passes the rows of a weight to `take` in order. Returns `false` if the weight was not rounded.
    pub(crate) fn each_row(
        &self,
        name: &str,
        rows: usize,
        shape: RowShape,
        take: &mut dyn FnMut(&QuantRow) -> Result<()>,
    ) -> Result<bool> {
        let (Some(&offset), Some((path, file))) = (self.offsets.get(name), &self.file) else {
            return Ok(false);
        };
        let unreadable = |source| CompileError::Read { path: path.clone(), source };
        let mut reader = BufReader::with_capacity(1 << 20, file);
        reader.seek(SeekFrom::Start(offset)).map_err(unreadable)?;

        let RowShape { blocks, block, .. } = shape;
        let mut row = QuantRow {
            quants: vec![0; blocks * block / 2],
            scales: vec![f16::ZERO; blocks],
            zeros: vec![0; shape.zeros()],
            offsets: Vec::new(),
        };
        for _ in 0..rows {
            let parts: [&mut [u8]; 3] =
                [&mut row.quants, bytemuck::cast_slice_mut(&mut row.scales), &mut row.zeros];
            for part in parts {
                reader.read_exact(part).map_err(unreadable)?;
            }
            take(&row)?;
        }
        Ok(true)
    }

    /// Removes the file.
    pub(crate) fn remove(self) -> Result<()> {
        let Some((path, file)) = self.file else { return Ok(()) };
        drop(file);
        fs::remove_file(&path).map_err(unwritable(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounded");
        let mut weights = RoundedWeights::create(&path).unwrap();
        let values = |seed: usize| (0..80).map(move |i| ((i * seed) % 17) as f32 / 16.0 - 0.4);
        let rows = |form: Form4| [3, 5].map(|seed| form.quantize(&values(seed).collect::<Vec<_>>(), 32));
        for (name, form) in [("a", Form4::Zeros), ("b", Form4::Symmetric)] {
            weights.begin(name);
            let before = weights.length;
            rows(form).iter().try_for_each(|row| weights.append(std::iter::once(row))).unwrap();
            let bytes = RowShape { blocks: 3, block: 32, form }.bytes() as u64;
            assert_eq!(weights.length - before, 2 * bytes, "{name}");
        }
        for (name, form) in [("b", Form4::Symmetric), ("a", Form4::Zeros)] {
            let mut read = Vec::new();
            let shape = RowShape { blocks: 3, block: 32, form };
            let mut take = |row: &QuantRow| {
                read.push(row.clone());
                Ok(())
            };
            assert!(weights.each_row(name, 2, shape, &mut take).unwrap());
            assert_eq!(read, rows(form), "{name}");
            assert!(!weights.each_row("c", 2, shape, &mut |_| panic!("a row of no weight")).unwrap());
        }
        weights.remove().unwrap();
        assert!(!path.exists());
    }
}
