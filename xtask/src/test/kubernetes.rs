//! The files for Kubernetes: kubectl renders each folder of `packaging/kubernetes`, and every resource must follow the schema
//! of its kind. A machine without kubectl skips the stage.

use std::{fs, path::Path};

use anyhow::{Context, bail, ensure};
use xtask_tools::{process, python::VirtualEnvironment, session::Session, terminal};

/// Folder with one folder for each way to run the server, relative to the root.
const FOLDERS: &str = "packaging/kubernetes";

/// Checker of resources, which contains Kubernetes' schemas.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";

/// Oldest minor version of kubectl 1 whose kustomize knows `labels`.
const MINOR: u64 = 22;

/// Resources of other projects, which have no schema in the checker.
const FOREIGN: [&str; 1] = ["InferencePool"];

/// Renders and checks the files.
pub(super) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    if let Err(error) = kubectl(session) {
        let remark = format!("SKIPPED all of it: {error:#}");
        terminal::line(&remark);
        return Ok(remark);
    }
    let folder = session.workspace.target.join("kubernetes");
    let environment = VirtualEnvironment::prepare(session, &folder)?;
    environment.install(session, "kubernetes-validate", &[VALIDATOR])?;
    let mut count = 0;
    for entry in fs::read_dir(session.workspace.root.join(FOLDERS)).context(FOLDERS)? {
        let source = entry?.path();
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rendered = folder.join(format!("{name}.yaml"));
        let printed = process::output(session.command("kubectl").arg("kustomize").arg(&source))?;
        fs::write(&rendered, &printed.stdout).with_context(|| rendered.display().to_string())?;
        count += validate(session, &environment, &rendered).with_context(|| name)?;
    }
    ensure!(count > 0, "{FOLDERS} has no resources");
    Ok(format!("{count} resources follow their schemas"))
}

/// Fails unless kubectl is installed and recent.
fn kubectl(session: &Session<'_>) -> anyhow::Result<()> {
    let mut command = session.command("kubectl");
    let printed = process::output(command.args(["version", "--client", "--output", "json"]))
        .context("kubectl was not found; install it to render the files for Kubernetes")?;
    let version: serde_json::Value = serde_json::from_str(&printed.stdout).context("kubectl's version")?;
    is_recent(&version["clientVersion"])
}

/// Fails for a version of kubectl before 1.[`MINOR`]. Minor versions may end with `+`.
fn is_recent(version: &serde_json::Value) -> anyhow::Result<()> {
    let minor = version["minor"].as_str().unwrap_or_default().trim_end_matches('+');
    match minor.parse::<u64>() {
        Ok(minor) if minor >= MINOR => Ok(()),
        _ => bail!("expected kubectl 1.{MINOR} or later, found 1.{minor}"),
    }
}

/// Checks the resources of a file. Returns their number.
fn validate(session: &Session<'_>, environment: &VirtualEnvironment, file: &Path) -> anyhow::Result<usize> {
    let validator = environment.python.with_file_name("kubernetes-validate");
    let printed = process::output(session.command(validator).arg("--strict").arg(file))?;
    verdicts(&format!("{}{}", printed.stdout, printed.stderr))
}

/// Returns the number of resources that passed. Fails if another one than those of [`FOREIGN`] has no schema.
fn verdicts(report: &str) -> anyhow::Result<usize> {
    let unknown = |line: &&str| {
        line.contains("Couldn't find schema") && !FOREIGN.iter().any(|kind| line.contains(kind))
    };
    if let Some(line) = report.lines().find(unknown) {
        bail!("{line}");
    }
    Ok(report.lines().filter(|line| line.contains(" passed for resource ")).count())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_programs_are_refused() {
        assert!(is_recent(&json!({"major": "1", "minor": "32+"})).is_ok());
        assert!(is_recent(&json!({"minor": "22"})).is_ok());
        for version in [json!({"minor": "20"}), json!({"minor": ""}), json!(null)] {
            assert!(is_recent(&version).unwrap_err().to_string().contains("1.22"), "{version}");
        }
    }

    #[test]
    fn resources_without_a_schema_are_named() {
        let passed = "INFO a.yaml passed for resource service/narthex against version 1.37\n";
        let foreign = "WARN a.yaml Couldn't find schema for kind InferencePool with api version x\n";
        assert_eq!(verdicts(&format!("{passed}{foreign}{passed}")).unwrap(), 2);
        let unknown = "WARN a.yaml Couldn't find schema for kind Deploiment with api version apps/v1\n";
        assert!(verdicts(unknown).unwrap_err().to_string().contains("Deploiment"));
    }
}
