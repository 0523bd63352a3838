//! Floats of 4 bits in blocks of 32 with a power of two as scale (OCP Microscaling Formats 1.0), as gpt-oss publishes its
//! experts: `X_blocks`, `[.., out, in / 32, 16]`, and `X_scales`, `[.., out, in / 32]`, in bytes.

use std::{borrow::Cow, collections::HashMap, path::Path};

use rayon::prelude::*;

use super::Elements;
use crate::{
    encoding::Encoding,
    error::{CheckpointError, Result},
    limits::malformed,
    stored_tensor::{PackedLayout, PackedTensor, StoredTensor, TensorEncoding},
    weight::Weight,
};

/// Number of columns in a block, and of bytes of their floats.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = BLOCK / 2;

/// Combines the blocks and scales of each weight into a tensor `X` of the shape `[.., out, in]`.
///
/// # Errors
/// [`CheckpointError::MissingTensor`] for blocks without scales, and an error for shapes that do not fit.
pub(super) fn gather(folder: &Path, tensors: &mut HashMap<String, StoredTensor>) -> Result<()> {
    let byte = TensorEncoding::Other("U8".to_owned());
    let mut names: Vec<String> =
        tensors.keys().filter_map(|name| name.strip_suffix("_blocks")).map(str::to_owned).collect();
    names.sort_unstable();
    for name in names {
        let Some(mut blocks) = tensors.remove(&format!("{name}_blocks")) else { continue };
        let scales_name = format!("{name}_scales");
        let Some(scales) = tensors.remove(&scales_name) else {
            return Err(CheckpointError::MissingTensor { path: folder.to_owned(), name: scales_name });
        };
        let fits = match blocks.shape.split_last() {
            Some((&BLOCK_BYTES, outer)) => outer == scales.shape,
            _ => false,
        };
        let columns = scales.shape.last().and_then(|&blocks| blocks.checked_mul(BLOCK));
        let Some(columns) = columns.filter(|_| fits && blocks.kind == byte && scales.kind == byte) else {
            let expected =
                format!("blocks of {BLOCK_BYTES} bytes in {name}_blocks, each with a byte of {scales_name}");
            return Err(malformed(
                folder,
                expected,
                format!("shapes {:?}, {:?}", blocks.shape, scales.shape),
            ));
        };

        blocks.shape.truncate(blocks.shape.len() - 2);
        blocks.shape.push(columns);
        let (layout, tile) = (PackedLayout::Mxfp4, [1, BLOCK]);
        blocks.kind = TensorEncoding::PackedTensor(Box::new(PackedTensor {
            layout,
            scales,
            zeros: None,
            groups: None,
            tile,
        }));
        tensors.insert(name, blocks);
    }
    Ok(())
}

/// Returns a weight `[out, in]` in blocks of [`Encoding::Mxfp4`], from the bytes of its blocks and scales.
pub(super) fn weight(
    name: &str,
    shape: [usize; 2],
    elements: Elements,
    [blocks, scales]: [&[u8]; 2],
) -> Result<Weight<'static>> {
    let row_blocks = shape[1] / BLOCK;
    let encoding = Encoding::Mxfp4;
    let mut out = vec![0; shape[0] * row_blocks * encoding.block_bytes()];
    if elements == Elements::Read {
        let stored = blocks.as_chunks::<BLOCK_BYTES>().0.par_iter().zip(scales);
        out.par_chunks_exact_mut(encoding.block_bytes()).zip(stored).for_each(|(out, (pairs, scale))| {
            out[0] = *scale;
            for (at, pair) in out[1..].iter_mut().enumerate() {
                *pair = float(pairs, at) | (float(pairs, at + BLOCK / 2) << 4);
            }
        });
    }
    Weight::new(name, shape.to_vec(), encoding, Cow::Owned(out))
}

/// Returns the float of a column.
fn float(pairs: &[u8; BLOCK_BYTES], column: usize) -> u8 {
    pairs[column / 2] >> (4 * (column % 2)) & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize]) -> StoredTensor {
        let kind = TensorEncoding::Other("U8".to_owned());
        StoredTensor { shape: shape.to_vec(), kind, file: 0, bytes: 0..shape.iter().product() }
    }

    #[test]
    fn columns_are_in_the_order_of_the_file() {
        // The columns 0 to 31 are the floats 0 to 15, twice.
        let pairs: Vec<u8> = (0..16u8).map(|at| ((2 * at) % 16) | (((2 * at + 1) % 16) << 4)).collect();
        let found = weight("w", [1, 32], Elements::Read, [&pairs, &[128]]).unwrap();
        let positive = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
        let expect = [positive, positive.map(|x: f32| -x)].concat();
        assert_eq!(found.to_f32(), [expect.clone(), expect].concat());
        assert_eq!(weight("w", [1, 32], Elements::Unread, [&[], &[]]).unwrap().to_f32(), [0.0; 32]);
    }

    #[test]
    fn blocks_and_scales_become_one_tensor() {
        let gathered = |blocks: &[usize], scales: Option<&[usize]>| {
            let mut tensors = HashMap::from([("a_blocks".to_owned(), tensor(blocks))]);
            tensors.extend(scales.map(|scales| ("a_scales".to_owned(), tensor(scales))));
            gather(Path::new("folder"), &mut tensors).map(|()| tensors)
        };
        let found = gathered(&[4, 6, 2, 16], Some(&[4, 6, 2])).unwrap();
        assert_eq!((found.len(), found["a"].shape.as_slice()), (1, &[4, 6, 64][..]));
        let refused = |blocks: &[usize], scales: Option<&[usize]>, expect: &str| {
            let error = gathered(blocks, scales).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        refused(&[4, 6, 2, 16], None, "no tensor for a_scales");
        refused(&[4, 6, 2, 15], Some(&[4, 6, 2]), "expected blocks of 16 bytes");
        refused(&[4, 6, 2, 16], Some(&[4, 6]), "found shapes [4, 6, 2, 16], [4, 6]");
        refused(&[], Some(&[]), "expected blocks of 16 bytes");
    }
}
