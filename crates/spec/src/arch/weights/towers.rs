//! The weights of towers, whose rows have the `width` of the decoder.

use super::{
    super::{ConformerTower, Connector, MobileBlock, MobileNetTower, PatchTower, PlacedBlock, VisionArch},
    Bias, Projection, Table, WeightList,
};

/// The four layers of attention.
const ATTENTION: [(&str, Projection); 4] = [
    ("attn.q_proj", Projection::Query),
    ("attn.k_proj", Projection::Key),
    ("attn.v_proj", Projection::Value),
    ("attn.o_proj", Projection::Output),
];

impl WeightList {
    pub(super) fn vision(&mut self, tower: &VisionArch, width: usize) {
        match tower {
            VisionArch::Patches(tower) => self.patch_tower(tower, width),
            VisionArch::MobileNet(tower) => self.mobilenet(tower, width),
        }
    }

    fn patch_tower(&mut self, tower: &PatchTower, width: usize) {
        let &PatchTower { patch, hidden, layers, inner, .. } = tower;
        self.convolution("vision.patch", &[hidden, VisionArch::CHANNELS, patch, patch]);
        self.bias("vision.patch", hidden);
        self.table("vision.position", [tower.patches().pow(2), hidden], Table::Positions);
        for index in 0..layers {
            self.layer = Some(index);
            self.layer_norm("attn_norm", hidden);
            for (module, projection) in ATTENTION {
                self.linear(module, [hidden; 2], projection, Bias::Present);
            }
            self.layer_norm("mlp_norm", hidden);
            self.feed_forward("mlp", [hidden, inner], false, Bias::Present);
        }
        self.layer = None;

        self.layer_norm("vision.norm", hidden);
        if let Connector::Pooled { .. } = tower.connector {
            self.norm("connector.norm", hidden);
        }
        self.between("connector.linear", [width, tower.connector_width()]);
    }

    fn mobilenet(&mut self, tower: &MobileNetTower, width: usize) {
        let &MobileNetTower { stem, fusion, hidden, end, .. } = tower;
        let kernel = MobileNetTower::STEM_KERNEL;
        self.convolution("vision.stem", &[stem, VisionArch::CHANNELS, kernel, kernel]);
        self.bias("vision.stem", stem);
        self.norm("vision.stem_norm", stem);
        for placed in tower.blocks() {
            self.mobile_block(&placed);
        }

        let fused = tower.fused_channels().iter().sum();
        self.normed("vision.fusion.expand", [fusion, fused]);
        self.normed("vision.fusion.project", [hidden, fusion]);
        for norm in ["vision.norm", "connector.norm", "connector.embed_norm"] {
            self.norm(norm, hidden);
        }
        self.between("connector.linear", [width, hidden]);
        self.coefficients("connector.embed", &[end.tokens, hidden]);
    }

    fn mobile_block(&mut self, placed: &PlacedBlock<'_>) {
        let input = placed.input;
        let name = |part: &str| format!("{}.{part}", placed.name());
        match *placed.block {
            MobileBlock::Edge { kernel, inner, channels } => {
                self.convolution(&name("convolution"), &[inner, input, kernel, kernel]);
                self.norm(&name("convolution_norm"), inner);
                self.normed(&name("linear"), [channels, inner]);
            }

            MobileBlock::Inverted { start, middle, inner, channels } => {
                for (part, kernel, channels) in [("start", start, input), ("middle", middle, inner)] {
                    if let Some(kernel) = kernel {
                        self.convolution(&name(part), &[channels, 1, kernel, kernel]);
                        self.norm(&name(&format!("{part}_norm")), channels);
                    }
                }
                self.normed(&name("expand"), [inner, input]);
                self.normed(&name("project"), [channels, inner]);
                self.coefficients(&name("scale"), &[channels]);
            }

            MobileBlock::Attention { heads, size, reduction } => {
                self.norm(&name("attn_norm"), input);
                let shapes = [[heads * size, input], [size, input], [size, input], [input, heads * size]];
                for ((module, projection), shape) in ATTENTION.into_iter().zip(shapes) {
                    self.linear(&name(module), shape, projection, Bias::Absent);
                }
                for part in ["attn.k", "attn.v"] {
                    if let Some(kernel) = reduction {
                        self.convolution(&name(&format!("{part}_reduce")), &[input, 1, kernel, kernel]);
                        self.norm(&name(&format!("{part}_norm")), input);
                    }
                }
                self.coefficients(&name("scale"), &[input]);
            }
        }
    }

    pub(super) fn audio(&mut self, tower: &ConformerTower, width: usize) {
        let &ConformerTower { hidden, end, .. } = tower;
        let mut input = 1;
        for (index, convolution) in tower.convolutions.iter().enumerate() {
            let [frames, bins] = convolution.kernel;
            let channels = convolution.channels;
            self.convolution(&format!("audio.subsample.{index}.conv"), &[channels, input, frames, bins]);
            self.norm(&format!("audio.subsample.{index}.norm"), channels);
            input = channels;
        }
        self.between("audio.input", [hidden, tower.input_width()]);

        for index in 0..tower.layers {
            self.layer = Some(index);
            self.conformer_layer(tower);
        }
        self.layer = None;

        for norm in ["audio_connector.norm", "audio_connector.embed_norm"] {
            self.norm(norm, hidden);
        }
        self.between("audio_connector.linear", [width, hidden]);
        self.coefficients("audio_connector.embed", &[end.tokens, hidden]);
    }

    fn conformer_layer(&mut self, tower: &ConformerTower) {
        let &ConformerTower { hidden, heads, kernel, .. } = tower;
        let inner = ConformerTower::INNER * hidden;
        for part in ["before", "after"] {
            self.norm(&format!("{part}.norm"), hidden);
            self.feed_forward(part, [hidden, inner], false, Bias::Absent);
            self.norm(&format!("{part}.out_norm"), hidden);
        }
        for (module, projection) in ATTENTION {
            self.linear(module, [hidden; 2], projection, Bias::Absent);
        }
        // The compiler applies this projection to the relative positions.
        self.coefficients("attn.positions", &[hidden; 2]);
        self.coefficients("attn.scale", &[hidden / heads.max(1)]);
        self.between("conv.expand", [2 * hidden, hidden]);
        self.convolution("conv.depthwise", &[hidden, 1, kernel]);
        self.between("conv.project", [hidden; 2]);
        for norm in ["attn_norm", "attn_out_norm", "conv.norm", "conv.inner_norm", "norm"] {
            self.norm(norm, hidden);
        }
    }

    fn between(&mut self, module: &str, shape: [usize; 2]) {
        self.linear(module, shape, Projection::Between, Bias::Absent);
    }

    /// Adds a linear layer and the norm of its result.
    fn normed(&mut self, module: &str, shape: [usize; 2]) {
        self.between(module, shape);
        self.norm(&format!("{module}_norm"), shape[0]);
    }
}
