//! `narthex verify`.

use std::collections::BTreeMap;

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

/// Returns a line for each owner of intact files, and one for each damaged file.
fn lines(files: &[AuditedFile]) -> Vec<String> {
    let mut intact: BTreeMap<&str, usize> = BTreeMap::new();
    let mut damaged = Vec::new();
    for AuditedFile { owner, path, state } in files {
        let path = path.display();
        let reason = match state {
            FileCondition::Intact { .. } => {
                *intact.entry(owner.as_str()).or_default() += 1;
                continue;
            }
            FileCondition::Damaged { expected, found } => {
                format!("expected SHA-256 {expected}, found {found}")
            }
            FileCondition::Unreadable { reason } => reason.clone(),
        };
        damaged.push(format!("damaged  {owner}  {path}: {reason}"));
    }
    let intact = intact.into_iter().map(|(owner, count)| {
        let unit = if count == 1 { "file" } else { "files" };
        format!("intact   {owner}  {count} {unit}")
    });
    intact.chain(damaged).collect()
}

#[cfg(test)]
mod tests {
    use narthex_spec::Sha256;

    use super::*;

    #[test]
    fn intact_files_are_counted_and_damaged_ones_named() {
        let file = |owner: &str, path: &str, state| AuditedFile {
            owner: owner.to_owned(),
            path: path.into(),
            state,
        };
        let digest = Sha256([0; 32]);
        let intact = || FileCondition::Intact { sha256: digest };
        let damaged = FileCondition::Unreadable { reason: "it is missing".to_owned() };
        let files = [
            file("tiny@w8", "a", intact()),
            file("tiny@w8", "b", intact()),
            file("tiny@w8", "c", damaged),
            file("runtime cpu", "d", intact()),
        ];
        let expect = [
            "intact   runtime cpu  1 file",
            "intact   tiny@w8  2 files",
            "damaged  tiny@w8  c: it is missing",
        ];
        assert_eq!(lines(&files), expect);
    }
}
