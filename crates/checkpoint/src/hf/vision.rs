//! Vision towers: SigLIP's settings, the values that a tower reads from pictures, and the tokens that stand for them.
//! `mobilenet` reads the settings of MobileNetV5.
//!
//! The settings are in `config.json`. The values are those of the image processor in `preprocessor_config.json`, or its
//! defaults if the folder has no such file.

use std::{ops::RangeInclusive, path::Path};

use narthex_spec::{
    TokenId,
    arch::{Connector, MobileNetTower, PatchTower, VisionArch},
    manifest::{PictureFit, PicturePlaceholder, PicturePreprocessing, ResizeFilter},
};
use serde::Deserialize;

use super::{config::Config, decoder::activation, folder::Folder};
use crate::{
    error::Result,
    limits::{LAYERS, WIDTH, bounded, malformed, unsupported},
};

/// Settings of the image processor and of the feature extractor of `transformers`.
pub(super) const PROCESSOR: &str = "preprocessor_config.json";

/// Expected content of [`PROCESSOR`], for errors.
const EXPECTED: &str = "the settings of an image processor";

/// Tiles of the longest edge of a picture in Idefics3, if the processor states no size.
const USUAL_TILES: usize = 4;

/// Allowed lengths in pixels of the longer side of a picture before it is divided into tiles.
const LONGEST_EDGE: RangeInclusive<usize> = 1..=PictureFit::MAX_LONGEST_EDGE;

/// Keys of the whole model.
#[derive(Debug, Deserialize)]
struct PictureKeys {
    mm_tokens_per_image: Option<usize>,
    scale_factor: Option<usize>,
    #[serde(alias = "boi_token_id")]
    boi_token_index: Option<TokenId>,
    #[serde(alias = "eoi_token_id")]
    eoi_token_index: Option<TokenId>,
    #[serde(alias = "image_token_id")]
    image_token_index: Option<TokenId>,
}

/// Keys of `vision_config` (`SiglipVisionConfig`, `Idefics3VisionConfig`).
#[derive(Debug, Deserialize)]
struct SiglipKeys {
    model_type: Option<String>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_channels: Option<usize>,
    image_size: Option<usize>,
    patch_size: Option<usize>,
    hidden_act: Option<String>,
    layer_norm_eps: Option<f64>,
}

/// Keys of [`PROCESSOR`].
#[derive(Debug, Default, Deserialize)]
struct ProcessorKeys {
    do_resize: Option<bool>,
    do_rescale: Option<bool>,
    do_normalize: Option<bool>,
    do_pan_and_scan: Option<bool>,
    do_image_splitting: Option<bool>,
    resample: Option<u8>,
    rescale_factor: Option<f64>,
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    size: Option<SizeKeys>,
    max_image_size: Option<SizeKeys>,
}

#[derive(Debug, Deserialize)]
struct SizeKeys {
    height: Option<usize>,
    width: Option<usize>,
    longest_edge: Option<usize>,
}

/// Values of `vision_config` that published files leave out.
struct TowerDefaults {
    model_type: &'static str,
    hidden: usize,
    heads: usize,
    patch: usize,
}

/// Reads the vision tower of Gemma 3, or `None` if the settings state none.
pub(crate) fn gemma3(config: &Config) -> Result<Option<VisionArch>> {
    let Some(vision) = config.section("vision_config")? else { return Ok(None) };
    let defaults = TowerDefaults { model_type: "siglip_vision_model", hidden: 768, heads: 12, patch: 16 };
    let rows = config.keys::<PictureKeys>()?.mm_tokens_per_image.unwrap_or(256);
    let rows = bounded(config.path(), "mm_tokens_per_image", rows, &WIDTH)?.isqrt();
    let arch = siglip(config, &vision, &defaults)?;
    let pool = arch.patches() / rows;
    let connector = Connector::Pooled { pool, norm_epsilon: arch.norm_epsilon };
    Ok(Some(VisionArch::Patches(PatchTower { connector, ..arch })))
}

/// Reads the vision tower of Idefics3, or `None` if the settings state none.
pub(crate) fn idefics3(config: &Config) -> Result<Option<VisionArch>> {
    let Some(vision) = config.section("vision_config")? else { return Ok(None) };
    let defaults = TowerDefaults { model_type: "idefics3_vision", hidden: 1152, heads: 16, patch: 32 };
    let arch = siglip(config, &vision, &defaults)?;
    // The reference computes the positions of patches from fractions of the side, which are exact for powers of two.
    if !arch.patches().is_power_of_two() {
        let expected = "a power of two as the number of patches of a side";
        return Err(malformed(config.path(), expected, arch.patches()));
    }
    let factor = config.keys::<PictureKeys>()?.scale_factor.unwrap_or(2);
    let factor = bounded(config.path(), "scale_factor", factor, &WIDTH)?;
    let connector = Connector::PixelShuffle { factor };
    Ok(Some(VisionArch::Patches(PatchTower { connector, ..arch })))
}

/// Reads the settings that all towers share. The connector is not known yet.
fn siglip(config: &Config, vision: &Config, defaults: &TowerDefaults) -> Result<PatchTower> {
    let keys: SiglipKeys = vision.keys()?;
    if let Some(other) = keys.model_type.filter(|kind| kind != defaults.model_type) {
        return Err(unsupported("vision_config.model_type", defaults.model_type, other));
    }
    if let Some(channels) = keys.num_channels.filter(|&channels| channels != VisionArch::CHANNELS) {
        return Err(unsupported("vision_config.num_channels", "3", channels));
    }

    let path = config.path();
    Ok(PatchTower {
        side: bounded(path, "image_size", keys.image_size.unwrap_or(224), &WIDTH)?,
        patch: bounded(path, "patch_size", keys.patch_size.unwrap_or(defaults.patch), &WIDTH)?,
        hidden: keys.hidden_size.unwrap_or(defaults.hidden),
        layers: bounded(path, "num_hidden_layers", keys.num_hidden_layers.unwrap_or(12), &LAYERS)?,
        heads: keys.num_attention_heads.unwrap_or(defaults.heads),
        inner: keys.intermediate_size.unwrap_or(3072),
        activation: activation(keys.hidden_act.as_deref().unwrap_or("gelu_pytorch_tanh"))?,
        norm_epsilon: keys.layer_norm_eps.unwrap_or(1e-6) as f32,
        connector: Connector::PixelShuffle { factor: 1 },
    })
}

