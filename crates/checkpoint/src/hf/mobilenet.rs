//! MobileNetV5 as the vision tower of Gemma 3n: the blocks that timm builds for its name, or those that `model_args` states.

use std::path::Path;

use narthex_spec::{
    TokenId,
    arch::{EndToken, MobileBlock, MobileNetTower},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::Config;
use crate::{
    error::Result,
    limits::{WIDTH, bounded, malformed, unsupported},
};

/// The only tower of Gemma 3n's published sizes, as timm calls it.
const PUBLISHED: &str = "mobilenetv5_300m_enc";

/// Height and width of pictures, if the image processor states none.
const SIDE: usize = 768;

/// Channels after the stem of [`PUBLISHED`].
const STEM: usize = 64;

/// Rows of a side of [`PUBLISHED`].
const GRID: usize = 16;

/// Ratio of the inner width of the fusion and its input.
const FUSION_RATIO: f64 = 2.0;

/// timm rounds numbers of channels to multiples of this number.
const DIVISOR: usize = 8;

/// Arguments of timm that only change numbers that are read here.
const ARGUMENTS: [&str; 3] = ["block_args", "stem_size", "msfa_output_resolution"];

/// Keys of the whole model.
#[derive(Debug, Deserialize)]
struct ModelKeys {
    vision_soft_tokens_per_image: Option<usize>,
    eoi_token_id: Option<TokenId>,
}

/// Keys of `vision_config` (`Gemma3nVisionConfig`).
#[derive(Debug, Deserialize)]
struct VisionKeys {
    architecture: Option<String>,
    hidden_size: Option<usize>,
    vocab_size: Option<usize>,
    vocab_offset: Option<TokenId>,
    rms_norm_eps: Option<f64>,
    model_args: Option<Map<String, Value>>,
}

/// A block before its input is known.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BlockSpec {
    kind: BlockKind,
    /// Channels of the result.
    channels: usize,
}

/// Kernels are 0 where there is no convolution, as in timm.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BlockKind {
    /// `er`.
    Edge { kernel: usize, ratio: f64 },
    /// `uir`.
    Inverted { start: usize, middle: usize, ratio: f64 },
    /// `mqa`.
    Attention { heads: usize, size: usize, reduction: usize },
}

/// A block of `block_args`, as timm's `decode_arch_def` returns it, with the defaults of timm's blocks.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct BlockKeys {
    block_type: String,
    out_chs: usize,
    stride: usize,
    noskip: bool,
    se_ratio: f64,
    exp_ratio: f64,
    force_in_chs: usize,
    exp_kernel_size: usize,
    pw_kernel_size: usize,
    dw_kernel_size_start: usize,
    dw_kernel_size_mid: usize,
    dw_kernel_size_end: usize,
    dw_kernel_size: usize,
    num_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kv_stride: usize,
    act_layer: Option<String>,
}

impl Default for BlockKeys {
    fn default() -> Self {
        Self {
            block_type: String::new(),
            out_chs: 0,
            stride: 1,
            noskip: false,
            se_ratio: 0.0,
            exp_ratio: 1.0,
            force_in_chs: 0,
            exp_kernel_size: 3,
            pw_kernel_size: 1,
            dw_kernel_size_start: 0,
            dw_kernel_size_mid: 3,
            dw_kernel_size_end: 0,
            dw_kernel_size: 3,
            num_heads: 8,
            key_dim: 64,
            value_dim: 64,
            kv_stride: 1,
            act_layer: None,
        }
    }
}

