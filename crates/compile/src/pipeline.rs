//! The stages of a compile: checkpoint → plan → graphs → package.

mod channels;
mod space;
mod widths;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use narthex_checkpoint::{self as checkpoint, Adapter, AnswerReranker, Checkpoint, TokenizerSource};
use narthex_graph::onnx::external::ExternalWriter;
use narthex_spec::{
    Calibration, DType, ModelName, Pass, ProgressSink, Recipe, ScalingMethod, Scheme, Sha256, Variant,
    arch::{Architecture, DecoderArch, Pooling},
    manifest::{AudioEntry, FORMAT, LayerWidth, Manifest, Part, Provenance, TokenizerEntry, VisionEntry},
    progress::{Progress, Stage, Unit},
    recipe::KeptTokens,
};
use narthex_text::tokenizer::Tokenizer;

use crate::{
    calibration::{
        CalibrationGraph, CalibrationModel, EncoderCalibration, GraphRunner, activation_ranges, calibrate,
        encoder_activation_ranges,
    },
    calibration_text::CalibrationText,
    emit::{Emitter, RoundedWeights, WeightSink, WrittenTensors, new_graph},
    error::{CompileError, Result, unwritable},
    lower::{self, LoweredModel, parts},
    package::{DATA_FILE, GRAPH_FILE, PackageWriter, TEMPLATE_FILE, TOKENIZER_FILE, chat_entry},
    pass,
    quant::{
        ActivationRanges, Plan, Scaling, balance_keys,
        scaling::{Remedy, inputs},
    },
    vocab_subset::VocabSubset,
    width_plan::WidthPlan,
};

const KEPT_TOKENS_FILE: &str = "kept_tokens.json";

/// Divisor of the head size of models that ONNX Runtime's attention can run. Narthex's own has no such limit.
const CALIBRATED_HEADS: usize = 8;

/// A compile of a checkpoint into a package.
pub struct CompileJob<'a> {
    /// The checkpoint's file or folder.
    pub checkpoint: &'a Path,
    /// Adapters to add to its weights. The recipe lists them.
    pub adapters: &'a [Adapter],
    /// The package's name.
    pub name: ModelName,
    /// The recipe. The manifest's copy also records the calibration.
    pub recipe: Recipe,
    /// Runner of the calibration graph. If there is one, decoders in `w8` are calibrated. Fixed shapes with integer
    /// activations need one.
    pub runner: Option<&'a dyn GraphRunner>,
    /// Text for the calibration graph; `None` for the one of this crate.
    pub text: Option<&'a CalibrationText>,
    /// Tokens that the pruned head keeps. The manifest's recipe records their number.
    pub vocabulary: Option<&'a VocabSubset>,
    /// An empty folder. On success it contains a complete package.
    pub out: &'a Path,
    /// Layers of a package of 4 bits that have 8.
    pub widths: Option<&'a WidthPlan>,
    /// Maximum size in `f32` of a decoder whose layers are measured in 4 bits although neither its rounding nor its budget
    /// needs the losses; 0 to measure none.
    pub measured_bytes: u64,
    /// Pooling of an embedding model, in place of the checkpoint's own.
    pub pooling: Option<Pooling>,
    /// Compile a language model as a reranker that answers yes or no, with the template of Qwen3-Reranker. Published models are
    /// recognised without it.
    pub rerank: bool,
    /// Folder for the output of every stage in readable form.
    pub keep_stages: Option<&'a Path>,
    /// The origin of the checkpoint.
    pub provenance: Provenance,
}

/// Opens the model that is compiled.
fn opened(job: &CompileJob<'_>) -> Result<Checkpoint> {
    let mut checkpoint = checkpoint::open_with(job.checkpoint, job.adapters)?.pooled(job.pooling)?;
    if job.rerank {
        checkpoint = checkpoint.reranking(&AnswerReranker::default())?;
    }
    let checkpoint = checkpoint.sliced(&job.recipe)?.extended(job.recipe.yarn)?;
    // Unquantised packages have the numbers of the checkpoint, and an adapter may have changed the head alone.
    let is_quantized = matches!(job.recipe.scheme.of_weights(), Scheme::W8 | Scheme::W4);
    Ok(if is_quantized && job.adapters.is_empty() { checkpoint.tied()? } else { checkpoint })
}

