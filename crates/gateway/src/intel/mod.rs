//! Intel's compiler for NPUs, which needs no NPU. It is published for Windows. There it runs in this process; on Linux, wine
//! runs it in a process for each graph.

pub(crate) mod answer;
#[cfg(windows)]
mod native;
#[cfg(unix)]
mod process;
#[cfg(unix)]
mod wine;

use std::path::Path;

use narthex_catalog::{
    runtimes::{self, RuntimeKind},
    store::Store,
};
use narthex_check::CompilerResult;
use narthex_graph::{Graph, onnx::files::MAX_FILE_BYTES};
use narthex_spec::{IntelChip, progress::Quiet};

#[cfg(windows)]
use native::NativeRunner as Runner;
#[cfg(unix)]
use wine::WineRunner as Runner;

use self::answer::CompilerAnswer;
use crate::{cancel::Cancel, error::Error, library::Library};

/// Command that installs the compiler.
pub(crate) const INSTALL: &str = "narthex runtime install openvino-compiler";

/// The installed compiler.
pub(crate) struct IntelCompiler {
    store: Store,
    runner: Runner,
    version: String,
}

impl IntelCompiler {
    /// Returns the compiler if it is installed; nothing is installed.
    ///
    /// # Errors
    /// [`Error::IntelCompiler`] if a program that it needs is missing, [`Error::Catalog`] if its files are damaged.
    pub(crate) fn locate(library: &Library, cancel: &Cancel) -> Result<Option<Self>, Error> {
        let store = &library.store;
        let Some(runtime) = runtimes::locate(store, RuntimeKind::OpenVinoCompiler) else { return Ok(None) };
        runtimes::verify(store, &runtime.library, &Quiet, cancel.flag())?;
        let runner = Runner::prepare(store, &runtime)?;
        Ok(Some(Self { store: store.clone(), runner, version: runtime.version }))
    }

    /// Returns the version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Compiles a graph for a chip without keeping the result.
    pub(crate) fn try_out(
        &self,
        chip: IntelChip,
        graph: &Path,
        cancel: &Cancel,
    ) -> Result<CompilerResult, Error> {
        let answer = self.answer(chip, graph, cancel)?;
        let nodes =
            narthex_files::read(graph, MAX_FILE_BYTES).ok().and_then(|bytes| Graph::decode(&bytes).ok());
        Ok(answer.result(nodes.map_or(0, |graph| graph.nodes.len())))
    }

    /// Compiles a graph for a chip without keeping the result, and returns the compiler's log.
    pub(crate) fn log(&self, chip: IntelChip, graph: &Path, cancel: &Cancel) -> Result<String, Error> {
        self.answer(chip, graph, cancel).map(|answer| answer.log)
    }

    fn answer(&self, chip: IntelChip, graph: &Path, cancel: &Cancel) -> Result<CompilerAnswer, Error> {
        let scratch = self.store.scratch()?;
        self.compile(chip, graph, &scratch.path().join("graph.blob"), cancel)
    }

    /// Compiles a graph for a chip into a new file.
    pub(crate) fn compile(
        &self,
        chip: IntelChip,
        graph: &Path,
        blob: &Path,
        cancel: &Cancel,
    ) -> Result<CompilerAnswer, Error> {
        self.runner.compile(graph, blob, chip.spec().platform, cancel)
    }
}

/// Error for a compiler that cannot be used.
fn unusable(reason: String) -> Error {
    let hint = "`narthex check --rules-only` checks without the compiler";
    let message = format!("Intel's compiler cannot be used: {reason}");
    Error::IntelCompiler { message, hint: hint.to_owned() }
}

/// Error for a missing program, which a package of Debian has.
#[cfg(unix)]
fn missing(program: &str, package: &str) -> Error {
    Error::IntelCompiler {
        message: format!("Intel's compiler cannot be used: {program} is not installed"),
        hint: format!(
            "install the package {package} (`apt install {package}` on Debian and Ubuntu), or remove the compiler with \
             `narthex runtime rm openvino-compiler`"
        ),
    }
}
