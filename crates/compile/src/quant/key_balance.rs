//! Powers of two that balance the channels of keys, for caches that round a whole row of a key to eight bits.
//!
//! A row's largest channel sets the step of its integers. Models with biases of keys, such as Qwen 2, have a few channels
//! that are a hundred times as large as the others, which then lose most of their bits. Keys are therefore divided by a
//! power of two for each channel, and queries are multiplied by it, so that scores stay the same. This is the migration
//! of SmoothQuant (Xiao et al. 2022, arXiv:2211.10438) between the two operands of attention; queries are not rounded, so
//! all of it moves to them.
//!
//! Powers of two change no mantissa: results in `f32` keep their bits. The two elements that rotary positions
//! rotate against each other have the same power, so the powers commute with the rotation.

use narthex_checkpoint::WeightSource;
use narthex_spec::arch::{Attention, DecoderArch, KvSource, NormKind, QkNorm};

use super::{Plan, Scaling};
use crate::error::Result;

/// Maximum difference of two exponents. Smaller channels are treated as if they were this much smaller than the largest.
const RANGE: f32 = 8.0;

/// Number of standard deviations that a channel's size includes beside its mean.
const DEVIATIONS: f32 = 3.0;

/// Adds the powers of every layer to the scaling of the rows of projections and of the gains of norms.
pub(crate) fn balance_keys(
    arch: &DecoderArch,
    plan: &Plan,
    weights: &dyn WeightSource,
    scaling: &mut Scaling,
) -> Result<()> {
    let mut powers: Vec<Vec<f32>> = Vec::with_capacity(arch.layers.len());
    for (index, layer) in arch.layers.iter().enumerate() {
        let Some(attention) = layer.attention() else {
            powers.push(Vec::new());
            continue;
        };
        let module = format!("layers.{index}.attn");

        let keys = match attention.kv {
            // The layer reads the keys of an earlier layer, so its queries get the powers of that layer.
            KvSource::Layer(source) => powers.get(source).cloned().unwrap_or_default(),
            KvSource::Own => {
                let sizes = match attention.qk_norm {
                    QkNorm::None => projected_sizes(arch, plan, weights, index)?,
                    QkNorm::Rms | QkNorm::LayerPerHead | QkNorm::RmsOfAllHeads => {
                        weights.weight(&format!("{module}.k_norm.weight"))?.to_f32()
                    }
                };
                let pairs =
                    arch.rope_of(attention.rotation).map_or(0, |rope| rope.pairs(attention.head_size));
                let heads = sizes.chunks(attention.head_size.max(1));
                let keys: Vec<f32> = heads.flat_map(|head| powers_of_head(head, pairs)).collect();
                scaling.add_divisors(divided_weight(&module, 'k', attention), keys.clone());
                keys
            }
        };

        let queries = query_divisors(&keys, attention);
        scaling.add_divisors(divided_weight(&module, 'q', attention), queries);
        powers.push(keys);
    }
    Ok(())
}

/// Returns the weight whose rows or elements are the channels of queries or keys.
fn divided_weight(module: &str, letter: char, attention: &Attention) -> String {
    match attention.qk_norm {
        QkNorm::None => format!("{module}.{letter}_proj.weight"),
        QkNorm::Rms | QkNorm::LayerPerHead | QkNorm::RmsOfAllHeads => {
            format!("{module}.{letter}_norm.weight")
        }
    }
}

/// Returns the divisors of queries: the inverse of the powers of the key head that a query head reads.
fn query_divisors(keys: &[f32], attention: &Attention) -> Vec<f32> {
    let group = match attention.qk_norm {
        // All heads share one gain.
        QkNorm::Rms => 1,
        QkNorm::None | QkNorm::LayerPerHead | QkNorm::RmsOfAllHeads => {
            attention.heads / attention.kv_heads.max(1)
        }
    };
    let heads = keys.chunks(attention.head_size.max(1));
    heads.flat_map(|head| head.repeat(group)).map(f32::recip).collect()
}

/// Returns the sizes of the channels of keys that a projection computes from the normed residual stream: the mean and
/// [`DEVIATIONS`] standard deviations, for a stream with independent elements of unit variance.
fn projected_sizes(
    arch: &DecoderArch,
    plan: &Plan,
    weights: &dyn WeightSource,
    layer: usize,
) -> Result<Vec<f32>> {
    let module = format!("layers.{layer}.attn.k_proj");
    let norm = format!("layers.{layer}.attn_norm");
    let gain = weights.weight(&format!("{norm}.weight"))?.to_f32();
    let shift = match arch.norm {
        NormKind::Layer => weights.weight(&format!("{norm}.bias"))?.to_f32(),
        NormKind::Rms | NormKind::Gain => vec![0.0; arch.hidden],
    };

    let name = format!("{module}.weight");
    let rows = plan.get(&name).map_or(0, |planned| planned.rows);
    let weight = weights.weight(&name)?;
    weight.expect_shape(&[rows, arch.hidden])?;
    let bias = match arch.layers[layer].attention().is_some_and(|attention| attention.qkv_bias) {
        true => weights.weight(&format!("{module}.bias"))?.to_f32(),
        false => vec![0.0; rows],
    };

    let mut row = vec![0.0; arch.hidden];
    let mut sizes = Vec::with_capacity(rows);
    for (index, bias) in bias.iter().enumerate().take(rows) {
        weight.read_row(index, &mut row);
        let mean: f32 = row.iter().zip(&shift).map(|(w, shift)| w * shift).sum::<f32>() + bias;
        let variance: f32 = row.iter().zip(&gain).map(|(w, gain)| (w * gain).powi(2)).sum();
        sizes.push(mean.abs() + DEVIATIONS * variance.sqrt());
    }
    Ok(sizes)
}

