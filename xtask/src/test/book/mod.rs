//! Checks of the book and the README: the book builds, its links are valid, and its commands work.
//!
//! Blocks of `sh` and `console` run in a shell, over a copy of the store for each page. The lines of a `console` block
//! that are not commands must occur in the output. `narthex serve` starts a server that runs until the end of the page,
//! and blocks of `python` send requests to it. A block with `no-run` after its language is left out: it needs hardware
//! or the network, or it has placeholders. `cargo run --release --` is replaced by `narthex` as built for the tests.

mod blocks;
mod links;
mod pages;

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

use self::{
    blocks::{Block, Language, Line},
    pages::Page,
};
use super::cargo_tool::CargoTool;
use xtask_tools::{process, python::VirtualEnvironment, server::Server, session::Session, terminal};

use crate::sdk;

/// The program that builds the book. It is built without its server and its search, and without optimisation, because
/// the book is small.
const MDBOOK: CargoTool = CargoTool { name: "mdbook", version: "0.5.4", options: &["--no-default-features"] };

/// Address of the server in the pages.
const SHOWN_ADDRESS: &str = "127.0.0.1:8000";

/// Builds the book, checks its links and runs the blocks of its pages and of the README.
pub(super) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let pages = Page::read_all(&session.workspace.root)?;
    let mdbook = MDBOOK.find(session)?;
    let book = session.workspace.target.join("book");
    let mut build = session.command(mdbook);
    process::run(build.arg("build").arg(session.workspace.root.join("docs")).arg("--dest-dir").arg(&book))?;
    let broken = links::broken(&book)?;
    ensure!(broken.is_empty(), "the book has broken links:\n{}", broken.join("\n"));
    let reader = Reader::new(session)?;
    let mut count = 0;
    for page in &pages {
        count += reader.follow(page)?;
    }
    Ok(format!("{} pages, {count} blocks of commands", pages.len()))
}

/// Programs that the blocks of every page use.
struct Reader<'a> {
    session: &'a Session<'a>,
    python: VirtualEnvironment,
    /// `PATH` of the commands.
    path: OsString,
}

/// A page whose blocks are run, with its own copy of the store and an empty folder.
struct FollowedPage<'a> {
    reader: &'a Reader<'a>,
    /// Session with the copy of the store.
    session: Session<'a>,
    /// Current folder of the commands.
    folder: PathBuf,
    /// Server that a command of the page has started.
    server: Option<Server>,
}

impl<'a> Reader<'a> {
    fn new(session: &'a Session<'a>) -> anyhow::Result<Self> {
        let narthex = session.build_narthex()?;
        let python = sdk::environment(session)?;
        let programs = narthex.parent().map(Path::to_owned);
        let earlier = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(programs.into_iter().chain(env::split_paths(&earlier)))?;
        Ok(Self { session, python, path })
    }

    /// Runs the blocks of a page and returns their number.
    fn follow(&self, page: &Page) -> anyhow::Result<usize> {
        let blocks: Vec<Block> = blocks::blocks(&page.text).into_iter().filter(|block| block.runs).collect();
        if blocks.is_empty() {
            return Ok(0);
        }
        let mut followed = FollowedPage::new(self)?;
        for block in &blocks {
            terminal::line(format!("{}:{}", page.path, block.line));
            followed.run(block).with_context(|| format!("{}:{}", page.path, block.line))?;
        }
        Ok(blocks.len())
    }
}

impl<'a> FollowedPage<'a> {
    fn new(reader: &'a Reader<'a>) -> anyhow::Result<Self> {
        let workspace = reader.session.workspace;
        let folder = workspace.target.join("book-reader");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let home = folder.join("home");
        copy(&reader.session.home, &home)?;
        Ok(Self { reader, session: Session { workspace, home }, folder, server: None })
    }

    fn run(&mut self, block: &Block) -> anyhow::Result<()> {
        if block.language == Language::Python {
            let Some(server) = &self.server else {
                bail!("a block of Python needs `narthex serve` before it on the page, or `no-run`");
            };
            let script = block.text.replace(SHOWN_ADDRESS, &server.address);
            process::output(self.session.command(&self.reader.python.python).args(["-c", &script]))?;
            return Ok(());
        }
        for line in block.lines()? {
            match line {
                Line::Serve(arguments) => {
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    let log = self.folder.join("server.log");
                    self.server = Some(Server::start(&self.session, &log, &arguments)?);
                }
                Line::Command { text, output } => {
                    let found = self.shell(&text)?;
                    if let Some(missing) = blocks::missing(&output, &found) {
                        bail!("`{text}` does not print {missing:?}; it prints:\n{found}");
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs a command and returns its output.
    fn shell(&self, text: &str) -> anyhow::Result<String> {
        let mut shell = self.session.command("sh");
        shell.args(["-euc", text]).current_dir(&self.folder).env("PATH", &self.reader.path);
        let printed = process::output(&mut shell).with_context(|| format!("`{text}`"))?;
        Ok(printed.stdout + &printed.stderr)
    }
}

/// Folder of a store with files whose inodes and times the store records.
const MACHINE: &str = "machine";

/// Copies a store. Files become hard links if the file system supports them, because the files of a store never change.
/// A link changes the times of a file, so the files of [`MACHINE`] are copied.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let is_linked = || !path.iter().any(|part| part == MACHINE) && fs::hard_link(&path, &target).is_ok();
        if entry.file_type()?.is_dir() {
            copy(&path, &target)?;
        } else if !is_linked() {
            fs::copy(&path, &target).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
