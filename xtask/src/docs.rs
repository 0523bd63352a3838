//! `cargo xtask docs`: writes the pages of the book that are generated from the sources.
//!
//! Tests generate the pages and compare them with the files. This command runs ignored tests, which write the files.

use xtask_tools::{process, session::Session, workspace::Workspace};

/// Arguments of `cargo test` for each page.
const PAGES: [&[&str]; 2] = [
    &["--bin", "narthex", "write_the_page_about_the_command_line"],
    &["--test", "gateway", "write_the_page_about_the_catalogue"],
];

/// Writes every page.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    for page in PAGES {
        let mut test = session.cargo(&["test", "--quiet", "--workspace"]);
        process::run(test.args(page).args(["--", "--ignored"]))?;
    }
    Ok(())
}
