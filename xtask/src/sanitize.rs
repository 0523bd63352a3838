//! `cargo xtask sanitize`: runs the tests of the crates with `unsafe` code under AddressSanitizer.
//!
//! The sanitizer's runtime is part of stable Rust. The compiler's option is unstable, so `RUSTC_BOOTSTRAP` is set, only
//! for this build. ONNX Runtime and the QNN SDK are not instrumented: their own accesses are not checked, but their
//! allocations are. Leaks are not reported, because these libraries keep memory until the process ends.

use std::fs;

use anyhow::{Context, ensure};
use xtask_tools::{
    process,
    record::{self, RecordArgs},
    terminal,
    workspace::Workspace,
};

use crate::{fuzz::host, test, test_count::TestCount};

/// Crates of the product with `unsafe` code that runs here. The command line has six `unsafe` blocks, of which one reads the
/// action of a signal, and the others access no memory: they set the actions of signals and of Windows' console, and end the
/// process. Those of the catalogue and of the server are calls of Windows' registry and sockets.
const PACKAGES: [&str; 3] = ["narthex-kernels", "narthex-files", "narthex-device"];

/// Test programs that cannot run: OpenVINO loads a library with `RTLD_DEEPBIND`, which the sanitizer refuses, and the
/// sanitizer replaces the allocator that returns freed memory.
const LEFT_OUT: [&str; 2] = ["openvino", "freed_memory"];

/// Settings of the sanitizer. Narthex handles SIGBUS itself. One test requests more memory than the machine has.
const OPTIONS: &str =
    "detect_leaks=0:handle_sigbus=0:allow_user_segv_handler=1:allocator_may_return_null=1:halt_on_error=1";

/// Runs the tests and fails at the first invalid access.
pub(crate) fn run(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    ensure!(cfg!(all(target_os = "linux", target_arch = "x86_64")), "expected Linux on x86-64");
    let (commit, session) = test::prepare(workspace)?;
    let host = host()?;
    let mut rows = String::new();
    for package in PACKAGES {
        let mut count = TestCount::default();
        let mut tests = session.cargo(&["test", "--package", package, "--lib", "--target", &host]);
        for name in test_programs(workspace, package)? {
            tests.args(["--test", &name]);
        }
        tests
            .arg("--target-dir")
            .arg(workspace.target.join("sanitize"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env("ASAN_OPTIONS", OPTIONS);
        process::each_line(&mut tests, |line| {
            terminal::line(line);
            count.add(line);
        })
        .with_context(|| format!("{package} under AddressSanitizer ({count})"))?;
        rows.push_str(&format!("| {package} | {count} |\n"));
    }
    if args.record {
        record::write(workspace, record::CONFORMANCE, "sanitize", &page(&commit, &rows))?;
    }
    terminal::line("sanitize: no invalid access");
    Ok(())
}

/// Returns the names of a package's integration tests, except those in [`LEFT_OUT`].
fn test_programs(workspace: &Workspace, package: &str) -> anyhow::Result<Vec<String>> {
    let package = workspace.packages.iter().find(|found| found.name == package);
    let folder = workspace.root.join(&package.context("no such package")?.folder).join("tests");
    let entries = if folder.exists() { Some(fs::read_dir(folder)?) } else { None };
    let mut names = Vec::new();
    for entry in entries.into_iter().flatten() {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let is_program =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
        if is_program && !LEFT_OUT.contains(&name) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn page(commit: &str, rows: &str) -> String {
    let (day, platform) = (record::today(), record::platform());
    let [openvino, freed_memory] = LEFT_OUT;
    format!(
        "# Tests under AddressSanitizer, {day}\n\n`cargo xtask sanitize --record` on {commit}, {platform}. No invalid access. \
         ONNX Runtime and the QNN SDK are not instrumented. Left out: {openvino}, which loads a library in a way that \
         the sanitizer refuses, and {freed_memory}, whose allocator the sanitizer replaces.\n\n| crate | tests |\n|---|---|\n{rows}"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the number of `unsafe` blocks and implementations in the Rust files of a folder.
    fn unsafe_count(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let count = |path: std::path::PathBuf| match path.extension() {
            _ if path.is_dir() => unsafe_count(&path),
            Some(extension) if extension == "rs" => {
                let text = fs::read_to_string(&path).unwrap();
                text.matches("unsafe {").count() + text.matches("unsafe impl").count()
            }
            _ => 0,
        };
        entries.map(count).sum()
    }

    #[test]
    fn every_crate_with_unsafe_code_is_tested() {
        let workspace = Workspace::read().unwrap();
        for package in workspace.packages.iter().filter(|package| package.folder.starts_with("crates/")) {
            let count = unsafe_count(&workspace.root.join(&package.folder).join("src"));
            let expect = match package.name.as_str() {
                "narthex" => 6,
                "narthex-catalog" | "narthex-server" => 1,
                // The allocator that counts is part of tests only.
                "narthex-testkit" => continue,
                name if PACKAGES.contains(&name) => {
                    assert!(count > 0, "{name} has no unsafe code");
                    continue;
                }
                _ => 0,
            };
            assert_eq!(
                count, expect,
                "unsafe code of {}: run its tests under AddressSanitizer",
                package.name
            );
        }
    }

    #[test]
    fn all_other_test_programs_run() {
        let programs = test_programs(&Workspace::read().unwrap(), "narthex-device").unwrap();
        assert!(programs.contains(&"device".to_owned()) && programs.contains(&"qnn".to_owned()));
        assert!(!programs.contains(&"openvino".to_owned()) && programs.is_sorted(), "{programs:?}");
    }

    #[test]
    fn the_page_names_commit_and_counts() {
        let page = page("abc", "| narthex-files | 3 passed; 0 failed; 0 ignored |\n");
        assert!(page.contains("on abc,") && page.ends_with("3 passed; 0 failed; 0 ignored |\n"), "{page}");
    }
}
