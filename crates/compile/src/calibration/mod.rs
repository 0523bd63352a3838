//! Calibration: runs the model over a text. The measured inputs of its layers decide the factors of channels, and the
//! distributions around them the integers for activations.
//!
//! The graph runs in segments, so calibration needs no more memory for a large model than the other stages of a
//! compile. [`GraphRunner`] is the port to ONNX Runtime, which another crate implements. Start at `calibrate`.

mod channels;
mod encoder;
pub mod probe;
mod probe_run;
pub mod segment;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use narthex_checkpoint::{Checkpoint, Weight};
use narthex_graph::Graph;
use narthex_spec::{
    Elements, Feed, Fetch, RoundingMethod, ScalingMethod, Sha256, TokenId,
    arch::{DecoderArch, PerLayer, Rotation},
    manifest::{GraphEntry, Slot},
};
use narthex_text::tokenizer::{Specials, Tokenizer};

pub use crate::error::RunnerError;
use crate::{
    calibration_text::CalibrationText,
    error::{CompileError, Result},
    quant::{
        ActivationRanges, Scaling,
        activations::{Histogram, LinearActivations},
        gptq::Moments,
        scaling::Input,
    },
    rotary::{LengthRange, RotarySet, Trigonometric},
};
use probe::{
    MeasuredLayer, SharedInput, SideOutputs, channel_squares, distributions, mean_squares, output,
    second_moments, with_one_output,
};
use probe_run::ProbeRun;

pub(crate) use channels::{ChannelStatistics, channel_statistics};
pub(crate) use encoder::EncoderCalibration;

/// Calibration text: prose, code, lists and dialogue, in several languages.
pub const TEXT: &str = include_str!("text.txt");

/// More text, for measurements that need many tokens: dialogue, code, tables and prose in several languages, which were
/// written for this purpose, and source text and documentation of Narthex.
pub const PASSAGES: &str = include_str!("passages.txt");

/// Returns the digest of the calibration text of weights that are rounded and scaled by these methods.
pub fn text_digest(rounding: RoundingMethod, scaling: ScalingMethod) -> Sha256 {
    if rounding == RoundingMethod::Gptq || scaling.is_measured() {
        Sha256::of([TEXT, PASSAGES].concat().as_bytes())
    } else {
        Sha256::of(TEXT.as_bytes())
    }
}

/// Maximum number of calibration tokens of one run.
const MAX_TOKENS: usize = 1024;

/// Maximum number of runs over [`PASSAGES`].
const MAX_WINDOWS: usize = 12;

/// Runs graphs for the compiler.
pub trait GraphRunner {
    /// Runs the graph in a file once and returns the f32 outputs `wanted`, in that order.
    ///
    /// # Errors
    /// [`RunnerError`] if the graph cannot be loaded or run.
    fn run(&self, graph: &Path, feeds: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError>;
}

/// A model that is run over a text.
pub(crate) trait ProbedModel {
    /// Returns an input of the graph for one sequence without past tokens; `logits` is the number of tokens after which
    /// logits are computed. `None` for an input of zeros.
    ///
    /// # Errors
    /// Errors from reading the tables of the host.
    fn input(&self, slot: Slot, tokens: &[TokenId], logits: usize) -> Result<Option<Elements>>;
}

/// The decoder that is run over the text.
pub(crate) struct CalibrationModel<'a> {
    /// The model's checkpoint.
    pub(crate) checkpoint: &'a Checkpoint,
    /// The model's architecture.
    pub(crate) arch: &'a DecoderArch,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Text of the user; `None` for [`TEXT`] and [`PASSAGES`].
    pub(crate) text: Option<&'a CalibrationText>,
}

/// Maximum bytes of weights per run. A runner may keep two copies: as stored, and in the layout of its kernels.
const AT_ONCE: u64 = 512 << 20;

/// Maximum bytes of weights per run that measures second moments, which take up to four times as much.
const AT_ONCE_WITH_MOMENTS: u64 = 32 << 20;

/// Maximum number of tokens whose logits are measured. Vocabularies are large.
const MEASURED_LOGITS: usize = 64;

/// Maximum number of windows of [`PASSAGES`] in which next tokens are compared.
const COMPARED_WINDOWS: usize = 4;

