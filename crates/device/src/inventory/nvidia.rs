//! NVIDIA's graphics cards, as reported by the driver's own program, because no file of the system has the size of
//! their memory.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::{Accelerator, AcceleratorKind};

/// Program that comes with the driver.
const PROGRAM: &str = "nvidia-smi";

/// Time limit of the program. If the driver is not loaded, the program loads it first, which takes a second or two.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of bytes of output that are read; a card takes one line.
const MAX_BYTES: u64 = 16 << 10;

/// Maximum number of characters of a card's name.
const MAX_NAME_CHARS: usize = 96;

/// Returns the cards; empty if the program is not installed or does not answer.
pub(crate) fn cards() -> Vec<Accelerator> {
    parse(&ask(Command::new(PROGRAM), TIMEOUT).unwrap_or_default())
}

/// Returns the cards in the program's output.
pub(crate) fn parse(output: &[u8]) -> Vec<Accelerator> {
    String::from_utf8_lossy(output).lines().filter_map(card).collect()
}

/// Returns the program's output, if it ends within `patience`.
fn ask(mut program: Command, patience: Duration) -> Option<Vec<u8>> {
    program.args(["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]);
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = RunningProgram(program.spawn().ok()?);
    let answer = running.0.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    // A read cannot be cancelled, so it runs on a thread of its own, which may last until the process ends.
    thread::Builder::new()
        .name("nvidia-smi".to_owned())
        .spawn(move || {
            let mut bytes = Vec::new();
            let read = answer.take(MAX_BYTES).read_to_end(&mut bytes);
            // After the time limit there is no receiver.
            let _ = sender.send(read.is_ok().then_some(bytes));
        })
        .ok()?;
    receiver.recv_timeout(patience).ok()?
}

/// Parses a line such as `NVIDIA H200, 143771`: the name, and the memory in MiB. If there is no such number, as for
/// chips that share the CPU's memory, the reason is in brackets. Every other line is a message.
fn card(line: &str) -> Option<Accelerator> {
    let (name, memory) = line.trim().rsplit_once(", ")?;
    let memory = match memory.parse::<u64>() {
        Ok(mebibytes) => Some(mebibytes.checked_mul(1 << 20)?),
        Err(_) if memory.starts_with('[') => None,
        Err(_) => return None,
    };
    let name: String = name.chars().filter(|letter| !letter.is_control()).take(MAX_NAME_CHARS).collect();
    let text = format!("{name} ({PROGRAM})");
    Some(Accelerator { kind: AcceleratorKind::Gpu, driver: "nvidia".to_owned(), text, memory })
}

/// A process that is killed when it is dropped before its end.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cards_or_messages() {
        let check = |line: &str, expect: Option<(&str, Option<u64>)>| {
            let found = card(line).map(|card| (card.text, card.memory));
            let expect = expect.map(|(name, memory)| (format!("{name} (nvidia-smi)"), memory));
            assert_eq!(found, expect, "{line}");
        };
        check("NVIDIA H200, 143771", Some(("NVIDIA H200", Some(143_771 << 20))));
        check("NVIDIA GeForce RTX 4090, 24564\r", Some(("NVIDIA GeForce RTX 4090", Some(24_564 << 20))));
        check("NVIDIA GB10, [N/A]", Some(("NVIDIA GB10", None)));
        check("A, \u{1b}[2Jtwo, 1", Some(("A, [2Jtwo", Some(1 << 20))));
        check(&format!("{}, 1", "x".repeat(500)), Some((&"x".repeat(MAX_NAME_CHARS), Some(1 << 20))));
        check("No devices were found", None);
        check("Make sure that the latest NVIDIA driver is installed, and running.", None);
        check("NVIDIA, -1", None);
        check("NVIDIA, 18446744073709551615", None);
        check("", None);
    }

    #[cfg(unix)]
    #[test]
    fn the_program_s_answer_is_bounded_in_size_and_time() {
        let shell = |script: &str| {
            let mut program = Command::new("sh");
            program.args(["-c", script, "nvidia-smi"]);
            program
        };
        let said = ask(shell("echo \"$@\"; exit 9"), TIMEOUT).unwrap();
        assert_eq!(said, b"--query-gpu=name,memory.total --format=csv,noheader,nounits\n");
        assert_eq!(ask(shell("exec yes"), TIMEOUT).unwrap().len() as u64, MAX_BYTES);
        assert_eq!(ask(shell("exec sleep 60"), Duration::from_millis(50)), None);
        assert_eq!(ask(Command::new("no-such-program-is-installed"), TIMEOUT), None);
    }
}
