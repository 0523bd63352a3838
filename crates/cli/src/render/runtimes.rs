//! Runtimes, and the findings of the doctor.

use narthex_gateway::{
    RuntimeListing,
    doctor::{Doctor, Level},
};

use super::table;

/// Renders a newly installed runtime with its requirements.
pub(crate) fn runtime_installed(kind: &str, version: &str, needs: Option<&str>) -> String {
    let needs = needs.map(|needs| format!("; it also requires {needs}")).unwrap_or_default();
    format!("installed {kind} {version}{needs}")
}

/// Renders runtimes.
pub(crate) fn runtimes(runtimes: &[RuntimeListing]) -> String {
    let mut table = table(&["RUNTIME", "VERSION", "STATE"]);
    for runtime in runtimes {
        let state = match (&runtime.installed, &runtime.refusal) {
            (Some(path), _) => format!("installed in {}", path.display()),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "available".to_owned(),
        };
        table.add_row([&runtime.kind, &runtime.version, &state]);
    }
    table.trim_fmt()
}

/// Renders the doctor's findings.
pub(crate) fn doctor(report: &Doctor) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let mark = match finding.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Problem => "FIX ",
        };
        text.push_str(&format!("{mark}  {}: {}\n", finding.subject, finding.text));
        if let Some(fix) = &finding.fix {
            text.push_str(&format!("      → {fix}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_runtime_lists_its_requirements() {
        assert_eq!(runtime_installed("cpu", "1.2", None), "installed cpu 1.2");
        assert_eq!(
            runtime_installed("cuda", "1.2", Some("a driver")),
            "installed cuda 1.2; it also requires a driver"
        );
    }
}
