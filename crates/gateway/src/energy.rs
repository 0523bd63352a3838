//! Energy of answers: the energy of the machine while an answer was computed, without that of the idle machine, in proportion
//! to the answer's tokens among all tokens of this process in that time.
//!
//! There is one monitor for the process, because the counters are those of the machine. It measures nothing before
//! [`EnergyMonitor::sample`] has found a counter.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use narthex_device::energy::{Meter, Reading};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of idle samples whose lowest power is that of the idle machine.
const IDLE_SAMPLES: usize = 60;

/// The monitor of this process.
pub(crate) static ENERGY: EnergyMonitor = EnergyMonitor::new();

/// Energy of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerEnergy {
    /// Joules above those of the idle machine.
    pub joules: f64,
    /// Watts of the idle machine, which were subtracted.
    pub idle_watts: f64,
    /// True if other requests ran at the same time, so that the energy was divided by tokens.
    pub is_shared: bool,
    /// Counters that measured it.
    pub sensor: &'static str,
}

impl AnswerEnergy {
    /// Returns the energy of several answers to one request; `None` if that of one is unknown.
    pub fn total(answers: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let mut answers = answers.into_iter();
        let first = answers.next()??;
        answers.try_fold(first, |total, answer| {
            let answer = answer?;
            let joules = total.joules + answer.joules;
            Some(Self { joules, is_shared: total.is_shared || answer.is_shared, ..answer })
        })
    }
}

/// Power of the machine, as far as it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PowerReport {
    /// Counters that measure it, and the parts of the machine that they measure.
    pub sensor: String,
    /// Mean watts between the last two samples.
    pub watts: Option<f64>,
    /// Watts of the idle machine: the lowest mean of two minutes without requests.
    pub idle_watts: Option<f64>,
}

/// Counters of energy and of the work of this process.
pub(crate) struct EnergyMonitor {
    state: Mutex<MonitorState>,
    /// Tokens of all requests so far.
    tokens: AtomicU64,
}

struct MonitorState {
    meter: Option<Meter>,
    last: Option<Sample>,
    watts: Option<f64>,
    /// Watts between consecutive samples without work in between, oldest first.
    idle: VecDeque<f64>,
    /// Number of answers in progress.
    running: usize,
}

/// State at the last sample.
struct Sample {
    reading: Reading,
    tokens: u64,
    is_idle: bool,
}

/// Answer in progress. It ends when this is dropped.
pub(crate) struct EnergyShare {
    monitor: &'static EnergyMonitor,
    reading: Reading,
    /// Tokens of all requests at the start.
    tokens: u64,
    own: u64,
}

impl EnergyMonitor {
    pub(crate) const fn new() -> Self {
        let state = MonitorState { meter: None, last: None, watts: None, idle: VecDeque::new(), running: 0 };
        Self { state: Mutex::new(state), tokens: AtomicU64::new(0) }
    }

    /// Takes a sample of the power. `find` finds the counters if there are none yet.
    pub(crate) fn sample(&self, find: impl FnOnce() -> Option<Meter>) {
        // Answers do not wait for the search.
        let has_meter = self.state.lock().meter.is_some();
        let found = if has_meter { None } else { find() };
        let mut state = self.state.lock();
        if state.meter.is_none() {
            state.meter = found;
        }
        let reading = state.meter.as_ref().and_then(Meter::read);
        let Some(reading) = reading else {
            // The counters have changed, as those of a battery that is being charged.
            state.meter = None;
            state.last = None;
            state.watts = None;
            return;
        };

        let MonitorState { meter, last, running, .. } = &*state;
        let watts =
            meter.as_ref().zip(last.as_ref()).and_then(|(meter, last)| meter.watts(&last.reading, &reading));
        let tokens = self.tokens();
        let is_idle = *running == 0;
        let was_idle = is_idle && last.as_ref().is_some_and(|last| last.is_idle && last.tokens == tokens);
        let sample = Sample { reading, tokens, is_idle };

        state.watts = watts;
        if let Some(watts) = watts.filter(|_| was_idle) {
            if state.idle.len() == IDLE_SAMPLES {
                state.idle.pop_front();
            }
            state.idle.push_back(watts);
        }
        state.last = Some(sample);
    }

    /// Returns the power; `None` without counters.
    pub(crate) fn report(&self) -> Option<PowerReport> {
        let state = self.state.lock();
        let sensor = state.meter.as_ref()?.describe().to_owned();
        Some(PowerReport { sensor, watts: state.watts, idle_watts: state.idle_watts() })
    }

    /// Starts an answer; `None` without counters.
    pub(crate) fn start(&'static self) -> Option<EnergyShare> {
        let mut state = self.state.lock();
        let reading = state.meter.as_ref()?.read()?;
        state.running += 1;
        Some(EnergyShare { monitor: self, reading, tokens: self.tokens(), own: 0 })
    }

