//! Next steps that depend on the text or the system's error.

use narthex_mmap::environment;

/// Returns suggestions for a text that names no model.
pub(super) fn unknown_hint(name: &str) -> String {
    let listed = "`narthex list --available` shows every name";
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
