//! Progress events as numbered steps: with bars on a terminal, as plain lines elsewhere.

use std::{
    collections::HashMap,
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use narthex_spec::{Progress, ProgressSink, progress::Unit};
use parking_lot::Mutex;

use crate::{output, render};

/// Shows progress on standard error.
pub(crate) struct Bars {
    all: MultiProgress,
    running: Mutex<HashMap<String, ProgressBar>>,
    style: Style,
    steps: Mutex<StepCounter>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Bars,
    Lines,
    Hidden,
}

/// The steps that were shown.
#[derive(Default)]
struct StepCounter {
    /// Beginning of the first one.
    began: Option<Instant>,
    /// Title of the last one.
    title: String,
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
        Self { all: MultiProgress::new(), running: Mutex::default(), style, steps: Mutex::default() }
    }

    /// Returns the time since the first step as words that follow a summary, ` in 24 s`; nothing if no steps were
    /// shown.
    pub(crate) fn took(&self) -> String {
        let began = self.steps.lock().began;
        began.map_or_else(String::new, |began| format!(" in {}", duration(began.elapsed())))
    }

    /// Prints a summary line if steps were shown.
    pub(crate) fn summarize(&self, what: &str) {
        let took = self.took();
        if !took.is_empty() && self.style != Style::Hidden {
            output::note(format!("{what}{took}"));
        }
    }

    fn start(&self, stage: &str, unit: Unit, total: Option<u64>) {
        let bar = bar(stage, unit, total);
        let bar = self.all.add(bar);
        bar.enable_steady_tick(Duration::from_millis(120));
        self.running.lock().insert(stage.to_owned(), bar);
    }

    /// Shows an event as a bar.
    fn draw(&self, event: Progress) {
        match event {
            Progress::Step { number, of, title } => {
                let line = self.step(number, of, title);
                self.all.suspend(|| output::note(fit(&line, terminal_width())));
            }
            Progress::Started { stage, unit, total } => self.start(&stage, unit, total),
            Progress::Advanced { stage, done } => {
                if let Some(bar) = self.running.lock().get(&stage) {
                    // pip also unpacks in the folder whose size is measured.
                    bar.set_position(bar.length().map_or(done, |total| done.min(total)));
                }
            }
            Progress::Finished { stage } => {
                if let Some(bar) = self.running.lock().remove(&stage) {
                    bar.finish_and_clear();
                }
            }
            Progress::Note(note) => self.all.suspend(|| output::note(note)),
        }
    }

    /// Shows an event as a line.
    fn print(&self, event: Progress) {
        match event {
            Progress::Step { number, of, title } => output::note(self.step(number, of, title)),
            Progress::Started { stage, unit, total } => {
                if let Some(line) = self.stage_line(&stage, unit, total) {
                    output::note(line);
                }
            }
            Progress::Note(note) => output::note(note),
            Progress::Advanced { .. } | Progress::Finished { .. } => {}
        }
    }

    /// Records a step and returns its line.
    fn step(&self, number: usize, of: usize, title: String) -> String {
        let line = format!("{number} of {of}: {title}");
        let mut steps = self.steps.lock();
        steps.began.get_or_insert_with(Instant::now);
        steps.title = title;
        line
    }

    /// Returns the line of a stage, or `None` if it is the same as the line of its step.
    fn stage_line(&self, stage: &str, unit: Unit, total: Option<u64>) -> Option<String> {
        let steps = self.steps.lock();
        let indent = if steps.began.is_some() { "  " } else { "" };
        let total = match (unit, total) {
            (Unit::Bytes, Some(total)) => format!(" ({})", render::bytes(total)),
            _ => String::new(),
        };
        (stage != steps.title).then(|| format!("{indent}{stage}{total} …"))
    }
}

impl ProgressSink for Bars {
    fn event(&self, event: Progress) {
        match self.style {
            Style::Bars => self.draw(event),
            Style::Lines => self.print(event),
            Style::Hidden => {}
        }
    }
}

