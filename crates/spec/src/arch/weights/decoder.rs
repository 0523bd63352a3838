//! The weights of decoders.

use super::{
    super::{
        AltUp, Attention, ClassifierHidden, DecoderArch, DecoderLayer, EmbedderArch, Experts, FeedForward,
        GatedDeltaRule, KvSource, Mamba2, Mixer, NormKind, PerLayer, QkNorm, Residual, Routing,
        ShortConvolution,
    },
    Bias, Component, Projection, Table, WeightList, WeightRole,
};

impl WeightList {
    pub(super) fn embedder(&mut self, arch: &EmbedderArch) {
        let decoder = &arch.decoder;
        self.decoder(decoder);
        for (index, shape) in arch.dense_shapes().enumerate() {
            self.linear(&format!("dense.{index}"), shape, Projection::HeadOutput, Bias::Absent);
        }
        if let (Some(classifier), Some(labels)) = (arch.classifier, arch.head.labels()) {
            let hidden = decoder.hidden;
            if let Some(ClassifierHidden { bias, .. }) = classifier.hidden {
                self.linear("score.dense", [hidden; 2], Projection::HeadHidden, bias.into());
                self.stream_norm("score.norm", decoder);
            }
            self.linear("score.out", [labels, hidden], Projection::HeadOutput, classifier.bias.into());
        }
    }

    pub(super) fn decoder(&mut self, arch: &DecoderArch) {
        let hidden = arch.hidden;
        self.table("embed", [arch.vocab, hidden], Table::Tokens);
        if arch.embed_norm {
            self.stream_norm("embed.norm", arch);
        }
        if arch.learned_positions() {
            self.table("position", [arch.context, hidden], Table::Positions);
        }

        for (index, layer) in arch.layers.iter().enumerate() {
            self.layer = Some(index);
            self.decoder_layer(arch, layer);
        }
        self.layer = None;

        if let Some(AltUp { streams, .. }) = arch.altup {
            for other in 0..streams.saturating_sub(1) {
                self.stream(&format!("altup.proj.{other}"), [hidden; 2]);
                self.stream(&format!("altup.unembed.{other}"), [hidden; 2]);
            }
        }
        if let Some(PerLayer { vocab, width }) = arch.per_layer {
            let all = arch.layers.len() * width;
            self.table("per_layer.embed", [vocab, all], Table::PerLayer);
            self.stream("per_layer.proj", [all, hidden]);
            self.norm("per_layer.norm", width);
        }
        self.stream_norm("norm", arch);
        if arch.has_own_head() {
            self.linear("head", [arch.head_rows(), hidden], Projection::Logits, Bias::Absent);
        }

        if let Some(tower) = arch.vision.as_deref() {
            self.component = Component::Vision;
            self.vision(tower, hidden);
        }
        if let Some(tower) = arch.audio.as_deref() {
            self.component = Component::Audio;
            self.audio(tower, hidden);
        }
    }

    fn decoder_layer(&mut self, arch: &DecoderArch, layer: &DecoderLayer) {
        let norms: &[&str] = match layer.residual {
            Residual::Sequential => &["attn_norm", "mlp_norm"],
            Residual::Sandwich => &["attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"],
            Residual::Parallel => &["attn_norm"],
            Residual::Unnormed => &["mlp_norm"],
            Residual::Post => &["attn_post_norm", "mlp_post_norm"],
        };
        norms.iter().for_each(|norm| self.stream_norm(norm, arch));
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(arch.hidden, attention),
            Mixer::Convolution(convolution) => self.short_convolution(arch.hidden, convolution),
            Mixer::DeltaRule(rule) => self.delta_rule(arch.hidden, rule),
            Mixer::Mamba2(mamba) => self.mamba(arch.hidden, mamba),
        }
        match &layer.feed_forward {
            FeedForward::Dense(mlp) => {
                self.feed_forward("mlp", [arch.hidden, mlp.inner], mlp.gated, mlp.bias.into());
            }
            FeedForward::Experts(experts) => self.experts(arch.hidden, experts),
        }

