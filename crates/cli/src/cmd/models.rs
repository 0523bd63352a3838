//! `narthex pull`, `list`, `show`, `rm`, `df`, `prune` and `compile`.

use std::io::{IsTerminal, stderr, stdin};

use narthex_gateway::{
    Certification, CheckpointPruning, CompileRequest, DEFAULT_SCHEME, Error, Gateway, Rebuild,
    calibration_text,
    models::{ModelListing, PulledModel, Removal},
    split_scheme, vocabulary, width_plan, width_plan_text,
};
use serde::Serialize;

use super::stated_scheme;
use crate::{
    args::{CompileArgs, JsonArgs, ListArgs, LoraOption, PruneArgs, PullArgs, RmArgs, ShowArgs, StoreArgs},
    bars::Bars,
    interrupt,
    output::{self, NewFile},
    render, settings_file, standard_input,
};

/// Fetches a model and compiles it.
pub(crate) fn pull(gateway: &Gateway, args: &PullArgs) -> anyhow::Result<()> {
    let bars = Bars::new();
    let (PulledModel { name, package }, freed) = match args.discard_checkpoint {
        true => gateway.pull_and_discard(&args.model, &bars, interrupt::cancel())?,
        false => (gateway.pull(&args.model, &bars, interrupt::cancel())?, 0),
    };
    output::note(format!(
        "{name} is ready{}: {}, {}, up to {} tokens",
        bars.took(),
        package.scheme,
        render::bytes(package.bytes),
        package.context_length
    ));
    if freed > 0 {
        output::note(format!("The checkpoint was removed, which freed {}.", render::bytes(freed)));
    }
    Ok(())
}

/// Shows the space that the store takes.
pub(crate) fn df(gateway: &Gateway, args: &JsonArgs) -> anyhow::Result<()> {
    let usage = gateway.disk_usage()?;
    if args.json {
        return output::json(&usage);
    }
    output::report(render::disk_usage(&usage))
}

/// Removes what nothing uses.
pub(crate) fn prune(gateway: &Gateway, args: &PruneArgs) -> anyhow::Result<()> {
    let checkpoints = if args.checkpoints { CheckpointPruning::All } else { CheckpointPruning::Unused };
    let freed = gateway.prune(checkpoints)?;
    output::note(format!("freed {}", render::bytes(freed)));
    Ok(())
}

/// Lists installed models, or the whole catalogue.
pub(crate) fn list(gateway: &Gateway, args: &ListArgs) -> anyhow::Result<()> {
    let mut models = gateway.models()?;
    if !args.available {
        models.retain(|model| !model.installed.is_empty());
    }
    if let Some(kind) = args.kind {
        models.retain(|model| model.kind == kind);
    }

    if args.available {
        let ranked = gateway.rank(models);
        if args.json {
            return output::json(&ranked);
        }
        output::report(render::catalogue(&ranked))?;
        output::note(render::CATALOGUE_LEGEND);
        return Ok(());
    }

    let checkpoints = gateway.checkpoint_bytes();
    if args.json {
        let models = models.iter().map(|model| ListedModel {
            model,
            checkpoint_bytes: checkpoints.get(model.name.as_str()).copied(),
        });
        return output::json(&models.collect::<Vec<_>>());
    }
    if models.is_empty() && !gateway.has_store() {
        output::note("The folder for models does not exist; the first download creates it.");
    }
    if models.is_empty() {
        output::note(match args.kind {
            None => "No model is installed; `narthex list --available` lists the catalogue.".to_owned(),
            Some(kind) => {
                let kind = kind.as_str();
                format!(
                    "No model of the kind {kind} is installed; `narthex list --available --kind {kind}` lists the \
                     catalogue."
                )
            }
        });
        return Ok(());
    }
    output::report(render::installed(&models, &checkpoints))
}

/// An element of the JSON of `narthex list`.
#[derive(Serialize)]
struct ListedModel<'a> {
    #[serde(flatten)]
    model: &'a ModelListing,
    /// Bytes of its checkpoint in the store, if it was kept there.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint_bytes: Option<u64>,
}

/// Shows a package.
pub(crate) fn show(gateway: &Gateway, args: &ShowArgs) -> anyhow::Result<()> {
    let manifest = match stated_scheme(&args.model, args.scheme)? {
        Some(scheme) => gateway.manifest(&format!("{}@{scheme}", split_scheme(&args.model).0))?,
        None => gateway.manifest(&args.model)?,
    };
    if args.json {
        return output::json(&manifest);
    }
    let listing = gateway.model(manifest.name.as_str())?;
    let checkpoint = gateway.checkpoint_bytes().remove(listing.name.as_str());
    output::report(render::manifest(&manifest, &listing, checkpoint))
}

