//! Scales of the channels between layers that the recipe requests: AWQ or SmoothQuant.

use narthex_spec::{
    Calibration, Recipe, ScalingMethod,
    arch::{Architecture, DecoderArch},
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Tokenizer;

use super::{CalibrationRun, WeightPass, not_calibrated};
use crate::{
    calibration::CalibrationModel,
    channel_scaling::ChannelScaler,
    emit::RoundedWeights,
    error::Result,
    quant::{
        Scaling,
        channel_groups::{ChannelGroup, channel_groups},
    },
};

impl WeightPass<'_> {
    /// Adds the scales of channels to `scaling`. `recipe` gets the settings that were applied.
    pub(super) fn scale_channels(
        &self,
        tokenizer: &Tokenizer,
        scaling: &mut Scaling,
        recipe: &mut Recipe,
    ) -> Result<()> {
        let method = self.job.recipe.scaling;
        if !method.is_measured() {
            return Ok(());
        }
        recipe.scaling = ScalingMethod::default();
        let scaled = self.scaled_groups();
        let runner = self.runner_for(format!("scaling {method}"), scaled.as_ref().err().cloned())?;
        let (Ok((arch, groups)), Some(runner)) = (scaled, runner) else { return Ok(()) };

        // In 8 bits, the inputs of layers are almost those of the checkpoint.
        let wide = self.plan.with_eight_bits();
        let in_eight_bits = WeightPass { plan: &wide, ..*self };
        let run = in_eight_bits.calibration_graph(&Scaling::default(), &RoundedWeights::default(), 0)?;
        let Some(CalibrationRun { graph, products }) = run else { return Ok(()) };
        let title = format!("Scaling the channels of {}", self.job.name);
        let stage = Stage::start(self.progress, title, Unit::Items, Some(groups.len() as u64));
        let scaler = ChannelScaler {
            model: &CalibrationModel { checkpoint: self.checkpoint, arch, tokenizer, text: self.job.text },
            plan: self.plan,
            block: self.job.recipe.block,
            method,
            products: &products,
            stage: &stage,
            cancel: self.cancel,
        };
        scaler.scale(runner, &groups, graph, scaling)?;
        recipe.scaling = method;
        recipe.calibration = Calibration::Standard;
        Ok(())
    }

    /// Returns `true` if the model is compiled in 8 bits to measure its channels.
    pub(super) fn measures_channels(&self) -> bool {
        self.job.recipe.scaling.is_measured() && self.job.runner.is_some() && self.scaled_groups().is_ok()
    }

    /// Returns the decoder and its groups that the requested method scales, or the reason if there are none.
    fn scaled_groups(&self) -> Result<(&DecoderArch, Vec<ChannelGroup>), String> {
        let Architecture::Decoder(arch) = &self.checkpoint.architecture else {
            return Err("only layers of chat models are scaled".to_owned());
        };
        let mut groups = channel_groups(arch, self.plan);
        if self.job.recipe.scaling == ScalingMethod::Awq {
            groups.retain(|group| {
                let mut storages = group.readers.iter().filter_map(|name| self.plan.storage(name));
                storages.any(|storage| storage.is_rounded_to_4_bits())
            });
            if groups.is_empty() {
                return Err("none of its weights is rounded to 4 bits".to_owned());
            }
        }
        if groups.is_empty() {
            return Err("none of its weights can be scaled".to_owned());
        }
        not_calibrated(arch).map_or(Ok((arch, groups)), Err)
    }
}
