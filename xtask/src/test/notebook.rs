//! The example notebook, run without a browser. Every cell must succeed, and the plot must exist.

use std::fs;

use anyhow::ensure;
use xtask_tools::{process, python::VirtualEnvironment, session::Session};

/// The notebook, relative to the root.
const NOTEBOOK: &str = "examples/plot_bench.ipynb";

/// Packages that are needed to run it.
const PACKAGES: [&str; 3] = ["nbclient==0.11.0", "ipykernel==7.4.0", "matplotlib==3.11.2"];

/// Python program that runs every cell of the notebook in the first argument.
const RUN: &str = "import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name='python3').execute()
print(len(notebook.cells), 'cells')";

/// Runs the notebook with the program of this workspace.
pub(super) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let folder = session.workspace.target.join("notebook");
    let environment = VirtualEnvironment::prepare(session, &folder)?;
    environment.install(session, "notebook", &PACKAGES)?;
    let narthex = session.build_narthex()?;
    let plot = folder.join("bench.png");
    // A plot from an earlier run must not count.
    let _ = fs::remove_file(&plot);
    let mut run = session.command(&environment.python);
    run.args(["-c", RUN]).arg(session.workspace.root.join(NOTEBOOK));
    let printed = process::output(run.env("NARTHEX", narthex).env("PLOT", &plot))?;
    ensure!(
        fs::read(&plot).is_ok_and(|bytes| bytes.starts_with(b"\x89PNG")),
        "{NOTEBOOK} wrote no {}",
        plot.display()
    );
    Ok(format!("{NOTEBOOK}: {}", printed.stdout.trim()))
}
