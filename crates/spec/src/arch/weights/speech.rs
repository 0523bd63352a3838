//! The weights of models that transcribe speech.

use super::{
    super::{SpeechArch, SpeechLayers},
    Bias, Component, Projection, Table, WeightList,
};

impl WeightList {
    pub(super) fn speech(&mut self, arch: &SpeechArch) {
        let hidden = arch.hidden;
        self.component = Component::SpeechEncoder;
        for (module, input) in [("encoder.conv1", arch.bins), ("encoder.conv2", hidden)] {
            self.convolution(module, &[hidden, input, SpeechArch::KERNEL]);
            self.bias(module, hidden);
        }
        self.table("encoder.position", [arch.source_positions, hidden], Table::Positions);
        self.speech_layers(&arch.encoder, hidden, &["attn"]);
        self.layer_norm("encoder.norm", hidden);

        self.component = Component::SpeechDecoder;
        self.table("embed", [arch.vocab, hidden], Table::Tokens);
        self.table("position", [arch.target_positions, hidden], Table::Positions);
        self.speech_layers(&arch.decoder, hidden, &["attn", "cross"]);
        self.layer_norm("decoder.norm", hidden);
    }

    fn speech_layers(&mut self, side: &SpeechLayers, hidden: usize, attentions: &[&str]) {
        for index in 0..side.layers {
            self.layer = Some(index);
            for attention in attentions {
                self.layer_norm(&format!("{attention}_norm"), hidden);
                for (part, projection, bias) in [
                    ("q", Projection::Query, Bias::Present),
                    ("k", Projection::Key, Bias::Absent),
                    ("v", Projection::Value, Bias::Present),
                    ("o", Projection::Output, Bias::Present),
                ] {
                    self.linear(&format!("{attention}.{part}_proj"), [hidden; 2], projection, bias);
                }
            }
            self.layer_norm("mlp_norm", hidden);
            self.feed_forward("mlp", [hidden, side.inner], false, Bias::Present);
        }
        self.layer = None;
    }
}
