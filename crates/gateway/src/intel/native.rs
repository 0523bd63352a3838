//! Intel's compiler on Windows, in this process.

use std::path::{Path, PathBuf};

use narthex_catalog::{runtimes::RuntimeInfo, store::Store};
use narthex_device::openvino_compiler;

use super::{
    answer::{CompilerAnswer, CompilerOutcome},
    unusable,
};
use crate::{cancel::Cancel, error::Error};

/// The compiler in this process.
pub(super) struct NativeRunner {
    library: PathBuf,
}

impl NativeRunner {
    /// Returns the compiler of an installed runtime.
    pub(super) fn prepare(_: &Store, runtime: &RuntimeInfo) -> Result<Self, Error> {
        Ok(Self { library: runtime.library.clone() })
    }

    /// Compiles a graph for a platform into a new file. A compile cannot be interrupted.
    pub(super) fn compile(
        &self,
        graph: &Path,
        blob: &Path,
        platform: u32,
        cancel: &Cancel,
    ) -> Result<CompilerAnswer, Error> {
        cancel.check()?;
        let outcome = match openvino_compiler::compile(&self.library, graph, blob, platform) {
            Ok(Ok(())) => CompilerOutcome::Compiled,
            Ok(Err(message)) => CompilerOutcome::Refused(message),
            Err(error) => return Err(unusable(format!("its library cannot be loaded: {error}"))),
        };
        Ok(CompilerAnswer { outcome, log: String::new() })
    }
}
