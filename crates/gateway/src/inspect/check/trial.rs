//! Trial of a graph with a vendor's compiler, in this process or in a subprocess that a crash of the compiler ends.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, ExitStatus, Stdio},
    sync::Arc,
};

use narthex_catalog::{
    keys::SECRET_VARIABLES,
    runtimes::{self, RuntimeKind},
};
use narthex_check::{CompilerResult, FallbackNode, FaultyNodes};
use narthex_device::{
    DeviceError,
    ep::{Device, QnnOptions},
    precompile::{LOG, control, record, save, try_out},
    runtime::Runtime,
};
use narthex_spec::{Ep, IntelChip, Target, progress::Quiet};
use shared_child::SharedChild;

use super::VendorCompiler;
use crate::{
    cancel::Cancel,
    child_process::signalled_end,
    error::Error,
    gateway::Gateway,
    intel::IntelCompiler,
    library::Library,
    load::runtime_choice::{cpu_library, cpu_runtime, register_verified},
};

/// Maximum bytes of a subprocess's answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Command of the subprocesses that try one graph each with a vendor's compiler.
///
/// The arguments are followed by a target, the graph's file, and a file for the JSON result of [`Gateway::try_out`]. Its
/// standard input is a pipe that closes when the caller's process ends; the program must then end, too. If
/// a signal ends the process before it has written the file, the compiler crashed. With a folder as a fourth argument,
/// the file is for the result of [`Gateway::control`], and [`Gateway::save`] and [`Gateway::record`] then fill the
/// folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialProgram {
    /// Executable.
    pub path: PathBuf,
    /// First arguments.
    pub arguments: Vec<OsString>,
}

