//! A task of Windows' Task Scheduler, which starts the server at login. It is no Windows service, and ends at logout.

use std::path::PathBuf;

use super::{
    FILE_MARKER,
    definition::{ServiceDefinition, ServiceSettings, StateCall, StateOutput, words, xml},
};

const NAME: &str = "Narthex";

/// Question about the state of the task. The answer of schtasks would be in the language of the system.
const QUESTION: &str = "(Get-ScheduledTask -TaskName Narthex -ErrorAction Stop).State";

/// Composes the task and its calls. The scheduler reads the file at installation.
pub(super) fn service(settings: &ServiceSettings) -> ServiceDefinition {
    let file: PathBuf = settings.user_home.join("AppData").join("Local").join("narthex").join("service.xml");
    let mut create = words("/Create /F /TN Narthex /XML");
    create.push(file.display().to_string());
    let state = StateCall {
        program: "powershell",
        arguments: ["-NoProfile", "-NonInteractive", "-Command", QUESTION].map(str::to_owned).to_vec(),
        output: StateOutput::RunsWith("Running"),
    };

    ServiceDefinition {
        name: NAME,
        kind: "task of the Task Scheduler",
        text: task(settings),
        program: "schtasks",
        probe: words("/Query"),
        // Otherwise a running program would stay when its task is replaced or deleted.
        end: Some(words("/End /TN Narthex")),
        start: vec![create, words("/Run /TN Narthex")],
        stop: vec![words("/Delete /F /TN Narthex")],
        forget: Vec::new(),
        state,
        advice: Some("It starts when you log in. It is no Windows service: it ends when you log out."),
        file,
    }
}

fn task(settings: &ServiceSettings) -> String {
    let command = settings.command(settings.store.as_deref());
    let (program, arguments) =
        command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let arguments: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
    let program = xml(program);
    let arguments = xml(&arguments.join(" "));

    format!(
        r#"<?xml version="1.0"?>
<!-- {FILE_MARKER}; it replaces this file, and `narthex service uninstall` removes it. -->
<Task version="1.3" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>Narthex, language models behind the OpenAI API</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>3</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{program}</Command>
      <Arguments>{arguments}</Arguments>
    </Exec>
  </Actions>
</Task>
"#
    )
}

/// Quotes a word for a command line of Windows: backslashes are doubled before a quotation mark.
fn quoted(word: &str) -> String {
    if !word.is_empty() && !word.contains([' ', '\t', '"']) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    let mut backslashes = 0;
    for c in word.chars() {
        match c {
            '\\' => backslashes += 1,
            '"' => text.push_str(&"\\".repeat(backslashes + 1)),
            _ => {}
        }
        if c != '\\' {
            backslashes = 0;
        }
        text.push(c);
    }
    text + &"\\".repeat(backslashes) + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_command_line_of_windows() {
        let check = |word: &str, expect: &str| assert_eq!(quoted(word), expect);
        check("--port", "--port");
        check("", "\"\"");
        check(r"C:\a b\", r#""C:\a b\\""#);
        check(r#"a"b"#, r#""a\"b""#);
        check(r#"a\"b"#, r#""a\\\"b""#);
    }
}
