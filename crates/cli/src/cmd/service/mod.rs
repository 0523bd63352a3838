//! `narthex service`: the server as a service of systemd, launchd or Windows' Task Scheduler.
//!
//! The service is one file that contains a mark. A file without the mark is never changed. [`compose`] returns the file
//! and the calls of the init system; no other part of this module depends on that system.

mod compose;
mod definition;
mod launchd;
mod systemd;
mod tasks;

use std::{
    env, fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context, bail};
use clap::Parser;
use narthex_gateway::Error;

use self::definition::{InitSystem, ServiceDefinition, ServiceScope, ServiceSettings};
use crate::{
    args::{Args, ServiceCommand, ServiceInstallArgs, ServiceScopeArgs, StoreArgs},
    exit::NegativeResult,
    output::{self, NewFile},
};

/// Marker that identifies files written by this command.
const FILE_MARKER: &str = "Written by `narthex service install`";

/// Maximum size of a service's file, in bytes.
const FILE_LIMIT: u64 = 1 << 20;

/// Groups whose members may use GPUs and NPUs.
const DEVICE_GROUPS: [&str; 3] = ["render", "video", "fastrpc"];

/// Runs a subcommand.
pub(crate) fn run(store: &StoreArgs, command: ServiceCommand) -> anyhow::Result<()> {
    match command {
        ServiceCommand::Install(args) => install(store, &args),
        ServiceCommand::Status(scope) => status(&compose::compose(&settings(store, scope, &[])?)?),
        ServiceCommand::Uninstall(scope) => uninstall(&compose::compose(&settings(store, scope, &[])?)?),
    }
}

/// Writes the file and starts the service, or prints the file. A failure restores the previous state.
fn install(store: &StoreArgs, args: &ServiceInstallArgs) -> anyhow::Result<()> {
    check_arguments(&args.arguments)?;
    let service = compose::compose(&settings(store, args.scope, &args.arguments)?)?;
    if args.print {
        return output::text(&service.text);
    }

    let earlier = earlier_file(&service.file)?;
    let probe = invoke(service.program, &service.probe)?;
    if !probe.status.success() {
        bail!(
            "{} does not answer, so nothing was installed: {}; user services need a login session of that user, and \
             on Linux `narthex service install --system`, as root, installs one for the machine",
            service.program,
            refusal(&service, &service.probe, &probe)
        );
    }

    if let Some(folder) = service.file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    NewFile::create(&service.file)?.write(&service.text)?;
    end(&service);
    if let Err(error) = service.start.iter().try_for_each(|arguments| call(&service, arguments)) {
        restore(&service, earlier)?;
        return Err(error);
    }
    output::note(format!("installed and started the {} {}", service.kind, service.name));
    if let Some(advice) = service.advice {
        output::note(advice);
    }
    output::line(service.file.display())
}

/// Restores the file of an earlier installation, or removes the new one.
fn restore(service: &ServiceDefinition, earlier: Option<String>) -> anyhow::Result<()> {
    let restored = match earlier {
        Some(text) => NewFile::create(&service.file).and_then(|file| file.write(&text)),
        None => {
            // The service may have been registered before the failure.
            let _ = service.stop.iter().try_for_each(|arguments| call(service, arguments));
            fs::remove_file(&service.file).map_err(anyhow::Error::new)
        }
    };
    restored.with_context(|| format!("cannot restore {}", service.file.display()))?;
    // The init system itself may have failed.
    let _ = service.forget.iter().try_for_each(|arguments| call(service, arguments));
    Ok(())
}

/// Prints the file and the state of the service; fails unless it runs.
fn status(service: &ServiceDefinition) -> anyhow::Result<()> {
    check_installed(service, "; install it with `narthex service install`")?;
    let call = &service.state;
    let output = invoke(call.program, &call.arguments)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (runs, state) = call.output.state(output.status.success(), &text);
    output::line(format!("{}: {state}", service.name))?;
    output::line(service.file.display())?;
    if runs { Ok(()) } else { Err(NegativeResult::Stopped.into()) }
}

