//! `narthex service` with a stand-in for systemctl, and the generated unit under systemd's own checks.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Stand-in for systemctl. It lists its calls and refuses the calls in `refused`. `enable` and `disable` create and
/// remove the same link as the real program.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>"$STAND_IN/calls"
if grep -qxF -e "$*" "$STAND_IN/refused" 2>/dev/null; then echo "Failed: refused" >&2; exit 1; fi
link="$XDG_CONFIG_HOME/systemd/user/default.target.wants/narthex.service"
case "$*" in
  *enable*narthex*) mkdir -p "$(dirname "$link")"; ln -sf ../narthex.service "$link" ;;
esac
case "$*" in
  *disable*) rm -f "$link" ;;
  *is-active*) cat "$STAND_IN/state"; grep -qx active "$STAND_IN/state" ;;
esac
"#;

/// A user's home with a stand-in for systemctl on the path.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir_all(folder.path().join("config/other")).unwrap();
        fs::write(folder.path().join("config/other/settings"), "kept").unwrap();
        fs::create_dir_all(folder.path().join("stand-in")).unwrap();
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("systemctl"), SYSTEMCTL).unwrap();
        fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn unit(&self) -> PathBuf {
        self.path("config/systemd/user/narthex.service")
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command
            .arg("service")
            .args(args)
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .env("HOME", self.folder.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("STAND_IN", self.path("stand-in"))
            .env_remove("NARTHEX_HOME")
            .stdin(Stdio::null());
        command
    }

    /// Checks the exit code, and that the output contains a text.
    #[track_caller]
    fn check(&self, args: &[&str], code: i32, expect: &str) {
        let output = self.run(args);
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{text}");
        assert!(text.contains(expect), "{args:?}: {expect:?} is not in\n{text}");
    }

    /// Returns the files below the folder of settings.
    fn settings(&self) -> BTreeSet<PathBuf> {
        fn walk(folder: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => walk(&path, found),
                    false => drop(found.insert(path)),
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(&self.path("config"), &mut found);
        found
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("stand-in/calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("stand-in/calls"));
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_service_is_installed_shown_replaced_and_removed() {
    let home = Home::new();
    let before = home.settings();
    home.check(&["install", "--", "--port", "9000"], 0, "installed and started the service narthex.service");
    assert_eq!(
        home.calls(),
        [
            "--user list-units narthex.service --no-pager",
            "--user daemon-reload",
            "--user enable narthex.service",
            "--user restart narthex.service"
        ]
    );
    let unit = fs::read_to_string(home.unit()).unwrap();
    assert!(unit.contains(" serve --port 9000\n"), "{unit}");
    fs::write(home.path("stand-in/state"), "active\n").unwrap();
    home.check(&["status"], 0, "narthex.service: active\n");
    fs::write(home.path("stand-in/state"), "failed\n").unwrap();
    home.check(&["status"], 1, "narthex.service: failed\n");
    home.check(&["install", "--", "--port", "9001"], 0, "installed and started");
    assert!(fs::read_to_string(home.unit()).unwrap().contains(" serve --port 9001\n"));
    home.calls();
    home.check(&["uninstall"], 0, "stopped the service and removed ");
    assert_eq!(home.calls(), ["--user disable --now narthex.service", "--user daemon-reload"]);
    assert_eq!(home.settings(), before);
    home.check(&["uninstall"], 3, "the service is not installed: there is no ");
    home.check(&["status"], 3, "the service is not installed");
}

#[test]
fn an_init_system_without_a_session_is_explained() {
    let home = Home::new();
    let before = home.settings();
    fs::write(home.path("stand-in/refused"), "--user list-units narthex.service --no-pager\n").unwrap();
    home.check(&["install"], 1, "systemctl does not answer, so nothing was installed: ");
    home.check(&["install"], 1, "user services need a login session of that user");
    assert_eq!(home.settings(), before);
}

#[test]
fn a_failed_installation_leaves_everything_as_it_was() {
    let home = Home::new();
    let before = home.settings();
    fs::write(home.path("stand-in/refused"), "--user restart narthex.service\n").unwrap();
    home.check(&["install"], 1, "`systemctl --user restart narthex.service` failed: Failed: refused");
    assert_eq!(home.settings(), before);
    fs::remove_file(home.path("stand-in/refused")).unwrap();
    home.check(&["install", "--", "--port", "9000"], 0, "installed");
    let installed = fs::read_to_string(home.unit()).unwrap();
    fs::write(home.path("stand-in/refused"), "--user daemon-reload\n").unwrap();
    home.check(&["install", "--", "--port", "9001"], 1, "failed: Failed: refused");
    assert_eq!(fs::read_to_string(home.unit()).unwrap(), installed);
}

#[test]
fn a_full_disk_leaves_the_installed_unit_as_it_was() {
    let home = Home::new();
    home.check(&["install", "--", "--port", "9000"], 0, "installed");
    let installed = (fs::read_to_string(home.unit()).unwrap(), home.settings());
    home.calls();
    let install = home.command(&["install", "--", "--port", "9001"]);
    // No byte can be written to a file; the calls of the init system are redirected to a device.
    fs::remove_dir_all(home.path("stand-in")).unwrap();
    fs::create_dir(home.path("stand-in")).unwrap();
    std::os::unix::fs::symlink("/dev/null", home.path("stand-in/calls")).unwrap();
    let mut limited = Command::new("bash");
    limited
        .args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""])
        .arg(install.get_program())
        .args(install.get_args());
    limited.envs(install.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.env_remove("NARTHEX_HOME").stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(6) && text.contains("hint: raise the limit on the size"), "{text}");
    assert_eq!((fs::read_to_string(home.unit()).unwrap(), home.settings()), installed);
    fs::remove_file(home.path("stand-in/calls")).unwrap();
    home.check(&["uninstall"], 0, "stopped the service and removed ");
}

#[test]
fn a_unit_of_somebody_else_is_left_alone() {
    let home = Home::new();
    fs::create_dir_all(home.unit().parent().unwrap()).unwrap();
    fs::write(home.unit(), "[Service]\nExecStart=/bin/true\n").unwrap();
    let before = home.settings();
    for command in ["install", "status", "uninstall"] {
        home.check(&[command], 1, "was not written by `narthex service install`");
    }
    assert_eq!((home.settings(), home.calls()), (before, Vec::new()));
}

#[test]
fn an_absent_systemd_is_a_clear_error() {
    let home = Home::new();
    let before = home.settings();
    fs::remove_file(home.path("bin/systemctl")).unwrap();
    let output = home.command(&["install"]).env("PATH", home.path("bin")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("systemctl was not found") && text.contains("install --print"), "{text}");
    let refusing = "#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n";
    fs::write(home.path("bin/systemctl"), refusing).unwrap();
    fs::set_permissions(home.path("bin/systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    home.check(&["install"], 1, "Failed to connect to bus: No medium found");
    assert_eq!(home.settings(), before);
}

#[test]
fn printing_needs_no_init_system() {
    let home = Home::new();
    let print = |more: &[&str]| {
        let args = [&["install", "--print"], more].concat();
        let output = home.command(&args).env("PATH", "/nonexistent").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(print(&[]).contains("\n[Install]\nWantedBy=default.target\n"));
    assert!(!home.unit().exists());
    home.check(&["install", "--print", "--", "--prot", "9000"], 2, "unexpected argument '--prot' found");
    home.check(&["install", "--print", "--", "--slots", "0"], 2, "expected a number of at least 1");
}

/// Checks the units with systemd's own checker, if it is installed.
#[test]
fn systemd_accepts_the_units() {
    let home = Home::new();
    let program = home.path("bin/narthex");
    // A system service may not run a program below /home or /root.
    fs::copy(env!("CARGO_BIN_EXE_narthex"), &program).unwrap();
    for (kind, more) in [("--user", &[][..]), ("--system", &["--system"])] {
        let output = Command::new(&program)
            .args(["service", "install", "--print"])
            .args(more)
            .env("HOME", home.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let unit = home.path("narthex.service");
        fs::write(&unit, output.stdout).unwrap();
        let checked = Command::new("systemd-analyze")
            .args([kind, "verify", "--man=no"])
            .arg(&unit)
            .env("HOME", home.folder.path())
            .env("XDG_RUNTIME_DIR", home.folder.path())
            .output();
        let Ok(checked) = checked else { return };
        let text = String::from_utf8_lossy(&checked.stderr);
        let about_ours: Vec<&str> = text.lines().filter(|line| line.contains("narthex")).collect();
        assert!(checked.status.success() && about_ours.is_empty(), "{kind}: {text}");
    }
}
