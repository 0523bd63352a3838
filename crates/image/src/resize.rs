//! Changes of the size of pictures, with the results of Pillow (`Resample.c`) bit for bit.
//!
//! A picture is resized along its rows and then along its columns. Weights are fixed-point numbers, and the values between
//! both steps are rounded to bytes.

use std::{collections::VecDeque, f64::consts::PI, ops::Range};

use narthex_spec::manifest::ResizeFilter;

use crate::picture::Picture;

/// Bits of a weight after the point.
const PRECISION: u32 = 32 - 8 - 2;

/// One half, so that sums are rounded.
const HALF: i32 = 1 << (PRECISION - 1);

/// Returns the picture with another size. Both sides must be above 0.
pub(crate) fn resize(picture: &Picture, width: usize, height: usize, filter: ResizeFilter) -> Picture {
    let columns = Weights::new(picture.width(), width, filter);
    let rows = Weights::new(picture.height(), height, filter);
    let mut resized = Vec::with_capacity(width * height * 3);

    // Rows of the new width that the next rows of the result read.
    let mut window: VecDeque<Vec<u8>> = VecDeque::new();
    let mut first = 0;
    for target in &rows.targets {
        let unread = (target.source.start - first).min(window.len());
        window.drain(..unread);
        first = target.source.start;
        while first + window.len() < target.source.end {
            window.push_back(columns.along_row(picture.row(first + window.len())));
        }
        let mut sums = vec![HALF; width * 3];
        for (line, weight) in window.iter().zip(&target.weights) {
            for (sum, &value) in sums.iter_mut().zip(line) {
                *sum += i32::from(value) * weight;
            }
        }
        resized.extend(sums.into_iter().map(byte));
    }
    Picture::new(width, height, resized).unwrap_or_else(|| picture.clone())
}

/// Returns a weight as a fixed-point number.
fn fixed(weight: f64) -> i32 {
    let half = if weight < 0.0 { -0.5 } else { 0.5 };
    (half + weight * f64::from(1 << PRECISION)) as i32
}

/// Returns the byte of a sum of weighted bytes that starts with [`HALF`].
fn byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Weights of the pixels of one direction.
struct Weights {
    targets: Vec<Target>,
}

/// A pixel of the result.
struct Target {
    /// Pixels that it reads.
    source: Range<usize>,
    /// Weights of these pixels.
    weights: Vec<i32>,
}

impl Weights {
    fn new(from: usize, to: usize, filter: ResizeFilter) -> Self {
        if from == to {
            let targets = (0..to).map(|at| Target { source: at..at + 1, weights: vec![1 << PRECISION] });
            return Self { targets: targets.collect() };
        }
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = support(filter) * stretch;
        let targets = (0..to).map(|at| {
            let center = (at as f64 + 0.5) * scale;
            let start = ((center - support + 0.5) as i64).max(0) as usize;
            let end = ((center + support + 0.5) as i64).clamp(0, from as i64) as usize;
            let weights: Vec<f64> = (start..end)
                .map(|pixel| kernel(filter, (pixel as f64 - center + 0.5) * stretch.recip()))
                .collect();
            let sum: f64 = weights.iter().sum();
            let weights =
                weights.into_iter().map(|weight| fixed(if sum == 0.0 { weight } else { weight / sum }));
            Target { source: start..end, weights: weights.collect() }
        });
        Self { targets: targets.collect() }
    }

    /// Returns a row of pixels with the new width.
    fn along_row(&self, row: &[u8]) -> Vec<u8> {
        let mut resized = Vec::with_capacity(self.targets.len() * 3);
        for Target { source, weights } in &self.targets {
            let mut sums = [HALF; 3];
            for (pixel, weight) in row[source.start * 3..].chunks_exact(3).zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(value) * weight;
                }
            }
            resized.extend(sums.map(byte));
        }
        resized
    }
}

/// Returns the distance at which a filter becomes zero.
fn support(filter: ResizeFilter) -> f64 {
    match filter {
        ResizeFilter::Bilinear => 1.0,
        ResizeFilter::Bicubic => 2.0,
        ResizeFilter::Lanczos => 3.0,
    }
}

fn kernel(filter: ResizeFilter, x: f64) -> f64 {
    const A: f64 = -0.5;
    match filter {
        ResizeFilter::Bilinear => (1.0 - x.abs()).max(0.0),
        ResizeFilter::Bicubic => match x.abs() {
            x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            _ => 0.0,
        },
        ResizeFilter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
        ResizeFilter::Lanczos => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}
