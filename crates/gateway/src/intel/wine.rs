//! Intel's compiler on Linux: a small program for Windows calls it under wine. The user's own C compiler builds the program
//! once.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use narthex_catalog::{runtimes::RuntimeInfo, store::Store};
use narthex_spec::Sha256;

use super::{answer::CompilerAnswer, missing, process::CompilerProgram, unusable};
use crate::{cancel::Cancel, error::Error};

/// Source of the program.
const DRIVER: &str = include_str!("driver.c");

/// C compiler for Windows.
const C_COMPILER: &str = "x86_64-w64-mingw32-gcc";

/// Names and places of wine. Debian's package wine64 puts it in no folder of `PATH`.
const WINE: [&str; 3] = ["wine64", "wine", "/usr/lib/wine/wine64"];

/// Maximum time of a compile. A decode graph of 135 million parameters takes up to 14 minutes on two cores.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// The compiler under wine.
pub(super) struct WineRunner {
    program: CompilerProgram,
}

impl WineRunner {
    /// Finds wine, and builds the program if that has not been done.
    pub(super) fn prepare(store: &Store, runtime: &RuntimeInfo) -> Result<Self, Error> {
        let wine = find(&WINE).ok_or_else(|| missing("wine64", "wine64"))?;
        let driver = driver(store, runtime)?;
        let environment = [
            ("WINEPREFIX", runtime.dir.join("wine").into_os_string()),
            ("WINEDEBUG", "-all".into()),
            // No helper programs, and no files outside the prefix.
            ("WINEDLLOVERRIDES", "mscoree,mshtml,winemenubuilder.exe=".into()),
            // Wine translates names of files by the locale.
            ("LC_ALL", "C.UTF-8".into()),
            ("DISPLAY", "".into()),
        ];
        let arguments = vec![driver.into(), windows_path(&runtime.library).into()];
        let program = CompilerProgram {
            path: wine,
            arguments,
            environment: environment.into(),
            time_limit: TIME_LIMIT,
        };
        Ok(Self { program })
    }

    /// Compiles a graph for a platform into a new file.
    pub(super) fn compile(
        &self,
        graph: &Path,
        blob: &Path,
        platform: u32,
        cancel: &Cancel,
    ) -> Result<CompilerAnswer, Error> {
        let graph = narthex_files::canonicalize(graph).map_err(Error::io("find", graph))?;
        // The name alone needs no translation to a path of Windows.
        let folder = blob.parent().unwrap_or(blob);
        let name = blob.file_name().unwrap_or_default().to_string_lossy();
        self.program.run(&windows_path(&graph), folder, &name, platform, cancel)
    }
}

/// Returns the path of a file as programs under wine read it.
fn windows_path(path: &Path) -> String {
    format!("Z:{}", path.display().to_string().replace('/', "\\"))
}

/// Returns the first of these programs that exists, by its path or in a folder of `PATH`.
fn find(names: &[&str]) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    names.iter().find_map(|name| {
        env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
    })
}

/// Returns the program, which is built on first need.
fn driver(store: &Store, runtime: &RuntimeInfo) -> Result<PathBuf, Error> {
    let version = Sha256::of(DRIVER.as_bytes()).to_string();
    let driver = runtime.dir.join(format!("driver-{}.exe", version.get(..16).unwrap_or_default()));
    if driver.is_file() {
        return Ok(driver);
    }

    let compiler = find(&[C_COMPILER]).ok_or_else(|| missing(C_COMPILER, "gcc-mingw-w64-x86-64"))?;
    let scratch = store.scratch()?;
    let source = scratch.path().join("driver.c");
    let made = scratch.path().join("driver.exe");
    fs::write(&source, DRIVER).map_err(Error::io("write", &source))?;
    let mut command = Command::new(&compiler);
    let output = command.args(["-municode", "-O1", "-o"]).arg(&made).arg(&source).output();
    let output = output.map_err(Error::io("start", &compiler))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        let first: String = messages.lines().next().unwrap_or_default().chars().take(300).collect();
        return Err(unusable(format!("{C_COMPILER} does not build its program: {first}")));
    }
    fs::rename(&made, &driver).map_err(Error::io("write", &driver))?;
    Ok(driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_wine_s_drive() {
        assert_eq!(windows_path(Path::new("/t/J\u{f6}rg/a b.onnx")), "Z:\\t\\J\u{f6}rg\\a b.onnx");
    }

    #[test]
    fn programs_are_found_by_path_or_name() {
        assert_eq!(find(&["no-such-program", "/bin/sh"]), Some("/bin/sh".into()));
        assert!(find(&["sh"]).is_some());
        assert_eq!(find(&["no-such-program"]), None);
    }
}
