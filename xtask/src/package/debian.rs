//! The `.deb`, installed by apt in a root that debootstrap makes from this machine's own mirror.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context;

use super::{
    Attempt, Installation,
    packages::{Packages, quietly},
};
use xtask_tools::process::works;

/// Script that starts a program in a root. Its mounts belong to a namespace, which ends with the program.
const ENTER: &str = r#"
root=$1
shift
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
exec chroot "$root" env "$@"
"#;

/// Files of this machine that connect the root with the same network and index of packages. They are copied after the
/// installation, because the package ca-certificates writes its own list.
const CONNECTION: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"];

/// The store in the root.
const STORE: &str = "store";

/// A root with a minimal Debian.
struct DebianRoot {
    folder: PathBuf,
}

/// Name and mirror of a Debian release.
#[derive(Debug, PartialEq, Eq)]
struct Release {
    name: String,
    mirror: String,
}

/// Makes a root in the folder, and installs the package in it.
pub(super) fn install(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let skipped = |reason: &str| Ok(Attempt::Skipped(reason.to_owned()));
    let Some(package) = packages.file(".deb")? else { return skipped("dpkg-deb is not installed") };
    if !works(packages.command("debootstrap", folder).arg("--version")) {
        return skipped("debootstrap is not installed");
    }
    if !works(packages.command("unshare", folder).args(["--mount", "chroot", "/", "true"])) {
        return skipped("a root needs the rights to mount and to chroot");
    }
    let Some(release) = Release::of_machine()? else { return skipped("apt has no mirror of this release") };

    let root = DebianRoot::make(packages, folder, &release)?;
    fs::copy(&package, root.folder.join("narthex.deb"))?;
    let start = Instant::now();
    root.run(packages, &["apt-get", "update"])?;
    // The recommended packages of python3-pip are compilers.
    let install = ["apt-get", "install", "--yes", "--no-install-recommends", "/narthex.deb", "python3-pip"];
    root.run(packages, &install)?;
    let took = start.elapsed();
    root.connect()?;
    let store = root.folder.join(STORE);
    Ok(Attempt::Installed(Installation { took, program: root.entered(&["narthex"]), store, model: None }))
}

impl DebianRoot {
    fn make(packages: &Packages<'_>, folder: &Path, release: &Release) -> anyhow::Result<Self> {
        let root = folder.join("root");
        // Mounts that debootstrap leaves behind end with the namespace.
        let mut make = packages.command("unshare", folder);
        make.args(["--mount", "debootstrap", "--variant=minbase", &release.name]);
        quietly(&format!("$ debootstrap {}", release.name), make.arg(&root).arg(&release.mirror))?;
        Ok(Self { folder: root })
    }

    /// Copies the files of the connection that exist.
    fn connect(&self) -> anyhow::Result<()> {
        for file in CONNECTION.iter().filter(|file| Path::new(file).exists()) {
            fs::copy(file, self.folder.join(file.trim_start_matches('/'))).context(*file)?;
        }
        Ok(())
    }

    /// Returns the words that start a program in the root.
    fn entered(&self, program: &[&str]) -> Vec<OsString> {
        let start = ["unshare", "--mount", "sh", "-euc", ENTER, "sh"].map(OsString::from);
        let settings = [
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            "HOME=/root".to_owned(),
            "LC_ALL=C.UTF-8".to_owned(),
            "DEBIAN_FRONTEND=noninteractive".to_owned(),
            format!("NARTHEX_HOME=/{STORE}"),
        ];
        let program = program.iter().map(OsString::from);
        start
            .into_iter()
            .chain([self.folder.clone().into()])
            .chain(settings.map(OsString::from))
            .chain(program)
            .collect()
    }

    /// Runs a program in the root.
    fn run(&self, packages: &Packages<'_>, program: &[&str]) -> anyhow::Result<()> {
        let words = self.entered(program);
        let mut command = packages.command(&words[0], &self.folder);
        quietly(&format!("$ chroot root {}", program.join(" ")), command.args(&words[1..]))
    }
}

impl Release {
    /// Returns the release of this machine, or `None` if it is no Debian with a mirror.
    fn of_machine() -> anyhow::Result<Option<Self>> {
        let folder = Path::new("/etc/apt/sources.list.d");
        let listed = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = listed.filter(|path| path.extension().is_some_and(|e| e == "list" || e == "sources"));
        let mut sources = String::new();
        for file in files.chain(["/etc/apt/sources.list".into()]) {
            sources.push_str(&fs::read_to_string(file).unwrap_or_default());
            // A section of the next file must not continue the last one of this file.
            sources.push_str("\n\n");
        }
        let system = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
        Ok(Self::from_files(&system, &sources))
    }

    /// Reads the release from `/etc/os-release` and its mirror from apt's lists of sources, in either of their formats.
    fn from_files(system: &str, sources: &str) -> Option<Self> {
        let name = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
        let lines = sources.lines().find_map(|line| {
            let mut words = line.strip_prefix("deb ")?.split_whitespace().skip_while(|word| {
                // Options in brackets precede the address.
                !word.contains("://") || word.ends_with(']')
            });
            words.next().filter(|_| words.next() == Some(name))
        });
        let field = |section: &str, key: &str| -> Vec<String> {
            let line = section.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let sections = sources.split("\n\n").find_map(|section| {
            let has = |key: &str, word: &str| field(section, key).iter().any(|found| found == word);
            let ours = has("Types:", "deb") && has("Suites:", name);
            field(section, "URIs:").into_iter().next().filter(|_| ours)
        });
        let mirror = lines.map(str::to_owned).or(sections)?;
        Some(Self { name: name.to_owned(), mirror })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_of_the_release_is_found() {
        let check = |sources: &str, expect: Option<&str>| {
            let found = Release::from_files("ID=debian\nVERSION_CODENAME=bookworm\n", sources);
            let expect =
                expect.map(|mirror| Release { name: "bookworm".to_owned(), mirror: mirror.to_owned() });
            assert_eq!(found, expect, "{sources}");
        };
        check("deb http://a.test/debian bookworm main\n", Some("http://a.test/debian"));
        check("# deb http://a.test/debian bookworm main\n", None);
        check("deb-src http://a.test/debian bookworm main\n", None);
        check("deb http://a.test/security bookworm-security main\n", None);
        check("deb [arch=amd64 signed-by=/k.gpg] http://a.test/d bookworm main\n", Some("http://a.test/d"));
        let other = "Types: deb\nURIs: http://o.test/x\nSuites: nodistro\n\n";
        let ours = "Types: deb\n# a note\nURIs: http://a.test/d\nSuites: bookworm bookworm-updates\n";
        check(&format!("{other}{ours}"), Some("http://a.test/d"));
        check(other, None);
    }
}
