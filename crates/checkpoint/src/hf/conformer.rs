//! The conformer as the audio tower of Gemma 3n: its settings in `config.json`, those of the feature extractor in
//! `preprocessor_config.json`, and the tokens that stand for a sound.

use narthex_spec::{
    TokenId,
    arch::{ConformerTower, EndToken, FrameConvolution},
    manifest::{SoundPlaceholder, SoundPreprocessing},
};
use serde::Deserialize;

use super::{config::Config, folder::Folder, vision::PROCESSOR};
use crate::{
    error::Result,
    limits::{malformed, unsupported},
};

/// Sample rate of the extractor, in Hz.
const SAMPLE_RATE: usize = 16_000;

/// Samples after which the extractor cuts a sound.
const MAX_SAMPLES: usize = 480_000;

/// Keys of the whole model.
#[derive(Debug, Deserialize)]
struct SoundKeys {
    audio_soft_tokens_per_image: Option<usize>,
    audio_token_id: Option<TokenId>,
    boa_token_id: Option<TokenId>,
    eoa_token_id: Option<TokenId>,
}

/// Keys of `text_config`.
#[derive(Debug, Default, Deserialize)]
struct TextKeys {
    vocab_size: Option<usize>,
}

/// Keys of `audio_config` (`Gemma3nAudioConfig`).
#[derive(Debug, Deserialize)]
struct AudioKeys {
    vocab_size: Option<usize>,
    vocab_offset: Option<TokenId>,
    input_feat_size: Option<usize>,
    hidden_size: Option<usize>,
    rms_norm_eps: Option<f64>,
    gradient_clipping: Option<f64>,
    conf_attention_chunk_size: Option<usize>,
    conf_attention_context_left: Option<usize>,
    conf_attention_context_right: Option<usize>,
    conf_attention_logit_cap: Option<f64>,
    conf_num_attention_heads: Option<usize>,
    conf_num_hidden_layers: Option<usize>,
    conf_conv_kernel_size: Option<usize>,
    conf_reduction_factor: Option<usize>,
    conf_residual_weight: Option<f64>,
    sscp_conv_channel_size: Option<[usize; 2]>,
    sscp_conv_group_norm_eps: Option<f64>,
    sscp_conv_kernel_size: Option<[[usize; 2]; 2]>,
    sscp_conv_stride_size: Option<[[usize; 2]; 2]>,
}

/// Keys of [`PROCESSOR`] (`Gemma3nAudioFeatureExtractor`).
#[derive(Debug, Default, Deserialize)]
struct ExtractorKeys {
    feature_size: Option<usize>,
    sampling_rate: Option<usize>,
    padding_value: Option<f64>,
    frame_length_ms: Option<f64>,
    hop_length_ms: Option<f64>,
    min_frequency: Option<f64>,
    max_frequency: Option<f64>,
    preemphasis: Option<f64>,
    preemphasis_htk_flavor: Option<bool>,
    fft_overdrive: Option<bool>,
    dither: Option<f64>,
    input_scale_factor: Option<f64>,
    mel_floor: Option<f64>,
    per_bin_mean: Option<Vec<f64>>,
    per_bin_stddev: Option<Vec<f64>>,
}