/// Removes a model's packages, after a question unless `--yes` is given.
pub(crate) fn rm(gateway: &Gateway, store: &StoreArgs, args: &RmArgs) -> anyhow::Result<()> {
    if gateway.is_alias(&args.model) {
        return remove_name(gateway, store, &args.model);
    }
    let removal = gateway.removal(&args.model)?;
    if !args.yes && !confirmed(&removal)? {
        output::note("nothing was removed");
        return Ok(());
    }
    let freed = gateway.remove(&args.model)?;
    output::note(format!("removed {}, freed {}", render::removal(&removal), render::bytes(freed)));
    Ok(())
}

/// Removes an alias or a custom model from the settings file. The model that answers under this name stays.
fn remove_name(gateway: &Gateway, store: &StoreArgs, name: &str) -> anyhow::Result<()> {
    let model = gateway.model(name)?.name;
    let path = settings_file::path(store)?;
    gateway.change_settings(
        &path,
        |text: String| {
            let is_defined = settings_file::has_name(&text, name)?;
            anyhow::ensure!(is_defined, "expected {name} in {}, found no such name there", path.display());
            settings_file::remove_name(&text, name)
        },
        interrupt::cancel(),
    )?;
    output::note(format!("removed the name {name}; the model {model} stays"));
    Ok(())
}

/// Asks on the terminal whether to remove these packages.
fn confirmed(removal: &Removal) -> anyhow::Result<bool> {
    let what = format!("{}, {}", render::removal(removal), render::bytes(removal.bytes));
    if !stdin().is_terminal() || !stderr().is_terminal() {
        let message = format!("this would remove {what}; confirm with --yes");
        return Err(Error::Invalid { param: "yes", message }.into());
    }
    output::question(format!("Remove {what}? [y/N] "));
    Ok(matches!(standard_input::answer()?.as_str(), "y" | "yes"))
}

/// Compiles a checkpoint.
pub(crate) fn compile(gateway: &Gateway, args: &CompileArgs) -> anyhow::Result<()> {
    let file = args.prune_vocabulary.as_ref();
    let vocabulary = file.map(|file| vocabulary(file, args.vocabulary_size)).transpose()?;
    let bars = Bars::new();
    let adapters = args.lora.iter().map(|LoraOption { reference, scale }| {
        gateway.adapter(reference, *scale, &bars, interrupt::cancel())
    });
    let adapters = adapters.collect::<Result<_, Error>>()?;
    let request = CompileRequest {
        name: args.name.clone(),
        scheme: stated_scheme(&args.model, args.scheme)?.unwrap_or(DEFAULT_SCHEME),
        block: args.block,
        calibration: args.calibrate.calibration(),
        calibration_text: args.calibrate.file().map(calibration_text).transpose()?,
        ranges: args.ranges,
        rounding: args.rounding,
        scaling: args.scaling,
        budget: args.budget,
        plan: args.plan.as_deref().map(width_plan).transpose()?,
        layer_losses: args.write_plan.is_some() || args.print_plan,
        adapters,
        matformer: args.matformer.clone(),
        yarn: args.yarn,
        drop_layers: args.drop_layers.clone(),
        vocabulary,
        pooling: args.pooling,
        rerank: args.rerank,
        certification: match (args.certify, args.accept_loss) {
            (_, true) => Certification::AcceptLoss,
            (true, false) => Certification::Always,
            (false, false) => Certification::IfAffordable,
        },
        keep_stages: args.keep_stages.clone(),
        rebuild: Rebuild::Always,
        target: args.target.clone(),
        contexts: args.contexts.clone(),
        prefill: args.prefill.clone(),
        passes: Some(args.passes.iter().copied().collect()),
        part_bytes: args.part_bytes,
    };

    let plan_file = args.write_plan.as_deref().map(NewFile::create).transpose()?;
    let (folder, manifest) = gateway.compile(&args.model, &request, &bars, interrupt::cancel())?;
    let bytes = manifest.bytes();
    output::note(format!(
        "compiled {} ({}, {}){}",
        manifest.name,
        manifest.recipe.scheme,
        render::bytes(bytes),
        bars.took()
    ));

    if let (Some(&longest), Some(shapes)) = (args.contexts.iter().max(), &manifest.recipe.fixed)
        && shapes.context < longest
    {
        output::note(format!("The context is {} tokens, the maximum of this model.", shapes.context));
    }
    if !args.prefill.is_empty() && manifest.architecture.head().is_some() {
        output::note("--prefill has no effect on an encoder, which processes each text in one run.");
    }
    for line in render::changes(&manifest).into_iter().chain(render::certificate(&manifest)) {
        output::note(line);
    }
    if !manifest.contexts.is_empty() {
        output::note(render::contexts(&manifest));
    }
    if let Some(file) = plan_file {
        file.write(width_plan_text(&manifest))?;
    }
    if args.print_plan {
        return output::text(&width_plan_text(&manifest));
    }
    output::line(folder.display())
}
