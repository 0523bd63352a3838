//! Next steps that depend on the text or the system's error.

use narthex_catalog::source::hub;
use narthex_files::environment;
use narthex_spec::{MediaKind, ModelName, Scheme};

use crate::report::models::{DeviceRefusal, ModelKind};

/// Returns the text that names a package: `smollm2:135m@w4`.
pub(super) fn package_id(name: &ModelName, scheme: Option<Scheme>) -> String {
    scheme.map_or_else(|| name.to_string(), |scheme| format!("{name}@{scheme}"))
}

/// Returns the end of a sentence about a package that is not installed, which names the schemes of the model that are.
pub(super) fn other_schemes(installed: &[Scheme]) -> String {
    let names: Vec<&str> = installed.iter().map(|scheme| scheme.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(", where the model is installed in {}", names.join(" and "))
}

/// Ways to install espeak-ng.
pub(super) const ESPEAK: &str = "install espeak-ng: `apt install espeak-ng` on Debian and Ubuntu, `dnf install espeak-ng` on \
                                 Fedora, `brew install espeak-ng` on macOS, its installer on Windows; NARTHEX_ESPEAK names \
                                 a program elsewhere";

/// Returns the hint to the models of a kind.
pub(super) fn models_of_kind(kind: ModelKind) -> String {
    if matches!(kind, ModelKind::Classification | ModelKind::TokenClassification) {
        return "the catalogue has no classifiers; `narthex compile DIR` and `import DIR` take those of transformers".to_owned();
    }
    format!("`narthex list --available --kind {}` lists suitable models", kind.as_str())
}

/// Maximum number of models in a hint.
const MAX_LISTED: usize = 8;

/// Returns the hint to models that read a medium.
pub(super) fn readers(kind: MediaKind, readers: &[ModelName]) -> String {
    let names: Vec<&str> = readers.iter().take(MAX_LISTED).map(ModelName::as_str).collect();
    let models = match names.as_slice() {
        [] => format!("no model of the catalogue reads {} in conversations", kind.plural()),
        names => format!("these models of the catalogue do: {}", names.join(", ")),
    };
    match kind {
        MediaKind::Image | MediaKind::Video => models,
        MediaKind::Audio => format!("{models}; POST /v1/audio/transcriptions turns speech into text"),
    }
}

/// Returns the commands that list the installed models and install a package.
pub(super) fn install(name: &ModelName, scheme: Option<Scheme>, in_catalogue: bool) -> String {
    let reference = if in_catalogue { Some(name.to_string()) } else { hub_reference(name) };
    let command = match (reference, scheme) {
        (Some(reference), None) => format!("`narthex pull {reference}` installs this one"),
        (Some(reference), Some(scheme)) => format!("`narthex pull {reference}@{scheme}` installs this one"),
        (None, None) => "`narthex compile PATH` compiles one from its files".to_owned(),
        (None, Some(scheme)) => {
            let named =
                if name.as_str().starts_with("local/") { String::new() } else { format!(" --name {name}") };
            format!("`narthex compile PATH{named} --scheme {scheme}` compiles one from its files")
        }
    };
    format!("`narthex list` shows the installed models; {command}")
}

/// Returns the reference to the hub repository after which a package is named. The package's name has no more than the
/// stem of a file in the repository.
fn hub_reference(name: &ModelName) -> Option<String> {
    let (repo, revision) = match name.as_str().split_once(':') {
        Some((repo, revision)) => (repo, format!("@{revision}")),
        None => (name.as_str(), String::new()),
    };
    match repo.split('/').collect::<Vec<_>>()[..] {
        ["local", ..] => None,
        [owner, repo] => Some(format!("hf:{owner}/{repo}{revision}")),
        [owner, repo, stem] => Some(format!("hf:{owner}/{repo}/{stem}.gguf{revision}")),
        _ => None,
    }
}

/// Returns suggestions for a text that names no model.
pub(super) fn unknown_hint(name: &str) -> String {
    let listed = "`narthex list --available` shows every name";
    if let Some((model, scheme)) = name.rsplit_once('@').filter(|_| !name.contains('/')) {
        return format!(
            "{scheme:?} after {model}@ is not a scheme: expected w8, w4, f16, f32, w8a16, w8a8 or w4a16; {listed}"
        );
    }
    if let Some(repository) = hub::reference_of_address(name) {
        return format!("write {repository} for a repository of the hub; {listed}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_read_a_medium_are_named() {
        let models: Vec<ModelName> = (0..9).map(|index| format!("m{index}").parse().unwrap()).collect();
        assert_eq!(
            readers(MediaKind::Image, &models),
            "these models of the catalogue do: m0, m1, m2, m3, m4, m5, m6, m7"
        );
        assert_eq!(
            readers(MediaKind::Audio, &[]),
            "no model of the catalogue reads audio in conversations; POST /v1/audio/transcriptions turns speech into text"
        );
    }

    #[test]
    fn an_address_of_the_hub_is_answered_with_a_reference() {
        let hint = unknown_hint(&format!("{}/owner/repo", hub::SHORT_HOST));
        assert!(hint.starts_with("write hf:owner/repo for"), "{hint}");
    }
}