/// Returns the power of two that divides each channel of a head. The first `pairs` channels are rotated against the `pairs`
/// channels after them. The exponents are centred on zero, so that the scales of quantised weights stay in the range of
/// `f16`.
fn powers_of_head(sizes: &[f32], pairs: usize) -> Vec<f32> {
    let Some(others) = sizes.get(2 * pairs..) else { return vec![1.0; sizes.len()] };
    let rotated = (0..pairs).map(|pair| sizes[pair].hypot(sizes[pair + pairs]));
    let sizes_of_pairs = rotated.clone().chain(rotated);
    let all = sizes_of_pairs.chain(others.iter().map(|size| size.abs()));
    let exponents: Vec<f32> = all.map(|size| size.log2().round()).collect();
    let largest = exponents.iter().copied().filter(|exponent| exponent.is_finite()).fold(f32::NAN, f32::max);
    if largest.is_nan() {
        return vec![1.0; sizes.len()];
    }

    // The size of an empty channel has no logarithm.
    let exponents: Vec<f32> = exponents
        .into_iter()
        .map(|exponent| if exponent.is_nan() { largest } else { exponent.clamp(largest - RANGE, largest) })
        .collect();
    let smallest = exponents.iter().copied().fold(largest, f32::min);
    let centre = ((largest + smallest) / 2.0).round();
    exponents.into_iter().map(|exponent| (exponent - centre).exp2()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: &[f32], exponents: &[i32]) {
        check_pairs(sizes, sizes.len() / 2, exponents);
    }

    fn check_pairs(sizes: &[f32], pairs: usize, exponents: &[i32]) {
        let expect: Vec<f32> = exponents.iter().map(|&exponent| (exponent as f32).exp2()).collect();
        assert_eq!(powers_of_head(sizes, pairs), expect, "{sizes:?}");
    }

    #[test]
    fn pairs_of_channels_are_divided_by_their_size() {
        check(&[1.0, 1.0, 1.0, 1.0], &[0, 0, 0, 0]);
        check(&[64.0, 1.0, 0.0, 1.0], &[3, -3, 3, -3]);
        // Both channels of a pair have one power, whichever of them is large.
        check(&[1.0, 1.0, 64.0, 1.0], &[3, -3, 3, -3]);
        // Small and empty channels are limited, and only the relation between channels counts.
        check(&[1e6, 1.0, 0.0, 0.0], &[4, -4, 4, -4]);
        check(&[4e-9, 2e-9, 0.0, 0.0], &[1, 0, 1, 0]);
        check(&[2.0, 0.0, 0.0, 0.0], &[4, -4, 4, -4]);
        check(&[0.0; 4], &[0; 4]);
        check(&[f32::NAN, 1.0, 1.0, 1.0], &[0; 4]);
        check(&[f32::INFINITY, 1.0, 1.0, 1.0], &[0; 4]);
    }

    #[test]
    fn channels_beyond_the_pairs_are_divided_by_their_own_size() {
        check_pairs(&[1.0, 64.0, 1.0, 64.0], 1, &[3, 3, -3, 3]);
        check_pairs(&[1.0, 64.0, 1.0, 64.0], 0, &[-3, 3, -3, 3]);
        check_pairs(&[1.0, 64.0, 1.0], 2, &[0; 3]);
    }

    #[test]
    fn queries_get_the_inverse_of_their_key_head() {
        let keys = [2.0, 2.0, 0.25, 0.25];
        let grouped = Attention::plain(4, 2, 2);
        assert_eq!(query_divisors(&keys, &grouped), [0.5, 0.5, 0.5, 0.5, 4.0, 4.0, 4.0, 4.0]);
        let shared_gain = Attention { qk_norm: QkNorm::Rms, ..grouped.clone() };
        assert_eq!(query_divisors(&keys[..2], &shared_gain), [0.5, 0.5]);
        for qk_norm in [QkNorm::LayerPerHead, QkNorm::RmsOfAllHeads] {
            let gains_of_heads = Attention { qk_norm, ..grouped.clone() };
            assert_eq!(query_divisors(&keys, &gains_of_heads).len(), 8);
        }
    }
}