    /// Counts tokens of a request without an [`EnergyShare`].
    pub(crate) fn add_tokens(&self, tokens: usize) {
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }
}

impl MonitorState {
    fn idle_watts(&self) -> Option<f64> {
        self.idle.iter().copied().reduce(f64::min)
    }
}

impl EnergyShare {
    /// Counts tokens that were read or generated.
    pub(crate) fn add_tokens(&mut self, tokens: usize) {
        self.own += tokens as u64;
        self.monitor.add_tokens(tokens);
    }

    /// Returns the energy so far; `None` if the counters cannot be read any more, or if the power of the idle machine is not
    /// known yet.
    pub(crate) fn energy(&self) -> Option<AnswerEnergy> {
        let state = self.monitor.state.lock();
        let meter = state.meter.as_ref()?;
        let now = meter.read()?;
        let idle_watts = state.idle_watts()?;
        let all = self.monitor.tokens().saturating_sub(self.tokens).max(1);
        let joules = meter.joules_above(idle_watts, &self.reading, &now);
        Some(AnswerEnergy {
            joules: joules * self.own as f64 / all as f64,
            idle_watts,
            is_shared: all > self.own,
            sensor: meter.describe(),
        })
    }
}

impl Drop for EnergyShare {
    fn drop(&mut self) {
        self.monitor.state.lock().running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, thread, time::Duration};

    use super::*;

    /// A monitor over a folder like `/sys/class` with one processor.
    fn monitor(class: &Path) -> &'static EnergyMonitor {
        let zone = class.join("powercap/intel-rapl:0");
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), "package-0").unwrap();
        fs::write(zone.join("max_energy_range_uj"), "100000000").unwrap();
        spend(class, 99_000_000);
        Box::leak(Box::new(EnergyMonitor::new()))
    }

    fn spend(class: &Path, microjoules: u64) {
        fs::write(class.join("powercap/intel-rapl:0/energy_uj"), microjoules.to_string()).unwrap();
    }

    #[test]
    fn answers_share_the_energy_above_the_idle_machine_by_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path();
        let monitor = monitor(class);
        let sample = || monitor.sample(|| Meter::under(class));
        assert!(monitor.start().is_none(), "no counter was looked for");
        sample();
        assert!(monitor.start().unwrap().energy().is_none(), "the idle power is not known");
        // The counter does not move between two samples, so the idle machine takes nothing.
        thread::sleep(Duration::from_millis(2));
        sample();
        assert_eq!(monitor.report().unwrap().idle_watts, Some(0.0));

        let mut first = monitor.start().unwrap();
        first.add_tokens(10);
        // The counter restarts in the meantime: 1 J up to its end, and 7 J after it.
        spend(class, 7_000_000);
        let alone = first.energy().unwrap();
        assert_eq!((alone.joules, alone.is_shared), (8.0, false));
        let mut second = monitor.start().unwrap();
        second.add_tokens(20);
        monitor.add_tokens(10);
        spend(class, 10_000_000);
        let shared = second.energy().unwrap();
        assert_eq!((shared.joules, shared.is_shared), (2.0, true));
        assert!(shared.sensor.contains("RAPL"));
        assert_eq!(first.energy().unwrap().joules, 11.0 * 10.0 / 40.0);
    }

    #[test]
    fn only_samples_without_work_are_those_of_the_idle_machine() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path();
        let monitor = monitor(class);
        let mut energy = 0;
        let mut sample = || {
            energy += 1_000_000;
            spend(class, energy);
            thread::sleep(Duration::from_millis(2));
            monitor.sample(|| Meter::under(class));
            monitor.state.lock().idle.len()
        };
        assert_eq!([sample(), sample()], [0, 1]);
        let running = monitor.start();
        assert_eq!(sample(), 1, "an answer runs");
        drop(running);
        assert_eq!([sample(), sample()], [1, 2], "an answer ran since the last sample");
        monitor.add_tokens(1);
        assert_eq!([sample(), sample()], [2, 3], "an encoder ran since the last sample");
        fs::remove_dir_all(class.join("powercap")).unwrap();
        monitor.sample(|| Meter::under(class));
        assert_eq!(monitor.report(), None);
    }

    #[test]
    fn several_answers_have_an_energy_if_each_has_one() {
        let energy = |joules, is_shared| AnswerEnergy { joules, idle_watts: 1.0, is_shared, sensor: "s" };
        let total = AnswerEnergy::total([Some(energy(1.0, true)), Some(energy(2.0, false))]);
        assert_eq!(total, Some(energy(3.0, true)));
        assert_eq!(AnswerEnergy::total([Some(energy(1.0, true)), None]), None);
        assert_eq!(AnswerEnergy::total([]), None);
    }
}