/// Reads the vision tower of Gemma 3n, or `None` if the settings state none.
pub(crate) fn gemma3n(config: &Config) -> Result<Option<MobileNetTower>> {
    let Some(vision) = config.section("vision_config")? else { return Ok(None) };
    let keys: VisionKeys = vision.keys()?;
    if let Some(other) = keys.architecture.filter(|name| name != PUBLISHED) {
        return Err(unsupported("vision_config.architecture", PUBLISHED, other));
    }
    let arguments = keys.model_args.unwrap_or_default();
    if let Some(other) = arguments.keys().find(|key| !ARGUMENTS.contains(&key.as_str())) {
        return Err(unsupported("vision_config.model_args", ARGUMENTS.join(", "), other));
    }

    let path = config.path();
    let stem = divisible(argument(path, &arguments, "stem_size", STEM)? as f64);
    let grid = argument(path, &arguments, "msfa_output_resolution", GRID)?;
    let specs = match arguments.get("block_args") {
        None => published_blocks(),
        Some(stated) => stated_blocks(path, stated)?,
    };
    let model: ModelKeys = config.keys()?;
    if let Some(rows) = model.vision_soft_tokens_per_image.filter(|&rows| rows != grid.saturating_mul(grid)) {
        return Err(malformed(path, format!("vision_soft_tokens_per_image of {grid} × {grid}"), rows));
    }

    let offset = keys.vocab_offset.unwrap_or(262_144);
    let end = model.eoi_token_id.unwrap_or(262_144);
    let Some(row) = end.checked_sub(offset) else {
        return Err(malformed(path, format!("an eoi_token_id from {offset}, the vocab_offset"), end));
    };
    let mut tower = MobileNetTower {
        side: SIDE,
        stem,
        stages: placed(stem, &specs),
        fusion: 0,
        hidden: keys.hidden_size.unwrap_or(2048),
        grid,
        norm_epsilon: keys.rms_norm_eps.unwrap_or(1e-6) as f32,
        end: EndToken { row: row as usize, tokens: keys.vocab_size.unwrap_or(128) },
    };
    let fused: usize = tower.fused_channels().iter().sum();
    tower.fusion = divisible(fused as f64 * FUSION_RATIO);
    Ok(Some(tower))
}

/// Returns a number of timm's arguments, or `usual` if they do not state it.
fn argument(path: &Path, arguments: &Map<String, Value>, key: &str, usual: usize) -> Result<usize> {
    match arguments.get(key).map(Value::as_u64) {
        None => Ok(usual),
        Some(stated) => bounded(path, key, stated.unwrap_or(0) as usize, &WIDTH),
    }
}

/// Returns the nearest multiple of [`DIVISOR`], or the next one if that is less than 90 %.
fn divisible(channels: f64) -> usize {
    let nearest = ((channels + DIVISOR as f64 / 2.0) as usize / DIVISOR * DIVISOR).max(DIVISOR);
    if (nearest as f64) < 0.9 * channels { nearest.saturating_add(DIVISOR) } else { nearest }
}

fn inverted(start: usize, middle: usize, ratio: f64) -> BlockKind {
    BlockKind::Inverted { start, middle, ratio }
}

/// Returns `count` times a block with attention and the one after it.
fn attended(attention: BlockKind, count: usize) -> Vec<BlockKind> {
    [attention, inverted(0, 0, 2.0)].repeat(count)
}

/// Returns the blocks of [`PUBLISHED`], by stage.
fn published_blocks() -> Vec<Vec<BlockSpec>> {
    let edge = BlockKind::Edge { kernel: 3, ratio: 4.0 };
    let reduced = BlockKind::Attention { heads: 12, size: 64, reduction: 3 };
    let whole = BlockKind::Attention { heads: 16, size: 96, reduction: 0 };

    let stages = [
        (128, vec![edge; 3]),
        (
            256,
            vec![
                inverted(3, 5, 6.0),
                inverted(5, 0, 4.0),
                inverted(3, 0, 4.0),
                inverted(5, 0, 4.0),
                inverted(3, 0, 4.0),
            ],
        ),
        (
            640,
            [
                vec![inverted(5, 5, 6.0)],
                vec![inverted(5, 0, 4.0); 7],
                vec![inverted(0, 0, 1.0)],
                attended(reduced, 14),
            ]
            .concat(),
        ),
        (1280, [vec![inverted(5, 5, 6.0)], attended(whole, 19)].concat()),
    ];

    stages
        .into_iter()
        .map(|(channels, kinds)| kinds.into_iter().map(|kind| BlockSpec { kind, channels }).collect())
        .collect()
}

