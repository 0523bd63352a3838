//! The unit of systemd. A service of a user has the restrictions that need no privileges; a service of the machine runs
//! as a user of its own and sees the system read-only.

use std::path::{Path, PathBuf};

use super::{
    FILE_MARKER,
    definition::{ServiceDefinition, ServiceScope, ServiceSettings, StateCall, StateOutput, words},
};

const NAME: &str = "narthex.service";

const PROGRAM: &str = "systemctl";

/// Restrictions of both kinds. A filter on system calls refuses with an error, so that a library can do without one.
const RESTRICTIONS: &str = "NoNewPrivileges=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
";

/// Restrictions of a service of the machine. Devices stay visible: NPUs and GPUs have too many names to list.
const SYSTEM_RESTRICTIONS: &str = "DynamicUser=yes
StateDirectory=narthex
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectProc=invisible
RemoveIPC=yes
CapabilityBoundingSet=
";

/// Folder of a service of the machine, which `StateDirectory` creates.
const SYSTEM_STORE: &str = "/var/lib/narthex";

/// Composes the unit and its calls.
pub(super) fn service(settings: &ServiceSettings) -> ServiceDefinition {
    let is_system = settings.scope == ServiceScope::System;
    let config = settings.config.clone().unwrap_or_else(|| settings.user_home.join(".config"));
    let file = match is_system {
        true => PathBuf::from("/etc/systemd/system").join(NAME),
        false => config.join("systemd/user").join(NAME),
    };
    let call = |text: &str| words(&if is_system { text.to_owned() } else { format!("--user {text}") });
    let state = StateCall {
        program: PROGRAM,
        arguments: call("is-active narthex.service"),
        output: StateOutput::State,
    };

    ServiceDefinition {
        name: NAME,
        kind: "service",
        file,
        text: unit(settings),
        program: PROGRAM,
        probe: call("list-units narthex.service --no-pager"),
        end: None,
        start: ["daemon-reload", "enable narthex.service", "restart narthex.service"].map(call).to_vec(),
        stop: vec![call("disable --now narthex.service")],
        forget: vec![call("daemon-reload")],
        state,
        advice: (!is_system).then_some(
            "It runs from login to logout; `loginctl enable-linger` keeps it running without a login.",
        ),
    }
}

fn unit(settings: &ServiceSettings) -> String {
    let is_system = settings.scope == ServiceScope::System;
    let store = settings.store.as_deref().or(is_system.then_some(Path::new(SYSTEM_STORE)));
    let command: Vec<String> = settings.command(store).iter().map(|word| quoted(word)).collect();
    let target = if is_system { "multi-user.target" } else { "default.target" };

    let mut unit = format!(
        "# {FILE_MARKER}; it replaces this file, and `narthex service uninstall` removes it.\n\
         # Variables such as NARTHEX_API_KEY and HF_TOKEN belong in the EnvironmentFile, one NAME=VALUE in a line.\n\n\
         [Unit]\nDescription=Narthex, language models behind the OpenAI API\n"
    );
    if is_system {
        unit.push_str("Wants=network-online.target\nAfter=network-online.target\n");
    }
    unit.push_str(&format!(
        "\n[Service]\nType=exec\nExecStart={}\nExecReload=/bin/kill -HUP $MAINPID\nEnvironmentFile=-%E/narthex/environment\nEnvironment=ORT_DISABLE_TELEMETRY=1\n\
         Restart=on-failure\nRestartSec=5\nTimeoutStopSec=60\n\n{RESTRICTIONS}",
        command.join(" ")
    ));
    if is_system {
        unit.push_str(SYSTEM_RESTRICTIONS);
        if !settings.groups.is_empty() {
            unit.push_str(&format!("SupplementaryGroups={}\n", settings.groups.join(" ")));
        }
        if let Some(store) = &settings.store {
            unit.push_str(&format!("ReadWritePaths={}\n", quoted(&store.display().to_string())));
        }
    }
    unit + &format!("\n[Install]\nWantedBy={target}\n")
}

/// Quotes a word of `ExecStart`.
fn quoted(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-:=,@+".contains(c));
    if is_plain && !word.is_empty() { escaped } else { format!("\"{escaped}\"") }
}
