//! `narthex doctor`: the machine, missing parts, and the commands that install them.

use std::path::PathBuf;

use narthex_catalog::{
    CancelFlag, Error as CatalogError,
    network::Network,
    runtimes::{self, RuntimePackage},
    source::{downloader::Downloader, pip::Requirement},
};
use narthex_device::{
    ep::{self, Facts},
    inventory,
    runtime::Runtime,
};
use narthex_spec::{DeviceName, Ep, progress::Quiet};
use serde::Serialize;

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    library::Library,
    load::runtime_choice::{RuntimeChoice, load_verified},
};

/// Findings on this machine.
#[derive(Debug, Clone, Serialize)]
pub struct Doctor {
    /// Findings, one per line.
    pub findings: Vec<Finding>,
}

/// Finding on one part of the machine.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// Part of the machine.
    pub subject: String,
    /// Finding in words.
    pub text: String,
    /// The next step, if it is known.
    pub fix: Option<String>,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Good,
    /// For information.
    Note,
    /// Needs a fix.
    Problem,
}

impl Doctor {
    /// Returns whether a finding needs a fix.
    pub fn has_problem(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Problem)
    }

    fn add(&mut self, level: Level, subject: &str, text: impl Into<String>, fix: Option<String>) {
        self.findings.push(Finding { level, subject: subject.to_owned(), text: text.into(), fix });
    }
}

impl Gateway {
    /// Examines this machine. Fetches nothing, and changes nothing but the record of verified runtime libraries.
    pub fn doctor(&self) -> Doctor {
        let mut report = Doctor { findings: Vec::new() };
        hardware(&mut report);
        let library = self.library();
        let mut choice = RuntimeChoice::of(library);
        let file = choice.file(library);
        self.pip_finding(&mut report, &file);
        runtime(&mut report, library, file);
        providers(&mut report, library, &mut choice);
        devices(&mut report, &choice.facts);
        self.store_finding(&mut report);
        report
    }

    /// Examines pip, which fetches wheels. It is required if no ONNX Runtime is installed. While the network is
    /// forbidden, it is not started.
    fn pip_finding(&self, report: &mut Doctor, library: &Result<Option<PathBuf>, Error>) {
        let Some(RuntimePackage { name: package, version, .. }) = runtimes::package(Ep::Cpu) else { return };
        let is_required = matches!(library, Ok(None));
        let found = match self.library().store.network() {
            // A signal ends the command, and pip with it.
            Network::Allowed => {
                let wanted = Requirement { package, version, platform: "any" };
                Downloader::find(wanted, &CancelFlag::new(false))
            }
            Network::CacheOnly if is_required => {
                Err(CatalogError::Offline { what: format!("{package} {version}") })
            }
            Network::CacheOnly => {
                return report.add(Level::Note, "pip", "not checked, because downloads are disabled", None);
            }
        };
        match found {
            Ok(found) => report.add(Level::Good, "pip", found.to_string(), None),
            Err(error) => {
                let level = if is_required { Level::Problem } else { Level::Note };
                report.add(level, "pip", error.to_string(), error.hint());
            }
        }
    }

    fn store_finding(&self, report: &mut Doctor) {
        let store = &self.library().store;
        let root = store.root().display().to_string();
        let writable = store.check_writable();
        match store.packages() {
            Ok(packages) if packages.is_empty() && writable.is_err() => {}
            Ok(packages) if packages.is_empty() => {
                let fix = Some("narthex pull smollm2:135m".to_owned());
                report.add(Level::Note, "store", format!("{root} has no models yet"), fix);
            }
            Ok(packages) => {
                let count = packages.len();
                let packages = if count == 1 { "package" } else { "packages" };
                report.add(Level::Good, "store", format!("{root} holds {count} {packages}"), None);
            }
            Err(error) => report.add(Level::Problem, "store", error.to_string(), error.hint()),
        }
        if let Err(error) = writable {
            let fix = error.hint().unwrap_or_else(|| "set NARTHEX_HOME to a writable folder".to_owned());
            report.add(Level::Problem, "store", error.to_string(), Some(fix));
        }
    }
}