/// Compiles a checkpoint into a package. Weights are read, converted and written one at a time.
pub fn compile(
    mut job: CompileJob<'_>,
    progress: &dyn ProgressSink,
    cancel: &AtomicBool,
) -> Result<Manifest> {
    let mut checkpoint = opened(&job)?;
    if job.recipe.fixed.is_some()
        && let Some(part) = checkpoint.architecture.dynamic_only()
    {
        return Err(CompileError::DynamicOnly(part));
    }

    let package = PackageWriter::new(job.out);
    let tokenizer = checkpoint.tokenizer.tokenizer()?;
    notes(&checkpoint).into_iter().for_each(|note| progress.event(Progress::Note(note)));
    if let Some(vocabulary) = job.vocabulary {
        let kept = vocabulary.kept(&tokenizer, &checkpoint)?;
        checkpoint = checkpoint.pruned(&kept);
        let list = serde_json::to_vec(&kept).unwrap_or_default();
        package.write(KEPT_TOKENS_FILE, &list)?;
        let sha256 = Sha256::of(&list);
        job.recipe.vocabulary = Some(KeptTokens { tokens: kept.len(), sha256 });
    }
    job.recipe.fixed = parts::shapes(&checkpoint.architecture, &job.recipe, checkpoint.max_length);
    let plan = Plan::of_source(&checkpoint.architecture, &job.recipe, checkpoint.weights.as_ref())?;
    keep(job.keep_stages, "architecture.json", || json(&checkpoint.architecture))?;
    keep(job.keep_stages, "plan.json", || json(&plan))?;
    let sweep =
        WeightPass { job: &job, checkpoint: &checkpoint, plan: &plan, package: &package, progress, cancel };
    let layers = sweep.narrow_layers()?;
    // What the dry run refuses, the compile refuses with the weights at hand.
    if let Ok(bytes) = sweep.peak_bytes(&layers) {
        package.check_space(bytes)?;
    }

    package.write(TOKENIZER_FILE, &checkpoint.tokenizer.package_json()?)?;
    if let Some(template) = &checkpoint.chat_template {
        package.write(TEMPLATE_FILE, template.as_bytes())?;
    }

    let mut recipe = Recipe { calibration_text: None, ..job.recipe.clone() };
    let calibrated = sweep.calibrate(&tokenizer)?;
    if calibrated.is_some() {
        recipe.calibration = Calibration::Standard;
    }
    let mut scaling = calibrated.unwrap_or_default();
    sweep.scale_channels(&tokenizer, &mut scaling, &mut recipe)?;
    if recipe.calibration == Calibration::Standard {
        keep(job.keep_stages, "scaling.json", || json(&scaling))?;
    }
    if let Architecture::Decoder(arch) = &checkpoint.architecture {
        balance_keys(arch, &plan, checkpoint.weights.as_ref(), &mut scaling)?;
    }

    let Hybrid { plan, rounded, widths } = sweep.hybrid(layers, &tokenizer, &scaling, &mut recipe)?;
    let sweep = WeightPass { plan: &plan, ..sweep };

    let mut ranges = ActivationRanges::default();
    if let (Some(_), Some(_)) = (job.recipe.activations, &job.recipe.fixed) {
        ranges = sweep.ranges(&tokenizer, &scaling, &rounded)?;
        recipe.calibration = Calibration::Standard;
    }

    if recipe.calibration == Calibration::Standard {
        recipe.calibration_text = job.text.map(CalibrationText::sha256);
    }
    let title = format!("Compiling {}", job.name);
    let measured = CalibrationResults { scaling: &scaling, rounded: &rounded, ranges: &ranges };
    let Lowering { mut lowered, .. } = sweep.lower(title, measured, &job.recipe)?;
    rounded.remove()?;
    let mut changes = left_out(&job.recipe, &checkpoint.architecture);
    changes += &change(&mut lowered, &job.recipe, progress)?;
    if !changes.is_empty() {
        keep(job.keep_stages, "passes.txt", || changes.into_bytes())?;
    }
    for (graph, entry) in lowered.graphs.iter().chain(&lowered.towers) {
        let text = if entry.file == GRAPH_FILE { "graph.txt".into() } else { format!("{}.txt", entry.file) };
        keep(job.keep_stages, &text, || graph.dump().into_bytes())?;
        package.write(&entry.file, &graph.encode())?;
    }
    checkpoint.watches.check()?;
    let manifest = manifest(job.name, recipe, job.provenance, &checkpoint, lowered);
    let mut manifest = Manifest { source_weights: plan.source_weights(), layer_widths: widths, ..manifest };
    package.finish(&mut manifest)?;
    Ok(manifest)
}

