//! Certificate of a quantised package: its loss against the model in `f32`, and the bounds of that loss.

use std::{collections::BTreeSet, path::Path};

use narthex_catalog::fetch::CheckpointFiles;
use narthex_compile::calibration::text_digest;
use narthex_device::inventory;
use narthex_files::environment;
use narthex_spec::{
    Budget, Calibration, Date, Recipe, RoundingMethod, ScalingMethod, Scheme, Sha256,
    arch::Structure,
    manifest::{Certificate, CertificateFigures, LayerWidth, Manifest},
    progress::Progress,
};

use super::{
    package_build::{CompileOutput, PackageBuild},
    request::{AFFORDABLE, Certification},
};
use crate::{
    error::Error,
    library::{Library, package::Package, package_key::PackageKey},
    load::{
        runtime_choice::cpu_runtime,
        verify::{
            package_comparison::{self, ComparisonContext},
            reference_text::TEXT,
        },
    },
};

/// Maximum number of layers that a refusal names.
const NAMED_LAYERS: usize = 3;

/// Largest divergence of a decoder's distributions in nats, and smallest cosine of an encoder's outputs. A wrong layout
/// or scale exceeds them many times over.
struct Bounds {
    divergence: f64,
    cosine: f64,
}

impl Bounds {
    /// Returns the bounds of a scheme. `w8` of small models measures about 0.001 nats, and `w4` that was rounded from
    /// floats 0.05 to 0.26 (`bench/runs/quality-2026-11-28.md`). Integer activations add 0.004 with 16 bits and 0.03 with 8
    /// (`bench/runs/integers-2026-11-29.md`).
    fn of(scheme: Scheme) -> Self {
        match scheme {
            Scheme::F32 | Scheme::F16 => Self { divergence: 0.005, cosine: 0.999 },
            Scheme::W8 => Self { divergence: 0.05, cosine: 0.98 },
            Scheme::W8A16 => Self { divergence: 0.1, cosine: 0.98 },
            Scheme::W8A8 => Self { divergence: 0.3, cosine: 0.95 },
            Scheme::W4 | Scheme::W4A16 => Self { divergence: 0.5, cosine: 0.9 },
        }
    }
}

impl PackageBuild<'_> {
    /// Returns whether the loss of a package is measured against the model in `f32`. Notes the reason if it is not
    /// affordable, or if ONNX Runtime is neither installed nor can be installed.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(super) fn is_certified(&self, manifest: &Manifest) -> Result<bool, Error> {
        let is_quantised = manifest.recipe.scheme != Scheme::F32;
        let has_text = !matches!(manifest.architecture, Structure::Speech(_));
        if !is_quantised || !has_text {
            return Ok(false);
        }
        match self.request.certification {
            Certification::Never => Ok(false),
            Certification::Always | Certification::AcceptLoss => Ok(true),
            Certification::IfAffordable => {
                let reason = unaffordable(self.library, manifest).or_else(|| {
                    let error = cpu_runtime(self.library, self.steps.sink(), self.cancel).err()?;
                    Some(error.to_string())
                });
                self.cancel.check()?;
                if let Some(reason) = &reason {
                    let name = &self.key.name;
                    let note = format!(
                        "The loss of {name} was not measured: {reason}. `narthex compile {name} --certify` measures it \
                         anyway."
                    );
                    self.steps.sink().event(Progress::Note(note));
                }
                Ok(reason.is_none())
            }
        }
    }

    /// Compiles the model in `f32` and measures the loss of the package in `folder` against it.
    pub(super) fn certificate(
        &self,
        checkpoint: &CheckpointFiles,
        recipe: &Recipe,
        folder: &Path,
    ) -> Result<Certificate, Error> {
        let Self { library, key, request, cancel, .. } = *self;
        let progress = self.steps.sink();
        let float = library.store.stage_package(&key.name, Scheme::F32)?;
        let float_recipe = Recipe {
            scheme: Scheme::F32,
            activations: None,
            fixed: None,
            passes: BTreeSet::new(),
            targets: Vec::new(),
            rounding: RoundingMethod::Nearest,
            scaling: ScalingMethod::Powers,
            budget: None,
            plan: None,
            calibration_text: None,
            ..recipe.clone()
        };
        let output = CompileOutput::unmeasured(float.path());
        self.compile_into(output, checkpoint, &float_recipe, request.vocabulary.as_ref())?;

        let runtime = cpu_runtime(library, progress, cancel)?;
        let context = ComparisonContext { library, runtime, progress, cancel };
        measure(
            context,
            Package::open(&PackageKey { scheme: Scheme::F32, ..key.clone() }, float.path())?,
            Package::open(key, folder)?,
            request.certification,
        )
    }
}