/// Examines ONNX Runtime and its devices.
fn runtime(report: &mut Doctor, library: &Library, file: Result<Option<PathBuf>, Error>) {
    const INSTALL: &str = "narthex runtime install cpu";
    let file = match file {
        Ok(Some(file)) => file,
        Ok(None) => {
            let text = "ONNX Runtime is not installed; the first `chat` or `pull` installs it";
            return report.add(Level::Note, "runtime", text, Some(INSTALL.to_owned()));
        }
        Err(error) => return report.add(Level::Problem, "runtime", error.to_string(), error.hint()),
    };
    match load_verified(library, &file, &Quiet, &Cancel::new()) {
        Ok(runtime) => {
            let text = format!("ONNX Runtime {} from {}", runtime.version(), file.display());
            report.add(Level::Good, "runtime", text, None);
            for device in runtime.devices() {
                let text = format!("{} ({}, {})", device.ep, device.hardware, device.vendor);
                report.add(Level::Good, "device", text, None);
            }
        }
        Err(error) => {
            let fix = error.hint().unwrap_or_else(|| INSTALL.to_owned());
            report.add(Level::Problem, "runtime", error.to_string(), Some(fix));
        }
    }
}

/// Verifies the providers' libraries. Damaged ones are not used.
fn providers(report: &mut Doctor, library: &Library, choice: &mut RuntimeChoice) {
    let installed: Vec<Ep> = choice.facts.libraries.keys().copied().collect();
    // A damaged ONNX Runtime was reported when it was loaded.
    let _ = choice.verify(library, &Quiet, &Cancel::new());
    for ep in installed {
        if !choice.facts.libraries.contains_key(&ep)
            && let Some(damage) = choice.facts.unloadable.get(&ep)
        {
            report.add(Level::Problem, "runtime", damage.reason.clone(), damage.fix.clone());
        }
    }
}

/// Examines the devices, and loads the providers' libraries of those that the machine has.
fn devices(report: &mut Doctor, facts: &Facts) {
    for device in DeviceName::ALL {
        let subject = device.as_str();
        if let Err(refusal) = ep::probe(device, facts) {
            report.add(Level::Note, subject, refusal.reason, refusal.fix);
            continue;
        }
        match (facts.libraries.get(&device.ep()), Runtime::loaded()) {
            (None, _) => report.add(Level::Good, subject, "can be used", None),
            (Some(library), Some(runtime)) => match runtime.register(device.ep(), library) {
                Ok(()) => report.add(Level::Good, subject, "can be used", None),
                Err(error) => report.add(Level::Problem, subject, error.to_string(), error.hint()),
            },
            (Some(library), None) if !library.is_file() => {
                let text = format!("its library {} does not exist", library.display());
                report.add(Level::Problem, subject, text, None);
            }
            (Some(_), None) => {
                let text = "its library is installed, and not tried without ONNX Runtime";
                report.add(Level::Note, subject, text, None);
            }
        }
    }
}

/// Describes cores as `8 usable of 16 cores`, with the number of physical or fast cores if it is lower, since it decides
/// the number of threads.
fn cores(cpu: &inventory::Cpu) -> String {
    let physical = match (cpu.fast_cores, cpu.physical_cores) {
        (Some(fast), Some(physical)) => format!(" ({physical} physical, {fast} of them fast)"),
        (None, Some(physical)) if physical < cpu.usable_cores => format!(" ({physical} physical)"),
        _ => String::new(),
    };
    format!("{} usable{physical} of {} cores", cpu.usable_cores, cpu.cores)
}

fn hardware(report: &mut Doctor) {
    let cpu = inventory::cpu();
    let memory = inventory::memory_bytes().map_or_else(String::new, |bytes| {
        format!(", {:.0} GiB of memory", bytes as f64 / (1u64 << 30) as f64)
    });
    let features = cpu.features.join(" ");
    let text =
        format!("{}: {}{memory}; {features}; kernels for {}", cpu.name, cores(&cpu), inventory::kernels());
    report.add(Level::Good, "processor", text, None);
    for accelerator in inventory::measured() {
        report.add(Level::Good, accelerator.kind.describe(), accelerator.text, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_cores_are_named_if_they_are_fewer() {
        let check = |usable_cores, physical_cores, fast_cores, expect: &str| {
            let cpu = inventory::Cpu {
                name: "a processor".to_owned(),
                cores: 16,
                usable_cores,
                physical_cores,
                fast_cores,
                features: Vec::new(),
            };
            assert_eq!(cores(&cpu), expect);
        };
        check(12, Some(8), Some(4), "12 usable (8 physical, 4 of them fast) of 16 cores");
        check(16, Some(8), None, "16 usable (8 physical) of 16 cores");
        check(4, Some(4), None, "4 usable of 16 cores");
        check(4, None, None, "4 usable of 16 cores");
    }
}
