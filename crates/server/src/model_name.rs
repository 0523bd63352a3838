//! Model names in requests.

use std::path::Path;

use crate::error::ApiError;

/// Refuses a path as a model's name: a client must neither learn which files this machine has nor have them read.
pub(crate) fn refuse_path(model: &str) -> Result<(), ApiError> {
    let lower = model.trim().to_ascii_lowercase();
    let is_path = lower.starts_with(['.', '/', '~'])
        || lower.contains('\\')
        || Path::new(&lower).is_absolute()
        || (!lower.starts_with("hf:")
            && [".gguf", ".safetensors", ".whl"]
                .iter()
                .any(|end| lower.split('@').any(|part| part.ends_with(end))));
    if is_path { Err(ApiError::path_as_model()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_names() {
        let check = |model: &str, refused: bool| assert_eq!(refuse_path(model).is_err(), refused, "{model}");
        for path in
            ["/etc/passwd", "./tiny", "../tiny", " ~/tiny", "a\\b", "tiny.gguf", "Tiny.GGUF@w4", "x.whl"]
        {
            check(path, true);
        }
        for name in ["smollm2:135m", "smollm2:135m@w4", "owner/repo", "hf:owner/repo/file.gguf", "", "nope"] {
            check(name, false);
        }
    }
}
