//! Progress events as bars on a terminal, or as plain lines elsewhere.

use std::{
    collections::HashMap,
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use narthex_spec::{Progress, ProgressSink, progress::Unit};
use parking_lot::Mutex;

use crate::output;

/// Shows progress on standard error.
pub(crate) struct Bars {
    all: MultiProgress,
    running: Mutex<HashMap<String, ProgressBar>>,
    style: Style,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Bars,
    Lines,
    Hidden,
}

impl Bars {
    pub(crate) fn new() -> Self {
        Self::with_style(if stderr().is_terminal() { Style::Bars } else { Style::Lines })
    }

    /// Returns bars that show nothing if `quiet`.
    pub(crate) fn unless(quiet: bool) -> Self {
        if quiet { Self::with_style(Style::Hidden) } else { Self::new() }
    }

    fn with_style(style: Style) -> Self {
        Self { all: MultiProgress::new(), running: Mutex::new(HashMap::new()), style }
    }

    fn start(&self, stage: &str, unit: Unit, total: Option<u64>) {
        let bar = match total {
            Some(total) => ProgressBar::new(total).with_style(style(&known_template(unit))),
            None => ProgressBar::new_spinner().with_style(style(unknown_template(unit))),
        };
        let bar = self.all.add(bar.with_message(stage.to_owned()));
        bar.enable_steady_tick(Duration::from_millis(120));
        self.running.lock().insert(stage.to_owned(), bar);
    }
}

impl ProgressSink for Bars {
    fn event(&self, event: Progress) {
        match (event, self.style) {
            (Progress::Started { stage, unit, total }, Style::Bars) => self.start(&stage, unit, total),
            (Progress::Started { stage, .. }, Style::Lines) => output::note(format!("{stage} …")),
            (Progress::Advanced { stage, done }, Style::Bars) => {
                if let Some(bar) = self.running.lock().get(&stage) {
                    bar.set_position(done);
                }
            }
            (Progress::Finished { stage }, Style::Bars) => {
                if let Some(bar) = self.running.lock().remove(&stage) {
                    bar.finish_and_clear();
                }
            }
            (Progress::Note(note), Style::Bars) => self.all.suspend(|| output::note(note)),
            (Progress::Note(note), Style::Lines) => output::note(note),
            (Progress::Advanced { .. } | Progress::Finished { .. }, Style::Lines) | (_, Style::Hidden) => {}
        }
    }
}

fn known_template(unit: Unit) -> String {
    let counts = match unit {
        Unit::Bytes => "{bytes}/{total_bytes} {bytes_per_sec}",
        Unit::Items | Unit::Nothing => "{pos}/{len}",
    };
    format!("{{msg:32!}} {{wide_bar}} {counts} {{eta}}")
}

fn unknown_template(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "{spinner} {msg} {bytes}",
        Unit::Items => "{spinner} {msg} {pos}",
        Unit::Nothing => "{spinner} {msg}",
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed() {
        for unit in [Unit::Bytes, Unit::Items, Unit::Nothing] {
            for template in [known_template(unit), unknown_template(unit).to_owned()] {
                ProgressStyle::with_template(&template).unwrap();
            }
        }
    }
}