/// Reads the audio tower of Gemma 3n, or `None` if the settings state none.
pub(crate) fn gemma3n(config: &Config) -> Result<Option<ConformerTower>> {
    let Some(audio) = config.section("audio_config")? else { return Ok(None) };
    let path = config.path();
    let keys: AudioKeys = audio.keys()?;
    let model: SoundKeys = config.keys()?;
    let text = match config.section("text_config")? {
        Some(text) => text.keys()?,
        None => TextKeys::default(),
    };

    let tokens = keys.vocab_size.unwrap_or(128);
    let offset = keys.vocab_offset.unwrap_or(262_272) as usize;
    let end = model.eoa_token_id.unwrap_or(262_272) as usize;
    let last = text.vocab_size.unwrap_or(262_400).saturating_sub(1);
    let [padding, end] = [last, end].map(|token| token.checked_sub(offset).filter(|row| *row < tokens));
    let (Some(padding), Some(row)) = (padding, end) else {
        let expected =
            format!("an eoa_token_id and a last token of {tokens} tokens from {offset}, the vocab_offset");
        return Err(malformed(path, expected, format!("{:?} and {last}", model.eoa_token_id)));
    };

    let channels = keys.sscp_conv_channel_size.unwrap_or([128, 32]);
    let kernels = keys.sscp_conv_kernel_size.unwrap_or([[3; 2]; 2]);
    let strides = keys.sscp_conv_stride_size.unwrap_or([[2; 2]; 2]);
    let convolutions = [0, 1].map(|index| FrameConvolution {
        channels: channels[index],
        kernel: kernels[index],
        stride: strides[index],
    });
    Ok(Some(ConformerTower {
        bins: keys.input_feat_size.unwrap_or(128),
        convolutions,
        group_norm_epsilon: keys.sscp_conv_group_norm_eps.unwrap_or(1e-3) as f32,
        hidden: keys.hidden_size.unwrap_or(1536),
        layers: keys.conf_num_hidden_layers.unwrap_or(12),
        heads: keys.conf_num_attention_heads.unwrap_or(8),
        chunk: keys.conf_attention_chunk_size.unwrap_or(12),
        // The reference counts the position itself.
        left: keys.conf_attention_context_left.unwrap_or(13).saturating_sub(1),
        right: keys.conf_attention_context_right.unwrap_or(0),
        score_cap: keys.conf_attention_logit_cap.unwrap_or(50.0) as f32,
        kernel: keys.conf_conv_kernel_size.unwrap_or(5),
        residual_weight: keys.conf_residual_weight.unwrap_or(0.5) as f32,
        bound: keys.gradient_clipping.unwrap_or(1e10) as f32,
        reduction: keys.conf_reduction_factor.unwrap_or(4),
        rows: model.audio_soft_tokens_per_image.unwrap_or(188),
        norm_epsilon: keys.rms_norm_eps.unwrap_or(1e-6) as f32,
        padding,
        end: EndToken { row, tokens },
    }))
}

/// Reads the features of sounds for a tower, and the tokens that stand for a sound.
pub(crate) fn read(
    folder: &mut Folder,
    config: &Config,
    arch: &ConformerTower,
) -> Result<(SoundPreprocessing, SoundPlaceholder)> {
    let keys: ExtractorKeys =
        folder.json(PROCESSOR, "the settings of a feature extractor")?.unwrap_or_default();
    let path = folder.file(PROCESSOR);
    for (key, value) in [("padding_value", keys.padding_value), ("dither", keys.dither)] {
        if let Some(value) = value.filter(|value| *value != 0.0) {
            return Err(unsupported(key, "0", value).in_file(&path));
        }
    }
    if let Some(rate) = keys.sampling_rate.filter(|rate| *rate != SAMPLE_RATE) {
        return Err(unsupported("sampling_rate", "16000", rate).in_file(&path));
    }

    let frame = samples(keys.frame_length_ms.unwrap_or(32.0)).clamp(1, MAX_SAMPLES);
    let overdrive = if keys.fft_overdrive.unwrap_or(true) { 2 } else { 1 };
    let preprocessing = SoundPreprocessing {
        sample_rate: SAMPLE_RATE,
        max_samples: MAX_SAMPLES,
        bins: keys.feature_size.unwrap_or(arch.bins),
        frame,
        hop: samples(keys.hop_length_ms.unwrap_or(10.0)),
        transform: frame.next_power_of_two() * overdrive,
        min_frequency: keys.min_frequency.unwrap_or(125.0),
        max_frequency: keys.max_frequency.unwrap_or(7600.0),
        preemphasis: keys.preemphasis.unwrap_or(0.97),
        emphasis_in_frames: keys.preemphasis_htk_flavor.unwrap_or(true),
        scale: keys.input_scale_factor.unwrap_or(1.0),
        floor: keys.mel_floor.unwrap_or(1e-5),
        mean: keys.per_bin_mean,
        std: keys.per_bin_stddev,
    };
    if let Some([expected, found]) = preprocessing.contradiction() {
        return Err(malformed(&path, expected, found));
    }
    if preprocessing.bins != arch.bins {
        return Err(malformed(
            &path,
            format!("a feature_size of {}, the tower's", arch.bins),
            preprocessing.bins,
        ));
    }

    let tokens: SoundKeys = config.keys()?;
    let placeholder = SoundPlaceholder {
        start: tokens.boa_token_id.unwrap_or(256_000),
        row: tokens.audio_token_id.unwrap_or(262_273),
    };
    let max_samples = longest(&preprocessing, arch);
    Ok((SoundPreprocessing { max_samples, ..preprocessing }, placeholder))
}

/// Returns the number of samples of a duration, rounded as Python does.
fn samples(milliseconds: f64) -> usize {
    (SAMPLE_RATE as f64 * milliseconds / 1000.0).round_ties_even() as usize
}

