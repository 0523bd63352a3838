//! Next steps that depend on the text or the system's error.

use narthex_mmap::environment;
use narthex_spec::{ModelName, Scheme};

use crate::report::models::{DeviceRefusal, ModelKind};

/// Returns the text that names a package: `smollm2:135m@w4`.
pub(super) fn package_id(name: &ModelName, scheme: Option<Scheme>) -> String {
    scheme.map_or_else(|| name.to_string(), |scheme| format!("{name}@{scheme}"))
}

/// Returns the hint to the models of a kind.
pub(super) fn models_of_kind(kind: ModelKind) -> String {
    format!("`narthex list --available --kind {}` lists suitable models", kind.as_str())
}

/// Returns the command that installs a package.
pub(super) fn pull(name: &ModelName, scheme: Option<Scheme>) -> String {
    format!("install it with `narthex pull {}`", package_id(name, scheme))
}

/// Returns suggestions for a text that names no model.
pub(super) fn unknown_hint(name: &str) -> String {
    let listed = "`narthex list --available` shows every name";
    if let Some((model, scheme)) = name.rsplit_once('@').filter(|_| !name.contains('/')) {
        return format!("{scheme:?} after {model}@ is not a scheme: expected w8, w4, f16 or f32; {listed}");
    }
    if name.starts_with("hf:") && !name.contains('/') {
        return format!("write hf:OWNER/REPO for a hub repository; {listed}");
    }
    match name.split('/').collect::<Vec<_>>()[..] {
        ["" | "." | ".." | "~", ..] | [_] => listed.to_owned(),
        [owner, repository] if name.starts_with("hf:") || owner.is_empty() || repository.is_empty() => {
            listed.to_owned()
        }
        [_, _] => format!("write hf:{name} for a hub repository, or ./{name} for a folder; {listed}"),
        _ => format!("write ./{name} for a path; {listed}"),
    }
}

/// Returns the next step after an error of the system.
pub(super) fn io_hint(error: &std::io::Error) -> Option<String> {
    match error.kind() {
        std::io::ErrorKind::NotFound => Some("check the path; the file does not exist".to_owned()),
        _ => environment::hint(error).map(str::to_owned),
    }
}

/// Returns the devices that refused a model, with their reasons.
pub(super) fn reasons(passed_over: &[DeviceRefusal]) -> String {
    let reasons: Vec<String> =
        passed_over.iter().map(|passed| format!("{}: {}", passed.device, passed.reason)).collect();
    reasons.join("; ")
}
