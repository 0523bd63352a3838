//! Bounds on the numbers of a configuration, so that later stages can trust them.
//!
//! The ranges are far wider than any published model; a file beyond them is broken or hostile. The required shapes of
//! tensors are in `required_tensors`.

use std::{fmt::Display, io, ops::RangeInclusive, path::Path};

use narthex_files::MappedFile;
use narthex_spec::{
    arch::{
        Activation, Architecture, Attention, ConformerTower, Connector, DecoderArch, DecoderLayer,
        EncoderArch, FeedForward, KvSource, NormKind, PatchTower, QkNorm, Residual, RopeScaling, Rotation,
        SpeechArch, VisionArch,
    },
    manifest::max_json_values,
};

use crate::error::{CheckpointError, Result};

/// Number of layers.
pub const LAYERS: RangeInclusive<usize> = 1..=1024;
/// Widths: hidden, inner, head size.
pub const WIDTH: RangeInclusive<usize> = 1..=1 << 20;
/// Number of heads.
pub const HEADS: RangeInclusive<usize> = 1..=4096;
/// Number of experts in a layer.
pub(super) const EXPERTS: RangeInclusive<usize> = 1..=1024;
/// Number of vocabulary entries.
pub const VOCAB: RangeInclusive<usize> = 1..=1 << 24;
/// Sequence lengths, in tokens.
pub const CONTEXT: RangeInclusive<usize> = 1..=1 << 27;

/// Maximum size of a text file, in bytes. The largest is the `tokenizer.json`.
pub(crate) const MAX_TEXT_BYTES: u64 = narthex_text::tokenizer::MAX_FILE_BYTES;

/// Maximum size of a file that is parsed as JSON of any form, in bytes. [`MAX_CONFIG_VALUES`] limits its parsed form.
/// The largest is the `tokenizer_config.json` of Gemma, which takes 1.2 MB for its 6,000 added tokens.
pub const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Maximum number of values in a file that is parsed as JSON of any form. A value takes up to about 500 bytes in
/// memory, because an array or an object of one element has space for four. Those 6,000 tokens are about 50,000 values.
pub const MAX_CONFIG_VALUES: usize = 1 << 18;

/// Returns an error for a number or a text in `path` that does not conform to its format.
pub(crate) fn malformed(path: &Path, expected: impl Into<String>, found: impl Display) -> CheckpointError {
    CheckpointError::Malformed { path: path.to_owned(), expected: expected.into(), found: found.to_string() }
}

/// Returns the conversion of the system's error for a file or a folder.
pub(crate) fn unreadable(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    |source| CheckpointError::Read { path: path.to_owned(), source }
}

/// Returns an error for well-formed content that is not supported.
pub(crate) fn unsupported(
    what: impl Into<String>,
    expected: impl Into<String>,
    found: impl Display,
) -> CheckpointError {
    CheckpointError::Unsupported { what: what.into(), expected: expected.into(), found: found.to_string() }
}

/// Returns `value` if it is in `range`.
pub fn bounded(path: &Path, what: &str, value: usize, range: &RangeInclusive<usize>) -> Result<usize> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(malformed(path, format!("{what} from {} to {}", range.start(), range.end()), value))
}

/// Reads a small file of at most `MAX_TEXT_BYTES`.
pub fn read_small(path: &Path) -> Result<Vec<u8>> {
    read_at_most(path, MAX_TEXT_BYTES)
}

/// Reads a file of at most `most` bytes.
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
    narthex_files::read(path, most).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => malformed(path, format!("at most {most} bytes"), "more"),
        _ => unreadable(path)(source),
    })
}

/// Fails if the JSON text `bytes` of the file `path` may have more than `most` values, by [`max_json_values`].
pub(crate) fn check_values(path: &Path, bytes: &[u8], most: usize) -> Result<()> {
    let found = max_json_values(bytes);
    if found > most {
        return Err(malformed(path, format!("at most {most} values"), found));
    }
    Ok(())
}

/// Maps the whole of the regular file `path` read-only.
pub fn map(path: &Path) -> Result<MappedFile> {
    narthex_files::map(path).map_err(unreadable(path))
}

