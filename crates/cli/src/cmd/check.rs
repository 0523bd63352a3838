//! `narthex check`.

use narthex_gateway::{
    Gateway,
    check::{Asked, CheckRequest, Verdict},
};

use crate::{args::CheckArgs, exit::Judged, interrupt, output};

/// Says whether a model would run on an NPU; ends with a code for the verdict.
pub(crate) fn run(gateway: &Gateway, args: CheckArgs) -> anyhow::Result<()> {
    let wants_fix = args.fix.is_some();
    let request = CheckRequest {
        subject: args.model,
        target: args.target,
        extents: args.set.into_iter().collect(),
        fix: args.fix,
        compiler: if args.rules_only { Asked::Never } else { Asked::IfInstalled },
    };
    let found = gateway.check(&request, interrupt::cancel())?;
    if args.json {
        output::json(&found)?;
    } else {
        output::text(&found.report.to_string())?;
        match &found.fixed {
            Some(fixed) => {
                let files: Vec<String> = fixed.files.iter().map(|file| file.display().to_string()).collect();
                output::note(format!("wrote {}", files.join(", ")));
                output::line(format!("\n{}", fixed.report))?;
            }
            None if wants_fix => {
                output::note("Narthex has no fix of its own for this model; nothing was written.")
            }
            None => {}
        }
    }
    match found.verdict() {
        Verdict::Whole => Ok(()),
        Verdict::Partly { .. } => Err(Judged::Partly.into()),
        Verdict::Refused { .. } => Err(Judged::Refused.into()),
    }
}
