//! Widths of the layers of a decoder with weights of 4 bits. A plan states them, or a budget decides them: the layers that
//! lose most have 8 bits.

use std::collections::BTreeMap;

use narthex_spec::{
    Budget, Calibration, Recipe, RoundingMethod,
    arch::{Architecture, DecoderArch},
    manifest::LayerWidth,
    progress::{Progress, Stage, Unit},
};
use narthex_text::tokenizer::Tokenizer;

use super::{CalibrationRun, Hybrid, WeightPass, json, keep, not_calibrated};
use crate::{
    calibration::{CalibrationModel, GraphRunner, RunnerError, sampled_logits},
    dry_run::DryRun,
    emit::RoundedWeights,
    error::{CompileError, Result},
    quant::{
        Plan, Scaling, Storage,
        hybrid::{self, NarrowLayer},
        plan::WeightPlan,
    },
    weight_rounding::{Rounding, WeightRounder},
    width_plan::WidthPlan,
};

/// Maximum number of plans whose divergence is measured for a budget. Each is compiled and run.
const MEASURED_PLANS: usize = 4;

/// Measurements of the layers of a decoder.
struct LayerMeasurements {
    /// Weights rounded by GPTQ; none if the recipe rounds to nearest.
    rounded: RoundedWeights,
    /// Loss of each layer in 4 bits, by its path.
    losses: BTreeMap<String, f64>,
    /// Logits of the model in 8 bits for each window of the text, if the budget is a divergence.
    logits: Vec<Vec<f32>>,
}

/// A decoder whose layers are measured.
pub(super) struct MeasuredDecoder<'a> {
    runner: &'a dyn GraphRunner,
    arch: &'a DecoderArch,
}

/// A decoder that is run over the calibration text.
#[derive(Clone, Copy)]
struct Subject<'a> {
    runner: &'a dyn GraphRunner,
    arch: &'a DecoderArch,
    tokenizer: &'a Tokenizer,
    scaling: &'a Scaling,
}