/// Returns the maximum number of samples of a sound: those that the extractor keeps, if their frames have no more rows than a
/// sound has in the decoder. A frame has one sample more than it states, for the emphasis.
fn longest(preprocessing: &SoundPreprocessing, arch: &ConformerTower) -> usize {
    let SoundPreprocessing { frame, hop, .. } = *preprocessing;
    let samples = arch.max_frames().saturating_mul(hop).saturating_add(frame);
    let whole = samples / SoundPreprocessing::PADDING * SoundPreprocessing::PADDING;
    whole.min(MAX_SAMPLES)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::PathBuf};

    use narthex_spec::arch::DecoderArch;
    use narthex_testkit::architecture as example;
    use serde_json::{Value, json};

    use super::*;
    use crate::family::HF;

    fn config(audio: Value) -> Config {
        let keys = json!({"model_type": "gemma3n", "audio_config": audio});
        Config::new("config.json".into(), keys).unwrap()
    }

    /// Compares with the parameters of the module of transformers, which `gemma3n.py` writes.
    #[test]
    fn the_published_tower_has_the_weights_of_transformers() {
        let tower = gemma3n(&config(json!({}))).unwrap().unwrap();
        assert_eq!(tower.contradiction(), None);
        assert_eq!((tower.left, tower.padding, tower.end.row), (12, 127, 0));
        let arch = DecoderArch { audio: Some(Box::new(tower)), ..example::llama() };
        let names = HF.iter().find(|family| family.model_type == "gemma3n_text").unwrap().names;
        let mut found = BTreeMap::new();
        for weight in arch.weights() {
            let name = weight.name.to_string();
            if name.starts_with("audio.") {
                let files = names.file_names(&name);
                let file = files.iter().find_map(|file| file.name.strip_prefix("model.audio_tower."));
                found.insert(file.unwrap_or(&name).to_owned(), weight.shape);
            }
        }

        let goldens =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/gemma3n/audio_shapes.txt");
        let mut expected = BTreeMap::new();
        for line in fs::read_to_string(goldens).unwrap().lines() {
            let (name, shape) = line.split_once(' ').unwrap();
            let shape: Vec<usize> = shape.split(' ').map(|extent| extent.parse().unwrap()).collect();
            expected.insert(name.to_owned(), shape);
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn sounds_are_as_long_as_their_rows() {
        let folder = tempfile::tempdir().unwrap();
        let read = |audio: Value, rows: usize, extractor: Value| {
            fs::write(folder.path().join(PROCESSOR), extractor.to_string()).unwrap();
            let tower = ConformerTower { rows, ..gemma3n(&config(audio.clone())).unwrap().unwrap() };
            read(&mut Folder::new(folder.path()), &config(audio), &tower)
        };
        let (preprocessing, placeholder) = read(json!({}), 188, json!({})).unwrap();
        assert_eq!(placeholder, SoundPlaceholder { start: 256_000, row: 262_273 });
        let SoundPreprocessing { max_samples, frame, hop, transform, .. } = preprocessing;
        assert_eq!((max_samples, frame, hop, transform), (480_000, 512, 160, 1024));
        assert_eq!((preprocessing.max_seconds().as_str(), preprocessing.frames(480_000)), ("30", 2997));

        // One sample more would need one frame more than the rows have.
        let (short, _) = read(json!({}), 10, json!({})).unwrap();
        assert_eq!((short.frames(short.max_samples), short.frames(short.max_samples + 1)), (160, 161));
        assert_eq!(short.max_seconds(), "1.63");
        let error = |extractor: Value| read(json!({}), 10, extractor).unwrap_err().to_string();
        assert!(error(json!({"dither": 0.1})).contains("dither"));
        assert!(error(json!({"sampling_rate": 8000})).contains("sampling_rate"));
        assert!(error(json!({"feature_size": 80})).contains("a feature_size of 128"));
        assert!(error(json!({"hop_length_ms": 0})).contains("from 1 to"));
        assert!(error(json!({"per_bin_mean": [1.0]})).contains("128 bins"));
    }

    #[test]
    fn tokens_of_sounds_have_rows() {
        let error = gemma3n(&config(json!({"vocab_size": 100}))).unwrap_err().to_string();
        assert!(error.contains("100 tokens from 262272"), "{error}");
        assert!(gemma3n(&config(json!({"vocab_offset": 262_300}))).is_err());
    }
}