/// The complete graph of a model.
#[derive(Clone)]
pub(crate) struct CalibrationGraph<'a> {
    pub(crate) graph: Graph,
    pub(crate) entry: GraphEntry,
    /// Folder of its weights.
    pub(crate) folder: &'a Path,
}

/// Scales a decoder by the inputs that its layers receive for the text.
///
/// # Errors
/// [`CompileError::Calibration`] if the runner fails or its results are not usable, and errors from reading the token
/// table and from writing the probe.
pub(crate) fn calibrate(
    runner: &dyn GraphRunner,
    model: &CalibrationModel<'_>,
    inputs: Vec<Input>,
    graph: CalibrationGraph<'_>,
) -> Result<Scaling> {
    let CalibrationGraph { graph, entry, folder } = graph;
    let probe = mean_squares(graph, &inputs)?;
    let tokens = model.tokens()?;
    let run = ProbeRun { model, entry: &entry, logits: tokens.len(), folder, most_bytes: AT_ONCE };
    let mut outputs = run.outputs(runner, &probe, tokens)?;
    let mut scaling = Scaling::default();
    for input in inputs {
        let squares = MeasuredSquares { output: &output(&input), of: &input.name, channels: input.channels };
        let mean_squares = squares.take(&mut outputs)?;
        scaling.add(input, &mean_squares);
    }
    Ok(scaling)
}

/// Measures the activations around the quantised linear layers of a decoder for the text.
///
/// # Errors
/// As [`calibrate`].
pub(crate) fn activation_ranges(
    runner: &dyn GraphRunner,
    model: &CalibrationModel<'_>,
    graph: CalibrationGraph<'_>,
) -> Result<ActivationRanges> {
    ranges_of(runner, model, &[model.tokens()?], graph)
}

/// Measures the activations around the quantised linear layers of an encoder for texts from [`TEXT`] and [`PASSAGES`].
///
/// # Errors
/// As [`calibrate`].
pub(crate) fn encoder_activation_ranges(
    runner: &dyn GraphRunner,
    model: &EncoderCalibration<'_>,
    graph: CalibrationGraph<'_>,
) -> Result<ActivationRanges> {
    ranges_of(runner, model, &model.windows()?, graph)
}

/// Measures the activations around quantised linear layers for texts of equal length.
fn ranges_of(
    runner: &dyn GraphRunner,
    model: &dyn ProbedModel,
    windows: &[Vec<TokenId>],
    graph: CalibrationGraph<'_>,
) -> Result<ActivationRanges> {
    let CalibrationGraph { graph, entry, folder } = graph;
    let layers = MeasuredLayer::all(&graph);
    let probe = distributions(graph, &layers)?;
    let logits = windows.first().map_or(0, Vec::len).min(MEASURED_LOGITS);
    let run = ProbeRun { model, entry: &entry, logits, folder, most_bytes: AT_ONCE };
    // Each output has one vector for each window.
    let mut outputs: HashMap<String, Vec<Vec<f32>>> = HashMap::new();
    run.each_output(runner, &probe, windows, &mut |name, values| {
        outputs.entry(name).or_default().push(values);
        Ok(())
    })?;

    let mut ranges = ActivationRanges::default();
    for layer in layers {
        let [input, output] = layer.outputs().map(|side| histogram(&mut outputs, &layer.path, side));
        ranges.insert(layer.path.clone(), LinearActivations { input: input?, output: output? });
    }
    Ok(ranges)
}

