//! The agent of launchd, which starts at login.

use super::{
    FILE_MARKER,
    definition::{ServiceDefinition, ServiceSettings, StateCall, StateOutput, words, xml},
};

const LABEL: &str = "org.narthex.serve";

const PROGRAM: &str = "launchctl";

/// Composes the agent and its calls.
pub(super) fn service(settings: &ServiceSettings) -> ServiceDefinition {
    let file = settings.user_home.join(format!("Library/LaunchAgents/{LABEL}.plist"));
    let path = file.display().to_string();
    let [load, unload, disable] = ["load -w", "unload", "unload -w"].map(|call| {
        let mut words = words(call);
        words.push(path.clone());
        words
    });
    // An agent is loaded even if its program has ended; only a running one has a process.
    let state = StateCall {
        program: PROGRAM,
        arguments: words(&format!("list {LABEL}")),
        output: StateOutput::RunsWith("\"PID\""),
    };

    ServiceDefinition {
        name: LABEL,
        kind: "launchd agent",
        text: property_list(settings),
        program: PROGRAM,
        probe: words("list"),
        end: None,
        // Unloading an agent that is not loaded succeeds.
        start: vec![unload, load],
        stop: vec![disable],
        forget: Vec::new(),
        state,
        advice: Some("It starts at login."),
        file,
    }
}

fn property_list(settings: &ServiceSettings) -> String {
    let command = settings.command(settings.store.as_deref());
    let command: String =
        command.iter().map(|word| format!("    <string>{}</string>\n", xml(word))).collect();
    let log = settings.user_home.join("Library/Logs/narthex.log").display().to_string();
    let log = xml(&log);

    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!-- {FILE_MARKER}; it replaces this file, and `narthex service uninstall` removes it. -->
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{LABEL}</string>
  <key>ProgramArguments</key>
  <array>
{command}  </array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>ORT_DISABLE_TELEMETRY</key>
    <string>1</string>
  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>Umask</key>
  <integer>63</integer>
  <key>ExitTimeOut</key>
  <integer>60</integer>
  <key>StandardErrorPath</key>
  <string>{log}</string>
</dict>
</plist>
"#
    )
}
