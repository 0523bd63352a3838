//! `cargo xtask docs`: writes the pages of the book that follow from the sources.
//!
//! The pages are computed by tests, which compare them with the files whenever the tests run; this command runs the ignored
//! ones, which write the files.

use crate::{process, session::Session, workspace::Workspace};

/// Arguments of `cargo test` for each page.
const PAGES: [&[&str]; 2] = [
    &["--bin", "narthex", "write_the_page_about_the_command_line"],
    &["--test", "catalogue_page", "write_the_page_about_the_catalogue"],
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
