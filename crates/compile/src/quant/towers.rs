//! The weights of towers.

use narthex_spec::arch::{ConformerTower, MobileBlock, MobileNetTower, PatchTower, VisionArch};

/// Linear weight of a tower.
pub(super) struct TowerWeight {
    /// Canonical name.
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl TowerWeight {
    fn new(module: &str, rows: usize, cols: usize) -> Self {
        Self { name: format!("{module}.weight"), rows, cols }
    }
}

/// Returns the linear weights of a vision tower and of its connector, whose rows have `width` elements.
pub(super) fn vision_weights(arch: &VisionArch, width: usize) -> Vec<TowerWeight> {
    match arch {
        VisionArch::Patches(tower) => patch_tower(tower, width),
        VisionArch::MobileNet(tower) => mobilenet(tower, width),
    }
}

fn patch_tower(tower: &PatchTower, width: usize) -> Vec<TowerWeight> {
    let hidden = tower.hidden;
    let mut weights = Vec::new();
    for index in 0..tower.layers {
        let scope = format!("vision.layers.{index}");
        for part in ["q", "k", "v", "o"] {
            weights.push(TowerWeight::new(&format!("{scope}.attn.{part}_proj"), hidden, hidden));
        }
        weights.push(TowerWeight::new(&format!("{scope}.mlp.up_proj"), tower.inner, hidden));
        weights.push(TowerWeight::new(&format!("{scope}.mlp.down_proj"), hidden, tower.inner));
    }
    weights.push(TowerWeight::new("connector.linear", width, tower.connector_width()));
    weights
}

fn mobilenet(tower: &MobileNetTower, width: usize) -> Vec<TowerWeight> {
    let mut weights = Vec::new();
    for placed in tower.blocks() {
        let input = placed.input;
        let channels = placed.channels();
        let linears = match *placed.block {
            MobileBlock::Edge { inner, .. } => vec![("linear", channels, inner)],
            MobileBlock::Inverted { inner, .. } => {
                vec![("expand", inner, input), ("project", channels, inner)]
            }
            MobileBlock::Attention { heads, size, .. } => vec![
                ("attn.q_proj", heads * size, input),
                ("attn.k_proj", size, input),
                ("attn.v_proj", size, input),
                ("attn.o_proj", channels, heads * size),
            ],
        };

        for (part, rows, cols) in linears {
            weights.push(TowerWeight::new(&format!("{}.{part}", placed.name()), rows, cols));
        }
    }

    let fused = tower.fused_channels().iter().sum();
    weights.push(TowerWeight::new("vision.fusion.expand", tower.fusion, fused));
    weights.push(TowerWeight::new("vision.fusion.project", tower.hidden, tower.fusion));
    weights.push(TowerWeight::new("connector.linear", width, tower.hidden));
    weights
}

/// Returns the linear weights of an audio tower and of its connector, whose rows have `width` elements. The projection of
/// relative positions is applied when a package is compiled.
pub(super) fn audio_weights(tower: &ConformerTower, width: usize) -> Vec<TowerWeight> {
    let hidden = tower.hidden;
    let inner = ConformerTower::INNER * hidden;
    let mut weights = vec![TowerWeight::new("audio.input", hidden, tower.input_width())];
    for index in 0..tower.layers {
        let scope = format!("audio.layers.{index}");
        for part in ["before", "after"] {
            weights.push(TowerWeight::new(&format!("{scope}.{part}.up_proj"), inner, hidden));
            weights.push(TowerWeight::new(&format!("{scope}.{part}.down_proj"), hidden, inner));
        }
        for part in ["q", "k", "v", "o"] {
            weights.push(TowerWeight::new(&format!("{scope}.attn.{part}_proj"), hidden, hidden));
        }
        weights.push(TowerWeight::new(&format!("{scope}.conv.expand"), 2 * hidden, hidden));
        weights.push(TowerWeight::new(&format!("{scope}.conv.project"), hidden, hidden));
    }
    weights.push(TowerWeight::new("audio_connector.linear", width, hidden));
    weights
}

/// Returns the size in bytes of an audio tower's convolutions and of the keys of relative positions.
pub(super) fn audio_convolution_bytes(tower: &ConformerTower) -> u64 {
    let mut input = 1;
    let mut elements = tower.layers * tower.hidden * (tower.kernel + tower.left + tower.right + 1);
    for convolution in &tower.convolutions {
        elements += convolution.channels * input * convolution.kernel.iter().product::<usize>();
        input = convolution.channels;
    }
    (elements * 4) as u64
}

/// Returns the size in bytes of a vision tower's convolutions and of the embedding of positions.
pub(super) fn convolution_bytes(arch: &VisionArch) -> u64 {
    let elements = match arch {
        VisionArch::Patches(tower) => {
            let patch = VisionArch::CHANNELS * tower.patch * tower.patch;
            tower.hidden * (patch + tower.patches().pow(2))
        }
        VisionArch::MobileNet(tower) => {
            let stem = tower.stem * VisionArch::CHANNELS * MobileNetTower::STEM_KERNEL.pow(2);
            let blocks = tower.blocks().map(|placed| match *placed.block {
                MobileBlock::Edge { kernel, inner, .. } => inner * placed.input * kernel.pow(2),
                MobileBlock::Inverted { start, middle, inner, .. } => {
                    let start = start.map_or(0, |kernel| placed.input * kernel.pow(2));
                    start + middle.map_or(0, |kernel| inner * kernel.pow(2))
                }
                MobileBlock::Attention { reduction, .. } => {
                    reduction.map_or(0, |kernel| 2 * placed.input * kernel.pow(2))
                }
            });
            stem + blocks.sum::<usize>()
        }
    };
    (elements * 4) as u64
}