/// Measures the second moments of inputs of a decoder for the text, and passes them to `take` in the order of the layers.
/// Those of a few layers are in memory at a time. Returns the mean squares of the outputs of each layer that reads one of
/// the inputs, summed over the tokens, by the path of the layer.
///
/// # Errors
/// As [`calibrate`], and the errors of `take`.
pub(crate) fn input_moments(
    runner: &dyn GraphRunner,
    model: &CalibrationModel<'_>,
    inputs: &[SharedInput],
    graph: CalibrationGraph<'_>,
    take: &mut dyn FnMut(&SharedInput, Moments) -> Result<()>,
) -> Result<BTreeMap<String, f64>> {
    let CalibrationGraph { graph, entry, folder } = graph;
    let probe = second_moments(graph, inputs)?;
    let windows = model.windows()?;
    let run = ProbeRun { model, entry: &entry, logits: 1, folder, most_bytes: AT_ONCE_WITH_MOMENTS };
    // Sums over the windows so far, and the number of these windows.
    let mut sums: HashMap<String, (Vec<f32>, usize)> = HashMap::new();
    let mut squares: HashMap<String, f64> = HashMap::new();
    run.each_output(runner, &probe, &windows, &mut |name, values| {
        let (sum, count) = sums.entry(name.clone()).or_insert_with(|| (vec![0.0; values.len()], 0));
        sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        *count += 1;
        if *count < windows.len() {
            return Ok(());
        }
        let sum = sums.remove(&name).map(|(sum, _)| sum).unwrap_or_default();
        let Some(input) = inputs.iter().find(|input| input.output == name) else {
            squares.insert(name, sum.first().copied().map_or(0.0, f64::from));
            return Ok(());
        };
        match Moments::new(input.channels, sum) {
            Some(moments) => take(input, moments),
            None => bad(format!("the activations of the model are not finite: {name}")),
        }
    })?;

    let layers = inputs.iter().flat_map(|input| &input.layers);
    let tokens = windows.first().map_or(0, Vec::len) as f64;
    Ok(layers
        .map(|layer| (layer.path.clone(), squares.get(&layer.mean_square).map_or(0.0, |mean| mean * tokens)))
        .collect())
}

/// Mean squares over the text.
pub(crate) struct MeanSquares {
    /// Those of the channels of each input, in the order of the inputs.
    pub(crate) inputs: Vec<Vec<f32>>,
    /// Those of the outputs of each layer that reads one of the inputs, by the path of the layer.
    pub(crate) outputs: BTreeMap<String, f64>,
}

/// Measures the mean squares of inputs of a decoder for the text, and of the outputs of the layers that read them.
///
/// # Errors
/// As [`calibrate`].
pub(crate) fn input_squares(
    runner: &dyn GraphRunner,
    model: &CalibrationModel<'_>,
    inputs: &[SharedInput],
    graph: CalibrationGraph<'_>,
) -> Result<MeanSquares> {
    let CalibrationGraph { graph, entry, folder } = graph;
    let probe = channel_squares(graph, inputs)?;
    let run = ProbeRun { model, entry: &entry, logits: 1, folder, most_bytes: AT_ONCE };
    let mut measured = run.outputs(runner, &probe, model.tokens()?)?;

    let mut squares = MeanSquares { inputs: Vec::new(), outputs: BTreeMap::new() };
    for input in inputs {
        let output = &input.output;
        let of_input = MeasuredSquares { output, of: output, channels: input.channels };
        squares.inputs.push(of_input.take(&mut measured)?);
        for layer in &input.layers {
            let of_output = MeasuredSquares { output: &layer.mean_square, of: &layer.path, channels: 1 };
            let mean = of_output.take(&mut measured)?;
            squares.outputs.insert(layer.path.clone(), mean.first().copied().map_or(0.0, f64::from));
        }
    }
    Ok(squares)
}

/// Mean squares that a probe measures.
struct MeasuredSquares<'a> {
    /// Output of the probe.
    output: &'a str,
    /// Name of the measured activations.
    of: &'a str,
    channels: usize,
}

impl MeasuredSquares<'_> {
    /// Takes one finite mean square for each channel from the outputs of a probe.
    fn take(&self, outputs: &mut HashMap<String, Vec<f32>>) -> Result<Vec<f32>> {
        let Self { output, of, channels } = self;
        let values = take(outputs, output)?;
        if values.len() != *channels {
            return bad(format!("{of} has {channels} channels, but {} were measured", values.len()));
        }
        match values.iter().find(|value| !value.is_finite() || **value < 0.0) {
            Some(value) => {
                bad(format!("the activations of the model are not finite: a mean square of {of} is {value}"))
            }
            None => Ok(values),
        }
    }
}