impl WeightPass<'_> {
    /// Rounds the weights of 4 bits, and selects which of the layers have 8 bits. `recipe` gets the settings that were
    /// applied.
    pub(super) fn hybrid(
        &self,
        mut layers: Vec<NarrowLayer>,
        tokenizer: &Tokenizer,
        scaling: &Scaling,
        recipe: &mut Recipe,
    ) -> Result<Hybrid> {
        *recipe = Recipe { rounding: RoundingMethod::Nearest, budget: None, plan: None, ..recipe.clone() };
        recipe.plan = self.job.widths.map(WidthPlan::sha256);

        let planned = self.with_wide(&layers);
        let sweep = WeightPass { plan: &planned, ..*self };
        sweep.check_request()?;
        let mut rounded = RoundedWeights::default();
        if let Some(MeasuredDecoder { runner, arch }) = sweep.measured() {
            let subject = Subject { runner, arch, tokenizer, scaling };
            let measurements = sweep.measure_layers(subject)?;
            layers.iter_mut().for_each(|layer| layer.loss = measurements.losses.get(&layer.path).copied());
            rounded = measurements.rounded;
            recipe.rounding = self.job.recipe.rounding;
            recipe.budget = self.job.recipe.budget;
            if is_calibrated(recipe) {
                recipe.calibration = Calibration::Standard;
            }
            match recipe.budget {
                Some(Budget::Divergence { .. }) => {
                    self.widen_to_divergence(subject, &measurements.logits, &rounded, &mut layers)?;
                }
                Some(budget @ Budget::Size { .. }) => {
                    let bytes = self.plan.data_bytes(&self.checkpoint.architecture, &self.job.recipe);
                    hybrid::widen(&mut layers, budget.bytes(bytes).unwrap_or(0));
                }
                None => {}
            }
        }

        let is_stated = layers.iter().any(|layer| layer.is_wide || layer.loss.is_some());
        if is_stated {
            keep(self.job.keep_stages, "layers.json", || json(&layers))?;
        } else {
            layers.clear();
        }
        let plan = self.with_wide(&layers);
        let widths = layers.into_iter().map(|NarrowLayer { path, loss, is_wide, .. }| LayerWidth {
            path,
            bits: if is_wide { 8 } else { 4 },
            loss,
        });
        Ok(Hybrid { plan, rounded, widths: widths.collect() })
    }

    /// Returns the linear layers of a decoder whose weights are rounded to 4 bits, in the order of the graph, with the widths
    /// that the job states.
    pub(super) fn narrow_layers(&self) -> Result<Vec<NarrowLayer>> {
        let mut layers = Vec::new();
        if matches!(self.checkpoint.architecture, Architecture::Decoder(_)) && self.has_narrow() {
            let recipe = self.calibration_recipe(0);
            let name = self.job.name.as_str();
            let dry_run = DryRun::of_plan(name, &self.checkpoint.architecture, &recipe, self.plan)?;
            let mut products = dry_run.products;
            for node in dry_run.graphs.iter().flat_map(|(graph, _)| &graph.nodes) {
                let path = node.name.strip_suffix("/MatMulNBits");
                let Some((path, weights)) = path.and_then(|path| products.remove_entry(path)) else {
                    continue;
                };
                if weights
                    .iter()
                    .all(|name| self.plan.storage(name).is_some_and(Storage::is_rounded_to_4_bits))
                {
                    let bytes = weights.iter().map(|name| self.additional_bytes(name)).sum();
                    layers.push(NarrowLayer { path, weights, loss: None, bytes, is_wide: false });
                }
            }
        }

        if let Some(widths) = self.job.widths {
            let paths: Vec<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
            widths.check(&paths)?;
            layers.iter_mut().for_each(|layer| layer.is_wide = widths.is_wide(&layer.path));
        }
        Ok(layers)
    }

    /// Returns the additional size of a weight in 8 bits.
    fn additional_bytes(&self, name: &str) -> u64 {
        let Some(planned) = self.plan.get(name) else { return 0 };
        let wide = WeightPlan { storage: planned.storage.with_eight_bits(), ..planned.clone() };
        let block = self.job.recipe.block;
        wide.bytes(block).saturating_sub(planned.bytes(block))
    }

    /// Returns the plan in which these layers have their widths.
    pub(super) fn with_wide(&self, layers: &[NarrowLayer]) -> Plan {
        let mut plan = self.plan.clone();
        layers.iter().filter(|layer| layer.is_wide).for_each(|layer| plan.widen(&layer.weights));
        plan
    }

    /// Returns the decoder if its layers are to be measured: to round them by GPTQ, for a budget, or for a certificate.
    pub(super) fn measured(&self) -> Option<MeasuredDecoder<'_>> {
        let (Some(runner), Architecture::Decoder(arch)) = (self.job.runner, &self.checkpoint.architecture)
        else {
            return None;
        };
        let elements: u64 = self.plan.weights.iter().map(|weight| (weight.rows * weight.cols) as u64).sum();
        let is_wanted =
            is_calibrated(&self.job.recipe) || elements.saturating_mul(4) <= self.job.measured_bytes;
        (is_wanted && self.obstacle().is_none()).then_some(MeasuredDecoder { runner, arch })
    }

    /// Fails if the rounding or the budget of the recipe needs measurements and nothing can be run. Notes the reason if it has
    /// no effect.
    fn check_request(&self) -> Result<()> {
        let recipe = &self.job.recipe;
        let rounding = self.rounds_by_gptq().then(|| format!("rounding {}", recipe.rounding));
        let budget = recipe.budget.map(|budget| format!("budget {budget}"));
        let requested = rounding.into_iter().chain(budget).collect::<Vec<_>>().join(" with ");
        if requested.is_empty() {
            return Ok(());
        }
        self.runner_for(requested, self.obstacle()).map(drop)
    }

    /// Returns the runner for a request that needs measurements; `None`, with a note, if the request has no effect. `obstacle`
    /// is the reason of that.
    pub(super) fn runner_for(
        &self,
        requested: String,
        obstacle: Option<String>,
    ) -> Result<Option<&dyn GraphRunner>> {
        if let Some(reason) = obstacle {
            let note = format!("The {requested} has no effect on {}: {reason}.", self.job.name);
            self.progress.event(Progress::Note(note));
            return Ok(None);
        }
        let reason = "its layers must be measured on a text; compile with --calibrate standard".to_owned();
        let runner = self.job.runner.ok_or(CompileError::Unsupported { what: requested, reason })?;
        Ok(Some(runner))
    }

    /// Returns why the layers cannot be measured, or need not be.
    fn obstacle(&self) -> Option<String> {
        match &self.checkpoint.architecture {
            Architecture::Decoder(_) if !self.has_narrow() => {
                Some("none of its weights is rounded to 4 bits".to_owned())
            }
            Architecture::Decoder(arch) => not_calibrated(arch),
            _ => Some("only layers of chat models are measured".to_owned()),
        }
    }

    /// Returns true if a weight is rounded to 4 bits.
    fn has_narrow(&self) -> bool {
        self.plan.weights.iter().any(|weight| weight.storage.is_rounded_to_4_bits())
    }

    /// Returns true if the recipe requests GPTQ.
    pub(super) fn rounds_by_gptq(&self) -> bool {
        self.job.recipe.rounding == RoundingMethod::Gptq
    }

    /// Rounds the weights of 4 bits as the recipe requests, and measures the losses of the layers.
    fn measure_layers(&self, subject: Subject<'_>) -> Result<LayerMeasurements> {
        let Subject { runner, scaling, .. } = subject;
        // In 8 bits, the inputs of layers are almost those of the checkpoint.
        let wide = self.plan.with_eight_bits();
        let in_eight_bits = WeightPass { plan: &wide, ..*self };
        let run = in_eight_bits.calibration_graph(scaling, &RoundedWeights::default(), 0)?;
        let Some(CalibrationRun { graph, products }) = run else { return Err(no_graph()) };
        let model = self.model(subject);
        let is_divergence = matches!(self.job.recipe.budget, Some(Budget::Divergence { .. }));
        let mut logits = Vec::new();
        if is_divergence {
            sampled_logits(runner, &model, graph.clone(), &mut |rows| {
                logits.push(rows);
                Ok(())
            })?;
        }

        let is_gptq = self.rounds_by_gptq();
        let name = &self.job.name;
        let title = match is_gptq {
            true => format!("Rounding the weights of {name}"),
            false => format!("Measuring the layers of {name} in 4 bits"),
        };
        let narrow = self.plan.weights.iter().filter(|weight| weight.storage.is_rounded_to_4_bits());
        let stage = Stage::start(self.progress, title, Unit::Items, Some(narrow.count() as u64));
        let rounder = WeightRounder {
            model: &model,
            plan: self.plan,
            scaling,
            block: self.job.recipe.block,
            products: &products,
            stage: &stage,
            cancel: self.cancel,
        };
        if is_gptq {
            let Rounding { weights: rounded, losses } = rounder.round(runner, graph, self.job.out)?;
            return Ok(LayerMeasurements { rounded, losses, logits });
        }
        let losses = rounder.losses_of_nearest(runner, graph)?;
        Ok(LayerMeasurements { rounded: RoundedWeights::default(), losses, logits })
    }

    fn model<'a>(&'a self, subject: Subject<'a>) -> CalibrationModel<'a> {
        let Subject { arch, tokenizer, .. } = subject;
        CalibrationModel { checkpoint: self.checkpoint, arch, tokenizer, text: self.job.text }
    }

    /// Gives 8 bits to as few layers as the budget allows for the divergence from the model in 8 bits, whose logits are
    /// `reference`. The divergence of a plan is predicted: it is proportional to the losses of its layers with 4 bits, by the
    /// factor of the last measured plan.
    fn widen_to_divergence(
        &self,
        subject: Subject<'_>,
        reference: &[Vec<f32>],
        rounded: &RoundedWeights,
        layers: &mut [NarrowLayer],
    ) -> Result<()> {
        let most = self.job.recipe.budget.and_then(Budget::divergence).unwrap_or(0.0);
        for _ in 0..MEASURED_PLANS {
            let loss = hybrid::remaining_loss(layers);
            if loss <= 0.0 {
                return Ok(());
            }
            let divergence = self.divergence(subject, reference, rounded, layers)?;
            if divergence <= most {
                return Ok(());
            }
            hybrid::widen_to_loss(layers, loss * most / divergence);
        }

        if hybrid::remaining_loss(layers) > 0.0 {
            let note = format!(
                "The divergence of {} with the selected layers in 8 bits is predicted and not measured: none of \
                 {MEASURED_PLANS} measured selections was within kl={most}.",
                self.job.name
            );
            self.progress.event(Progress::Note(note));
        }
        Ok(())
    }

    /// Measures the mean divergence of the model with some widths from the model in 8 bits, in nats.
    fn divergence(
        &self,
        subject: Subject<'_>,
        reference: &[Vec<f32>],
        rounded: &RoundedWeights,
        layers: &[NarrowLayer],
    ) -> Result<f64> {
        let plan = self.with_wide(layers);
        let sweep = WeightPass { plan: &plan, ..*self };
        let run = sweep.calibration_graph(subject.scaling, rounded, 0)?;
        let Some(CalibrationRun { graph, .. }) = run else { return Err(no_graph()) };

        let vocab = subject.arch.head_rows().max(1);
        let mut windows = reference.iter();
        let mut divergences = Vec::new();
        sampled_logits(subject.runner, &self.model(subject), graph, &mut |rows| {
            let expected = windows.next().into_iter().flat_map(|rows| rows.chunks(vocab));
            divergences.extend(
                expected.zip(rows.chunks(vocab)).map(|(expected, found)| divergence(expected, found)),
            );
            Ok(())
        })?;
        let mean = divergences.iter().sum::<f64>() / divergences.len().max(1) as f64;
        if mean.is_finite() {
            return Ok(mean);
        }
        let reason = "the logits of the model are not finite".to_owned();
        Err(CompileError::Calibration(RunnerError { reason, hint: None }))
    }
}

