//! Space on disk that a compile needs.

use super::WeightPass;
use crate::{
    dry_run::DryRun,
    emit::RowShape,
    error::Result,
    quant::{Plan, hybrid::NarrowLayer},
};

impl WeightPass<'_> {
    /// Returns the largest number of bytes that the weights take at a time: those of the package, or those of the model in 8
    /// bits that is measured before, and beside them the temporary file of the rounded weights.
    pub(super) fn peak_bytes(&self, layers: &[NarrowLayer]) -> Result<u64> {
        let plan = self.with_wide(layers);
        let sweep = WeightPass { plan: &plan, ..*self };
        let package = sweep.data_bytes(&plan)?;
        let is_rounded = sweep.measured().is_some();
        if !is_rounded && !sweep.measures_channels() {
            return Ok(package);
        }
        let measured = sweep.data_bytes(&plan.with_eight_bits())?;
        let rounded = if is_rounded { sweep.rounded_bytes(layers) } else { 0 };
        Ok(package.max(measured) + rounded)
    }

    fn data_bytes(&self, plan: &Plan) -> Result<u64> {
        let name = self.job.name.as_str();
        Ok(DryRun::of_plan(name, &self.checkpoint.architecture, &self.job.recipe, plan)?.data_bytes)
    }

    /// Returns the size of the rounded weights.
    fn rounded_bytes(&self, layers: &[NarrowLayer]) -> u64 {
        if !self.rounds_by_gptq() {
            return 0;
        }
        let narrow = layers.iter().filter(|layer| !layer.is_wide).flat_map(|layer| &layer.weights);
        let sizes = narrow.filter_map(|name| {
            let planned = self.plan.get(name)?;
            let form = planned.storage.form_of_4_bits()?;
            let block = self.job.recipe.block.elements(planned.cols);
            let row = RowShape { blocks: planned.cols.div_ceil(block), block, form };
            Some((planned.rows * row.bytes()) as u64)
        });
        sizes.sum()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, path::Path, sync::atomic::AtomicBool};

    use narthex_spec::{Feed, Fetch, Recipe, RoundingMethod, Scheme, manifest::Provenance, progress::Quiet};
    use narthex_testkit::checkpoint::tiny_llama_gguf;

    use super::*;
    use crate::{
        calibration::{GraphRunner, RunnerError},
        package::{DATA_FILE, PackageWriter},
        pipeline::{CompileJob, compile},
    };

    /// A runner that returns the second moments of independent inputs, and measures the file of weights.
    #[derive(Default)]
    struct SizeRunner {
        data: Cell<u64>,
    }

    impl GraphRunner for SizeRunner {
        fn run(&self, graph: &Path, _: Vec<Feed>, wanted: &[Fetch]) -> Result<Vec<Vec<f32>>, RunnerError> {
            let found = fs::metadata(graph.with_file_name(DATA_FILE)).map_or(0, |found| found.len());
            self.data.set(self.data.get().max(found));
            let identity = |fetch: &Fetch| {
                let channels = fetch.shape[0];
                (0..channels * channels).map(|at| f32::from(at % (channels + 1) == 0)).collect()
            };
            Ok(wanted.iter().map(identity).collect())
        }
    }

    fn job<'a>(checkpoint: &'a Path, out: &'a Path, runner: &'a SizeRunner) -> CompileJob<'a> {
        let recipe = Recipe { rounding: RoundingMethod::Gptq, symmetric: true, ..Recipe::new(Scheme::W4) };
        CompileJob {
            checkpoint,
            name: "tiny".parse().unwrap(),
            recipe,
            runner: Some(runner),
            text: None,
            vocabulary: None,
            out,
            widths: None,
            measured_bytes: 0,
            adapters: &[],
            pooling: None,
            rerank: false,
            keep_stages: None,
            provenance: Provenance {
                source: "a test".to_owned(),
                checkpoint: [].into(),
                license: None,
                compiler: "narthex test".to_owned(),
            },
        }
    }

    #[test]
    fn the_peak_is_that_of_the_model_in_8_bits_with_the_rounded_weights() {
        let folder = tempfile::tempdir().unwrap();
        let gguf = folder.path().join("tiny.gguf");
        fs::write(&gguf, tiny_llama_gguf(7)).unwrap();
        let out = tempfile::tempdir().unwrap();
        let runner = SizeRunner::default();
        let cancel = AtomicBool::new(false);
        let made = job(&gguf, out.path(), &runner);
        let checkpoint = narthex_checkpoint::open(&gguf).unwrap();
        let plan = Plan::new(&checkpoint.architecture, &made.recipe);
        let sweep = WeightPass {
            job: &made,
            checkpoint: &checkpoint,
            plan: &plan,
            package: &PackageWriter::new(out.path()),
            progress: &Quiet,
            cancel: &cancel,
        };
        let layers = sweep.narrow_layers().unwrap();
        let peak = sweep.peak_bytes(&layers).unwrap();

        let manifest = compile(job(&gguf, out.path(), &runner), &Quiet, &cancel).unwrap();
        assert!(runner.data.get() > manifest.files[DATA_FILE].bytes);
        // Blocks without zero points have the same form in the package and in the temporary file.
        let narrow = plan.weights.iter().filter(|weight| weight.storage.form_of_4_bits().is_some());
        let rounded: u64 = narrow.map(|weight| weight.bytes(made.recipe.block)).sum();
        assert!(rounded > 0);
        assert_eq!(peak, runner.data.get() + rounded);
    }
}
