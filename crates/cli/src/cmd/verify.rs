//! `narthex verify`.

use narthex_gateway::{AuditedFile, FileCondition, Gateway};

use crate::{args::VerifyArgs, bars::Bars, exit::NegativeResult, interrupt, output};

/// Verifies a model or the store, and prints a line for each file; fails if one is damaged.
pub(crate) fn run(gateway: &Gateway, args: &VerifyArgs) -> anyhow::Result<()> {
    let files = gateway.verify(args.model.as_deref(), &Bars::new(), interrupt::cancel())?;
    if args.json {
        output::json(&files)?;
    } else {
        files.iter().try_for_each(|file| output::report(line(file)))?;
    }
    let damaged = files.iter().filter(|file| !file.state.is_intact()).count();
    output::note(format!("{} files verified, {damaged} damaged", files.len()));
    if damaged == 0 {
        return Ok(());
    }
    output::note(
        "Replace a damaged model with `narthex rm` and `narthex pull`, a runtime with `narthex runtime rm` and `install`.",
    );
    Err(NegativeResult::Damaged.into())
}

fn line(file: &AuditedFile) -> String {
    let AuditedFile { owner, path, state } = file;
    let path = path.display();
    match state {
        FileCondition::Intact { .. } => format!("intact   {owner}  {path}"),
        FileCondition::Damaged { expected, found } => {
            format!("damaged  {owner}  {path}: expected SHA-256 {expected}, found {found}")
        }
        FileCondition::Unreadable { reason } => format!("damaged  {owner}  {path}: {reason}"),
    }
}
