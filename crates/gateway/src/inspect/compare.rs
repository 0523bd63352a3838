//! `narthex compare`: two packages of one model side by side.

use narthex_spec::{ProgressSink, Scheme, Sha256, manifest::CertificateFigures, progress::JobSteps};
use serde::Serialize;

use super::bench::{BenchOptions, Machine, Spread};
use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    library::package::Package,
    load::{
        runtime_choice::RuntimeChoice,
        verify::{
            package_comparison::{self, ComparisonContext},
            reference_text::TEXT,
        },
    },
};

/// Measurement of the speed: tokens of each prompt, tokens generated after it, and rounds.
const PROMPT: usize = 128;
const GENERATED: usize = 32;
const ROUNDS: usize = 3;

/// Settings of a comparison of packages.
#[derive(Debug, Clone, Default)]
pub struct CompareOptions {
    /// Text that both packages read; `None` for a text of the program.
    pub text: Option<String>,
    /// Skips the measurement of the speed.
    pub skip_speed: bool,
}

/// Two packages side by side.
#[derive(Debug, Clone, Serialize)]
pub struct PackageComparison {
    /// Machine and versions.
    pub machine: Machine,
    /// Digest of the text that both packages read.
    pub text: Sha256,
    /// Agreement of the second package with the first, on the CPU.
    pub agreement: CertificateFigures,
    /// The reference and the package that is compared with it.
    pub packages: [PackageFigures; 2],
}

/// Figures of one package.
#[derive(Debug, Clone, Serialize)]
pub struct PackageFigures {
    /// Name of the package.
    pub model: String,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Bytes of the package.
    pub bytes: u64,
    /// Speed with the gateway's settings, for a model that generates text.
    pub speed: Option<Speed>,
}

/// Speed of a model, measured in turn with the other model.
#[derive(Debug, Clone, Serialize)]
pub struct Speed {
    /// Device.
    pub device: String,
    /// Prompt tokens per second, up to the first generated token.
    pub prefill_tokens_per_second: Spread,
    /// Generated tokens per second after the first.
    pub decode_tokens_per_second: Spread,
}

impl Gateway {
    /// Compares an installed package with an installed reference: size, quality over a text, and speed. The quality is
    /// measured on the CPU, the speed on the device of the settings, one round of each package in turn.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] for a package that is not installed, and [`Error::Invalid`] for packages whose kinds or
    /// tokenizers differ, and for models that neither generate nor encode text.
    pub fn compare_packages(
        &self,
        reference: &str,
        other: &str,
        options: &CompareOptions,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<PackageComparison, Error> {
        let library = self.library();
        let text = options.text.as_deref().unwrap_or(TEXT);
        let open = |model: &str| self.installed_package(model, progress, cancel);
        let [reference, other] = [open(reference)?, open(other)?];
        let mut packages = [&reference, &other].map(|package| PackageFigures {
            model: package.manifest.name.to_string(),
            scheme: package.manifest.recipe.scheme,
            bytes: package.bytes(),
            speed: None,
        });
        let is_timed = !options.skip_speed && reference.manifest.architecture.is_decoder();

        let mut choice = RuntimeChoice::of(library);
        choice.verify(library, progress, cancel)?;
        choice.load_early(library)?;
        let runtime = choice.load(library, progress, cancel)?;
        let steps = JobSteps::new(progress);
        steps.plan(1 + usize::from(is_timed));
        steps.begin(format!("Comparing {} with {}", packages[1].model, packages[0].model));
        let context = ComparisonContext { library, runtime, progress, cancel };
        let agreement = package_comparison::compare(context, reference, other, text)?;
        if is_timed {
            steps.begin("Measuring both in turn".to_owned());
            let speeds = self.speeds(&packages, progress, cancel)?;
            for (package, speed) in packages.iter_mut().zip(speeds) {
                package.speed = Some(speed);
            }
        }
        Ok(PackageComparison {
            machine: Machine::here(runtime, library.config.threads),
            text: Sha256::of(text.as_bytes()),
            agreement,
            packages,
        })
    }

    /// Opens an installed package, whose changed files are verified as before a load.
    fn installed_package(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Package, Error> {
        let library = self.library();
        let key = library.installed_key(model)?;
        let folder =
            library.store.package(&key.name, key.scheme).ok_or_else(|| library.not_installed(&key))?;
        Package::open_verified(&library.store, &key, &folder, progress, cancel)
    }

    /// Measures both packages in turn.
    fn speeds(
        &self,
        packages: &[PackageFigures; 2],
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<[Speed; 2], Error> {
        let options =
            BenchOptions { prompt_tokens: PROMPT, generate_tokens: GENERATED, rounds: 1, engine_only: true };
        let names = packages.each_ref().map(|package| format!("{}@{}", package.model, package.scheme));
        let mut reports = [Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS)];
        for _ in 0..ROUNDS {
            for (name, reports) in names.iter().zip(&mut reports) {
                reports.push(self.bench(name, options, progress, cancel)?);
            }
        }

        Ok(reports.map(|reports| Speed {
            device: reports.first().map(|report| report.device.clone()).unwrap_or_default(),
            prefill_tokens_per_second: Spread::of(
                reports.iter().map(|report| report.prefill_tokens_per_second.median).collect(),
            ),
            decode_tokens_per_second: Spread::of(
                reports.iter().map(|report| report.decode_tokens_per_second.median).collect(),
            ),
        }))
    }
}
