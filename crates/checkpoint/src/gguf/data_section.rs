//! The part of a GGUF file with the tensors' elements: the byte range of each tensor, inside the file and not shared.

use std::{collections::HashMap, path::Path};

use crate::{
    error::Result,
    limits::malformed,
    stored_tensor::{StoredTensor, TensorEncoding},
    tensors::end_of,
};

/// The part of a file with the tensors' elements.
pub(super) struct DataSection {
    /// Length of the file in bytes.
    pub(super) length: usize,
    /// Position of the first tensor that could be there.
    pub(super) start: usize,
    /// Divisor of every tensor's offset.
    pub(super) alignment: usize,
}

impl DataSection {
    /// Converts the offset of each tensor to its byte range in the file, after a check that the file contains it and that no
    /// other tensor has a part of it.
    pub(super) fn locate_all(&self, path: &Path, tensors: &mut HashMap<String, StoredTensor>) -> Result<()> {
        for (name, tensor) in tensors.iter_mut() {
            self.locate(path, name, tensor)?;
        }
        check_disjoint(path, tensors)
    }

    /// Converts a tensor's offset to its byte range in the file, after a check that the file contains it.
    fn locate(&self, path: &Path, name: &str, tensor: &mut StoredTensor) -> Result<()> {
        let offset = tensor.bytes.start;
        if !offset.is_multiple_of(self.alignment) {
            return Err(malformed(
                path,
                format!("tensor {name} at a multiple of {}", self.alignment),
                offset,
            ));
        }
        let TensorEncoding::Known(encoding) = tensor.kind else {
            // The size of a type that cannot be decoded is unknown. A request for this tensor fails.
            tensor.bytes = 0..0;
            return Ok(());
        };

        let row = tensor.shape.last().copied().unwrap_or(0);
        if !row.is_multiple_of(encoding.block_elements()) {
            let expected = format!("rows of tensor {name} in blocks of {}", encoding.block_elements());
            return Err(malformed(path, expected, format!("rows of {row}")));
        }

        let elements = tensor.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let end = elements.and_then(|elements| encoding.bytes(elements)).and_then(|size| {
            let start = self.start.checked_add(offset)?;
            end_of(start, size, self.length).map(|end| start..end)
        });

        let Some(range) = end else {
            let expected = format!("tensor {name} of shape {:?} inside the file", tensor.shape);
            return Err(malformed(
                path,
                expected,
                format!("a file of {} bytes; fetch it again", self.length),
            ));
        };

        tensor.bytes = range;
        Ok(())
    }
}

/// Fails if two tensors share bytes of the file. Each tensor becomes a part of the package, so a small file could become
/// a package of any size. Tensors of types without a known size have no range.
fn check_disjoint(path: &Path, tensors: &HashMap<String, StoredTensor>) -> Result<()> {
    let located = tensors.iter().filter(|(_, tensor)| !tensor.bytes.is_empty());
    let mut ranges: Vec<_> =
        located.map(|(name, tensor)| (tensor.bytes.start, name, tensor.bytes.end)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [(_, first, end), (start, second, _)] = pair
            && start < end
        {
            let found = format!("{first} and {second}, which share byte {start}");
            return Err(malformed(path, "tensors that share no bytes", found));
        }
    }
    Ok(())
}