/// Fails unless the numbers of `architecture` are consistent.
pub(crate) fn check_architecture(path: &Path, architecture: &Architecture) -> Result<()> {
    match architecture {
        Architecture::Decoder(decoder) => check_decoder(path, decoder),
        Architecture::Encoder(encoder) => check_encoder(path, encoder),
        Architecture::Embedder(embedder) => {
            check_decoder(path, &embedder.decoder)?;
            if let Some(labels) = embedder.head.labels() {
                bounded(path, "a number of labels", labels, &WIDTH)?;
            }
            embedder.dense.iter().try_for_each(|&width| {
                bounded(path, "a width of the layers after the pooling", width, &WIDTH).map(drop)
            })
        }
        Architecture::Speech(speech) => check_speech(path, speech),
    }
}

fn check_decoder(path: &Path, decoder: &DecoderArch) -> Result<()> {
    bounded(path, "a vocabulary", decoder.vocab, &VOCAB)?;
    bounded(path, "a hidden size", decoder.hidden, &WIDTH)?;
    bounded(path, "a context length", decoder.context, &CONTEXT)?;
    bounded(path, "a number of layers", decoder.layers.len(), &LAYERS)?;
    check_epsilon(path, decoder.norm_epsilon)?;
    let over_zero = [("an embedding scale", decoder.embed_scale), ("a bound of logits", decoder.logit_cap)];
    over_zero.into_iter().try_for_each(|(what, value)| check_positive(path, what, value))?;
    for (index, layer) in decoder.layers.iter().enumerate() {
        check_feed_forward(path, &layer.feed_forward)?;
        if let Some(attention) = layer.attention() {
            check_attention(path, attention)?;
            if attention.rotation != Rotation::None {
                check_rope(path, decoder, attention)?;
            }
        }
        if let Some(source) = layer.shared_entry() {
            check_shared(path, decoder, index, source)?;
        }
    }
    if let Some(vision) = &decoder.vision {
        check_vision(path, vision)?;
    }
    let audio = decoder.audio.as_deref().and_then(ConformerTower::contradiction);
    let contradiction =
        audio.or_else(|| decoder.convolution_contradiction()).or_else(|| decoder.recurrence_contradiction());
    if let Some([expected, found]) = contradiction {
        return Err(malformed(path, expected, found));
    }
    check_streams(path, decoder)
}

fn check_feed_forward(path: &Path, feed_forward: &FeedForward) -> Result<()> {
    match feed_forward {
        FeedForward::Dense(mlp) => {
            bounded(path, "an inner width", mlp.inner, &WIDTH)?;
            match mlp.cutoff.filter(|cutoff| !cutoff.is_finite()) {
                Some(cutoff) => Err(malformed(path, "a finite cutoff of activations", cutoff)),
                None => Ok(()),
            }
        }
        FeedForward::Experts(experts) => {
            bounded(path, "a number of experts", experts.count, &EXPERTS)?;
            let per_token = 1..=experts.count;
            bounded(path, "a number of experts for each token", experts.per_token, &per_token)?;
            bounded(path, "an inner width of experts", experts.inner, &WIDTH)?;
            check_positive(path, "a limit of gates", experts.clamp.map(|clamp| clamp.limit))?;
            check_positive(path, "a slope of gates", experts.clamp.map(|clamp| clamp.slope))?;
            if let Some(shared) = experts.shared {
                bounded(path, "an inner width beside experts", shared, &WIDTH)?;
            }

            match experts.activation {
                Activation::Silu => Ok(()),
                other => {
                    let expected = "SiLU, the only one that ONNX Runtime has for experts on the CPU";
                    Err(unsupported("activation of experts", expected, format!("{other:?}")))
                }
            }
        }
    }
}

fn check_vision(path: &Path, vision: &VisionArch) -> Result<()> {
    match vision {
        VisionArch::Patches(tower) => check_patches(path, tower),
        VisionArch::MobileNet(tower) => {
            check_epsilon(path, tower.norm_epsilon)?;
            match tower.contradiction() {
                Some([expected, found]) => Err(malformed(path, expected, found)),
                None => Ok(()),
            }
        }
    }
}

