//! Channels between layers that can be scaled without changing what the model computes: the producer of a channel is
//! divided by its scale, and the columns of all weights that read it are multiplied by it.
//!
//! - The gain of a norm, with its bias, produces the channels that the projections after it read. What else reads them, such
//!   as a learned residual, makes a group impossible.
//! - The rows of `up_proj` produce the channels of `down_proj`, if a gate multiplies them. An activation in between is not
//!   linear.
//! - The rows of `v_proj` produce those of `o_proj`, because a mixture of values is linear in each channel. Query heads that
//!   share a head of values share its scales.

use narthex_spec::arch::{Attention, DecoderArch, DecoderLayer, FeedForward, KvSource, Mixer, Residual};
use serde::Serialize;

use super::Plan;

/// Channels with common scales.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChannelGroup {
    /// `layers.3.attn`, `layers.3.conv`, `layers.3.mlp`, `layers.3.down` or `layers.3.o`.
    pub name: String,
    /// The weight whose elements, or rows, produce the channels.
    pub producer: String,
    /// The weights whose columns read them.
    pub readers: Vec<String>,
    /// Number of successive columns of the readers before they repeat channels; 0 if they repeat none.
    run: usize,
    /// Number of columns of a reader for each channel.
    copies: usize,
}

impl ChannelGroup {
    fn new(name: String, producer: String, readers: Vec<String>) -> Self {
        Self { name, producer, readers, run: 0, copies: 1 }
    }

    /// Returns one number for each channel, from those of the readers' columns. `combine` combines those of copies.
    pub fn of_channels(&self, columns: &[f32], combine: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        if self.copies == 1 {
            return columns.to_vec();
        }
        let mut channels = Vec::with_capacity(columns.len() / self.copies);
        for copies in columns.chunks(self.run * self.copies) {
            let (first, others) = copies.split_at(self.run.min(copies.len()));
            let mut combined = first.to_vec();
            for copy in others.chunks(self.run) {
                combined.iter_mut().zip(copy).for_each(|(x, y)| *x = combine(*x, *y));
            }
            channels.extend(combined);
        }
        channels
    }

    /// Returns one number for each column of the readers, from those of the channels.
    pub fn of_columns(&self, channels: &[f32]) -> Vec<f32> {
        if self.copies == 1 {
            return channels.to_vec();
        }
        channels.chunks(self.run).flat_map(|channels| channels.repeat(self.copies)).collect()
    }
}

/// Returns the groups of a decoder whose readers are rounded, or are floats, and whose producers may be divided by any number:
/// integers that are copied from a checkpoint have scales in half precision.
pub fn channel_groups(arch: &DecoderArch, plan: &Plan) -> Vec<ChannelGroup> {
    let mut groups = Vec::new();
    for (index, layer) in arch.layers.iter().enumerate() {
        groups.extend(mixer_inputs(arch, index, layer));
        groups.extend(layer.attention().and_then(|attention| values(arch, index, attention)));
        groups.extend(feed_forward_inputs(index, layer));
        groups.extend(gated_products(index, layer));
    }
    groups.retain(|group| {
        group.readers.iter().all(|name| plan.get(name).is_some() && !is_copied(plan, name))
            && !is_copied(plan, &group.producer)
    });
    groups
}

fn is_copied(plan: &Plan, name: &str) -> bool {
    plan.storage(name).is_some_and(|storage| storage.is_copied())
}

/// Returns the channels that the projections of attention, of a convolution or of a recurrence read.
pub(super) fn mixer_inputs(arch: &DecoderArch, index: usize, layer: &DecoderLayer) -> Option<ChannelGroup> {
    // A learned residual reads the same input as attention, and adds it unscaled.
    if matches!(layer.residual, Residual::Unnormed | Residual::Post) || arch.altup.is_some() {
        return None;
    }
    let scope = format!("layers.{index}");
    let (name, parts): (_, &[&str]) = match &layer.mixer {
        Mixer::Attention(attention) if attention.kv == KvSource::Own => ("attn", &["q", "k", "v"]),
        Mixer::Attention(_) => ("attn", &["q"]),
        Mixer::Convolution(_) => ("conv", &["in"]),
        Mixer::DeltaRule(_) => ("delta", &["qkv", "gate", "decay", "rate"]),
        Mixer::Mamba2(_) => ("mamba", &["gate", "in", "time"]),
    };
    let gate = layer.attention().and_then(|attention| attention.gated.then_some("gate"));
    let mut readers: Vec<String> =
        parts.iter().copied().chain(gate).map(|part| format!("{scope}.{name}.{part}_proj.weight")).collect();
    if layer.residual == Residual::Parallel {
        readers.extend(feed_forward_readers(&scope, &layer.feed_forward)?);
    }
    Some(ChannelGroup::new(format!("{scope}.{name}"), format!("{scope}.attn_norm.weight"), readers))
}

