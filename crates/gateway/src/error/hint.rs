//! Next steps that depend on the text or the system's error.

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
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => {
            Some("free some space, or set NARTHEX_HOME to another disk".to_owned())
        }
        Io::ReadOnlyFilesystem | Io::PermissionDenied => {
            Some("set NARTHEX_HOME to a writable folder".to_owned())
        }
        Io::NotFound => Some("check the path; the file does not exist".to_owned()),
        _ => None,
    }
}