/// An installed compiler.
pub(super) enum Trial<'a> {
    /// Runs in this process.
    InProcess { runtime: &'static Runtime, device: Device },
    /// Runs in a subprocess for each graph.
    Subprocess { program: &'a TrialProgram, library: &'a Library, target: &'a Target },
    /// Intel's compiler, which has a process of its own for each graph where wine runs it.
    Intel { compiler: IntelCompiler, chip: IntelChip },
}

impl Gateway {
    /// Compiles one graph with the compiler of a target, in this process. Returns `None` if the compiler is not
    /// installed.
    ///
    /// # Errors
    /// [`Error::Device`] if the compiler cannot be loaded, [`Error::Catalog`] if its library is damaged.
    pub fn try_out(
        &self,
        target: &Target,
        graph: &Path,
        cancel: &Cancel,
    ) -> Result<Option<CompilerResult>, Error> {
        let trial = Trial::new(self.library(), target, &VendorCompiler::InProcess, cancel)?;
        trial.map(|trial| trial.run(graph, cancel)).transpose()
    }

    /// Compiles one graph with the control backend of a target's provider, in this process. That backend accepts every
    /// valid graph for any chip, and writes its own form of it into a folder. Returns `None` without such a backend.
    ///
    /// # Errors
    /// The errors of [`Gateway::try_out`].
    pub fn control(
        &self,
        target: &Target,
        graph: &Path,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Option<CompilerResult>, Error> {
        match self.load_compiler(target, cancel)? {
            Some((runtime, device)) => {
                control(runtime, &device, graph, folder).map(compiler_result).transpose()
            }
            None => Ok(None),
        }
    }

    /// Compiles one graph with the saver backend of a target's provider, in this process. The backend writes its calls
    /// into the folder, for the vendor. During the call, `folder` is the working directory of the process.
    ///
    /// # Errors
    /// The errors of [`Gateway::try_out`], and [`Error::Io`].
    pub fn save(&self, target: &Target, graph: &Path, folder: &Path, cancel: &Cancel) -> Result<(), Error> {
        match self.load_compiler(target, cancel)? {
            Some((runtime, device)) => {
                save(runtime, &device, graph, folder).map_err(Error::io("work in", folder))
            }
            None => Ok(()),
        }
    }

    /// Compiles one graph again with the compiler of a target, in this process, and writes the compiler's log into a
    /// folder.
    ///
    /// # Errors
    /// The errors of [`Gateway::try_out`], and [`Error::Io`].
    pub fn record(&self, target: &Target, graph: &Path, folder: &Path, cancel: &Cancel) -> Result<(), Error> {
        match self.load_compiler(target, cancel)? {
            Some((runtime, device)) => write_log(runtime, &device, graph, folder),
            None => Ok(()),
        }
    }

    fn load_compiler(
        &self,
        target: &Target,
        cancel: &Cancel,
    ) -> Result<Option<(&'static Runtime, Device)>, Error> {
        Ok(match Trial::new(self.library(), target, &VendorCompiler::InProcess, cancel)? {
            Some(Trial::InProcess { runtime, device }) => Some((runtime, device)),
            Some(Trial::Subprocess { .. } | Trial::Intel { .. }) | None => None,
        })
    }
}

fn write_log(runtime: &Runtime, device: &Device, graph: &Path, folder: &Path) -> Result<(), Error> {
    record(runtime, device, graph, folder)
        .map_err(Error::io("write the log of the vendor's compiler in", folder))
}

impl<'a> Trial<'a> {
    /// Returns the compiler of a target, if it is installed and requested. Nothing is installed.
    pub(super) fn new(
        library: &'a Library,
        target: &'a Target,
        compiler: &'a VendorCompiler,
        cancel: &Cancel,
    ) -> Result<Option<Self>, Error> {
        let chips = match target {
            Target::Qnn(chips) => chips,
            Target::IntelNpu(chip) => return Self::intel(library, *chip, target, compiler, cancel),
            Target::OpenVino(_) => return Ok(None),
        };

        let plugin = runtimes::locate(&library.store, Ep::Qnn);
        let (Some(plugin), Some(core)) = (plugin, cpu_library(library)?) else { return Ok(None) };
        Ok(match compiler {
            VendorCompiler::Skip => None,
            VendorCompiler::Subprocess(program) => {
                // With damaged libraries, the subprocess would only end without an answer.
                for file in [&core, &plugin.library] {
                    runtimes::verify(&library.store, file, &Quiet, cancel.flag())?;
                }
                Some(Self::Subprocess { program, library, target })
            }
            VendorCompiler::InProcess => {
                let runtime = cpu_runtime(library, &Quiet, cancel)?;
                register_verified(library, runtime, &plugin, &Quiet, cancel)?;
                let device = Device::Qnn(QnnOptions::new(&plugin.library, chips));
                Some(Self::InProcess { runtime, device })
            }
        })
    }

    /// Returns Intel's compiler, if it is installed and requested.
    fn intel(
        library: &'a Library,
        chip: IntelChip,
        target: &'a Target,
        compiler: &'a VendorCompiler,
        cancel: &Cancel,
    ) -> Result<Option<Self>, Error> {
        if *compiler == VendorCompiler::Skip {
            return Ok(None);
        }
        let found = IntelCompiler::locate(library, cancel)?;
        Ok(found.map(|found| match compiler {
            // On Windows, a crash of the compiler would end this process.
            VendorCompiler::Subprocess(program) if cfg!(windows) => {
                Self::Subprocess { program, library, target }
            }
            _ => Self::Intel { compiler: found, chip },
        }))
    }

    /// Returns the version of Intel's compiler. That of Qualcomm's is part of the provider's.
    pub(super) fn version(&self) -> Option<String> {
        match self {
            Self::Intel { compiler, .. } => Some(compiler.version().to_owned()),
            Self::Subprocess { target: Target::IntelNpu(_), .. } => {
                runtimes::package(RuntimeKind::OpenVinoCompiler).map(|package| package.version.clone())
            }
            Self::Subprocess { .. } | Self::InProcess { .. } => None,
        }
    }

    /// Compiles a graph, without a search for faulty nodes.
    pub(super) fn run(&self, graph: &Path, cancel: &Cancel) -> Result<CompilerResult, Error> {
        cancel.check()?;
        match self {
            Self::InProcess { runtime, device } => compiler_result(try_out(runtime, device, graph)),
            Self::Intel { compiler, chip } => compiler.try_out(*chip, graph, cancel),
            Self::Subprocess { program, library, target } => {
                let scratch = library.store.scratch()?;
                let answer = scratch.path().join("answer.json");
                let status = TrialProcess::start(program, target, &[graph, &answer])?.wait(cancel)?;
                read_answer(&answer).map_or_else(|| process_end(status), Ok)
            }
        }
    }

    /// Writes the compiler's messages about a failing graph into a folder. Returns the result of the provider's control
    /// backend, if there is one.
    pub(super) fn record(
        &self,
        graph: &Path,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Option<CompilerResult>, Error> {
        cancel.check()?;
        match self {
            Self::InProcess { runtime, device } => {
                let result = control(runtime, device, graph, folder).map(compiler_result).transpose()?;
                write_log(runtime, device, graph, folder).map(|()| result)
            }
            Self::Intel { compiler, chip } => {
                let path = folder.join(LOG);
                let log = compiler.log(*chip, graph, cancel)?;
                fs::write(&path, log).map_err(Error::io("write", &path))?;
                Ok(None)
            }
            Self::Subprocess { program, library, target } => {
                let scratch = library.store.scratch()?;
                let answer = scratch.path().join("answer.json");
                // The exit status has no meaning, because the compiler fails on this graph.
                TrialProcess::start(program, target, &[graph, &answer, folder])?.wait(cancel)?;
                Ok(read_answer(&answer))
            }
        }
    }
}

/// Converts a compiler's outcome. Errors that prevented the compile stay errors.
fn compiler_result(outcome: Result<usize, DeviceError>) -> Result<CompilerResult, Error> {
    match outcome {
        Ok(nodes) => Ok(CompilerResult::Whole { nodes }),
        Err(DeviceError::NotWhole { nodes, refused, .. }) => {
            let elsewhere =
                refused.into_iter().map(|node| FallbackNode { path: node.name, why: node.reason });
            Ok(CompilerResult::Partly { elsewhere: elsewhere.collect(), nodes })
        }
        Err(DeviceError::Ort { message, .. }) => {
            Ok(CompilerResult::Failed { message, fault: FaultyNodes::NotSearched, evidence: None })
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a subprocess's answer, if it is complete.
fn read_answer(answer: &Path) -> Option<CompilerResult> {
    let bytes = narthex_files::read(answer, MAX_ANSWER_BYTES).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Returns the result of a subprocess without an answer. A signal means that the compiler crashed.
fn process_end(status: ExitStatus) -> Result<CompilerResult, Error> {
    let Some(how) = signalled_end(status) else {
        let source = io::Error::other(format!("it ended without an answer ({status})"));
        return Err(Error::Io { what: "the process of the vendor's compiler failed".to_owned(), source });
    };
    Ok(CompilerResult::Ended { how, fault: FaultyNodes::NotSearched, evidence: None })
}

/// A subprocess. Dropping it kills the process.
struct TrialProcess {
    child: Arc<SharedChild>,
    /// Pipe to the standard input of the subprocess. It closes when this process ends, even if it is killed.
    _input: Option<ChildStdin>,
}

impl TrialProcess {
    fn start(program: &TrialProgram, target: &Target, files: &[&Path]) -> Result<Self, Error> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg(target.to_string()).args(files);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        let child = SharedChild::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))
            .map_err(Error::io("start", &program.path))?;
        Ok(Self { _input: child.take_stdin(), child: Arc::new(child) })
    }

    /// Waits for the end of the process. Cancelling kills it.
    fn wait(self, cancel: &Cancel) -> Result<ExitStatus, Error> {
        let child = self.child.clone();
        let _callback = cancel.on_cancel(move || {
            // The process may have ended already.
            let _ = child.kill();
        });
        let status = self
            .child
            .wait()
            .map_err(|source| Error::Io { what: "cannot wait for the compiler's process".into(), source })?;
        cancel.check()?;
        Ok(status)
    }
}

impl Drop for TrialProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, load::runtime_choice::tests::pretend};

    #[test]
    fn a_subprocess_gets_verified_libraries() {
        let home = tempfile::tempdir().unwrap();
        // A library outside the store belongs to the user.
        let runtime = Some(home.path().join("libonnxruntime.so"));
        let config = Config { home: Some(home.path().join("home")), runtime, ..Config::standard() };
        let gateway = Gateway::open(config).unwrap();
        let library = gateway.library();
        let Some(plugin) = pretend(&library.store, Ep::Qnn) else { return };
        let program = TrialProgram { path: home.path().join("none"), arguments: Vec::new() };
        let compiler = VendorCompiler::Subprocess(program);
        let target = "qnn:x-elite".parse().unwrap();
        let error = Trial::new(library, &target, &compiler, &Cancel::new()).err().unwrap().to_string();
        assert!(error.contains(&format!("{} is damaged: expected SHA-256 ", plugin.display())), "{error}");
    }
}
