//! The packages that `packaging/build.sh` makes, and the environment of the programs that install them.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use xtask_tools::{
    process::{self, works},
    session::Session,
    terminal,
};

/// Variables that an installation must not depend on: those that `cargo run` sets, and those of other installations.
const REMOVED: [&str; 3] = ["LD_LIBRARY_PATH", "ORT_DYLIB_PATH", "VIRTUAL_ENV"];

/// Prefixes of further such variables.
const REMOVED_PREFIXES: [&str; 3] = ["CARGO", "NARTHEX_", "RUST"];

/// The variable that names the Python to use, which is a setting of the machine.
const PYTHON: &str = "NARTHEX_PYTHON";

/// The packages of a run.
pub(super) struct Packages<'a> {
    pub(super) session: Session<'a>,
    /// The folder with their files, `package` in the target folder.
    pub(super) folder: PathBuf,
    /// The platform in their names, such as `linux-x64`.
    pub(super) platform: &'static str,
    /// `PATH` without the folders that have Cargo.
    path: OsString,
}

impl<'a> Packages<'a> {
    /// Builds the program and its packages, except the wheel and the complete npm package. Removes earlier packages.
    pub(super) fn make(session: Session<'a>) -> anyhow::Result<Self> {
        let platform = platform()?;
        let program = session.build_release()?;
        let folder = session.workspace.target.join("package");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let mut build = session.command("sh");
        build.arg("packaging/build.sh").arg(program).arg(platform).arg(&folder);
        process::run(&mut build)?;
        let path = without_cargo(&env::var_os("PATH").unwrap_or_default())?;
        let packages = Self { session, folder, platform, path };
        // Where Cargo is in the folder of the system's programs, these are missing now, too.
        let mut search = packages.command("sh", &packages.folder);
        ensure!(
            works(search.args(["-c", "! command -v cargo"])),
            "Cargo cannot be removed from PATH; install it with rustup"
        );
        Ok(packages)
    }

    /// Returns a command of a user who has no Cargo and no other installation. pip has no cache, so that everything is
    /// downloaded.
    pub(super) fn command(&self, program: impl AsRef<OsStr>, folder: &Path) -> Command {
        let mut command = self.session.command(program);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            let of_run = REMOVED_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) && text != PYTHON;
            if of_run || REMOVED.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        command.env_remove("NARTHEX_HOME").env("PATH", &self.path).env("PIP_NO_CACHE_DIR", "1");
        command.current_dir(folder);
        command
    }

    /// Returns the package whose name has this ending.
    pub(super) fn file(&self, ending: &str) -> anyhow::Result<Option<PathBuf>> {
        let paths = fs::read_dir(&self.folder)?.flatten().map(|entry| entry.path());
        Ok(paths.into_iter().find(|path| path.to_string_lossy().ends_with(ending)))
    }

    /// Returns the names of the packages with their sizes, sorted.
    pub(super) fn sizes(&self) -> anyhow::Result<Vec<String>> {
        let mut sizes = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let (name, data) = (entry.file_name(), entry.metadata()?);
            if data.is_file() && name != "SHA256SUMS" {
                sizes.push(format!("{}: {:.1} MB", name.display(), data.len() as f64 / 1e6));
            }
        }
        sizes.sort();
        Ok(sizes)
    }
}

/// Runs a program whose output is shown only if it fails.
pub(super) fn quietly(about: &str, command: &mut Command) -> anyhow::Result<()> {
    terminal::line(about);
    process::output(command).with_context(|| about.to_owned())?;
    Ok(())
}

/// Returns the name of this platform in the names of packages.
fn platform() -> anyhow::Result<&'static str> {
    match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => Ok("linux-x64"),
        ("linux", "aarch64") => Ok("linux-arm64"),
        ("macos", "aarch64") => Ok("macos-arm64"),
        (os, cpu) => {
            bail!(
                "expected Linux or macOS on Apple silicon, found {os} on {cpu}; \
                packaging/check.ps1 is for Windows"
            )
        }
    }
}

/// Returns a `PATH` without the folders that have Cargo.
fn without_cargo(path: &OsStr) -> anyhow::Result<OsString> {
    let folders = env::split_paths(path).filter(|folder| !folder.join("cargo").is_file());
    env::join_paths(folders).context("PATH has a folder whose name cannot be in it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_with_cargo_are_removed_from_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let (with, without) = (folder.path().join("with"), folder.path().join("without"));
        fs::create_dir_all(&with).unwrap();
        fs::create_dir_all(&without).unwrap();
        fs::write(with.join("cargo"), "").unwrap();
        let path = env::join_paths([&with, &without]).unwrap();
        assert_eq!(without_cargo(&path).unwrap(), without.into_os_string());
    }

    #[test]
    fn the_homepage_is_that_of_the_publisher_or_of_the_repository() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/homepage.sh");
        let clone = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            assert!(command.args(arguments).current_dir(clone.path()).output().unwrap().status.success());
        };
        let page = |publisher: &str| {
            let mut shell = Command::new("sh");
            shell.arg(&script).current_dir(clone.path()).env("NARTHEX_HOMEPAGE", publisher);
            let output = shell.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };

        git(&["init", "--quiet"]);
        assert_eq!(page(""), "");
        for (origin, expected) in [
            ("https://user:secret@code.example/owner/narthex.git", "https://code.example/owner/narthex"),
            ("https://code.example:8443/owner/narthex/", "https://code.example:8443/owner/narthex"),
            ("ssh://git@code.example:2222/owner/narthex.git", "https://code.example/owner/narthex"),
            ("git@code.example:owner/narthex.git", "https://code.example/owner/narthex"),
            ("/srv/narthex.git", ""),
            ("file:///srv/narthex", ""),
            ("http://127.0.0.1:3000/narthex", ""),
        ] {
            git(&["config", "remote.origin.url", origin]);
            assert_eq!(page(""), expected, "{origin}");
            assert_eq!(page("https://narthex.example"), "https://narthex.example");
        }
    }
}
