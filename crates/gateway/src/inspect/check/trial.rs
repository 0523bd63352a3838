//! A vendor's compiler and one graph: what it makes of it, in this process or in one of its own, which a compiler that
//! crashes takes down alone.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use narthex_catalog::runtimes;
use narthex_check::{CompilerResult, FallbackNode, FaultyNodes, ProcessEnd};
use narthex_device::{
    DeviceError,
    ep::{Device, QnnOptions},
    precompile::{control, record, save, try_out},
    runtime::Runtime,
};
use narthex_spec::{Ep, Target, progress::Quiet};

use super::VendorCompiler;
use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    library::Library,
    load::runtime_choice::{cpu_library, cpu_runtime},
};

/// How often a process is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The most bytes of an answer that are read.
const MOST_ANSWER: u64 = 64 << 20;

/// How processes are started that let a vendor's compiler have one graph each.
///
/// Behind the arguments they are given a target, a graph's file, and a file for what [`Gateway::try_out`] makes of the two,
/// as JSON. One that a signal ends before it has written that was ended by the compiler. A fourth is a folder: then the file
/// is for what [`Gateway::control`] says, and [`Gateway::save`] and [`Gateway::record`] fill the folder after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialProgram {
    /// The executable.
    pub path: PathBuf,
    /// What it is given first.
    pub arguments: Vec<OsString>,
}

