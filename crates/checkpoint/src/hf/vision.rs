//! Vision towers: SigLIP's settings, the values that a tower reads from pictures, and the tokens that stand for them.
//!
//! The settings are in `config.json`. The values are those of the image processor in `preprocessor_config.json`, or that
//! of Gemma 3 if the folder has no such file.

use narthex_spec::{
    TokenId,
    arch::{Connector, VisionArch},
    manifest::{PictureFit, PicturePlaceholder, PicturePreprocessing, ResizeFilter},
};
use serde::Deserialize;

use super::{config::Config, decoder::activation, folder::Folder};
use crate::{
    error::Result,
    limits::{LAYERS, WIDTH, bounded, malformed, unsupported},
};

/// Settings of the image processor of `transformers`.
const PROCESSOR: &str = "preprocessor_config.json";

/// Keys of the whole model.
#[derive(Debug, Deserialize)]
struct PictureKeys {
    mm_tokens_per_image: Option<usize>,
    #[serde(alias = "boi_token_id")]
    boi_token_index: Option<TokenId>,
    #[serde(alias = "eoi_token_id")]
    eoi_token_index: Option<TokenId>,
    #[serde(alias = "image_token_id")]
    image_token_index: Option<TokenId>,
}

/// Keys of `vision_config` (`SiglipVisionConfig`).
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
    resample: Option<u8>,
    rescale_factor: Option<f64>,
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    size: Option<SizeKeys>,
}

#[derive(Debug, Deserialize)]
struct SizeKeys {
    height: usize,
    width: usize,
}

/// Reads the vision tower of Gemma 3, or `None` if the settings state none.
pub(crate) fn gemma3(config: &Config) -> Result<Option<VisionArch>> {
    let Some(vision) = config.section("vision_config")? else { return Ok(None) };
    let keys: SiglipKeys = vision.keys()?;
    match keys.model_type.as_deref() {
        None | Some("siglip_vision_model") => {}
        Some(other) => return Err(unsupported("vision_config.model_type", "siglip_vision_model", other)),
    }
    if let Some(channels) = keys.num_channels.filter(|&channels| channels != VisionArch::CHANNELS) {
        return Err(unsupported("vision_config.num_channels", "3", channels));
    }

    let path = config.path();
    let side = bounded(path, "image_size", keys.image_size.unwrap_or(224), &WIDTH)?;
    let patch = bounded(path, "patch_size", keys.patch_size.unwrap_or(16), &WIDTH)?;
    let norm_epsilon = keys.layer_norm_eps.unwrap_or(1e-6) as f32;
    let rows = config.keys::<PictureKeys>()?.mm_tokens_per_image.unwrap_or(256);
    let rows = bounded(path, "mm_tokens_per_image", rows, &WIDTH)?.isqrt();
    Ok(Some(VisionArch {
        side,
        patch,
        hidden: keys.hidden_size.unwrap_or(768),
        layers: bounded(path, "num_hidden_layers", keys.num_hidden_layers.unwrap_or(12), &LAYERS)?,
        heads: keys.num_attention_heads.unwrap_or(12),
        inner: keys.intermediate_size.unwrap_or(3072),
        activation: activation(keys.hidden_act.as_deref().unwrap_or("gelu_pytorch_tanh"))?,
        norm_epsilon,
        connector: Connector::Pooled { pool: side / patch / rows, norm_epsilon },
    }))
}

/// Reads the values of pictures for a tower of Gemma 3, and the tokens that stand for a picture.
pub(crate) fn read(
    folder: &mut Folder,
    config: &Config,
    arch: &VisionArch,
) -> Result<(PicturePreprocessing, PicturePlaceholder)> {
    let expected = "the settings of an image processor";
    let keys: ProcessorKeys = folder.json(PROCESSOR, expected)?.unwrap_or_default();
    let path = folder.file(PROCESSOR);
    let steps =
        [("do_resize", keys.do_resize), ("do_rescale", keys.do_rescale), ("do_normalize", keys.do_normalize)];
    for (key, value) in steps {
        if value == Some(false) {
            return Err(unsupported(key, "true", false).in_file(&path));
        }
    }
    if keys.do_pan_and_scan == Some(true) {
        return Err(unsupported("do_pan_and_scan", "false: pictures as a whole", true).in_file(&path));
    }
    if let Some(SizeKeys { height, width }) = keys.size
        && [height, width] != [arch.side; 2]
    {
        let expected = format!("a size of {0} × {0}, the tower's", arch.side);
        return Err(malformed(&path, expected, format!("{width} × {height}")));
    }

    let preprocessing = PicturePreprocessing {
        side: arch.side,
        fit: PictureFit::Stretch,
        filter: match keys.resample {
            None | Some(2) => ResizeFilter::Bilinear,
            Some(3) => ResizeFilter::Bicubic,
            Some(1) => ResizeFilter::Lanczos,
            Some(other) => return Err(unsupported("resample", "1, 2 or 3", other).in_file(&path)),
        },
        rescale: keys.rescale_factor.unwrap_or(1.0 / 255.0),
        mean: keys.image_mean.unwrap_or([0.5; 3]),
        std: keys.image_std.unwrap_or([0.5; 3]),
    };
    let tokens: PictureKeys = config.keys()?;
    let placeholder = PicturePlaceholder {
        start: tokens.boi_token_index.unwrap_or(255_999),
        row: tokens.image_token_index.unwrap_or(262_144),
        end: tokens.eoi_token_index.unwrap_or(256_000),
    };
    Ok((preprocessing, placeholder))
}