        if let Some(altup) = &arch.altup {
            self.altup(altup, arch.hidden);
        }
        if let Some(PerLayer { width, .. }) = arch.per_layer {
            self.stream("per_layer.gate", [width, arch.hidden]);
            self.stream("per_layer.proj", [arch.hidden, width]);
            self.norm("per_layer.norm", arch.hidden);
        }
        if arch.layer_scalars {
            self.coefficients("scalar", &[1]);
        }
    }

    fn attention(&mut self, hidden: usize, attention: &Attention) {
        let &Attention { heads, kv_heads, head_size: size, .. } = attention;
        let bias = Bias::from(attention.qkv_bias);
        let is_own = attention.kv == KvSource::Own;
        self.linear("attn.q_proj", [heads * size, hidden], Projection::Query, bias);
        if is_own {
            self.linear("attn.k_proj", [kv_heads * size, hidden], Projection::Key, bias);
            self.linear("attn.v_proj", [kv_heads * size, hidden], Projection::Value, bias);
        }
        if attention.gated {
            self.linear("attn.gate_proj", [heads * size, hidden], Projection::AttentionGate, Bias::Absent);
        }
        let bias = Bias::from(attention.output_bias);
        self.linear("attn.o_proj", [hidden, heads * size], Projection::Output, bias);
        if attention.sinks {
            self.coefficients("attn.sinks", &[heads]);
        }

        let [q, k] = match attention.qk_norm {
            QkNorm::None => return,
            QkNorm::Rms => [vec![size], vec![size]],
            QkNorm::LayerPerHead => [vec![heads, size], vec![kv_heads, size]],
            QkNorm::RmsOfAllHeads => [vec![heads * size], vec![kv_heads * size]],
        };
        self.weight("attn.q_norm", &q, WeightRole::Norm);
        if is_own {
            self.weight("attn.k_norm", &k, WeightRole::Norm);
        }
    }

    /// Adds the weights of a gated short convolution.
    fn short_convolution(&mut self, hidden: usize, convolution: &ShortConvolution) {
        let bias = Bias::from(convolution.bias);
        self.linear("conv.in_proj", [3 * hidden, hidden], Projection::ConvolutionInput, bias);
        self.weight("conv", &[hidden, convolution.kernel], WeightRole::Convolution);
        if convolution.bias {
            self.bias("conv", hidden);
        }
        self.linear("conv.out_proj", [hidden; 2], Projection::ConvolutionOutput, bias);
    }

    /// Adds the weights of a gated delta rule.
    fn delta_rule(&mut self, hidden: usize, rule: &GatedDeltaRule) {
        let heads = rule.value_heads;
        let [width, values] = [rule.width(), rule.value_width()];
        self.linear("delta.qkv_proj", [width, hidden], Projection::RecurrenceInput, Bias::Absent);
        self.convolution("delta.conv", &[width, rule.kernel]);
        self.linear("delta.decay_proj", [heads, hidden], Projection::RecurrenceRate, Bias::Absent);
        self.linear("delta.rate_proj", [heads, hidden], Projection::RecurrenceRate, Bias::Absent);
        self.coefficients("delta.decay_log", &[heads]);
        self.coefficients("delta.decay_shift", &[heads]);
        self.linear("delta.gate_proj", [values, hidden], Projection::RecurrenceGate, Bias::Absent);
        self.norm("delta.norm", rule.value_size);
        self.linear("delta.out_proj", [hidden, values], Projection::RecurrenceOutput, Bias::Absent);
    }

    /// Adds the weights of a Mamba-2 layer.
    fn mamba(&mut self, hidden: usize, mamba: &Mamba2) {
        let heads = mamba.heads;
        let [width, inner] = [mamba.width(), mamba.inner()];
        self.linear("mamba.gate_proj", [inner, hidden], Projection::RecurrenceGate, Bias::Absent);
        self.linear("mamba.in_proj", [width, hidden], Projection::RecurrenceInput, Bias::Absent);
        self.linear("mamba.time_proj", [heads, hidden], Projection::RecurrenceRate, Bias::Absent);
        self.convolution("mamba.conv", &[width, mamba.kernel]);
        if mamba.bias {
            self.bias("mamba.conv", width);
        }
        self.coefficients("mamba.time_shift", &[heads]);
        self.coefficients("mamba.decay_log", &[heads]);
        self.coefficients("mamba.skip", &[heads]);
        self.norm("mamba.norm", inner);
        self.linear("mamba.out_proj", [hidden, inner], Projection::RecurrenceOutput, Bias::Absent);
    }

    /// Adds the layers of a feed-forward part of this outer and inner width.
    pub(super) fn feed_forward(&mut self, module: &str, [width, inner]: [usize; 2], gated: bool, bias: Bias) {
        if gated {
            self.linear(&format!("{module}.gate_proj"), [inner, width], Projection::Gate, bias);
        }
        self.linear(&format!("{module}.up_proj"), [inner, width], Projection::Up, bias);
        self.linear(&format!("{module}.down_proj"), [width, inner], Projection::Down, bias);
    }

    fn experts(&mut self, hidden: usize, experts: &Experts) {
        let &Experts { count, inner, bias, .. } = experts;
        self.linear("mlp.router", [count, hidden], Projection::Router, bias.into());
        if experts.routing == Routing::BiasedSigmoid {
            self.coefficients("mlp.selection", &[count]);
        }
        if let Some(shared) = experts.shared {
            self.feed_forward("mlp.shared", [hidden, shared], true, Bias::Absent);
        }
        for expert in 0..count {
            for (part, projection, shape) in [
                ("gate", Projection::Gate, [inner, hidden]),
                ("up", Projection::Up, [inner, hidden]),
                ("down", Projection::Down, [hidden, inner]),
            ] {
                let module = format!("mlp.experts.{expert}.{part}_proj");
                if bias {
                    self.bias(&module, shape[0]);
                }
                self.weight(&module, &shape, WeightRole::Expert(projection));
            }
        }
    }

    /// Adds the weights with which a layer combines several residual streams.
    fn altup(&mut self, altup: &AltUp, hidden: usize) {
        let &AltUp { streams, rank, scaled, .. } = altup;
        self.coefficients("altup.router", &[streams, hidden]);
        self.norm("altup.router_norm", hidden);
        self.coefficients("altup.predict", &[streams * streams, streams]);
        self.coefficients("altup.correct", &[streams, streams]);
        if scaled {
            self.coefficients("altup.scale", &[hidden]);
        }
        self.stream("laurel.left", [rank, hidden]);
        self.stream("laurel.right", [hidden, rank]);
        self.norm("laurel.norm", hidden);
    }

    fn stream(&mut self, module: &str, shape: [usize; 2]) {
        self.linear(module, shape, Projection::Stream, Bias::Absent);
    }

    /// Adds a norm over the residual stream.
    fn stream_norm(&mut self, module: &str, arch: &DecoderArch) {
        self.norm(module, arch.hidden);
        if arch.norm == NormKind::Layer {
            self.bias(module, arch.hidden);
        }
    }
}
