//! Values that a vision tower reads, as the image processors of the `transformers` library compute them.

use narthex_spec::manifest::{PictureFit, PicturePreprocessing};

use crate::{picture::Picture, resize::resize};

/// Maximum side of a picture that is divided into tiles, as in `transformers`.
const MAX_TILED_SIDE: usize = 4096;

/// Inputs of a vision tower for a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureInputs {
    /// Rows of tiles; 0 if the picture is not divided.
    pub rows: usize,
    /// Tiles of a row; 0 if the picture is not divided.
    pub columns: usize,
    /// Values of each input, `[3, side, side]`: the tiles row by row, and then the whole picture.
    pub inputs: Vec<Vec<f32>>,
}

/// Returns the rows and the columns of the tiles of a picture with this width and height, as in [`PictureInputs`].
pub fn tiles(size: [usize; 2], spec: &PicturePreprocessing) -> [usize; 2] {
    let side = spec.side.max(1);
    match spec.fit {
        PictureFit::Stretch => [0, 0],
        PictureFit::Tiles { longest_edge } => {
            let [_, [width, height]] = tiled_sizes(size, longest_edge.max(1), side);
            if [width, height] == [side; 2] { [0, 0] } else { [height / side, width / side] }
        }
    }
}

/// Returns the inputs of a vision tower for a picture.
pub fn preprocess(picture: &Picture, spec: &PicturePreprocessing) -> PictureInputs {
    let side = spec.side.max(1);
    match spec.fit {
        PictureFit::Stretch => {
            PictureInputs { rows: 0, columns: 0, inputs: vec![whole(picture, side, spec)] }
        }
        PictureFit::Tiles { longest_edge } => {
            let sizes = tiled_sizes([picture.width(), picture.height()], longest_edge.max(1), side);
            let [[width, height], [tiled_width, tiled_height]] = sizes;
            let picture = resize(picture, width, height, spec.filter);
            let picture = resize(&picture, tiled_width, tiled_height, spec.filter);
            let rows = tiled_height / side;
            let columns = tiled_width / side;
            if rows * columns == 1 {
                return PictureInputs { rows: 0, columns: 0, inputs: vec![normalized(&picture, spec)] };
            }
            let tiles = (0..rows).flat_map(|row| (0..columns).map(move |column| [column, row]));
            let mut inputs: Vec<Vec<f32>> = tiles
                .map(|[column, row]| normalized_part(&picture, [column * side, row * side], side, spec))
                .collect();
            inputs.push(whole(&picture, side, spec));
            PictureInputs { rows, columns, inputs }
        }
    }
}

/// Returns the values of a whole picture as one input.
fn whole(picture: &Picture, side: usize, spec: &PicturePreprocessing) -> Vec<f32> {
    normalized(&resize(picture, side, side, spec.filter), spec)
}

/// Returns the two sizes to which a picture is resized: one whose longest edge is about `longest`, and then one whose
/// edges are multiples of `side`.
fn tiled_sizes(size: [usize; 2], longest: usize, side: usize) -> [[usize; 2]; 2] {
    let [width, height] = below(with_longest_edge(size, longest), MAX_TILED_SIDE);
    let ratio = width as f64 / height as f64;
    let [tiled_width, tiled_height] = if width >= height {
        let width = width.next_multiple_of(side);
        [width, ((width as f64 / ratio) as usize).next_multiple_of(side)]
    } else {
        let height = height.next_multiple_of(side);
        [((height as f64 * ratio) as usize).next_multiple_of(side), height]
    };
    [[width, height], [tiled_width.max(side), tiled_height.max(side)]]
}

/// Returns a size with this longest edge. The other edge is even.
fn with_longest_edge([width, height]: [usize; 2], longest: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    let even = |edge: usize| (edge + edge % 2).max(1);
    if width >= height {
        [longest, even((longest as f64 / ratio) as usize)]
    } else {
        [even((longest as f64 * ratio) as usize), longest]
    }
}

/// Returns a size with edges of at most `longest`.
fn below([width, height]: [usize; 2], longest: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    if width >= height && width > longest {
        [longest, ((longest as f64 / ratio) as usize).max(1)]
    } else if height > width && height > longest {
        [((longest as f64 * ratio) as usize).max(1), longest]
    } else {
        [width, height]
    }
}

fn normalized(picture: &Picture, spec: &PicturePreprocessing) -> Vec<f32> {
    normalized_part(picture, [0, 0], picture.width(), spec)
}

/// Returns the values of a square part of a picture, channel by channel.
fn normalized_part(
    picture: &Picture,
    [left, top]: [usize; 2],
    side: usize,
    spec: &PicturePreprocessing,
) -> Vec<f32> {
    let mut values = Vec::with_capacity(3 * side * side);
    for (channel, (mean, std)) in spec.mean.iter().zip(spec.std).enumerate() {
        let of_byte: Vec<f32> =
            (0..=255).map(|byte| ((f64::from(byte) * spec.rescale) as f32 - mean) / std).collect();
        for y in top..top + side {
            let row = &picture.row(y)[left * 3..][..side * 3];
            values.extend(row.iter().skip(channel).step_by(3).map(|&byte| of_byte[usize::from(byte)]));
        }
    }
    values
}