/// Changes the side of a tower that takes pictures of any size to that of the image processor, if the folder states one.
pub(crate) fn set_side(folder: &mut Folder, tower: &mut MobileNetTower) -> Result<()> {
    let keys: Option<ProcessorKeys> = folder.json(PROCESSOR, EXPECTED)?;
    if let Some(height) = keys.and_then(|keys| keys.size?.height) {
        tower.side = height;
    }
    Ok(())
}

/// Reads the values of pictures for a tower, and the tokens that stand for a picture.
pub(crate) fn read(
    folder: &mut Folder,
    config: &Config,
    arch: &VisionArch,
) -> Result<(PicturePreprocessing, PicturePlaceholder)> {
    let stated: Option<ProcessorKeys> = folder.json(PROCESSOR, EXPECTED)?;
    let path = folder.file(PROCESSOR);
    let keys = stated.unwrap_or_else(|| match arch {
        VisionArch::Patches(_) => ProcessorKeys::default(),
        // As in the published files of Gemma 3n.
        VisionArch::MobileNet(_) => {
            ProcessorKeys { do_normalize: Some(false), resample: Some(2), ..ProcessorKeys::default() }
        }
    });
    for (key, value) in [("do_resize", keys.do_resize), ("do_rescale", keys.do_rescale)] {
        if value == Some(false) {
            return Err(unsupported(key, "true", false).in_file(&path));
        }
    }

    let tokens: PictureKeys = config.keys()?;
    let (fit, filter, placeholder) = match arch {
        VisionArch::Patches(PatchTower { connector: Connector::Pooled { .. }, .. }) => {
            let placeholder = PicturePlaceholder::Framed {
                start: tokens.boi_token_index.unwrap_or(255_999),
                row: tokens.image_token_index.unwrap_or(262_144),
                end: tokens.eoi_token_index.unwrap_or(256_000),
            };
            (stretch(&path, &keys, arch.side())?, ResizeFilter::Bilinear, placeholder)
        }
        VisionArch::Patches(PatchTower { connector: Connector::PixelShuffle { .. }, .. }) => {
            let row = tokens.image_token_index.unwrap_or(128_257);
            (divide(&path, &keys, arch.side())?, ResizeFilter::Lanczos, PicturePlaceholder::Tiled { row })
        }
        VisionArch::MobileNet(_) => {
            let placeholder = PicturePlaceholder::Opened {
                start: tokens.boi_token_index.unwrap_or(255_999),
                row: tokens.image_token_index.unwrap_or(262_145),
            };
            (stretch(&path, &keys, arch.side())?, ResizeFilter::Bicubic, placeholder)
        }
    };
    let (mean, std) = match keys.do_normalize {
        Some(false) => ([0.0; 3], [1.0; 3]),
        _ => (keys.image_mean.unwrap_or([0.5; 3]), keys.image_std.unwrap_or([0.5; 3])),
    };
    let preprocessing = PicturePreprocessing {
        side: arch.side(),
        fit,
        filter: match keys.resample {
            None => filter,
            Some(1) => ResizeFilter::Lanczos,
            Some(2) => ResizeFilter::Bilinear,
            Some(3) => ResizeFilter::Bicubic,
            Some(other) => return Err(unsupported("resample", "1, 2 or 3", other).in_file(&path)),
        },
        rescale: keys.rescale_factor.unwrap_or(1.0 / 255.0),
        mean,
        std,
    };
    Ok((preprocessing, placeholder))
}

/// Returns the division of pictures by the processors of Gemma 3 and Gemma 3n.
fn stretch(path: &Path, keys: &ProcessorKeys, side: usize) -> Result<PictureFit> {
    if keys.do_pan_and_scan == Some(true) {
        return Err(unsupported("do_pan_and_scan", "false: pictures as a whole", true).in_file(path));
    }
    if let Some(SizeKeys { height, width, .. }) = keys.size
        && [height, width] != [Some(side); 2]
    {
        let expected = format!("a size of {side} × {side}, the tower's");
        return Err(malformed(path, expected, format!("{height:?} × {width:?}")));
    }
    Ok(PictureFit::Stretch)
}

/// Returns the division of pictures by Idefics3's processor.
fn divide(path: &Path, keys: &ProcessorKeys, side: usize) -> Result<PictureFit> {
    if keys.do_image_splitting == Some(false) {
        return Err(unsupported("do_image_splitting", "true: pictures in tiles", false).in_file(path));
    }
    let tile = keys.max_image_size.as_ref().and_then(|size| size.longest_edge).unwrap_or(side);
    if tile != side {
        let expected = format!("a max_image_size of {side}, the tower's");
        return Err(malformed(path, expected, tile));
    }
    let longest_edge = keys.size.as_ref().and_then(|size| size.longest_edge);
    let longest_edge = longest_edge.unwrap_or(side.saturating_mul(USUAL_TILES));
    Ok(PictureFit::Tiles { longest_edge: bounded(path, "size.longest_edge", longest_edge, &LONGEST_EDGE)? })
}
