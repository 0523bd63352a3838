//! A pseudo-terminal in which a program runs: keys go in, and the screen comes out.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use indicatif::{InMemoryTerm, TermLike};

/// Rows of the terminal. No output of a test scrolls.
const ROWS: u16 = 8000;

/// Python program that connects its own standard streams with a terminal of some rows and columns, in which a program
/// runs.
const DRIVER: &str = r#"
import fcntl, os, pty, select, struct, sys, termios
program, master = pty.fork()
if program == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", int(sys.argv[1]), int(sys.argv[2]), 0, 0))
    os.execv(sys.argv[3], sys.argv[3:])
ends = [master, 0]
while True:
    for end in select.select(ends, [], [])[0]:
        try:
            data = os.read(end, 65536)
        except OSError:
            data = b""
        if end == master and not data:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        elif end == master:
            os.write(1, data)
        elif data:
            os.write(master, data)
        else:
            ends.remove(0)
"#;

/// Written by the line editor before it reads a line: it switches bracketed paste on.
pub(crate) const PROMPT: &str = "\x1b[?2004h";

/// Written by the line editor after it has read a line.
pub(crate) const ENTERED: &str = "\x1b[?2004l";

pub(crate) const CTRL_D: &str = "\x04";

/// A program in a terminal.
pub(crate) struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: ChildStdout,
    columns: u16,
    /// Everything that the program wrote.
    written: String,
    /// End of the text that was waited for last.
    seen: usize,
    /// Bytes of a character that is not complete yet.
    rest: Vec<u8>,
}

impl Terminal {
    /// Starts the program of a command, with its arguments, environment and folder, in a terminal.
    pub(crate) fn start(command: &Command, columns: u16) -> Self {
        let mut driver = Command::new("python3");
        driver.args(["-c", DRIVER, &ROWS.to_string(), &columns.to_string()]);
        driver.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => driver.env(name, value),
                None => driver.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            driver.current_dir(folder);
        }
        driver.env("TERM", "xterm").env("PYTHONIOENCODING", "utf-8").env_remove("NO_COLOR");
        let mut child = driver.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, keys, output, columns, written: String::new(), seen: 0, rest: Vec::new() }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text after the one that was waited for last. Fails if the program ends before.
    pub(crate) fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.written[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            assert!(self.read(), "{text:?} was not written:\n{}", self.screen());
        }
    }

    /// Waits for some bytes after the text that was waited for last.
    pub(crate) fn wait_for_more(&mut self, bytes: usize) {
        while self.written.len() < self.seen + bytes {
            assert!(self.read(), "the program ended:\n{}", self.screen());
        }
        self.seen = self.written.len();
    }

    /// Waits until the program handles Ctrl-C, as the kernel reports it. Only for Linux.
    pub(crate) fn wait_until_interruptible(&self) {
        let began = Instant::now();
        while !self.handles_interrupts().unwrap_or(false) {
            assert!(began.elapsed() < Duration::from_secs(30), "no handler was installed");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn handles_interrupts(&self) -> Option<bool> {
        const SIGINT_BIT: u64 = 1 << 1;
        let driver = self.child.id();
        let children = fs::read_to_string(format!("/proc/{driver}/task/{driver}/children")).ok()?;
        let process = Path::new("/proc").join(children.split_whitespace().next()?);
        // Before it starts the program, the process has the handler of Python.
        if fs::read_link(process.join("exe")).ok()? != Path::new(env!("CARGO_BIN_EXE_narthex")) {
            return Some(false);
        }
        let status = fs::read_to_string(process.join("status")).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        Some(u64::from_str_radix(caught.trim(), 16).ok()? & SIGINT_BIT != 0)
    }

    /// Returns everything that the program wrote, with escape sequences.
    pub(crate) fn written(&self) -> &str {
        &self.written
    }

    /// Presses Ctrl-C, and returns the exit code and the time until the end of the program.
    pub(crate) fn interrupt(&mut self) -> (i32, Duration) {
        let pressed = Instant::now();
        self.press("\x03");
        (self.end(), pressed.elapsed())
    }

    /// Waits for the end of the program and returns its exit code.
    pub(crate) fn end(&mut self) -> i32 {
        while self.read() {}
        self.child.wait().unwrap().code().unwrap()
    }

    /// Returns what the terminal shows.
    pub(crate) fn screen(&self) -> String {
        self.screen_with(str::to_owned)
    }

    /// Returns what the terminal would show if the program had written the edited text.
    pub(crate) fn screen_with(&self, edit: impl Fn(&str) -> String) -> String {
        screen_of(&edit(&self.written), self.columns)
    }

    /// Returns the lines that are wider than the terminal. One word, such as a path, is not broken.
    pub(crate) fn wide_lines(&self) -> Vec<String> {
        let shown = screen_of(&self.written, 4 * self.columns);
        let is_wide = |line: &&str| line.chars().count() > self.columns.into() && line.trim().contains(' ');
        shown.lines().filter(is_wide).map(str::to_owned).collect()
    }

    /// Reads some output. Returns false at its end.
    fn read(&mut self) -> bool {
        let mut piece = [0; 4096];
        let count = self.output.read(&mut piece).unwrap();
        self.rest.extend_from_slice(&piece[..count]);
        let complete = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() && count > 0 => error.valid_up_to(),
            _ => self.rest.len(),
        };
        let bytes: Vec<u8> = self.rest.drain(..complete).collect();
        self.written.push_str(&String::from_utf8_lossy(&bytes));
        count > 0
    }
}

/// Returns what a terminal with these columns shows after a text.
fn screen_of(text: &str, columns: u16) -> String {
    let screen = InMemoryTerm::new(ROWS, columns);
    screen.write_str(text).unwrap();
    screen.contents()
}

impl Drop for Terminal {
    /// Ends a program that a failed test left behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