/// Returns `true` if the losses of layers decide the integers or the widths of weights.
fn is_calibrated(recipe: &Recipe) -> bool {
    recipe.rounding == RoundingMethod::Gptq || recipe.budget.is_some()
}

/// Returns the Kullback-Leibler divergence of a distribution from the expected one, in nats.
fn divergence(expected: &[f32], found: &[f32]) -> f64 {
    let [p, q] = [expected, found].map(log_sum_exp);
    let terms = expected.iter().zip(found).map(|(&a, &b)| {
        let log = f64::from(a) - p;
        log.exp() * (log - (f64::from(b) - q))
    });
    terms.sum()
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

fn no_graph() -> CompileError {
    let reason = "the compile of the model has no graph".to_owned();
    CompileError::Calibration(RunnerError { reason, hint: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_are_those_of_the_distributions() {
        assert_eq!(divergence(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), 0.0);
        // Logits have no absolute height.
        assert!(divergence(&[1.0, 2.0, 3.0], &[101.0, 102.0, 103.0]).abs() < 1e-9);
        // Shares of 1/2 and 1/2 instead of 3/4 and 1/4.
        let expected = 0.75 * (0.75f64 / 0.5).ln() + 0.25 * (0.25f64 / 0.5).ln();
        assert!((divergence(&[3f32.ln(), 0.0], &[0.0, 0.0]) - expected).abs() < 1e-7);
        assert!(divergence(&[0.0, 1.0], &[f32::NAN, 1.0]).is_nan());
    }
}