/// Returns the reason against a certificate that nobody asked for, or `None` if measuring it is cheap: the float model
/// must fit in free memory and on the disk.
fn unaffordable(library: &Library, manifest: &Manifest) -> Option<String> {
    let bytes = float_bytes(manifest);
    if bytes > AFFORDABLE {
        return Some(format!("the model takes {} MB in f32", bytes / 1_000_000));
    }
    if let Some(available) = inventory::available_memory().filter(|&available| available < bytes) {
        let expected = bytes / 1_000_000;
        return Some(format!("expected {expected} MB of free memory, found {} MB", available / 1_000_000));
    }
    environment::check_space(library.store.root(), bytes).err().map(|error| error.to_string())
}

/// Returns the approximate size in bytes of the package's model in `f32`.
fn float_bytes(manifest: &Manifest) -> u64 {
    let bytes = manifest.bytes();
    bytes.saturating_mul(match manifest.recipe.scheme {
        Scheme::F32 => 1,
        Scheme::F16 => 2,
        Scheme::W8 | Scheme::W8A16 | Scheme::W8A8 => 4,
        Scheme::W4 | Scheme::W4A16 => 7,
    })
}

/// Measures the loss of a package against the model in `f32`.
///
/// # Errors
/// [`Error::Invalid`] for a loss above the scheme's bound, unless it is accepted, and errors that prevented the
/// measurement.
fn measure(
    context: ComparisonContext<'_>,
    float: Package,
    quantised: Package,
    certification: Certification,
) -> Result<Certificate, Error> {
    let name = quantised.manifest.name.clone();
    let Recipe { scheme, calibration, calibration_text, rounding, scaling, budget, .. } =
        quantised.manifest.recipe;
    let variant = quantised.manifest.recipe.measured_variant();
    let widths = quantised.manifest.layer_widths.clone();
    let figures = package_comparison::compare(context, float, quantised, TEXT)?;
    let loss = excess(scheme, &figures);
    if let Some(loss) = &loss
        && certification != Certification::AcceptLoss
    {
        let layers = lossy_layers(&widths);
        let next = next_scheme(scheme, budget, &widths);
        let message = format!(
            "the answers of {name} in {scheme} differ too much from those in f32: {loss}{layers}; compile it with {next}, or \
             accept the loss with `narthex compile {name} --scheme {scheme} --accept-loss`"
        );
        return Err(Error::Invalid { param: "scheme", message });
    }

    Ok(Certificate {
        figures,
        variant,
        text: Sha256::of(TEXT.as_bytes()),
        calibration: (calibration == Calibration::Standard)
            .then(|| calibration_text.unwrap_or_else(|| text_digest(rounding, scaling))),
        rounding,
        scaling,
        date: Date::today().to_string(),
        accepted_loss: loss.is_some(),
    })
}

/// Names the layers of 4 bits that lose most, if losses were measured.
fn lossy_layers(widths: &[LayerWidth]) -> String {
    let layers = LayerWidth::lossiest(widths, NAMED_LAYERS);
    let layers: Vec<String> =
        layers.map(|(path, loss)| format!("{path} ({:.1} % of its outputs)", loss * 100.0)).collect();
    match layers.is_empty() {
        true => String::new(),
        false => format!("; the layers that lose most are {}", layers.join(", ")),
    }
}

