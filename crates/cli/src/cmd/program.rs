//! The search for a program in the folders of `PATH`.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// Returns the path of a program, or `None` if it is not installed.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    find_in(&env::var_os("PATH")?, program)
}

fn find_in(folders: &OsStr, program: &str) -> Option<PathBuf> {
    let paths =
        env::split_paths(folders).flat_map(|folder| names(program).map(move |name| folder.join(name)));
    let mut paths = paths.filter(|path| path.is_absolute());
    paths.find(|path| is_executable(path))
}

/// Returns the names of a program's file. npm installs scripts on Windows.
fn names(program: &str) -> impl Iterator<Item = String> {
    let endings: &[&str] = if cfg!(windows) { &[".exe", ".cmd", ".bat"] } else { &[""] };
    endings.iter().map(move |ending| format!("{program}{ending}"))
}

fn is_executable(path: &Path) -> bool {
    let Ok(file) = path.metadata() else { return false };
    #[cfg(unix)]
    let may_run = std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let may_run = true;
    file.is_file() && may_run
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn programs_are_found_in_the_order_of_their_folders() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let path = env::join_paths(folders.iter().map(|folder| folder.path())).unwrap();
        let write = |folder: usize, mode: u32| {
            let file = folders[folder].path().join("agent");
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            file
        };
        assert_eq!(find_in(&path, "agent"), None);
        // A file that is no program does not hide one.
        write(0, 0o644);
        let second = write(1, 0o755);
        assert_eq!(find_in(&path, "agent"), Some(second));
        let first = write(0, 0o755);
        assert_eq!(find_in(&path, "agent"), Some(first));
        assert_eq!(find_in(OsStr::new(""), "agent"), None);
    }
}