/// Reads `block_args`.
fn stated_blocks(path: &Path, stated: &Value) -> Result<Vec<Vec<BlockSpec>>> {
    let stages = Vec::<Vec<BlockKeys>>::deserialize(stated)
        .map_err(|error| malformed(path, "block_args as lists of blocks for each stage", error))?;
    let mut specs = Vec::with_capacity(stages.len());
    for stage in stages {
        let blocks = stage.into_iter().enumerate().map(|(index, keys)| keys.spec(path, index));
        specs.push(blocks.collect::<Result<Vec<_>>>()?);
    }
    Ok(specs)
}

impl BlockKeys {
    /// Returns the block, which is the block `index` of its stage.
    fn spec(&self, path: &Path, index: usize) -> Result<BlockSpec> {
        let stride = if index == 0 { 2 } else { 1 };
        let is_plain = !self.noskip
            && self.se_ratio == 0.0
            && self.act_layer.is_none()
            && self.force_in_chs == 0
            && self.pw_kernel_size == 1
            && self.dw_kernel_size_end == 0
            && self.stride == stride;
        if !is_plain {
            let expected = "a stride of 2 in the first block of a stage and 1 in others, without noskip, se_ratio, \
                            act_layer, force_in_chs, pw_kernel_size and dw_kernel_size_end";
            return Err(unsupported("block_args", expected, format!("{self:?}")));
        }

        let kind = match self.block_type.as_str() {
            "er" => BlockKind::Edge { kernel: self.exp_kernel_size, ratio: self.exp_ratio },
            "uir" => BlockKind::Inverted {
                start: self.dw_kernel_size_start,
                middle: self.dw_kernel_size_mid,
                ratio: self.exp_ratio,
            },
            "mqa" if self.key_dim == self.value_dim && self.kv_stride <= 2 => BlockKind::Attention {
                heads: self.num_heads,
                size: self.key_dim,
                reduction: if self.kv_stride == 2 { self.dw_kernel_size } else { 0 },
            },
            "mqa" => {
                let expected = "mqa with equal key_dim and value_dim, and a kv_stride of 1 or 2";
                return Err(unsupported("block_args", expected, format!("{self:?}")));
            }
            other => return Err(unsupported("block_type", "er, uir or mqa", other)),
        };

        let channels = bounded(path, "out_chs", self.out_chs, &WIDTH)?;
        Ok(BlockSpec { kind, channels: divisible(channels as f64) })
    }
}

/// Returns the kernel of a convolution, if there is one.
fn stated(kernel: usize) -> Option<usize> {
    Some(kernel).filter(|&kernel| kernel > 0)
}