/// Passes the logits of a decoder after [`MEASURED_LOGITS`] tokens of each of a few windows of the text to `take`. The rows of
/// a window follow each other.
///
/// # Errors
/// As [`calibrate`], and the errors of `take`.
pub(crate) fn sampled_logits(
    runner: &dyn GraphRunner,
    model: &CalibrationModel<'_>,
    graph: CalibrationGraph<'_>,
    take: &mut dyn FnMut(Vec<f32>) -> Result<()>,
) -> Result<()> {
    let CalibrationGraph { graph, entry, folder } = graph;
    let logits = entry.outputs.iter().find(|binding| binding.slot == Slot::Logits);
    let Some(logits) = logits else { return bad("the graph has no logits".to_owned()) };
    let probe = with_one_output(graph, &logits.name)?;
    let mut windows = model.windows()?;
    windows.truncate(COMPARED_WINDOWS);
    let rows = windows.first().map_or(0, Vec::len).min(MEASURED_LOGITS);
    let run = ProbeRun { model, entry: &entry, logits: rows, folder, most_bytes: AT_ONCE };
    run.each_output(runner, &probe, &windows, &mut |_, values| take(values))
}

/// Takes the distribution of one side of a layer over all windows from the outputs of a probe.
fn histogram(
    outputs: &mut HashMap<String, Vec<Vec<f32>>>,
    path: &str,
    side: &SideOutputs,
) -> Result<Histogram> {
    let [lows, highs, counts] = [&side.low, &side.high, &side.counts].map(|name| outputs.remove(name));
    let (Some(lows), Some(highs), Some(counts)) = (lows, highs, counts) else {
        return bad(format!("the activations of {path} were not measured"));
    };
    let mut all: Option<Histogram> = None;
    for ((low, high), counts) in lows.iter().zip(&highs).zip(counts) {
        let window = match (low.as_slice(), high.as_slice()) {
            (&[low], &[high]) if low.is_finite() && high.is_finite() => Histogram { low, high, counts },
            _ => {
                return bad(format!(
                    "the activations of the model are not finite: {path} reads or computes values from {low:?} to \
                     {high:?}"
                ));
            }
        };
        match &mut all {
            Some(all) => all.extend(&window),
            None => all = Some(window),
        }
    }
    all.map_or_else(|| bad(format!("the activations of {path} were not measured")), Ok)
}

/// Takes an output of a probe.
fn take(outputs: &mut HashMap<String, Vec<f32>>, name: &str) -> Result<Vec<f32>> {
    outputs.remove(name).map_or_else(|| bad(format!("{name} was not measured")), Ok)
}

fn bad<T>(reason: String) -> Result<T> {
    Err(CompileError::Calibration(RunnerError { reason, hint: None }))
}

impl ProbedModel for CalibrationModel<'_> {
    fn input(&self, slot: Slot, tokens: &[TokenId], logits: usize) -> Result<Option<Elements>> {
        let count = tokens.len();
        Ok(Some(match slot {
            Slot::Embeds => Elements::F32(self.embeds(tokens)?),
            Slot::PerLayerEmbeds => Elements::F32(self.per_layer(tokens)?),
            Slot::SeqlensK => Elements::I32(vec![count as i32 - 1]),
            Slot::TotalLength => Elements::I32(vec![count as i32]),
            Slot::TokenMask => Elements::F32(vec![1.0; count]),
            Slot::CosTable => Elements::F32(self.angles(count, Trigonometric::Cos)),
            Slot::SinTable => Elements::F32(self.angles(count, Trigonometric::Sin)),
            Slot::LogitsRows => Elements::I64(spread_rows(count, logits)),
            _ => return Ok(None),
        }))
    }
}

