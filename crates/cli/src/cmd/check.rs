//! `narthex check`, and the separate process in which it runs a vendor's compiler.

use std::{collections::BTreeMap, env, fs, path::Path};

use anyhow::Context;
use narthex_gateway::{
    Error, Gateway,
    check::{
        CheckRequest, CompilerResult, NpuTarget, RyzenAiReport, RyzenAiVerdict, TrialProgram, VendorCompiler,
        Verdict,
    },
};

use super::note_model;
use crate::{
    args::{CheckArgs, TRY_OUT, TryOutArgs},
    exit::NegativeResult,
    interrupt, output,
};

/// Returns the command that runs this executable as the compiler process.
pub(super) fn compiler_process(gateway: &Gateway) -> anyhow::Result<TrialProgram> {
    let mut arguments = vec![TRY_OUT.into()];
    if let Some(home) = &gateway.config().home {
        arguments.extend(["--home".into(), home.into()]);
    }
    // The following arguments are paths, which may begin like options.
    arguments.push("--".into());
    Ok(TrialProgram { path: env::current_exe().context("cannot find the path of this program")?, arguments })
}

/// Runs a vendor's compiler on one graph, and writes the outcome to a file. Ends when standard input closes.
pub(crate) fn try_out(gateway: &Gateway, args: &TryOutArgs) -> anyhow::Result<()> {
    interrupt::end_with_standard_input()?;
    let cancel = interrupt::cancel();
    if let Some(folder) = &args.folder {
        // The recording comes last, because the compiler may end this process.
        if let Some(result) = gateway.control(&args.target, &args.graph, folder, cancel)? {
            write_answer(&args.answer, &result)?;
        }
        gateway.save(&args.target, &args.graph, folder, cancel)?;
        return Ok(gateway.record(&args.target, &args.graph, folder, cancel)?);
    }
    let result = gateway.try_out(&args.target, &args.graph, cancel)?;
    write_answer(
        &args.answer,
        &result.with_context(|| format!("no compiler for {} is installed", args.target))?,
    )
}

fn write_answer(path: &Path, result: &CompilerResult) -> anyhow::Result<()> {
    fs::write(path, serde_json::to_vec(result)?).with_context(|| path.display().to_string())
}

/// Returns the extents by dimension; each dimension has one.
fn extents(set: Vec<(String, u64)>) -> Result<BTreeMap<String, u64>, Error> {
    let mut extents = BTreeMap::new();
    for (dimension, extent) in set {
        if let Some(other) = extents.insert(dimension.clone(), extent)
            && other != extent
        {
            let message = format!("expected one extent for {dimension}, found {other} and {extent}");
            return Err(Error::invalid("set", message));
        }
    }
    Ok(extents)
}

/// Prints the verdict on a model for AMD's NPUs. The exit code is that of a refusal, unless AMD's tools have compiled the
/// model.
fn check_ryzen_ai(gateway: &Gateway, args: &CheckArgs) -> anyhow::Result<()> {
    if args.fix.is_some() || !args.set.is_empty() {
        return Err(Error::invalid("target", RyzenAiReport::NO_RULES).into());
    }
    let found = gateway.check_ryzen_ai(&args.model, interrupt::cancel())?;
    if args.json {
        output::json(&found)?;
    } else {
        output::report(&found)?;
        if let Some(fix) = found.fix {
            output::note(format!("hint: {fix}"));
        }
    }
    if found.verdict == RyzenAiVerdict::CompiledByAmd { Ok(()) } else { Err(NegativeResult::Refused.into()) }
}

/// Checks whether a model would run on an NPU; the exit code gives the verdict.
pub(crate) fn run(gateway: &Gateway, args: CheckArgs) -> anyhow::Result<()> {
    note_model(gateway, &args.model);
    let wants_fix = args.fix.is_some();
    let NpuTarget::WithRules(target) = args.target.clone() else { return check_ryzen_ai(gateway, &args) };
    let request = CheckRequest {
        subject: args.model,
        target,
        extents: extents(args.set)?,
        fix: args.fix,
        compiler: if args.rules_only {
            VendorCompiler::Skip
        } else {
            VendorCompiler::Subprocess(compiler_process(gateway)?)
        },
    };

    let found = gateway.check(&request, interrupt::cancel())?;
    if args.json {
        output::json(&found)?;
    } else {
        output::report(&found.report)?;
        if let Some(command) = &found.report.fix_command {
            // A line break inside the command would not survive a copy.
            output::line(format!("\nto fix it, run\n{command}"))?;
        }
        match &found.fixed {
            Some(fixed) => {
                let files: Vec<String> = fixed.files.iter().map(|file| file.display().to_string()).collect();
                output::note(format!("wrote {}", files.join(", ")));
                output::report(format!("\n{}", fixed.report))?;
            }
            None if wants_fix => output::note("Narthex has no fix for this model; nothing was written."),
            None => {}
        }
    }

    match found.verdict() {
        Verdict::Whole => Ok(()),
        Verdict::Partly { .. } => Err(NegativeResult::Partial.into()),
        Verdict::Refused { .. } => Err(NegativeResult::Refused.into()),
    }
}