/// Returns the options of the smallest package that is expected to be within the bounds of its scheme.
fn next_scheme(scheme: Scheme, budget: Option<Budget>, widths: &[LayerWidth]) -> String {
    let wider = match scheme {
        Scheme::W4 => Scheme::W8,
        Scheme::W8A8 | Scheme::W4A16 => Scheme::W8A16,
        Scheme::W8A16 | Scheme::W8 | Scheme::F16 | Scheme::F32 => Scheme::F16,
    };
    // The divergence of a budget is measured on another text.
    let most = Bounds::of(scheme).divergence / 2.0;
    let has_budget = budget.and_then(Budget::divergence).is_some_and(|budget| budget <= most);
    match widths.is_empty() || has_budget {
        true => format!("--scheme {wider}"),
        false => format!("--scheme {scheme} --budget kl={most}, which lets such layers keep 8 bits"),
    }
}

/// Returns the figure that is beyond the bounds of a scheme.
fn excess(scheme: Scheme, figures: &CertificateFigures) -> Option<String> {
    let bounds = Bounds::of(scheme);
    match *figures {
        CertificateFigures::Decoder { divergence, .. } if divergence > bounds.divergence => {
            Some(format!("a divergence of {divergence:.4} nats on average, above {}", bounds.divergence))
        }
        CertificateFigures::Encoder { lowest_cosine, .. } if lowest_cosine < bounds.cosine => {
            Some(format!("a cosine of {lowest_cosine:.4}, below {}", bounds.cosine))
        }
        CertificateFigures::Decoder { .. } | CertificateFigures::Encoder { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_beyond_the_bounds_are_named() {
        let decoder = |divergence| CertificateFigures::Decoder {
            positions: 600,
            perplexity: 11.0,
            reference_perplexity: 10.0,
            divergence,
            agreement: 0.9,
        };
        let check = |scheme, figures: CertificateFigures, expected: Option<&str>| {
            let loss = excess(scheme, &figures);
            assert_eq!(loss.is_some(), expected.is_some(), "{scheme}: {loss:?}");
            assert!(loss.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(Scheme::W8, decoder(0.002), None);
        check(Scheme::W8, decoder(0.2), Some("0.2000 nats on average, above 0.05"));
        check(Scheme::W4, decoder(0.2), None);
        check(Scheme::W4, decoder(0.7), Some("above 0.5"));
        let encoder =
            |lowest_cosine| CertificateFigures::Encoder { texts: 9, mean_cosine: 0.99, lowest_cosine };
        check(Scheme::W8, encoder(0.99), None);
        check(Scheme::W8, encoder(0.97), Some("a cosine of 0.9700, below 0.98"));
        let layer = |path: &str, bits, loss| LayerWidth { path: path.to_owned(), bits, loss };
        let widths = [
            layer("/a", 4, Some(0.02)),
            layer("/b", 8, Some(0.9)),
            layer("/c", 4, Some(0.123)),
            layer("/d", 4, None),
        ];
        assert_eq!(
            lossy_layers(&widths),
            "; the layers that lose most are /c (12.3 % of its outputs), /a (2.0 % of its outputs)"
        );
        assert_eq!(lossy_layers(&[]), "");
        let budget = |text: &str| Some(text.parse().unwrap());
        let next = |scheme, budget, widths: &[LayerWidth]| next_scheme(scheme, budget, widths);
        assert!(next(Scheme::W4A16, None, &widths).starts_with("--scheme w4a16 --budget kl=0.25,"));
        assert!(next(Scheme::W4, budget("size=+5%"), &widths).starts_with("--scheme w4 --budget kl=0.25,"));
        assert_eq!(next(Scheme::W4A16, budget("kl=0.2"), &widths), "--scheme w8a16");
        assert_eq!(next(Scheme::W4, None, &[]), "--scheme w8");
        assert_eq!(next(Scheme::W8, None, &[]), "--scheme f16");
        assert!((decoder(0.1).perplexity_change().unwrap() - 0.1).abs() < 1e-12);
    }
}