/// Stops the service and removes its file.
fn uninstall(service: &ServiceDefinition) -> anyhow::Result<()> {
    check_installed(service, ", so nothing was removed")?;
    end(service);
    service.stop.iter().try_for_each(|arguments| call(service, arguments))?;
    fs::remove_file(&service.file).with_context(|| format!("cannot remove {}", service.file.display()))?;
    service.forget.iter().try_for_each(|arguments| call(service, arguments))?;
    output::note(format!("stopped the {} and removed {}", service.kind, service.file.display()));
    Ok(())
}

/// Ends a running service, unless the calls that replace or remove it do so.
fn end(service: &ServiceDefinition) {
    // The service may not run.
    let _ = service.end.as_ref().map(|arguments| invoke(service.program, arguments));
}

/// Refuses arguments that `serve` would refuse.
fn check_arguments(arguments: &[String]) -> anyhow::Result<()> {
    let words = ["narthex", "serve"].into_iter().chain(arguments.iter().map(String::as_str));
    let Err(error) = Args::try_parse_from(words) else { return Ok(()) };
    let text = error.to_string();
    let reason = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    Err(Error::Invalid { param: "arguments", message: format!("arguments of serve: {reason}") }.into())
}

/// Returns the text of the installed file, if there is one.
///
/// A file without the mark was not written by Narthex.
fn earlier_file(file: &Path) -> anyhow::Result<Option<String>> {
    match narthex_files::read(file, FILE_LIMIT).map(String::from_utf8) {
        Ok(Ok(text)) if text.contains(FILE_MARKER) => Ok(Some(text)),
        Ok(_) => bail!(
            "{} was not written by `narthex service install`; remove or rename it first",
            file.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Refuses a service that is not installed. The message ends with `consequence`.
fn check_installed(service: &ServiceDefinition, consequence: &str) -> anyhow::Result<()> {
    if earlier_file(&service.file)?.is_some() {
        return Ok(());
    }
    let message =
        format!("the {} is not installed: there is no {}{consequence}", service.kind, service.file.display());
    Err(io::Error::new(ErrorKind::NotFound, message).into())
}

/// Calls the init system, which must succeed.
fn call(service: &ServiceDefinition, arguments: &[String]) -> anyhow::Result<()> {
    let output = invoke(service.program, arguments)?;
    if output.status.success() { Ok(()) } else { Err(refusal(service, arguments, &output)) }
}

/// Returns the error of a call that failed.
fn refusal(service: &ServiceDefinition, arguments: &[String], output: &Output) -> anyhow::Error {
    let text =
        String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    let reason = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason was given");
    anyhow::anyhow!("`{} {}` failed: {reason}", service.program, arguments.join(" "))
}

fn invoke(program: &str, arguments: &[String]) -> anyhow::Result<Output> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!(
            "{program} was not found; services need {program} here, and `narthex service install --print` prints the file \
             for another system"
        ),
        _ => anyhow::Error::new(error).context(format!("{program} cannot be started")),
    })
}

/// Returns the settings of the service on this machine.
fn settings(
    store: &StoreArgs,
    scope: ServiceScopeArgs,
    arguments: &[String],
) -> anyhow::Result<ServiceSettings> {
    let home = store.home.clone().or_else(|| path_variable("NARTHEX_HOME"));
    let home = home.map(std::path::absolute).transpose().context("cannot determine the path of the store")?;
    let user_home = path_variable("HOME").or_else(|| path_variable("USERPROFILE"));
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let groups: Vec<&str> = groups.lines().filter_map(|line| line.split(':').next()).collect();
    Ok(ServiceSettings {
        init: InitSystem::of_this_system(),
        scope: if scope.system { ServiceScope::System } else { ServiceScope::User },
        program: env::current_exe().context("cannot find the path of this program")?,
        arguments: arguments.to_vec(),
        store: home,
        user_home: user_home.context("HOME is not set; set it to your home folder")?,
        config: path_variable("XDG_CONFIG_HOME"),
        groups: DEVICE_GROUPS.into_iter().filter(|name| groups.contains(name)).collect(),
    })
}

fn path_variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
