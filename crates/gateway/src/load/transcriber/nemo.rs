//! Models of NeMo: an encoder of log-mel features, and probabilities of tokens for each of its rows, or a transducer.

use narthex_audio::{mel::MelBins, normalized_log_mel};
use narthex_engine::executor::StepError;
use narthex_spec::{
    DType, Elements, TokenId,
    arch::{ImportedTranscriber, TranscriberFamily},
    dtype::Dim,
    manifest::{GraphEntry, NemoEntry, Part, Slot},
};
use narthex_text::token_list::TokenList;

use super::{
    RecognizedToken,
    ctc::{self, RowToken},
    floats,
    transducer::{self, JointStep, States, TransducerBounds},
};
use crate::{
    error::Error,
    library::package::{self, bad_package},
    load::{
        cpu_model::{SlotFeed, SlotGraph},
        request::LoadRequest,
    },
};

/// Samples of a frame of the features.
const FRAME_SAMPLES: usize = 160;

/// States of the network that reads tokens.
const STATES: [Slot; 2] = [Slot::PredictionState { index: 0 }, Slot::PredictionState { index: 1 }];

/// Maximum number of elements of a state.
const MAX_STATE: usize = 1 << 20;

/// A model of NeMo.
pub(crate) struct Nemo {
    encoder: SlotGraph,
    /// The transducer, with the shapes of its states.
    transducer: Option<(SlotGraph, [[usize; 3]; 2])>,
    family: TranscriberFamily,
    entry: NemoEntry,
    bins: MelBins,
    tokens: TokenList,
}

impl Nemo {
    pub(super) fn open(
        request: &LoadRequest<'_>,
        model: &ImportedTranscriber,
        entry: &NemoEntry,
    ) -> Result<Self, Error> {
        let key = &request.package.key;
        let manifest = request.manifest();
        let bytes = package::read(&request.package.folder, &entry.tokens)?;
        let tokens = TokenList::parse(&bytes)
            .map_err(|error| bad_package(key, format!("{}: {error}", entry.tokens)))?;
        if tokens.len() != model.vocab {
            let reason =
                format!("expected {} tokens in {}, found {}", model.vocab, entry.tokens, tokens.len());
            return Err(bad_package(key, reason));
        }
        let Some((bins, encoder)) = MelBins::from_count(entry.bins).zip(manifest.graph_of(Part::Encoder))
        else {
            return Err(bad_package(key, "it has no encoder of 80 or 128 mel bands"));
        };

        let transducer = match manifest.graph_of(Part::Decoder) {
            None => None,
            Some(graph) => {
                let [first, second] = STATES.map(|slot| state_shape(graph, slot));
                let Some((first, second)) = first.zip(second) else {
                    return Err(bad_package(
                        key,
                        format!("the states of {} have no fixed shape", graph.file),
                    ));
                };
                Some((SlotGraph::open(request, graph)?, [first, second]))
            }
        };
        Ok(Self {
            encoder: SlotGraph::open(request, encoder)?,
            transducer,
            family: model.family,
            entry: entry.clone(),
            bins,
            tokens,
        })
    }

    pub(super) fn graphs(&self) -> Vec<&SlotGraph> {
        let transducer = self.transducer.as_ref().map(|(graph, _)| graph);
        std::iter::once(&self.encoder).chain(transducer).collect()
    }

    /// Returns the text of tokens.
    pub(super) fn text(&self, tokens: &[TokenId]) -> String {
        self.tokens.text(tokens)
    }

    /// Returns whether a token starts a word.
    pub(super) fn starts_word(&self, token: TokenId) -> bool {
        self.tokens.piece(token).starts_with(' ')
    }