impl CalibrationModel<'_> {
    /// Returns the rotary cosines or sines for a sequence of `tokens` tokens, `[positions, pairs]`.
    fn angles(&self, tokens: usize, wave: Trigonometric) -> Vec<f32> {
        let long = self.arch.switch().is_some_and(|at| tokens > at);
        let reach = if long { LengthRange::Long } else { LengthRange::Short };
        RotarySet { rotation: Rotation::Global, reach }.values(self.arch, wave, 0..tokens)
    }

    /// Returns the text's tokens, at most as many as the model's context and [`MAX_TOKENS`].
    fn tokens(&self) -> Result<Vec<TokenId>> {
        let mut tokens: Vec<TokenId> = self.checkpoint.special.bos.into_iter().collect();
        match self.text {
            Some(text) => tokens.extend(text.tokens(self.checkpoint, self.tokenizer, MAX_TOKENS)?),
            None => tokens.extend(self.tokenizer.encode(TEXT, Specials::AsText)?),
        }
        tokens.truncate(MAX_TOKENS.min(self.arch.context));
        Ok(tokens)
    }

    /// Returns the tokens of the whole text in windows of equal length.
    fn windows(&self) -> Result<Vec<Vec<TokenId>>> {
        let first = self.checkpoint.special.bos;
        let tokens = all_tokens(self.checkpoint, self.tokenizer, self.text)?;
        let length = MAX_TOKENS.min(self.arch.context).saturating_sub(first.iter().len()).min(tokens.len());
        let windows = tokens.chunks_exact(length.max(1)).take(MAX_WINDOWS);
        Ok(windows.map(|window| first.into_iter().chain(window.iter().copied()).collect()).collect())
    }

    /// Returns the tokens' rows of the token table, plus the rows of their positions if these are learned.
    fn embeds(&self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let vocab = self.arch.vocab;
        let hidden = self.arch.hidden;
        let mut rows = token_rows(self.checkpoint.weights.weight("embed.weight")?, tokens, [vocab, hidden])?;
        if self.arch.learned_positions() {
            let table = self.checkpoint.weights.weight("position.weight")?;
            table.expect_shape(&[self.arch.context, hidden])?;
            let mut learned = vec![0.0; hidden];
            for (position, row) in rows.chunks_exact_mut(hidden).enumerate() {
                table.read_row(position, &mut learned);
                row.iter_mut().zip(&learned).for_each(|(x, learned)| *x += learned);
            }
        }
        Ok(rows)
    }

    /// Returns the tokens' rows of the per-layer table.
    fn per_layer(&self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let Some(PerLayer { vocab, width }) = self.arch.per_layer else { return Ok(Vec::new()) };
        let cols = self.arch.layers.len() * width;
        let table = self.checkpoint.weights.weight("per_layer.embed.weight")?;
        table.expect_shape(&[vocab, cols])?;
        let mut rows = vec![0.0; tokens.len() * cols];
        for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(cols)) {
            table.read_row(Some(token as usize).filter(|&row| row < vocab).unwrap_or(0), row);
        }
        Ok(rows)
    }
}

/// Returns the tokens of the user's text, or of [`TEXT`] and [`PASSAGES`], as many as windows can have.
fn all_tokens(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    text: Option<&CalibrationText>,
) -> Result<Vec<TokenId>> {
    if let Some(text) = text {
        return Ok(text.tokens(checkpoint, tokenizer, MAX_WINDOWS * MAX_TOKENS)?);
    }
    let mut tokens = tokenizer.encode(TEXT, Specials::AsText)?;
    tokens.extend(tokenizer.encode(PASSAGES, Specials::AsText)?);
    Ok(tokens)
}

/// Returns the positions of `chosen` tokens at equal distances, in a sequence of `count` tokens.
fn spread_rows(count: usize, chosen: usize) -> Vec<i64> {
    (0..chosen).map(|row| (row * count / chosen.max(1)) as i64).collect()
}

/// Returns the rows of tokens in a table `[vocab, width]`.
fn token_rows(table: Weight<'_>, tokens: &[TokenId], [vocab, width]: [usize; 2]) -> Result<Vec<f32>> {
    table.expect_shape(&[vocab, width])?;
    let mut rows = vec![0.0; tokens.len() * width];
    for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(width)) {
        table.read_row(known(token, vocab)?, row);
    }
    Ok(rows)
}

/// Returns the row of a token in a table of `vocab` tokens.
fn known(token: TokenId, vocab: usize) -> Result<usize> {
    match token as usize {
        row if row < vocab => Ok(row),
        _ => Err(CompileError::Calibration(RunnerError {
            reason: format!(
                "the tokenizer returned token {token}, but the model's vocabulary has {vocab} tokens"
            ),
            hint: Some("use the tokenizer that belongs to this checkpoint".to_owned()),
        })),
    }
}