fn terminal_width() -> usize {
    usize::from(Term::stderr().size().1)
}

/// Shortens a line to a width.
fn fit(line: &str, width: usize) -> String {
    console::truncate_str(line, width, "…").into_owned()
}

/// Renders a duration: `3.2 s`, `24 s`, `3 min 5 s`.
fn duration(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Returns the bar of a stage. Its title takes the room that the rest of the line leaves.
fn bar(stage: &str, unit: Unit, total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total).with_style(style(&known_template(unit))),
        None => ProgressBar::new_spinner().with_style(style(unknown_template(unit))),
    };
    bar.with_message(output::without_controls(stage).into_owned())
}

fn known_template(unit: Unit) -> String {
    // Constant widths keep the rest of the line in its place.
    let counts = match unit {
        Unit::Bytes => "{decimal_bytes:>9}/{decimal_total_bytes}",
        Unit::Items | Unit::Nothing => "{pos:>3}/{len}",
    };
    format!("  {{wide_msg}} {{bar:12}} {counts} {{eta:>3}}")
}

fn unknown_template(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "{spinner} {wide_msg} {decimal_bytes}",
        Unit::Items => "{spinner} {wide_msg} {pos}",
        Unit::Nothing => "{spinner} {wide_msg}",
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    use super::*;

    const STAGE: &str =
        "Downloading a-package-with-a-name-that-nobody-could-ever-remember-or-type-twice 0.1.2";

    #[test]
    fn templates_are_well_formed() {
        for unit in [Unit::Bytes, Unit::Items, Unit::Nothing] {
            for template in [known_template(unit), unknown_template(unit).to_owned()] {
                ProgressStyle::with_template(&template).unwrap();
            }
        }
    }

    /// Returns the terminal while one stage of each kind runs.
    fn shown(columns: u16) -> String {
        let terminal = InMemoryTerm::new(10, columns);
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let stages = [
            (STAGE, Unit::Bytes, Some(98_362_432)),
            ("Compiling for qnn:x-elite", Unit::Items, Some(4)),
            ("Importing local/tiny", Unit::Items, None),
            (STAGE, Unit::Nothing, None),
        ];
        let bars: Vec<ProgressBar> =
            stages.into_iter().map(|(stage, unit, total)| all.add(bar(stage, unit, total))).collect();
        bars.iter().for_each(ProgressBar::tick);
        terminal.contents()
    }

    #[test]
    fn bars_fit_the_width_of_the_terminal() {
        insta::assert_snapshot!("bars_80", shown(80));
        insta::assert_snapshot!("bars_200", shown(200));
        for columns in [20, 80, 200] {
            let text = shown(columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns.into()), "{text}");
        }
    }

    #[test]
    fn lines_have_numbers_and_totals() {
        let bars = Bars::with_style(Style::Lines);
        let stage = |stage: &str, total| bars.stage_line(stage, Unit::Bytes, total);
        assert_eq!(stage("Verifying", Some(98_362_432)).as_deref(), Some("Verifying (98 MB) …"));
        assert_eq!(bars.took(), "");
        assert_eq!(bars.step(1, 2, "Fetching tiny".to_owned()), "1 of 2: Fetching tiny");
        assert_eq!(stage("Downloading tiny", None).as_deref(), Some("  Downloading tiny …"));
        assert_eq!(stage("Fetching tiny", None), None);
        assert!(bars.took().starts_with(" in 0."), "{}", bars.took());
    }

    #[test]
    fn long_lines_are_shortened_and_durations_are_short() {
        assert_eq!(fit("1 of 3: Fetching smollm2:135m", 20), "1 of 3: Fetching sm…");
        assert_eq!(fit("1 of 3: Fetching", 20), "1 of 3: Fetching");
        let check = |seconds, expect: &str| assert_eq!(duration(Duration::from_secs_f64(seconds)), expect);
        check(3.21, "3.2 s");
        check(24.9, "24 s");
        check(185.0, "3 min 5 s");
    }
}
