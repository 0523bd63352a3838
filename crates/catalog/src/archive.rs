//! Extraction of selected members of a zip archive: a wheel, or a package in one file.
//!
//! The contents of an archive are not trusted, even if its digest has been checked: names that leave the folder, links,
//! and members that are larger than stated or allowed are refused.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufReader, Read, Seek, Write},
    path::{Path, PathBuf},
};

use narthex_files::environment;
use narthex_spec::{
    ProgressSink, Sha256,
    manifest::{FileEntry, check_path},
    progress::{Stage, Unit},
};
use sha2::Digest;
use zip::ZipArchive;

use crate::{CancelFlag, check_cancel, error::Error, files::CHUNK};

/// Maximum unpacked size in bytes of the selected members. The largest pinned wheel needs 700 MB.
const UNPACKED_LIMIT: u64 = 16 << 30;

/// Maximum number of members.
const MEMBER_LIMIT: usize = 100_000;

/// Unpacks the members for which `choose` returns a path relative to `into`. Returns the files by that path.
///
/// Existing files are never overwritten; `into` must be empty. `title` names the archive in progress reports.
pub(crate) fn unpack(
    title: &str,
    archive: &Path,
    into: &Path,
    choose: &dyn Fn(&str) -> Option<String>,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<BTreeMap<String, FileEntry>, Error> {
    let members = Members { choose, limit: UNPACKED_LIMIT };
    unpack_members(title, archive, into, &members, progress, cancel)
}

/// Members to unpack.
pub(crate) struct Members<'a> {
    /// Returns the path of a member, as for [`unpack`].
    pub(crate) choose: &'a dyn Fn(&str) -> Option<String>,
    /// Maximum unpacked size of all of them, in bytes.
    pub(crate) limit: u64,
}

/// Unpacks members as [`unpack`], with another limit.
pub(crate) fn unpack_members(
    title: &str,
    archive: &Path,
    into: &Path,
    members: &Members<'_>,
    progress: &dyn ProgressSink,
    cancel: &CancelFlag,
) -> Result<BTreeMap<String, FileEntry>, Error> {
    let file = narthex_files::open_regular(archive).map_err(Error::io("open", archive))?;
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(bad_archive(archive))?;
    let chosen = chosen_members(archive, &mut zip, members)?;
    let total = chosen.iter().map(|member| member.bytes).sum();
    environment::check_space(into, total).map_err(Error::io("unpack", archive))?;
    let stage = Stage::start(progress, format!("Unpacking {title}"), Unit::Bytes, Some(total));

    let mut done = 0;
    let mut unpacked = BTreeMap::new();
    for member in chosen {
        let mut reader = zip.by_index(member.index).map_err(bad_archive(archive))?;
        let target = into.join(&member.path);
        let entry = copy_member(
            &mut reader,
            &target,
            &member,
            archive,
            &|bytes| stage.advance(done + bytes),
            cancel,
        )?;
        done += entry.bytes;
        unpacked.insert(member.path, entry);
    }
    Ok(unpacked)
}

/// A member to unpack.
struct ArchiveMember {
    index: usize,
    name: String,
    path: String,
    bytes: u64,
}

fn chosen_members(
    archive: &Path,
    zip: &mut ZipArchive<impl Read + Seek>,
    members: &Members<'_>,
) -> Result<Vec<ArchiveMember>, Error> {
    if zip.len() > MEMBER_LIMIT {
        return Err(hostile(archive, "", "is in an archive of more than 100000 members"));
    }

    let mut chosen = Vec::new();
    let mut total = 0u64;
    for index in 0..zip.len() {
        let member = zip.by_index_data(index).map_err(bad_archive(archive))?;
        let name = member.name().map_err(bad_archive(archive))?.into_owned();
        if member.is_dir() {
            continue;
        }
        let Some(path) = (members.choose)(&name) else { continue };
        if !is_plain(&path) || !is_plain(&name) {
            return Err(hostile(archive, &name, "would be written outside its folder"));
        }
        if member.is_symlink() {
            return Err(hostile(archive, &name, "is a link"));
        }
        total = total.saturating_add(member.size());
        if total > members.limit {
            return Err(hostile(archive, &name, "brings the unpacked size above the limit"));
        }
        chosen.push(ArchiveMember { index, name, path, bytes: member.size() });
    }
    Ok(chosen)
}

/// Returns true if a name stays inside the folder to which it is joined, on every platform.
pub(crate) fn is_plain(name: &str) -> bool {
    check_path(name).is_ok()
}

fn copy_member(
    reader: &mut impl Read,
    target: &PathBuf,
    member: &ArchiveMember,
    archive: &Path,
    seen: &dyn Fn(u64),
    cancel: &CancelFlag,
) -> Result<FileEntry, Error> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }

    let mut file = File::create_new(target).map_err(Error::io("create", target))?;
    let mut hasher = sha2::Sha256::new();
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut bytes = 0u64;
    loop {
        check_cancel(cancel)?;
        buffer.clear();
        // The decompressor returns small pieces; collecting whole chunks keeps progress reports rare.
        let count = reader
            .by_ref()
            .take(CHUNK as u64)
            .read_to_end(&mut buffer)
            // The checksum of the member is wrong, or its end is missing.
            .map_err(|source| bad_archive(archive)(source.into()))?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        if bytes > member.bytes {
            let path = archive.to_path_buf();
            let member = member.name.clone();
            return Err(Error::HostileArchive { path, member, reason: "is longer than the archive states" });
        }
        hasher.update(&buffer);
        file.write_all(&buffer).map_err(Error::io("write", target))?;
        seen(bytes);
    }
    Ok(FileEntry { bytes, sha256: Sha256(hasher.finalize().into()) })
}