    pub(super) fn recognize(
        &mut self,
        window: &[f32],
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<RecognizedToken>, Error> {
        on_token()?;
        let (features, sounding) = normalized_log_mel(window, self.bins);
        if sounding == 0 {
            return Ok(Vec::new());
        }
        let bins = self.bins.count();
        let inputs = vec![
            (Slot::Features, vec![1, bins, features.len() / bins], Elements::F32(features)),
            (Slot::FrameCount, vec![1], Elements::I64(vec![sounding as i64])),
        ];
        let rows = if self.transducer.is_some() {
            self.transduce(inputs, on_token)?
        } else {
            self.classify(inputs, sounding)?
        };

        let row = self.entry.subsampling * FRAME_SAMPLES;
        let timed = rows.into_iter().map(|RowToken { id, log_probability, rows }| RecognizedToken {
            id,
            log_probability,
            samples: (rows.start * row).min(window.len())..(rows.end * row).min(window.len()),
        });
        Ok(timed.collect())
    }

    /// Returns the tokens of rows with probabilities.
    fn classify(&mut self, inputs: Vec<SlotFeed>, sounding: usize) -> Result<Vec<RowToken>, Error> {
        let vocab = self.tokens.len();
        let outputs = self.encoder.run(inputs, &[Slot::TokenLogProbabilities])?;
        let Some(output) = outputs.into_iter().next() else { return Ok(Vec::new()) };
        let (shape, values) =
            floats(output, "log-probabilities of the tokens", &[Some(1), None, Some(vocab)])?;
        let rows = (sounding - 1) / self.entry.subsampling + 1;
        if rows > shape[1] {
            return Err(wrong_rows(rows, shape[1]));
        }
        Ok(ctc::decode(&values[..rows * vocab], vocab, self.entry.blank))
    }

    /// Returns the tokens of a transducer.
    fn transduce(
        &mut self,
        inputs: Vec<SlotFeed>,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<RowToken>, Error> {
        let Self { encoder, transducer: Some((graph, shapes)), family, entry, tokens, .. } = self else {
            return Ok(Vec::new());
        };
        let outputs = encoder.run(inputs, &[Slot::EncoderRows, Slot::EncoderRowCount])?;
        let Ok([values, count]) = <[_; 2]>::try_from(outputs) else { return Ok(Vec::new()) };
        let (shape, values) = floats(values, "rows of the encoder", &[Some(1), None, None])?;
        let [_, width, columns] = shape[..] else { return Ok(Vec::new()) };
        let rows = match &count.elements {
            Elements::I64(count) => count.first().and_then(|&count| usize::try_from(count).ok()),
            _ => None,
        };
        let rows =
            rows.filter(|rows| *rows <= columns).ok_or_else(|| wrong_rows(rows.unwrap_or(0), columns))?;

        let bounds = TransducerBounds {
            vocab: tokens.len(),
            blank: entry.blank,
            rows,
            max_tokens_per_row: entry.max_tokens_per_row,
        };
        let states = shapes.map(|shape| vec![0.0; shape.iter().product()]);
        let has_durations = *family == TranscriberFamily::NemoTdt;
        transducer::decode(bounds, states, &mut |row, token, states| {
            on_token()?;
            let encoded: Vec<f32> = values.iter().skip(row).step_by(columns).copied().collect();
            let step = joint_step(graph, *shapes, vec![1, width, 1], encoded, token, states)?;
            let others = step.logits.len().checked_sub(bounds.vocab);
            if others.is_some_and(|others| (others > 0) == has_durations) {
                return Ok(step);
            }
            let message = format!(
                "expected logits of {} tokens{}, found {}",
                bounds.vocab,
                if has_durations { " and of durations" } else { "" },
                step.logits.len()
            );
            Err(StepError::Device { message }.into())
        })
    }
}

/// Runs a transducer for a row of the encoder after a token.
fn joint_step(
    graph: &mut SlotGraph,
    shapes: [[usize; 3]; 2],
    row_shape: Vec<usize>,
    row: Vec<f32>,
    token: TokenId,
    states: &States,
) -> Result<JointStep, Error> {
    let mut inputs = vec![
        (Slot::EncoderRows, row_shape, Elements::F32(row)),
        (Slot::Tokens, vec![1, 1], integer(&graph.entry, Slot::Tokens, i64::from(token))),
        (Slot::TokenCount, vec![1], integer(&graph.entry, Slot::TokenCount, 1)),
    ];
    for ((slot, shape), state) in STATES.into_iter().zip(shapes).zip(states) {
        inputs.push((slot, shape.to_vec(), Elements::F32(state.clone())));
    }

    let outputs = graph.run(inputs, &[Slot::Logits, STATES[0], STATES[1]])?;
    let Ok([logits, first, second]) = <[_; 3]>::try_from(outputs) else {
        return Err(StepError::Device { message: "the graph has no logits".to_owned() }.into());
    };
    let state = |tensor, shape: [usize; 3]| floats(tensor, "the state after a token", &shape.map(Some));
    let (_, logits) = floats(logits, "logits of a token", &[Some(1), Some(1), Some(1), None])?;
    let states = [state(first, shapes[0])?.1, state(second, shapes[1])?.1];
    Ok(JointStep { logits, states })
}

/// Returns an integer in the type of an input.
fn integer(entry: &GraphEntry, slot: Slot, value: i64) -> Elements {
    match entry.input(slot).map(|input| input.dtype) {
        Some(DType::I32) => Elements::I32(vec![value as i32]),
        _ => Elements::I64(vec![value]),
    }
}

/// Returns the shape of a state for one sequence.
fn state_shape(graph: &GraphEntry, slot: Slot) -> Option<[usize; 3]> {
    let [Dim::Fixed(layers), _, Dim::Fixed(width)] = graph.input(slot)?.shape[..] else { return None };
    let [layers, width] = [layers, width].map(|extent| usize::try_from(extent).unwrap_or(usize::MAX));
    (1..=MAX_STATE).contains(&layers.saturating_mul(width)).then_some([layers, 1, width])
}

/// Returns the error of an encoder with too few rows.
fn wrong_rows(expected: usize, found: usize) -> Error {
    let message = format!("expected at least {expected} rows of the encoder, found {found}");
    StepError::Device { message }.into()
}