/// Returns what the user should know about settings that the checkpoint does not state, in sentences.
fn notes(checkpoint: &Checkpoint) -> Vec<String> {
    let mut notes: Vec<String> = checkpoint.pooling_note().into_iter().collect();
    if let TokenizerSource::Gguf(vocab) = &checkpoint.tokenizer
        && vocab.model == "gpt2"
        && vocab.pre.as_deref() == Some("default")
    {
        notes.push(
            "The GGUF file does not state how its tokenizer splits text: tokenizer.ggml.pre is \"default\", the rule of \
             old conversions. Answers are worse if it is not the publisher's rule; a newer conversion states it."
                .to_owned(),
        );
    }
    notes
}

/// Inputs and outputs of a pass over all weights.
struct WeightPass<'a> {
    job: &'a CompileJob<'a>,
    checkpoint: &'a Checkpoint,
    plan: &'a Plan,
    package: &'a PackageWriter,
    progress: &'a dyn ProgressSink,
    cancel: &'a AtomicBool,
}

/// Results of running a model on the calibration text.
#[derive(Clone, Copy)]
struct CalibrationResults<'a> {
    scaling: &'a Scaling,
    rounded: &'a RoundedWeights,
    ranges: &'a ActivationRanges,
}

/// Rounded weights, and the plan in which some layers keep 8 bits.
struct Hybrid {
    plan: Plan,
    rounded: RoundedWeights,
    /// Widths of the layers; empty if losses were not measured and no layer has 8 bits.
    widths: Vec<LayerWidth>,
}

/// Graphs of a pass.
struct Lowering {
    lowered: LoweredModel,
    /// Weights of each linear layer of the graphs, by its path.
    products: BTreeMap<String, Vec<String>>,
}