fn check_patches(path: &Path, vision: &PatchTower) -> Result<()> {
    let &PatchTower { side, patch, hidden, heads, inner, norm_epsilon, .. } = vision;
    bounded(path, "a side of pictures", side, &WIDTH)?;
    bounded(path, "a hidden size of the vision tower", hidden, &WIDTH)?;
    bounded(path, "a number of layers of the vision tower", vision.layers, &LAYERS)?;
    bounded(path, "a number of heads of the vision tower", heads, &HEADS)?;
    bounded(path, "an inner width of the vision tower", inner, &WIDTH)?;
    check_epsilon(path, norm_epsilon)?;
    if !hidden.is_multiple_of(heads) {
        return Err(malformed(path, format!("heads that divide the hidden size {hidden}"), heads));
    }
    if patch == 0 || !side.is_multiple_of(patch) {
        return Err(malformed(path, format!("patches that divide the side {side}"), patch));
    }
    if let Connector::Pooled { norm_epsilon, .. } = vision.connector {
        check_epsilon(path, norm_epsilon)?;
    }
    let patches = vision.patches();
    let square = vision.connector.square();
    if square == 0 || !patches.is_multiple_of(square) {
        let expected = format!("rows of a picture whose side divides {patches} patches");
        return Err(malformed(path, expected, format!("squares of {square} patches")));
    }
    Ok(())
}

/// Fails unless the layer `source` is earlier than `index` and has its own keys and values of the same shape.
fn check_shared(path: &Path, decoder: &DecoderArch, index: usize, source: usize) -> Result<()> {
    let earlier = decoder.layers.get(source).filter(|_| source < index);
    let earlier = earlier.and_then(DecoderLayer::attention);
    let layer = decoder.layers.get(index).and_then(DecoderLayer::attention);
    let fits = earlier.zip(layer).is_some_and(|(source, layer)| {
        source.qk_norm != QkNorm::None && *source == Attention { kv: KvSource::Own, ..layer.clone() }
    });
    if fits {
        return Ok(());
    }
    let expected =
        format!("an earlier layer with keys and values like those of layer {index}, which shares them");
    Err(malformed(path, expected, format!("layer {source}")))
}

/// Number of residual streams.
const STREAMS: RangeInclusive<usize> = 2..=64;

fn check_streams(path: &Path, decoder: &DecoderArch) -> Result<()> {
    if let Some(altup) = &decoder.altup {
        bounded(path, "a number of streams", altup.streams, &STREAMS)?;
        bounded(path, "an active stream", altup.active, &(0..=altup.streams - 1))?;
        bounded(path, "a rank of the learned residual", altup.rank, &WIDTH)?;
        let has_other_residuals = decoder.layers.iter().any(|layer| layer.residual != Residual::Sandwich);
        if decoder.norm != NormKind::Rms || has_other_residuals {
            return Err(malformed(
                path,
                "RMS norms around the parts of layers with several streams",
                "others",
            ));
        }
    }
    let Some(per_layer) = &decoder.per_layer else { return Ok(()) };
    bounded(path, "a vocabulary of per-layer embeddings", per_layer.vocab, &VOCAB)?;
    bounded(path, "a width of per-layer embeddings", per_layer.width, &WIDTH)?;
    let all = per_layer.width.saturating_mul(decoder.layers.len());
    bounded(path, "a width of all per-layer embeddings", all, &WIDTH)?;
    match decoder.norm {
        NormKind::Rms => Ok(()),
        other => Err(malformed(path, "RMS norms beside per-layer embeddings", format!("{other:?}"))),
    }
}

fn check_positive(path: &Path, what: &str, value: Option<f32>) -> Result<()> {
    match value.filter(|value| !(value.is_finite() && *value > 0.0)) {
        Some(value) => Err(malformed(path, format!("{what} above zero"), value)),
        None => Ok(()),
    }
}

fn check_attention(path: &Path, attention: &Attention) -> Result<()> {
    bounded(path, "a number of heads", attention.heads, &HEADS)?;
    bounded(path, "a number of key/value heads", attention.kv_heads, &HEADS)?;
    bounded(path, "a head size", attention.head_size, &WIDTH)?;
    bounded(path, "heads times head size", attention.heads * attention.head_size, &WIDTH)?;
    check_positive(path, "a scale of attention scores", attention.scale)?;
    check_positive(path, "a bound of attention scores", attention.score_cap)?;
    if !attention.heads.is_multiple_of(attention.kv_heads) {
        let expected = format!("key/value heads that divide {} heads", attention.heads);
        return Err(malformed(path, expected, attention.kv_heads));
    }
    Ok(())
}