/// Converts an error of the archive's format.
fn bad_archive(archive: &Path) -> impl Fn(zip::result::ZipError) -> Error {
    move |source| Error::BadArchive { path: archive.to_path_buf(), source }
}

fn hostile(archive: &Path, member: &str, reason: &'static str) -> Error {
    Error::HostileArchive { path: archive.to_path_buf(), member: member.chars().take(200).collect(), reason }
}

#[cfg(test)]
pub(crate) mod tests {
    use narthex_spec::progress::Quiet;
    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    /// Writes a wheel with the given members.
    pub(crate) fn write_wheel(path: &Path, members: &[(&str, &[u8])]) {
        let mut zip = ZipWriter::new(File::create(path).unwrap());
        for (name, bytes) in members {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
    }

    fn everything(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn names_that_leave_the_folder_are_not_plain() {
        for good in ["a", "a/b.txt", "a.b/c-d_e", "..a/b"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "c:\\a", "c:a", "a\\b", "a\0b"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }

    #[test]
    fn chosen_members_are_unpacked_with_their_digests() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("w.whl");
        write_wheel(&wheel, &[("p/a.bin", b"abc"), ("p/sub/b.bin", b""), ("q/c", b"no")]);
        let out = folder.path().join("out");
        let choose = |name: &str| name.strip_prefix("p/").map(str::to_owned);
        let files = unpack("w", &wheel, &out, &choose, &Quiet, &CancelFlag::new(false)).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a.bin", "sub/b.bin"]);
        assert_eq!(files["a.bin"], FileEntry { bytes: 3, sha256: Sha256::of(b"abc") });
        assert_eq!(fs::read(out.join("a.bin")).unwrap(), b"abc");
        assert!(!out.join("c").exists());
    }

    #[test]
    fn members_that_do_not_fit_are_refused_before_they_are_unpacked() {
        const MEMBERS: u64 = 4096;
        const STATED: u32 = u32::MAX - 1;
        let folder = tempfile::tempdir().unwrap();
        if environment::check_space(folder.path(), MEMBERS * u64::from(STATED)).is_ok() {
            return;
        }

        let wheel = folder.path().join("w.whl");
        let names: Vec<String> = (0..MEMBERS).map(|index| index.to_string()).collect();
        let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
        write_wheel(&wheel, &members);
        let mut bytes = fs::read(&wheel).unwrap();
        let entries: Vec<usize> =
            (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == *b"PK\x01\x02").collect();
        for entry in entries {
            bytes[entry + 24..entry + 28].copy_from_slice(&STATED.to_le_bytes());
        }
        fs::write(&wheel, bytes).unwrap();

        let out = folder.path().join("out");
        let all = Members { choose: &everything, limit: u64::MAX };
        let error = unpack_members("w", &wheel, &out, &all, &Quiet, &CancelFlag::new(false)).unwrap_err();
        assert!(error.to_string().contains("MB of free space") && !out.exists(), "{error}");
    }

    #[test]
    fn a_member_that_leaves_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["../evil", "/evil", "a/../../evil"] {
            let wheel = folder.path().join("w.whl");
            write_wheel(&wheel, &[(name, b"x")]);
            let out = folder.path().join("out");
            let result = unpack("w", &wheel, &out, &everything, &Quiet, &CancelFlag::new(false));
            assert!(matches!(result, Err(Error::HostileArchive { .. })), "{name}: {result:?}");
            assert!(!folder.path().join("evil").exists());
        }
    }

    #[test]
    fn a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("w.whl");
        let mut zip = ZipWriter::new(File::create(&wheel).unwrap());
        zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
        zip.finish().unwrap();
        let result =
            unpack("w", &wheel, &folder.path().join("out"), &everything, &Quiet, &CancelFlag::new(false));
        assert!(matches!(result, Err(Error::HostileArchive { reason: "is a link", .. })), "{result:?}");
    }

    #[test]
    fn damaged_archives_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("w.whl");
        // Digests cannot be compressed, so the flipped byte is in the data.
        let noise: Vec<u8> = (0u32..100).flat_map(|i| Sha256::of(&i.to_le_bytes()).0).collect();
        write_wheel(&wheel, &[("a", &noise), ("b", b"b")]);
        let whole = fs::read(&wheel).unwrap();
        let check = |bytes: &[u8], case: &str| {
            let (path, out) = (folder.path().join(format!("{case}.whl")), folder.path().join(case));
            fs::write(&path, bytes).unwrap();
            assert!(
                unpack("w", &path, &out, &everything, &Quiet, &CancelFlag::new(false)).is_err(),
                "{case}"
            );
        };
        check(&whole[..whole.len() / 2], "half");
        check(b"", "empty");
        let mut flipped = whole.clone();
        flipped[2000] ^= 0xff;
        check(&flipped, "flipped");
    }
}