/// A compiler that is installed, and where it runs.
pub(super) enum Trial<'a> {
    /// In this process.
    InProcess(&'static Runtime, Device),
    /// In a process for each graph.
    Subprocess(&'a TrialProgram, &'a Library, &'a Target),
}

impl Gateway {
    /// Lets the compiler of a target have one graph, in this process; `None` where it is not installed. Nothing is
    /// installed for it.
    ///
    /// # Errors
    /// [`Error::Device`] where the compiler cannot be loaded.
    pub fn try_out(
        &self,
        target: &Target,
        graph: &Path,
        cancel: &Cancel,
    ) -> Result<Option<CompilerResult>, Error> {
        let trial = Trial::of(self.library(), target, &VendorCompiler::InProcess, cancel)?;
        trial.map(|trial| trial.run(graph, cancel)).transpose()
    }

    /// Lets the control backend of a target's provider have one graph, in this process: one that takes every sound graph,
    /// whatever the chip, and writes its own form of it into a folder. `None` where there is none.
    ///
    /// # Errors
    /// As [`Gateway::try_out`].
    pub fn control(
        &self,
        target: &Target,
        graph: &Path,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Option<CompilerResult>, Error> {
        match Trial::of(self.library(), target, &VendorCompiler::InProcess, cancel)? {
            Some(Trial::InProcess(runtime, device)) => {
                control(runtime, &device, graph, folder).map(told).transpose()
            }
            _ => Ok(None),
        }
    }

    /// Lets the saver of a target's provider have one graph, in this process, which works in the folder for the while: each call
    /// of its backend is written there, for the vendor.
    ///
    /// # Errors
    /// As [`Gateway::try_out`], and [`Error::Io`].
    pub fn save(&self, target: &Target, graph: &Path, folder: &Path, cancel: &Cancel) -> Result<(), Error> {
        match Trial::of(self.library(), target, &VendorCompiler::InProcess, cancel)? {
            Some(Trial::InProcess(runtime, device)) => {
                let failed =
                    |source| Error::Io { what: format!("cannot work in {}", folder.display()), source };
                save(runtime, &device, graph, folder).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// Lets the compiler of a target have one graph again, in this process, and has what it tells on the way written into a
    /// folder.
    ///
    /// # Errors
    /// As [`Gateway::try_out`], and [`Error::Io`].
    pub fn record(&self, target: &Target, graph: &Path, folder: &Path, cancel: &Cancel) -> Result<(), Error> {
        match Trial::of(self.library(), target, &VendorCompiler::InProcess, cancel)? {
            Some(Trial::InProcess(runtime, device)) => written(runtime, &device, graph, folder),
            _ => Ok(()),
        }
    }
}

/// [`record`] with its error as ours.
fn written(runtime: &Runtime, device: &Device, graph: &Path, folder: &Path) -> Result<(), Error> {
    let what = || format!("the log of the vendor's compiler in {}", folder.display());
    record(runtime, device, graph, folder).map_err(|source| Error::Io { what: what(), source })
}

impl<'a> Trial<'a> {
    /// The compiler of a target, where it is installed and wanted.
    pub(super) fn of(
        library: &'a Library,
        target: &'a Target,
        asked: &'a VendorCompiler,
        cancel: &Cancel,
    ) -> Result<Option<Self>, Error> {
        let Target::Qnn(chips) = target else { return Ok(None) };
        let found = runtimes::locate(&library.store, Ep::Qnn);
        let (Some(plugin), Some(_)) = (found, cpu_library(library)?) else { return Ok(None) };
        Ok(match asked {
            VendorCompiler::Skip => None,
            VendorCompiler::Subprocess(program) => Some(Self::Subprocess(program, library, target)),
            VendorCompiler::InProcess => {
                let runtime = cpu_runtime(library, &Quiet, cancel)?;
                runtime.register(target.ep(), &plugin.library)?;
                Some(Self::InProcess(runtime, Device::Qnn(QnnOptions::new(&plugin.library, chips))))
            }
        })
    }

    /// What the compiler makes of a graph. Nodes at fault are not sought.
    pub(super) fn run(&self, graph: &Path, cancel: &Cancel) -> Result<CompilerResult, Error> {
        cancel.check()?;
        match self {
            Self::InProcess(runtime, device) => told(try_out(runtime, device, graph)),
            Self::Subprocess(program, library, target) => {
                let scratch = library.store.scratch()?;
                let answer = scratch.path().join("answer.json");
                let files = [graph, answer.as_path()];
                let status = TrialProcess::start(program, target, &files)?.end(cancel)?;
                read(&answer).map_or_else(|| ended(status), Ok)
            }
        }
    }

    /// Has everything that the compiler tells of a graph on which it fails written into a folder, and gives what the
    /// provider's control makes of it, where there is one.
    pub(super) fn record(
        &self,
        graph: &Path,
        folder: &Path,
        cancel: &Cancel,
    ) -> Result<Option<CompilerResult>, Error> {
        cancel.check()?;
        match self {
            Self::InProcess(runtime, device) => {
                let found = control(runtime, device, graph, folder).map(told).transpose()?;
                written(runtime, device, graph, folder).map(|()| found)
            }
            Self::Subprocess(program, library, target) => {
                let scratch = library.store.scratch()?;
                let answer = scratch.path().join("answer.json");
                let files = [graph, answer.as_path(), folder];
                // However it ends: the graph is one on which the compiler does not end well.
                TrialProcess::start(program, target, &files)?.end(cancel)?;
                Ok(read(&answer))
            }
        }
    }
}

/// A compiler's outcome as a check records it. What keeps it from being asked stays an error.
fn told(outcome: Result<usize, DeviceError>) -> Result<CompilerResult, Error> {
    match outcome {
        Ok(nodes) => Ok(CompilerResult::Whole { nodes }),
        Err(DeviceError::NotWhole { nodes, refused, .. }) => {
            let left = refused.into_iter().map(|node| FallbackNode { path: node.name, why: node.reason });
            Ok(CompilerResult::Partly { elsewhere: left.collect(), nodes })
        }
        Err(DeviceError::Ort { message, .. }) => {
            Ok(CompilerResult::Failed { message, fault: FaultyNodes::NotSought, evidence: None })
        }
        Err(error) => Err(error.into()),
    }
}

/// A process's answer, where it gave a whole one.
fn read(answer: &Path) -> Option<CompilerResult> {
    let mut bytes = Vec::new();
    File::open(answer).ok()?.take(MOST_ANSWER).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The end of a process that gave no answer: the compiler's doing where it was none of the program's own.
fn ended(status: ExitStatus) -> Result<CompilerResult, Error> {
    let how = match signal(status) {
        Some(SIGKILL) => ProcessEnd::Killed,
        Some(_) => ProcessEnd::Crashed(status.to_string()),
        None => {
            let source = io::Error::other(format!("it ended without an answer ({status})"));
            return Err(Error::Io { what: "the process of the vendor's compiler".to_owned(), source });
        }
    };
    Ok(CompilerResult::Ended { how, fault: FaultyNodes::NotSought, evidence: None })
}

/// What ends a process from outside.
const SIGKILL: i32 = 9;

/// The signal that ended a process.
#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

/// The exception that ended a process: Windows gives its number, which is below zero, as the exit code.
#[cfg(not(unix))]
fn signal(status: ExitStatus) -> Option<i32> {
    status.code().filter(|&code| code < 0)
}

/// A process that is killed when it is dropped before its end.
struct TrialProcess(Child);

impl TrialProcess {
    fn start(program: &TrialProgram, target: &Target, files: &[&Path]) -> Result<Self, Error> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg(target.to_string()).args(files);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        child.map(Self).map_err(|source| Error::Io { what: program.path.display().to_string(), source })
    }

    fn end(mut self, cancel: &Cancel) -> Result<ExitStatus, Error> {
        loop {
            cancel.check()?;
            let looked = self.0.try_wait();
            match looked
                .map_err(|source| Error::Io { what: "wait for the compiler's process".into(), source })?
            {
                Some(status) => return Ok(status),
                None => thread::sleep(POLL),
            }
        }
    }
}

impl Drop for TrialProcess {
    fn drop(&mut self) {
        // A process that has ended already is no failure.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