impl WeightPass<'_> {
    /// Writes the weights, replacing those of an earlier pass, and returns the graphs over them.
    fn lower(&self, title: String, measured: CalibrationResults<'_>, recipe: &Recipe) -> Result<Lowering> {
        let total = self.plan.data_bytes(&self.checkpoint.architecture, recipe);
        let stage = Stage::start(self.progress, title, Unit::Bytes, Some(total));
        let file = WeightSink::File(self.package.create(DATA_FILE)?);
        let mut emitter = Emitter {
            graph: new_graph(self.job.name.as_str()),
            weights: self.checkpoint.weights.as_ref(),
            plan: self.plan,
            scaling: measured.scaling,
            rounded: measured.rounded,
            ranges: measured.ranges,
            recipe,
            data_file: DATA_FILE,
            data: ExternalWriter::new(file),
            stage: &stage,
            cancel: self.cancel,
            written: WrittenTensors::default(),
            compute: DType::F32,
        };
        let lowered = lower::lower(&mut emitter, &self.checkpoint.architecture)?;
        let products = std::mem::take(&mut emitter.written.products);
        emitter.close()?;
        Ok(Lowering { lowered, products })
    }

    /// Returns the scaling factors of channels, or `None` without a runner or without weights to scale. The model is
    /// compiled without factors and run on a calibration text.
    fn calibrate(&self, tokenizer: &Tokenizer) -> Result<Option<Scaling>> {
        let (Some(runner), Architecture::Decoder(arch)) = (self.job.runner, &self.checkpoint.architecture)
        else {
            return Ok(None);
        };
        if self.job.recipe.scheme.of_weights() != Scheme::W8 {
            return Ok(None);
        }
        let mut inputs = inputs(arch, self.plan);
        // 16 bits hold the largest channels as they are, and scaled weights would lose more.
        if self.job.recipe.scheme == Scheme::W8A16 || self.job.recipe.scaling != ScalingMethod::Powers {
            inputs.retain(|input| input.remedy == Remedy::Split);
        }
        if inputs.is_empty() {
            return Ok(None);
        }
        if let Some(reason) = not_calibrated(arch) {
            let note = format!("{} is not calibrated: {reason}.", self.job.name);
            self.progress.event(Progress::Note(note));
            return Ok(None);
        }

        let accuracy_level = self.job.recipe.accuracy_level;
        let rounded = RoundedWeights::default();
        let run = self.calibration_graph(&Scaling::default(), &rounded, accuracy_level)?;
        let Some(CalibrationRun { graph, .. }) = run else { return Ok(None) };
        let title = format!("Calibrating {}", self.job.name);
        let _stage = Stage::start(self.progress, title, Unit::Nothing, None);
        let model = CalibrationModel { checkpoint: self.checkpoint, arch, tokenizer, text: self.job.text };
        calibrate(runner, &model, inputs, graph).map(Some)
    }

    /// Measures the activations around linear layers, in the model with its factors of channels and its rounded weights.
    fn ranges(
        &self,
        tokenizer: &Tokenizer,
        scaling: &Scaling,
        rounded: &RoundedWeights,
    ) -> Result<ActivationRanges> {
        let scheme = self.job.recipe.scheme;
        let unsupported =
            |reason: String| CompileError::Unsupported { what: format!("scheme {scheme}"), reason };
        let architecture = &self.checkpoint.architecture;
        if let Architecture::Speech(_) | Architecture::Embedder(_) = architecture {
            let reason = "activations of models of this kind are not measured; compile this model in w8";
            return Err(unsupported(reason.to_owned()));
        }
        let Some(runner) = self.job.runner else {
            let reason = "its activations must be measured; compile with --calibrate standard, or in w8";
            return Err(unsupported(reason.to_owned()));
        };
        if let Architecture::Decoder(arch) = architecture
            && let Some(reason) = not_calibrated(arch)
        {
            return Err(unsupported(format!(
                "its activations cannot be measured: {reason}; compile it in w8"
            )));
        }

        // Activations are measured before they are rounded.
        let run = self.calibration_graph(&scaling.with_whole_head(), rounded, 0)?;
        let Some(CalibrationRun { graph, .. }) = run else { return Ok(ActivationRanges::default()) };
        let title = format!("Measuring the activations of {}", self.job.name);
        let _stage = Stage::start(self.progress, title, Unit::Nothing, None);
        let checkpoint = self.checkpoint;
        let text = self.job.text;
        let ranges = match architecture {
            Architecture::Decoder(arch) => {
                activation_ranges(runner, &CalibrationModel { checkpoint, arch, tokenizer, text }, graph)?
            }
            Architecture::Encoder(arch) => encoder_activation_ranges(
                runner,
                &EncoderCalibration { checkpoint, arch, tokenizer, text },
                graph,
            )?,
            Architecture::Speech(_) | Architecture::Embedder(_) => ActivationRanges::default(),
        };
        keep(self.job.keep_stages, "ranges.json", || json(&ranges))?;
        Ok(ranges)
    }

    /// Returns the recipe of a model to be measured. Each layer is measured separately, so passes that merge layers are
    /// not applied.
    fn calibration_recipe(&self, accuracy_level: u8) -> Recipe {
        Recipe { fixed: None, passes: BTreeSet::new(), accuracy_level, ..self.job.recipe.clone() }
    }

    /// Compiles the model to measure it.
    fn calibration_graph(
        &self,
        scaling: &Scaling,
        rounded: &RoundedWeights,
        accuracy_level: u8,
    ) -> Result<Option<CalibrationRun<'_>>> {
        let title = format!("Compiling {} to calibrate it", self.job.name);
        let recipe = self.calibration_recipe(accuracy_level);
        let measured = CalibrationResults { scaling, rounded, ranges: &ActivationRanges::default() };
        let Lowering { lowered, products } = self.lower(title, measured, &recipe)?;
        if self.cancel.load(Ordering::Relaxed) {
            return Err(CompileError::Cancelled);
        }
        let graph = lowered.graphs.into_iter().next();
        Ok(graph.map(|(graph, entry)| CalibrationRun {
            graph: CalibrationGraph { graph, entry, folder: self.job.out },
            products,
        }))
    }
}

/// Graph for measurements.
struct CalibrationRun<'a> {
    graph: CalibrationGraph<'a>,
    /// Weights of each linear layer of the graph, by its path.
    products: BTreeMap<String, Vec<String>>,
}

