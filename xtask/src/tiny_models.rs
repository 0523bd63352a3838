//! Tiny models with random weights in the store of a session.

use std::{fs, path::Path};

use anyhow::ensure;
use narthex_testkit::checkpoint::{tiny_gemma3n, tiny_whisper_safetensors};
use xtask_tools::session::Session;

/// A model that reads pictures and sounds.
pub(crate) const SEES: &str = "local/tiny-gemma3n";

/// A model that transcribes.
pub(crate) const HEARS: &str = "local/tiny-whisper";

/// Transcript of every sound.
pub(crate) const TRANSCRIPT: &str = "the cat";

/// Runs `work` while the models are in the session's store, and removes them afterwards, because other programs on the store
/// do not expect them. They are compiled again in each run, in `w8`, in which greedy answers do not depend on other requests.
pub(crate) fn with<T>(
    session: &Session<'_>,
    program: &Path,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let checkpoints = tempfile::tempdir()?;
    let [sees, hears] = [SEES, HEARS].map(|name| checkpoints.path().join(name));
    fs::create_dir_all(&hears)?;
    tiny_gemma3n(&sees)?;
    tiny_whisper_safetensors(&hears, TRANSCRIPT)?;
    for checkpoint in [sees, hears] {
        narthex(session, program, &["compile", &checkpoint.to_string_lossy(), "--calibrate", "none"])?;
    }
    let outcome = work();
    [SEES, HEARS].iter().try_for_each(|model| narthex(session, program, &["rm", model, "--yes"]))?;
    outcome
}

/// Runs a command of the program.
pub(crate) fn narthex(session: &Session<'_>, program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let output = session.command(program).args(arguments).output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "narthex {}: {message}", arguments.join(" "));
    Ok(())
}
