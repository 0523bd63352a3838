//! Windows x64 by wine: a folder of its own for its registry and files, set to Windows 10.
//!
//! Wine 8 lacks `bcryptprimitives.dll`, from which Rust's standard library takes random numbers. A library with that one
//! function, which calls one that wine has, stands in.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::tools::{self, DebianProgram};
use xtask_tools::{process, session::Session};

/// Debian's packages. Neither a display nor 32-bit programs are needed.
pub(crate) const NEEDS: [DebianProgram; 2] = [
    DebianProgram { path: LOADER, package: "wine64" },
    DebianProgram { path: "x86_64-w64-mingw32-gcc", package: "gcc-mingw-w64-x86-64" },
];

const LOADER: &str = "/usr/lib/wine/wine64";

const SERVER: &str = "/usr/lib/wine/wineserver64";

/// Source of the library that wine lacks.
const RANDOM_NUMBERS: &str = r#"#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) {
    while (length > 0) {
        ULONG piece = length > 65536 ? 65536 : (ULONG)length;
        if (!SystemFunction036(data, piece)) return FALSE;
        data += piece;
        length -= piece;
    }
    return TRUE;
}
"#;

/// A folder with the registry and the files of a Windows.
pub(crate) struct Wine {
    prefix: PathBuf,
}

impl Wine {
    /// Installs wine and makes the folder, unless it exists.
    pub(crate) fn prepare(session: &Session<'_>, folder: &Path) -> anyhow::Result<Self> {
        tools::install(session, &NEEDS)?;
        let wine = Self { prefix: folder.join("wine") };
        let library = wine.prefix.join("drive_c/windows/system32/bcryptprimitives.dll");
        if library.is_file() {
            return Ok(wine);
        }
        process::output(wine.command(session, Path::new("wineboot")).arg("--init"))?;
        let version = ["add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"];
        process::output(wine.command(session, Path::new("reg")).args(version))?;
        let source = folder.join("bcryptprimitives.c");
        fs::write(&source, RANDOM_NUMBERS).with_context(|| source.display().to_string())?;
        let mut compile = session.command("x86_64-w64-mingw32-gcc");
        compile.args(["-shared", "-O2", "-o"]).arg(&library).arg(&source).arg("-ladvapi32");
        process::run(&mut compile)?;
        ensure!(library.is_file(), "expected {}", library.display());
        Ok(wine)
    }

    /// Returns a command that starts a Windows program.
    pub(crate) fn command(&self, session: &Session<'_>, program: &Path) -> Command {
        let mut command = session.command(LOADER);
        command
            .arg(program)
            .env("WINEPREFIX", &self.prefix)
            .env("WINEDEBUG", "-all")
            // Wine translates names by the locale, and has no display to write to.
            .env("LC_ALL", "C.UTF-8")
            .env_remove("DISPLAY");
        command
    }

    /// Returns the folder of drive C.
    pub(crate) fn drive(&self) -> PathBuf {
        self.prefix.join("drive_c")
    }

    /// Returns the path of a file as Windows names it.
    pub(crate) fn path(&self, path: &Path) -> String {
        let (drive, rest) = match path.strip_prefix(self.drive()) {
            Ok(rest) => ("C:\\", rest),
            Err(_) => ("Z:\\", path.strip_prefix("/").unwrap_or(path)),
        };
        format!("{drive}{}", rest.display().to_string().replace('/', "\\"))
    }

    /// Returns the version.
    pub(crate) fn version(session: &Session<'_>) -> String {
        let version = process::output(session.command(LOADER).arg("--version"));
        version.map_or_else(|_| "wine".to_owned(), |printed| printed.stdout.trim().to_owned())
    }

    /// Ends the processes that belong to the folder.
    pub(crate) fn stop(&self, session: &Session<'_>) {
        // No process is left in most cases.
        let _ = process::works(session.command(SERVER).arg("-k").env("WINEPREFIX", &self.prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_windows() {
        let wine = Wine { prefix: "/t/wine".into() };
        assert_eq!(wine.path(Path::new("/t/wine/drive_c/users/J\u{f6}rg/a b")), "C:\\users\\J\u{f6}rg\\a b");
        assert_eq!(wine.path(Path::new("/t/model.gguf")), "Z:\\t\\model.gguf");
    }
}