/// Returns the channels of values, which the output projection reads.
fn values(arch: &DecoderArch, index: usize, attention: &Attention) -> Option<ChannelGroup> {
    let is_shared = arch.layers.iter().any(|layer| layer.shared_entry() == Some(index));
    let is_own = attention.kv == KvSource::Own;
    // A norm of values takes their scale away.
    if !is_own || is_shared || attention.value_norm || attention.kv_heads == 0 {
        return None;
    }
    let scope = format!("layers.{index}");
    let producer = format!("{scope}.attn.v_proj.weight");
    let readers = vec![format!("{scope}.attn.o_proj.weight")];
    Some(ChannelGroup {
        run: attention.head_size,
        copies: attention.heads / attention.kv_heads,
        ..ChannelGroup::new(format!("{scope}.o"), producer, readers)
    })
}

/// Returns the channels that the projections of the feed-forward network read from a norm, unless those of attention read them
/// too.
pub(super) fn feed_forward_inputs(index: usize, layer: &DecoderLayer) -> Option<ChannelGroup> {
    if matches!(layer.residual, Residual::Parallel | Residual::Post) {
        return None;
    }
    let scope = format!("layers.{index}");
    let readers = feed_forward_readers(&scope, &layer.feed_forward)?;
    Some(ChannelGroup::new(format!("{scope}.mlp"), format!("{scope}.mlp_norm.weight"), readers))
}

/// Returns the channels between the projections of a feed-forward network with a gate.
pub(super) fn gated_products(index: usize, layer: &DecoderLayer) -> Option<ChannelGroup> {
    let scope = format!("layers.{index}");
    let [up, down] = ["up", "down"].map(|part| format!("{scope}.mlp.{part}_proj.weight"));
    layer.mlp().filter(|mlp| mlp.gated).map(|_| ChannelGroup::new(format!("{scope}.down"), up, vec![down]))
}

/// Returns the weights that read the input of a feed-forward part; `None` for experts, whose inputs are not measured.
fn feed_forward_readers(scope: &str, feed_forward: &FeedForward) -> Option<Vec<String>> {
    let parts: &[&str] = match feed_forward {
        FeedForward::Dense(mlp) if mlp.gated => &["gate", "up"],
        FeedForward::Dense(_) => &["up"],
        FeedForward::Experts(_) => return None,
    };
    Some(parts.iter().map(|part| format!("{scope}.mlp.{part}_proj.weight")).collect())
}

#[cfg(test)]
mod tests {
    use narthex_spec::{Recipe, Scheme, arch::Architecture};
    use narthex_testkit::architecture as example;

    use super::*;

    fn groups(arch: &DecoderArch) -> Vec<ChannelGroup> {
        let plan = Plan::new(&Architecture::Decoder(arch.clone()), &Recipe::new(Scheme::W4));
        channel_groups(arch, &plan)
    }

    #[test]
    fn groups_are_those_that_folding_keeps_exact() {
        let check = |change: &dyn Fn(&mut DecoderArch), expected: [&str; 2]| {
            let mut arch = DecoderArch { layers: vec![example::layer(); 2], ..example::llama() };
            change(&mut arch);
            let names: Vec<String> = groups(&arch).into_iter().map(|group| group.name).collect();
            let parts = expected.iter().enumerate().flat_map(|(layer, parts)| {
                parts.split(' ').map(move |part| format!("layers.{layer}.{part}"))
            });
            assert_eq!(names, parts.collect::<Vec<_>>());
        };
        let whole = "attn o mlp down";
        check(&|_| {}, [whole; 2]);
        check(&|arch| arch.layers[1].residual = Residual::Parallel, [whole, "attn o down"]);
        check(&|arch| arch.layers[1].residual = Residual::Post, [whole, "o down"]);
        check(&|arch| arch.layers[0].attention_mut().unwrap().value_norm = true, ["attn mlp down", whole]);
        check(&|arch| arch.layers[1].attention_mut().unwrap().kv = KvSource::Layer(0), ["attn mlp down"; 2]);
        let experts = FeedForward::Experts(example::experts());
        check(&|arch| arch.layers[0].feed_forward = experts.clone(), ["attn o", whole]);
        check(&|arch| arch.layers[0].mlp_mut().unwrap().gated = false, ["attn o mlp", whole]);
    }

    #[test]
    fn copies_of_a_channel_share_its_scale() {
        let mut arch = DecoderArch { layers: vec![example::layer()], ..example::llama() };
        *arch.layers[0].attention_mut().unwrap() = Attention::plain(4, 2, 2);
        let groups = groups(&arch);
        let values = groups.iter().find(|group| group.name == "layers.0.o").unwrap();
        let columns = [1.0, 2.0, 3.0, 1.0, 5.0, 6.0, 7.0, 8.0];
        assert_eq!(values.of_channels(&columns, f32::max), [3.0, 2.0, 7.0, 8.0]);
        assert_eq!(values.of_columns(&[1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
        assert_eq!(groups[0].of_channels(&columns, f32::max), columns);
        assert_eq!(groups[0].of_columns(&columns), columns);
    }
}