/// Returns the blocks after a stem with this number of channels.
fn placed(stem: usize, stages: &[Vec<BlockSpec>]) -> Vec<Vec<MobileBlock>> {
    let mut input = stem;
    let mut blocks = Vec::with_capacity(stages.len());
    for stage in stages {
        let mut placed = Vec::with_capacity(stage.len());

        for &BlockSpec { kind, channels } in stage {
            placed.push(match kind {
                BlockKind::Edge { kernel, ratio } => {
                    MobileBlock::Edge { kernel, inner: divisible(input as f64 * ratio), channels }
                }
                BlockKind::Inverted { start, middle, ratio } => MobileBlock::Inverted {
                    start: stated(start),
                    middle: stated(middle),
                    inner: divisible(input as f64 * ratio),
                    channels,
                },
                BlockKind::Attention { heads, size, reduction } => {
                    MobileBlock::Attention { heads, size, reduction: stated(reduction) }
                }
            });
            input = channels;
        }

        blocks.push(placed);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::PathBuf};

    use narthex_spec::arch::{DecoderArch, VisionArch};
    use narthex_testkit::architecture as example;
    use serde_json::json;

    use super::*;
    use crate::family::HF;

    fn tower(vision: Value) -> Result<MobileNetTower> {
        let keys = json!({"model_type": "gemma3n", "vision_config": vision});
        Ok(gemma3n(&Config::new("config.json".into(), keys)?)?.unwrap())
    }

    fn with_blocks(blocks: Value) -> Result<MobileNetTower> {
        tower(json!({"model_args": {"block_args": blocks}}))
    }

    /// Compares with the parameters of timm's module, which `gemma3n.py` writes.
    #[test]
    fn the_published_tower_has_timm_s_weights() {
        let tower = tower(json!({"architecture": PUBLISHED, "model_args": null})).unwrap();
        assert_eq!((tower.side, tower.rows(), tower.contradiction()), (768, 257, None));
        let vision = Some(Box::new(VisionArch::MobileNet(tower)));
        let arch = DecoderArch { vision, ..example::llama() };
        let names = HF.iter().find(|family| family.model_type == "gemma3n_text").unwrap().names;
        let mut found = BTreeMap::new();
        for weight in arch.weights() {
            let name = weight.name.to_string();
            if name.starts_with("vision.") {
                let files = names.file_names(&name);
                let file = files.iter().find_map(|file| file.name.strip_prefix("vision_tower.timm_model."));
                found.insert(file.unwrap().to_owned(), weight.shape);
            }
        }

        let goldens = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/gemma3n/shapes.txt");
        let mut expected = BTreeMap::new();
        for line in fs::read_to_string(goldens).unwrap().lines() {
            let (name, shape) = line.split_once(' ').unwrap();
            let mut shape: Vec<usize> = shape.split(' ').map(|extent| extent.parse().unwrap()).collect();
            if shape.ends_with(&[1, 1]) {
                shape.truncate(2);
            }
            expected.insert(name.to_owned(), shape);
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn arguments_of_timm_change_the_blocks() {
        let er = json!({"block_type": "er", "out_chs": 16, "stride": 2, "exp_ratio": 4.0});
        let uir = json!({"block_type": "uir", "out_chs": 21, "stride": 2, "dw_kernel_size_start": 5, "exp_ratio": 1.1});
        let mqa = json!({"block_type": "mqa", "out_chs": 24, "num_heads": 3, "key_dim": 16, "value_dim": 16, "kv_stride": 2});
        let found = with_blocks(json!([[er], [uir, mqa]])).unwrap();
        let expected = [
            vec![MobileBlock::Edge { kernel: 3, inner: 256, channels: 16 }],
            vec![
                MobileBlock::Inverted { start: Some(5), middle: Some(3), inner: 16, channels: 24 },
                MobileBlock::Attention { heads: 3, size: 16, reduction: Some(3) },
            ],
        ];
        assert_eq!((found.stages.as_slice(), found.fusion), (&expected[..], 80));
    }

    #[test]
    fn towers_that_are_not_read_are_refused() {
        let check = |found: Result<MobileNetTower>, expect: &str| {
            let error = found.unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        check(tower(json!({"architecture": "resnet50"})), "vision_config.architecture: found resnet50");
        check(tower(json!({"model_args": {"pad_type": ""}})), "vision_config.model_args: found pad_type");
        check(tower(json!({"model_args": {"stem_size": -1}})), "stem_size from 1 to 1048576, found 0");
        check(tower(json!({"vocab_offset": 300_000})), "an eoi_token_id from 300000");
        check(with_blocks(json!([3])), "block_args as lists of blocks");
        check(
            with_blocks(json!([[{"block_type": "ir", "stride": 2, "out_chs": 8}]])),
            "block_type: found ir",
        );
        check(with_blocks(json!([[{"block_type": "er", "out_chs": 8}]])), "a stride of 2 in the first block");
        check(with_blocks(json!([[{"block_type": "er", "stride": 2}]])), "out_chs from 1");
        let keys = json!({"vision_soft_tokens_per_image": 64, "vision_config": {}});
        let config = Config::new("config.json".into(), keys).unwrap();
        check(gemma3n(&config).map(Option::unwrap), "vision_soft_tokens_per_image of 16 × 16, found 64");
    }
}
