//! Moonshine: an encoder of samples, and a decoder of tokens with a cache of keys and values.

use narthex_audio::SPEECH_RATE;
use narthex_device::cpu_graph::OutputTensor;
use narthex_engine::executor::StepError;
use narthex_spec::{
    Elements, TokenId,
    arch::ImportedTranscriber,
    manifest::{MoonshineEntry, Part, Slot},
};
use narthex_text::tokenizer::Tokenizer;

use super::{RecognizedToken, floats, largest};
use crate::{
    error::Error,
    library::package::bad_package,
    load::{
        cpu_model::{SlotFeed, SlotGraph},
        request::LoadRequest,
        verify::compare::log_sum_exp,
    },
};

/// Maximum number of tokens of a second. The publisher states this limit, because the model repeats itself at times.
const TOKENS_PER_SECOND: f64 = 6.5;

/// Moonshine.
pub(crate) struct Moonshine {
    encoder: SlotGraph,
    decoder: SlotGraph,
    entry: MoonshineEntry,
    vocab: usize,
    /// Maximum number of tokens of a transcript.
    max_tokens: usize,
    tokenizer: Tokenizer,
}

/// A tensor of the cache, with the input that it belongs to.
struct CachedTensor {
    input: Slot,
    output: Slot,
    /// True if every step changes it.
    grows: bool,
    tensor: OutputTensor,
}

impl Moonshine {
    pub(super) fn open(
        request: &LoadRequest<'_>,
        model: &ImportedTranscriber,
        entry: MoonshineEntry,
    ) -> Result<Self, Error> {
        let manifest = request.manifest();
        let graphs = [Part::Encoder, Part::Decoder].map(|part| manifest.graph_of(part));
        let [Some(encoder), Some(decoder)] = graphs else {
            return Err(bad_package(&request.package.key, "it has no encoder and decoder"));
        };
        Ok(Self {
            encoder: SlotGraph::open(request, encoder)?,
            decoder: SlotGraph::open(request, decoder)?,
            entry,
            vocab: model.vocab,
            max_tokens: manifest.max_length,
            tokenizer: request.package.read_tokenizer()?,
        })
    }

    pub(super) fn graphs(&self) -> Vec<&SlotGraph> {
        vec![&self.encoder, &self.decoder]
    }

    /// Returns the text of tokens, without control tokens.
    pub(super) fn text(&self, tokens: &[TokenId]) -> String {
        let texts: Vec<TokenId> =
            tokens.iter().copied().filter(|&token| !self.tokenizer.is_special(token)).collect();
        self.tokenizer.decode(&texts).trim().to_owned()
    }

    pub(super) fn recognize(
        &mut self,
        window: &[f32],
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<RecognizedToken>, Error> {
        on_token()?;
        let shape = vec![1, window.len()];
        let mask = (Slot::SampleMask, shape.clone(), Elements::I64(vec![1; window.len()]));
        let samples = (Slot::Samples, shape, Elements::F32(window.to_vec()));
        let outputs = self.encoder.run(vec![samples, mask.clone()], &[Slot::EncoderRows])?;
        let Some(rows) = outputs.into_iter().next() else { return Ok(Vec::new()) };
        let (shape, rows) = floats(rows, "rows of the encoder", &[Some(1), None, None])?;
        let fixed = [(Slot::EncoderRows, shape, Elements::F32(rows)), mask];

        let seconds = window.len() as f64 / f64::from(SPEECH_RATE);
        let most = ((seconds * TOKENS_PER_SECOND) as usize).clamp(1, self.max_tokens);
        let mut cache = empty_cache(self.entry);
        let mut tokens = Vec::new();
        let mut before = self.entry.start;
        while tokens.len() < most {
            on_token()?;
            let (id, log_probability) = self.step(&fixed, &mut cache, before, !tokens.is_empty())?;
            if id == self.entry.end {
                break;
            }
            tokens.push(RecognizedToken { id, log_probability, samples: 0..window.len() });
            before = id;
        }
        Ok(tokens)
    }

    /// Reads a token. Returns the likeliest next one with the logarithm of its probability.
    fn step(
        &mut self,
        fixed: &[SlotFeed],
        cache: &mut [CachedTensor],
        token: TokenId,
        reads_cache: bool,
    ) -> Result<(TokenId, f32), Error> {
        let mut inputs = fixed.to_vec();
        inputs.push((Slot::Tokens, vec![1, 1], Elements::I64(vec![i64::from(token)])));
        inputs.push((Slot::ReadsCache, vec![1], Elements::Bool(vec![u8::from(reads_cache)])));
        for CachedTensor { input, tensor, .. } in cache.iter() {
            inputs.push((*input, tensor.shape.clone(), tensor.elements.clone()));
        }
        // Keys and values of the sound stay those of the first step.
        let changed = cache.iter_mut().filter(|cached| cached.grows || !reads_cache);
        let mut changed: Vec<&mut CachedTensor> = changed.collect();
        let slots: Vec<Slot> = changed.iter().map(|cached| cached.output).collect();
        let outputs = self.decoder.run(inputs, &[&[Slot::Logits][..], &slots].concat())?;

        let mut outputs = outputs.into_iter();
        let Some(logits) = outputs.next() else {
            return Err(StepError::Device { message: "the graph has no logits".to_owned() }.into());
        };
        let (_, logits) = floats(logits, "logits of a token", &[Some(1), Some(1), Some(self.vocab)])?;
        for (cached, tensor) in changed.iter_mut().zip(outputs) {
            cached.tensor = tensor;
        }
        let best = largest(&logits);
        Ok((best as TokenId, (f64::from(logits[best]) - log_sum_exp(&logits)) as f32))
    }
}

/// Returns the tensors of the first step, which reads none of them.
fn empty_cache(entry: MoonshineEntry) -> Vec<CachedTensor> {
    let shape = vec![1, entry.heads, 1, entry.head_size];
    let elements = Elements::F32(vec![0.0; shape.iter().product()]);
    let empty = OutputTensor { shape, elements };
    let slots = (0..entry.layers).flat_map(|layer| {
        [
            (Slot::PastKey { layer }, Slot::PresentKey { layer }, true),
            (Slot::PastValue { layer }, Slot::PresentValue { layer }, true),
            (Slot::CrossKey { layer }, Slot::CrossKey { layer }, false),
            (Slot::CrossValue { layer }, Slot::CrossValue { layer }, false),
        ]
    });
    slots.map(|(input, output, grows)| CachedTensor { input, output, grows, tensor: empty.clone() }).collect()
}
