//! Memory limits of the control groups of this process and of all their ancestors, in both versions of control groups
//! (cgroups(7)).

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The control groups that limit the memory of a process.
pub(super) struct ControlGroups {
    groups: Vec<ControlGroup>,
}

/// Files of a control group: its limit, the bytes that it uses, and the name of its page cache in `memory.stat`.
struct ControlGroup {
    folder: PathBuf,
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

impl ControlGroups {
    /// Returns the groups of this process.
    pub(super) fn of_process() -> Self {
        let list = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::new(&list, Path::new("/sys/fs/cgroup"))
    }

    /// Returns the groups in the kernel's list of a process's groups. `root` is the folder where they are mounted.
    fn new(list: &str, root: &Path) -> Self {
        Self { groups: list.lines().flat_map(|line| on_line(line, root)).collect() }
    }

    /// Returns the limits that are set.
    pub(super) fn limits(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().filter_map(|group| group.number(group.limit))
    }

    /// Returns the room in each group with a limit. The page cache counts as room, because the kernel reclaims it.
    pub(super) fn rooms(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().filter_map(|group| {
            let limit = group.number(group.limit)?;
            let used = group.number(group.used)?;
            Some(limit.saturating_sub(used.saturating_sub(group.cached())))
        })
    }
}

impl ControlGroup {
    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    fn cached(&self) -> u64 {
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        stat.lines().find_map(|line| line.strip_prefix(self.cache)?.trim().parse().ok()).unwrap_or(0)
    }
}

/// Returns the group on a line of the list with its ancestors. In a container the path may be that of the host, which
/// does not exist here; then only the root group has files.
fn on_line(line: &str, root: &Path) -> Vec<ControlGroup> {
    let mut fields = line.splitn(3, ':').skip(1);
    let controllers = fields.next().unwrap_or_default();
    let path = fields.next().unwrap_or_default();
    let nested = Path::new(path.trim_start_matches('/')).ancestors();

    if controllers.is_empty() {
        nested
            .map(|group| ControlGroup {
                folder: root.join(group),
                limit: "memory.max",
                used: "memory.current",
                cache: "file ",
            })
            .collect()
    } else if controllers.split(',').any(|controller| controller == "memory") {
        nested
            .map(|group| ControlGroup {
                folder: root.join("memory").join(group),
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                cache: "total_cache ",
            })
            .collect()
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_for_the_groups_below_it() {
        let root = tempfile::tempdir().unwrap();
        let limit = |group: &str, file: &str, limit: &str| {
            let group = root.path().join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(file), limit).unwrap();
        };
        limit("user.slice", "memory.max", "5000\n");
        limit("user.slice/shell.scope", "memory.max", "max\n");
        limit("user.slice/other.scope", "memory.max", "7\n");
        limit("memory", "memory.limit_in_bytes", "9223372036854771712\n");
        limit("memory/jobs", "memory.limit_in_bytes", "3000\n");
        let limits = |groups: &str| ControlGroups::new(groups, root.path()).limits().collect::<Vec<_>>();
        assert_eq!(limits("0::/user.slice/shell.scope\n"), [5000]);
        assert_eq!(limits("5:cpu:/\n4:cpuset,memory:/jobs\n0::/\n"), [3000, 9223372036854771712]);
        assert_eq!(limits("4:memory:/of/the/machine/outside\n"), [9223372036854771712]);
        assert!(limits("nonsense\n\n7:memory\n::").len() <= 1);
    }

    #[test]
    fn the_room_of_a_group_includes_its_page_cache() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join(file), text).unwrap();
        };
        write("a/b", "memory.max", "1000\n");
        write("a/b", "memory.current", "900\n");
        write("a", "memory.max", "max\n");
        write("a", "memory.current", "950\n");
        let rooms = |list: &str| ControlGroups::new(list, root.path()).rooms().collect::<Vec<_>>();
        assert_eq!(rooms("0::/a/b\n"), [100]);
        write("a/b", "memory.stat", "anon 300\nfile_mapped 9\nfile 600\n");
        assert_eq!(rooms("0::/a/b\n"), [700]);
        write("memory/c", "memory.limit_in_bytes", "5\n");
        write("memory/c", "memory.usage_in_bytes", "7\n");
        assert_eq!(rooms("4:memory:/c\n"), [0], "a group may exceed a limit that was lowered");
    }
}