/// Returns why a model cannot be calibrated.
fn not_calibrated(arch: &DecoderArch) -> Option<String> {
    let mut sizes = arch.attentions().map(|attention| attention.head_size);
    let size = sizes.find(|size| !size.is_multiple_of(CALIBRATED_HEADS))?;
    Some(format!(
        "ONNX Runtime's attention needs heads of a multiple of {CALIBRATED_HEADS} elements, and this model has heads of \
         {size}"
    ))
}

/// Lists the layers and tokens that the recipe removes, one line each.
fn left_out(recipe: &Recipe, architecture: &Architecture) -> String {
    let layers = recipe.drop_layers.iter().flat_map(|dropped| dropped.layers());
    let mut text: String =
        layers.map(|layer| format!("every graph: leave out layer {layer} of the checkpoint\n")).collect();
    if let (Some(kept), Architecture::Decoder(arch)) = (recipe.vocabulary, architecture) {
        let pruned = arch.vocab.saturating_sub(kept.tokens);
        text += &format!("every head: leave out {pruned} of {} tokens\n", arch.vocab);
    }
    text
}

/// Applies the recipe's passes to the graphs of fixed shape, and returns a line for each change.
fn change(lowered: &mut LoweredModel, recipe: &Recipe, progress: &dyn ProgressSink) -> Result<String> {
    let mut changes = String::new();
    for &pass in &recipe.passes {
        let mut count = 0;
        let graphs = lowered.graphs.iter_mut().chain(&mut lowered.towers);
        for (graph, entry) in graphs.filter(|(_, entry)| entry.variant == Variant::Static) {
            let labels = pass::apply(graph, pass)?;
            graph.check()?;
            count += labels.len();
            changes.extend(labels.into_iter().map(|label| format!("{}: {label}\n", entry.file)));
        }
        let what = match pass {
            Pass::GroupedProjections => "layers were written so".to_owned(),
            Pass::SplitHeads | Pass::LinearAsConv => format!("{count} patches"),
        };
        progress.event(Progress::Note(format!("Pass {pass}: {what}.")));
    }
    Ok(changes)
}

fn manifest(
    name: ModelName,
    recipe: Recipe,
    provenance: Provenance,
    checkpoint: &Checkpoint,
    lowered: LoweredModel,
) -> Manifest {
    let special = &checkpoint.special;
    let license = provenance.license.or_else(|| checkpoint.license.clone());
    let towers = lowered.towers.into_iter().map(|(_, entry)| entry);
    let (vision, audio) = towers.partition(|entry| entry.part == Part::Vision);

    Manifest {
        format: FORMAT,
        name,
        architecture: checkpoint.architecture.clone().into(),
        kept_tokens: recipe.vocabulary.map(|_| KEPT_TOKENS_FILE.to_owned()),
        recipe,
        max_length: checkpoint.max_length,
        graphs: lowered.graphs.into_iter().map(|(_, entry)| entry).collect(),
        contexts: Vec::new(),
        tables: lowered.tables,
        tokenizer: Some(TokenizerEntry {
            file: TOKENIZER_FILE.to_owned(),
            bos: special.bos,
            stop: special.stop.clone(),
            pad: special.pad,
            mask: special.texts.get("mask_token").cloned(),
        }),
        speech: checkpoint.speech.clone(),
        vision: checkpoint.vision.map(|(preprocessing, placeholder)| VisionEntry {
            graphs: vision,
            preprocessing,
            placeholder,
        }),
        audio: checkpoint.audio.clone().map(|(preprocessing, placeholder)| AudioEntry {
            graphs: audio,
            preprocessing,
            placeholder,
        }),
        voice: None,
        transcriber: None,
        chat: checkpoint.chat_template.as_ref().map(|template| chat_entry(template, special.texts.clone())),
        prompts: checkpoint.prompts.clone(),
        classifier: checkpoint.classifier.clone(),
        pairs: checkpoint.pairs.clone(),
        sampling: checkpoint.sampling,
        bound: None,
        quality: None,
        loss: None,
        certificate: None,
        source_weights: Vec::new(),
        layer_widths: Vec::new(),
        files: std::collections::BTreeMap::new(),
        provenance: Provenance { license, ..provenance },
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Plain structs of numbers and strings always serialise.
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

fn keep(folder: Option<&Path>, name: &str, bytes: impl FnOnce() -> Vec<u8>) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    let path: PathBuf = folder.join(name);
    fs::create_dir_all(folder).map_err(unwritable(&path))?;
    fs::write(&path, bytes()).map_err(unwritable(&path))
}
