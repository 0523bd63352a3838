//! Mixing of channels to one.

use symphonia::core::audio::{Channels, Position};

/// Returns the share of each channel in the mix: equal ones, without the channels of low-frequency effects.
pub(super) fn weights(channels: &Channels) -> Vec<f32> {
    let count = channels.count();
    match channels {
        Channels::Positioned(positions) if count > 1 => {
            let low = Position::LFE1 | Position::LFE2;
            equal_weights(positions.iter().map(|position| !low.contains(position)).collect())
        }
        _ => equal_weights(vec![true; count]),
    }
}

/// Returns equal weights of the audible channels.
pub(super) fn equal_weights(audible: Vec<bool>) -> Vec<f32> {
    let count = audible.iter().filter(|audible| **audible).count().max(1) as f32;
    audible.into_iter().map(|audible| if audible { 1.0 / count } else { 0.0 }).collect()
}

/// Appends the mix of interleaved channels to `mono`. Samples that are not finite are silence.
pub(super) fn append(interleaved: &[f32], weights: &[f32], mono: &mut Vec<f32>) {
    let frames = interleaved.chunks_exact(weights.len().max(1));
    mono.extend(frames.map(|frame| {
        let sample: f32 = frame.iter().zip(weights).map(|(sample, weight)| sample * weight).sum();
        if sample.is_finite() { sample } else { 0.0 }
    }));
}
