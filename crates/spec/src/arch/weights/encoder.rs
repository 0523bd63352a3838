//! The weights of encoders of texts.

use super::{
    super::{Bottleneck, BottleneckAttention, EncoderArch, EncoderHead},
    Bias, Projection, Table, WeightList,
};

impl WeightList {
    pub(super) fn encoder(&mut self, arch: &EncoderArch) {
        let hidden = arch.hidden;
        self.table("embed.word", [arch.vocab, arch.token_width()], Table::Tokens);
        if arch.rope.is_none() {
            let rows = arch.first_position + arch.positions;
            self.table("embed.position", [rows, hidden], Table::Positions);
        }
        if arch.types > 0 {
            self.table("embed.type", [arch.types, hidden], Table::Segments);
        }
        self.layer_norm("embed.norm", hidden);
        if let Some(factored) = &arch.factored {
            let shape = [hidden, factored.input()];
            self.linear("embed.project", shape, Projection::Embedding, Bias::Present);
        }

        for index in 0..arch.layers {
            self.layer = Some(index);
            self.encoder_layer(arch);
        }
        self.layer = None;
        self.encoder_head(arch);
    }

    fn encoder_layer(&mut self, arch: &EncoderArch) {
        let hidden = arch.hidden;
        let inside = arch.inside();
        if let Some(Bottleneck { attention, .. }) = arch.bottleneck {
            self.bottleneck("input", [inside, hidden]);
            self.bottleneck("output", [hidden, inside]);
            if attention == BottleneckAttention::Shared {
                self.bottleneck("attn", [inside, hidden]);
            }
        }

        let [keys, values] = arch.attention_reads();
        let bias = Bias::from(arch.biases);
        self.linear("attn.q_proj", [inside, keys], Projection::Query, bias);
        self.linear("attn.k_proj", [inside, keys], Projection::Key, bias);
        self.linear("attn.v_proj", [inside, values], Projection::Value, bias);
        self.linear("attn.o_proj", [inside; 2], Projection::Output, bias);
        self.layer_norm("attn_norm", inside);

        let mut parts = vec![("mlp".to_owned(), "mlp_norm".to_owned())];
        parts.extend((0..arch.early_feed_forwards()).map(|j| (format!("ffn.{j}"), format!("ffn.{j}.norm"))));
        for (part, norm) in parts {
            self.feed_forward(&part, [inside, arch.inner], arch.gated, bias);
            self.layer_norm(&norm, inside);
        }
    }

    fn bottleneck(&mut self, part: &str, shape: [usize; 2]) {
        let module = format!("bottleneck.{part}");
        self.linear(&module, shape, Projection::Between, Bias::Present);
        self.layer_norm(&format!("{module}_norm"), shape[0]);
    }

    fn encoder_head(&mut self, arch: &EncoderArch) {
        let hidden = arch.hidden;
        match arch.head {
            EncoderHead::Embedding { .. } => {}
            EncoderHead::Score { labels, dense } => {
                if dense.is_some() {
                    self.linear("score.dense", [hidden; 2], Projection::HeadHidden, Bias::Present);
                }
                self.linear("score.out", [labels, hidden], Projection::HeadOutput, Bias::Present);
            }
            EncoderHead::Spans {} => {
                self.linear("spans", [2, hidden], Projection::HeadOutput, Bias::Present);
            }
            EncoderHead::Tokens { labels } => {
                self.linear("tokens", [labels, hidden], Projection::HeadOutput, Bias::Present);
            }
            EncoderHead::MaskedLm { .. } => {
                self.linear("mlm.dense", [hidden; 2], Projection::HeadHidden, Bias::Present);
                self.layer_norm("mlm.norm", hidden);
                self.bias("mlm", arch.vocab);
                let rest = hidden.saturating_sub(arch.token_width());
                if rest > 0 {
                    self.coefficients("mlm.rest", &[rest, arch.vocab]);
                }
            }
        }
    }
}
