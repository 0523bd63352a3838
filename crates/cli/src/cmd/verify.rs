//! `narthex verify`.

use std::collections::{BTreeMap, BTreeSet};

use narthex_gateway::{AuditedFile, FileCondition, Gateway};

use crate::{args::VerifyArgs, bars::Bars, exit::NegativeResult, interrupt, output};

/// Verifies a model or the store, and prints a line for each model and runtime, and for each damaged file; fails if there is
/// one.
pub(crate) fn run(gateway: &Gateway, args: &VerifyArgs) -> anyhow::Result<()> {
    let files = gateway.verify(args.model.as_deref(), &Bars::new(), interrupt::cancel())?;
    if args.json {
        output::json(&files)?;
    } else {
        lines(&files).into_iter().try_for_each(output::report)?;
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

/// Returns a line for each model and runtime whose files are intact, and one for each damaged file.
fn lines(files: &[AuditedFile]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut damaged = BTreeSet::new();
    let mut damages = Vec::new();
    for AuditedFile { subject, owner, path, state } in files {
        *counts.entry(subject.as_str()).or_default() += 1;
        let reason = match state {
            FileCondition::Intact { .. } => continue,
            FileCondition::Damaged { expected, found } => {
                format!("expected SHA-256 {expected}, found {found}")
            }
            FileCondition::Unreadable { reason } => reason.clone(),
        };
        damaged.insert(subject.as_str());
        damages.push(format!("damaged  {owner}  {}: {reason}", path.display()));
    }

    let intact =
        counts.into_iter().filter(|(subject, _)| !damaged.contains(subject)).map(|(subject, count)| {
            let unit = if count == 1 { "file" } else { "files" };
            format!("intact   {subject}  {count} {unit}")
        });
    intact.chain(damages).collect()
}

#[cfg(test)]
mod tests {
    use narthex_spec::Sha256;

    use super::*;

    #[test]
    fn models_have_one_line_and_damaged_files_are_named() {
        let digest = Sha256([0; 32]);
        let intact = |subject: &str, owner: &str, path: &str| AuditedFile {
            subject: subject.to_owned(),
            owner: owner.to_owned(),
            path: path.into(),
            state: FileCondition::Intact { sha256: digest },
        };
        let damaged = FileCondition::Unreadable { reason: "it is missing".to_owned() };
        let files = [
            intact("tiny", "tiny@w8", "a"),
            intact("tiny", "tiny@w8 on this machine", "b"),
            intact("tiny", "tiny@f32", "a"),
            intact("tiny", "checkpoint tiny", "c"),
            intact("small", "small@w8", "a"),
            AuditedFile { state: damaged, ..intact("small", "small@w8", "c") },
            intact("runtime cpu", "runtime cpu", "d"),
        ];
        let expect =
            ["intact   runtime cpu  1 file", "intact   tiny  4 files", "damaged  small@w8  c: it is missing"];
        assert_eq!(lines(&files), expect);
    }
}