fn check_rope(path: &Path, decoder: &DecoderArch, attention: &Attention) -> Result<()> {
    let Some(rope) = decoder.rope_of(attention.rotation) else {
        return Err(malformed(path, "rotary positions of every rotated layer", "none"));
    };

    let dims = rope.dims;
    let size = attention.head_size;
    if dims == 0 || dims > size || !dims.is_multiple_of(2) {
        return Err(malformed(path, format!("an even number of rotated elements up to {size}"), dims));
    }

    let mut rotated = decoder.attentions();
    if let Some(other) = rotated.find(|other| other.rotation == attention.rotation && other.head_size != size)
    {
        return Err(malformed(path, format!("heads of {size} elements in every layer"), other.head_size));
    }

    let positive = |what: &str, value: f64| check_positive(path, what, Some(value as f32));
    positive("a rope theta", rope.theta)?;
    match &rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => positive("a rope scaling factor", *factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            positive("a rope scaling factor", *factor)?;
            positive("a rope scaling low_freq_factor", *low_freq_factor)?;
            positive("a rope scaling high_freq_factor", *high_freq_factor)?;
            bounded(path, "an original context", *original_context, &CONTEXT)?;
            if high_freq_factor <= low_freq_factor {
                let expected = format!("a rope high_freq_factor above the low_freq_factor {low_freq_factor}");
                return Err(malformed(path, expected, high_freq_factor));
            }
            Ok(())
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, .. } => {
            positive("a rope scaling factor", *factor)?;
            positive("a rope scaling beta_fast", *beta_fast)?;
            positive("a rope scaling beta_slow", *beta_slow)?;
            positive("a rope attention factor", *attention_factor)?;
            bounded(path, "an original context", *original_context, &CONTEXT)?;
            if rope.theta <= 1.0 {
                return Err(malformed(path, "a rope theta above 1 for yarn", rope.theta));
            }
            if beta_fast < beta_slow {
                let expected = format!("a rope beta_fast of at least the beta_slow {beta_slow}");
                return Err(malformed(path, expected, beta_fast));
            }
            Ok(())
        }
        RopeScaling::LongRope { short, long, original_context, attention_factor } => {
            bounded(path, "an original context", *original_context, &CONTEXT)?;
            positive("a rope attention factor", *attention_factor)?;
            check_factors(path, short, rope.dims)?;
            check_factors(path, long, rope.dims)
        }
        RopeScaling::Factors { factors } => check_factors(path, factors, rope.dims),
    }
}

/// Fails unless there is one divisor above zero for each rotated pair.
fn check_factors(path: &Path, factors: &[f32], dims: usize) -> Result<()> {
    if factors.len() != dims / 2 {
        return Err(malformed(path, format!("{} rope factors", dims / 2), factors.len()));
    }
    factors.iter().try_for_each(|&factor| check_positive(path, "a rope factor", Some(factor)))
}

/// Positions of an encoder whose cosines and sines are computed.
const ROTARY_POSITIONS: RangeInclusive<usize> = 1..=1 << 17;

fn check_encoder(path: &Path, encoder: &EncoderArch) -> Result<()> {
    bounded(path, "a vocabulary", encoder.vocab, &VOCAB)?;
    bounded(path, "a hidden size", encoder.hidden, &WIDTH)?;
    bounded(path, "a number of positions", encoder.positions, &CONTEXT)?;
    bounded(path, "a number of layers", encoder.layers, &LAYERS)?;
    bounded(path, "a number of heads", encoder.heads, &HEADS)?;
    bounded(path, "an inner width", encoder.inner, &WIDTH)?;
    check_epsilon(path, encoder.norm_epsilon)?;
    bounded(path, "a number of unused positions", encoder.first_position, &(0..=*CONTEXT.end()))?;
    bounded(path, "a number of segments", encoder.types, &(0..=*HEADS.end()))?;
    bounded(path, "a width inside a layer", encoder.inside(), &WIDTH)?;
    if !encoder.inside().is_multiple_of(encoder.heads) {
        let expected = format!("heads that divide the hidden size {}", encoder.inside());
        return Err(malformed(path, expected, encoder.heads));
    }

    if let Some(rope) = &encoder.rope {
        bounded(path, "a number of rotary positions", encoder.positions, &ROTARY_POSITIONS)?;
        check_positive(path, "a rope theta", Some(rope.theta as f32))?;
        let size = encoder.head_size();
        if rope.dims != size || !size.is_multiple_of(2) || rope.scaling != RopeScaling::None {
            let expected = format!("heads of an even size {size}, rotated as a whole without scaling");
            return Err(malformed(path, expected, format!("{} rotated elements", rope.dims)));
        }
    }
    if let Some(factored) = &encoder.factored {
        bounded(path, "a width of tokens", factored.width, &(1..=encoder.hidden))?;
    }
    if let Some(bottleneck) = &encoder.bottleneck {
        bounded(path, "a number of feed-forward parts", bottleneck.feed_forwards, &LAYERS)?;
    }
    if let Some(labels) = encoder.head.labels() {
        bounded(path, "a number of labels", labels, &WIDTH)?;
    }
    Ok(())
}

