//! Keys that are pressed while an answer is printed: they do not appear in it, but in the next line that is typed.

/// Hides what is typed until it is dropped. Without a terminal, or on Windows, which shows typed text only while a program
/// reads it, nothing changes.
pub(crate) struct HiddenTyping(());

#[cfg(unix)]
mod terminal {
    use std::io::{IsTerminal, stdin};

    use parking_lot::Mutex;
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

    /// Settings of the terminal before typing was hidden.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

    pub(super) fn hide() {
        let stdin = stdin();
        if !stdin.is_terminal() {
            return;
        }
        let mut before = BEFORE.lock();
        if let Ok(settings) = tcgetattr(&stdin)
            && before.is_none()
        {
            let mut hidden = settings.clone();
            hidden.local_modes -= LocalModes::ECHO;
            if tcsetattr(&stdin, OptionalActions::Now, &hidden).is_ok() {
                *before = Some(settings);
            }
        }
    }

    pub(super) fn restore() {
        // The lock is free unless the process ends at the moment of a change.
        if let Some(settings) = BEFORE.try_lock().and_then(|mut before| before.take()) {
            // The terminal may be gone.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &settings);
        }
    }
}

impl HiddenTyping {
    /// Hides what is typed from now on.
    pub(crate) fn start() -> Self {
        #[cfg(unix)]
        terminal::hide();
        Self(())
    }
}

impl Drop for HiddenTyping {
    fn drop(&mut self) {
        restore();
    }
}

/// Shows again what is typed, as before the process ends without destructors.
pub(crate) fn restore() {
    #[cfg(unix)]
    terminal::restore();
}