fn check_speech(path: &Path, speech: &SpeechArch) -> Result<()> {
    bounded(path, "a vocabulary", speech.vocab, &VOCAB)?;
    bounded(path, "a hidden size", speech.hidden, &WIDTH)?;
    bounded(path, "a number of mel bands", speech.bins, &HEADS)?;
    bounded(path, "a number of source positions", speech.source_positions, &CONTEXT)?;
    bounded(path, "a number of target positions", speech.target_positions, &CONTEXT)?;
    check_epsilon(path, speech.norm_epsilon)?;
    for side in [&speech.encoder, &speech.decoder] {
        bounded(path, "a number of layers", side.layers, &LAYERS)?;
        bounded(path, "a number of heads", side.heads, &HEADS)?;
        bounded(path, "an inner width", side.inner, &WIDTH)?;
        if !speech.hidden.is_multiple_of(side.heads) {
            let expected = format!("heads that divide the hidden size {}", speech.hidden);
            return Err(malformed(path, expected, side.heads));
        }
    }
    Ok(())
}

fn check_epsilon(path: &Path, epsilon: f32) -> Result<()> {
    // Zero is allowed: some tools write it, and a norm of rows that are not zero never divides by it alone.
    if (0.0..1.0).contains(&epsilon) {
        return Ok(());
    }
    Err(malformed(path, "a norm epsilon from 0 to 1", epsilon))
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{
        Activation, Bottleneck, BottleneckAttention, EncoderHead, EncoderNorm, FactoredEmbedding, Family,
        Pooling,
    };
    use narthex_testkit::architecture as example;

    use super::*;

    fn check(change: impl FnOnce(&mut DecoderArch), expect: &str) {
        let mut arch = example::llama();
        change(&mut arch);
        let found = match check_architecture(Path::new("f"), &Architecture::Decoder(arch)) {
            Ok(()) => "fits".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{found} lacks {expect}");
    }

    #[test]
    fn decoders_whose_numbers_disagree_are_refused() {
        check(|_| (), "fits");
        check(|a| a.vocab = 0, "a vocabulary from 1");
        check(|a| a.layers.clear(), "a number of layers from 1");
        check(|a| a.layers[0].attention_mut().unwrap().kv_heads = 3, "key/value heads that divide 4");
        check(|a| a.layers[0].attention_mut().unwrap().kv_heads = 0, "key/value heads from 1");
        check(|a| a.layers[0].attention_mut().unwrap().head_size = usize::MAX, "a head size from 1");
        check(|a| a.rope.as_mut().unwrap().dims = 18, "rotated elements up to 16");
        check(|a| a.rope.as_mut().unwrap().dims = 7, "even number");
        check(|a| a.rope.as_mut().unwrap().theta = f64::NAN, "rope theta above zero");
        check(|a| a.norm_epsilon = f32::NAN, "norm epsilon");
        check(
            |a| a.rope.as_mut().unwrap().scaling = RopeScaling::Linear { factor: 0.0 },
            "scaling factor above zero",
        );
        check(
            |a| a.rope.as_mut().unwrap().scaling = RopeScaling::Factors { factors: vec![1.0; 7] },
            "8 rope factors",
        );
        check(
            |a| a.rope.as_mut().unwrap().scaling = RopeScaling::Factors { factors: vec![-1.0; 8] },
            "rope factor above zero",
        );
        let llama3 = |low, high| RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: 64,
        };
        check(|a| a.rope.as_mut().unwrap().scaling = llama3(1.0, 4.0), "fits");
        check(|a| a.rope.as_mut().unwrap().scaling = llama3(4.0, 4.0), "above the low_freq_factor 4");
    }

    #[test]
    fn vision_towers_whose_numbers_disagree_are_refused() {
        let vision = PatchTower {
            side: 28,
            patch: 7,
            hidden: 32,
            layers: 1,
            heads: 4,
            inner: 8,
            activation: Activation::GeluTanh,
            norm_epsilon: 1e-6,
            connector: Connector::Pooled { pool: 2, norm_epsilon: 1e-6 },
        };
        let with = |tower: PatchTower, expect: &str| {
            check(|arch| arch.vision = Some(Box::new(VisionArch::Patches(tower))), expect);
        };
        with(vision.clone(), "fits");
        with(PatchTower { heads: 3, ..vision.clone() }, "heads that divide the hidden size 32");
        with(PatchTower { heads: 0, ..vision.clone() }, "a number of heads of the vision tower");
        with(PatchTower { patch: 5, ..vision.clone() }, "patches that divide the side 28");
        with(PatchTower { patch: 0, ..vision.clone() }, "patches that divide the side 28");
        let connector = |pool| Connector::Pooled { pool, norm_epsilon: 1e-6 };
        with(PatchTower { connector: connector(3), ..vision.clone() }, "whose side divides 4 patches");
        let shuffle = Connector::PixelShuffle { factor: 3 };
        with(PatchTower { connector: shuffle, ..vision.clone() }, "found squares of 3 patches");
        with(PatchTower { connector: connector(0), ..vision }, "found squares of 0 patches");
    }

    #[test]
    fn encoders_whose_numbers_disagree_are_refused() {
        let encoder = EncoderArch {
            family: Family::Bert,
            vocab: 100,
            hidden: 64,
            positions: 128,
            first_position: 0,
            types: 2,
            layers: 2,
            heads: 4,
            inner: 128,
            activation: Activation::Gelu,
            gated: false,
            biases: true,
            rope: None,
            norm: EncoderNorm::Layer,
            norm_epsilon: 1e-12,
            factored: None,
            bottleneck: None,
            head: EncoderHead::Embedding { pooling: Pooling::Mean, normalize: true },
        };
        let check = |change: &dyn Fn(&mut EncoderArch), expect: &str| {
            let mut arch = encoder.clone();
            change(&mut arch);
            let error = check_architecture(Path::new("f"), &Architecture::Encoder(arch)).unwrap_err();
            assert!(error.to_string().contains(expect), "{error} lacks {expect}");
        };
        check(&|e| e.heads = 5, "heads that divide the hidden size 64");
        check(&|e| e.first_position = usize::MAX, "a number of unused positions from 0");
        check(
            &|e| e.factored = Some(FactoredEmbedding { width: 65, trigram: true }),
            "a width of tokens from 1 to 64",
        );
        let bottleneck = |width, feed_forwards| {
            Some(Bottleneck { width, attention: BottleneckAttention::Shared, feed_forwards })
        };
        check(&|e| e.bottleneck = bottleneck(6, 1), "heads that divide the hidden size 6");
        check(&|e| e.bottleneck = bottleneck(32, 0), "feed-forward parts from 1");
        check(&|e| e.head = EncoderHead::Score { labels: 0, dense: None }, "a number of labels from 1");
        check(&|e| e.head = EncoderHead::Tokens { labels: usize::MAX }, "a number of labels from 1");
    }

    #[test]
    fn a_small_file_is_read_and_an_endless_one_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"text").unwrap();
        assert_eq!(read_small(file.path()).unwrap(), b"text");
        file.as_file().set_len(MAX_TEXT_BYTES + 1).unwrap();
        assert!(read_small(file.path()).unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn values_are_counted_without_parsing() {
        let check = |json: &str, most: usize, expect: Option<&str>| {
            let found = check_values(Path::new("f.json"), json.as_bytes(), most).err();
            assert_eq!(found.map(|error| error.to_string()).as_deref(), expect, "{json}");
        };
        check("", 0, None);
        check("7", 0, None);
        check("[[[[", 4, None);
        check("[[[[", 3, Some("f.json is malformed: expected at most 3 values, found 4"));
        check(r#"{"a": [1, 2], "b": {}}"#, 5, None);
        check(
            r#"{"a": [1, 2], "b": {}}"#,
            4,
            Some("f.json is malformed: expected at most 4 values, found 5"),
        );
    }
}
