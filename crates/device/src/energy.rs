//! Energy consumption of this machine, from the counters of its processors (RAPL) and of Intel's graphics cards (hwmon), or
//! else from the gauge of its battery.
//!
//! Only Linux offers them as files. They measure the whole machine or its chips, not one program, so programs must be
//! compared by running each alone. The drivers of NPUs (amdxdna, intel_vpu) have no files with energy: the RAPL package
//! contains these NPUs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Energy counters that this process can read.
#[derive(Debug)]
pub struct Meter {
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Counters of chips in microjoules.
    Chips(Vec<ChipCounter>),
    /// Folders of the batteries that supply the machine.
    Batteries(Vec<PathBuf>),
}

/// Energy counter of a processor package or a graphics card.
#[derive(Debug)]
struct ChipCounter {
    energy: PathBuf,
    kind: ChipKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChipKind {
    /// Processor package, whose counter restarts from zero after `range`.
    Package { range: u64 },
    /// Graphics card, whose counter has 64 bits and does not restart.
    GraphicsCard,
}

/// Values of the counters at one time.
#[derive(Debug, Clone)]
pub struct Reading {
    at: Instant,
    values: Vec<u64>,
}

impl Meter {
    /// Returns this machine's counters; `None` if this process can read none. A machine on mains power has no battery
    /// gauge, and on many systems only root may read the processors' counters.
    pub fn here() -> Option<Self> {
        Self::under(Path::new("/sys/class"))
    }

    /// Returns the counters below a folder with the form of `/sys/class`; `None` if there are none. Graphics cards count
    /// only together with processors, because their energy alone is not that of an answer.
    pub fn under(class: &Path) -> Option<Self> {
        let mut chips: Vec<ChipCounter> =
            folders(&class.join("powercap")).filter_map(|at| package(&at)).collect();
        if !chips.is_empty() {
            chips.extend(folders(&class.join("hwmon")).filter_map(|at| graphics_card(&at)));
            return Some(Self { source: Source::Chips(chips) });
        }
        let batteries: Vec<PathBuf> =
            folders(&class.join("power_supply")).filter(|at| discharge(at).is_some()).collect();
        (!batteries.is_empty()).then_some(Self { source: Source::Batteries(batteries) })
    }

    /// Returns a description of the counters and of the parts of the machine that they measure.
    pub fn describe(&self) -> &'static str {
        match &self.source {
            Source::Chips(chips) if chips.iter().any(|chip| chip.kind == ChipKind::GraphicsCard) => {
                "the counters of the processors (RAPL) and of the graphics card, without memory, screen and other chips"
            }
            Source::Chips(_) => "the processors' own counters (RAPL), without memory, screen and other chips",
            Source::Batteries(_) => "the battery gauge (whole machine, coarse)",
        }
    }

    /// Reads the counters; `None` if one of them can no longer be read, as that of a battery that is being charged.
    pub fn read(&self) -> Option<Reading> {
        let values = match &self.source {
            Source::Chips(chips) => chips.iter().map(|chip| number(&chip.energy)).collect(),
            Source::Batteries(batteries) => {
                batteries.iter().map(|battery| discharge(battery)).collect::<Option<_>>()
            }
        };
        Some(Reading { at: Instant::now(), values: values? })
    }

    /// Returns the mean watts between two readings; `None` if no time has passed between them.
    pub fn watts(&self, from: &Reading, to: &Reading) -> Option<f64> {
        let seconds = to.since(from).as_secs_f64();
        (seconds > 0.0).then(|| self.joules(from, to) / seconds)
    }

    /// Returns the joules between two readings above those of a machine that is idle at `idle_watts`; at least 0.
    pub fn joules_above(&self, idle_watts: f64, from: &Reading, to: &Reading) -> f64 {
        let idle = idle_watts * to.since(from).as_secs_f64();
        (self.joules(from, to) - idle).max(0.0)
    }

    /// Returns the joules between two readings. A battery reports only power, so the energy is the mean power of the
    /// two readings multiplied by the time between them.
    fn joules(&self, from: &Reading, to: &Reading) -> f64 {
        self.micro(from, to, to.since(from)) / 1e6
    }

    fn micro(&self, from: &Reading, to: &Reading, time: Duration) -> f64 {
        let values = from.values.iter().zip(&to.values);
        match &self.source {
            Source::Chips(chips) => {
                let spent = values.zip(chips).map(|((&from, &to), chip)| match chip.kind {
                    ChipKind::Package { range } if to < from => to.saturating_add(range).saturating_sub(from),
                    ChipKind::Package { .. } | ChipKind::GraphicsCard => to.saturating_sub(from),
                });
                spent.sum::<u64>() as f64
            }
            Source::Batteries(_) => {
                let watts = values.map(|(&from, &to)| (from as f64 + to as f64) / 2.0);
                watts.sum::<f64>() * time.as_secs_f64()
            }
        }
    }
}

impl Reading {
    /// Returns the time from an earlier reading to this one.
    fn since(&self, earlier: &Self) -> Duration {
        self.at.saturating_duration_since(earlier.at)
    }
}

/// Returns a zone's counter if the zone is a processor package (`intel-rapl:0`, also on AMD's processors). Nested zones
/// and the platform's zone are excluded, because they would be counted twice.
fn package(zone: &Path) -> Option<ChipCounter> {
    let place = zone.file_name()?.to_str()?.strip_prefix("intel-rapl:")?;
    let outermost = !place.contains(':') && text(&zone.join("name"))?.starts_with("package");
    let energy = zone.join("energy_uj");
    number(&energy)?;
    let range = number(&zone.join("max_energy_range_uj"))?;
    outermost.then_some(ChipCounter { energy, kind: ChipKind::Package { range } })
}

/// Returns the counter of a graphics card of Intel (`i915`, `xe`). Those of other sensors measure parts of the machine that are
/// unknown.
fn graphics_card(sensor: &Path) -> Option<ChipCounter> {
    let is_card = matches!(text(&sensor.join("name"))?.as_str(), "i915" | "xe");
    let energy = sensor.join("energy1_input");
    number(&energy)?;
    is_card.then_some(ChipCounter { energy, kind: ChipKind::GraphicsCard })
}

/// Returns the power in microwatts that a battery supplies, if it is discharging. Batteries without a gauge of power have
/// gauges of current in microamperes and of voltage in microvolts.
fn discharge(supply: &Path) -> Option<u64> {
    let feeds = text(&supply.join("type"))? == "Battery" && text(&supply.join("status"))? == "Discharging";
    let power = number(&supply.join("power_now")).or_else(|| {
        let current = number(&supply.join("current_now"))?;
        Some(current.checked_mul(number(&supply.join("voltage_now"))?)? / 1_000_000)
    });
    power.filter(|_| feeds)
}

fn folders(class: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(class).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found.into_iter()
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a folder like `/sys/class` with these files.
    fn class(files: &[(&str, &str)]) -> tempfile::TempDir {
        let class = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = class.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        class
    }

    #[test]
    fn processor_packages_are_counted_once_and_around_their_end() {
        let class = class(&[
            ("powercap/intel-rapl:0/name", "package-0"),
            ("powercap/intel-rapl:0/energy_uj", "9000000"),
            ("powercap/intel-rapl:0/max_energy_range_uj", "10000000"),
            ("powercap/intel-rapl:0:0/name", "core"),
            ("powercap/intel-rapl:0:0/energy_uj", "5"),
            ("powercap/intel-rapl:0:0/max_energy_range_uj", "10000000"),
            ("powercap/intel-rapl:1/name", "psys"),
            ("powercap/intel-rapl:1/energy_uj", "5"),
            ("powercap/intel-rapl:1/max_energy_range_uj", "10000000"),
            ("power_supply/BAT0/type", "Battery"),
            ("power_supply/BAT0/status", "Discharging"),
            ("power_supply/BAT0/power_now", "4000000"),
        ]);
        let meter = Meter::under(class.path()).unwrap();
        assert!(meter.describe().contains("RAPL"));
        let first = meter.read().unwrap();
        assert_eq!(first.values, [9_000_000]);
        fs::write(class.path().join("powercap/intel-rapl:0/energy_uj"), "500000").unwrap();
        assert_eq!(meter.joules(&first, &meter.read().unwrap()), 1.5);
        let later = |seconds| Reading { at: first.at + Duration::from_secs(seconds), values: vec![500_000] };
        assert_eq!(meter.watts(&first, &later(3)), Some(0.5));
        assert_eq!(meter.watts(&first, &later(0)), None, "no time has passed");
        assert_eq!(meter.joules_above(0.25, &first, &later(2)), 1.0);
        assert_eq!(meter.joules_above(1.0, &first, &later(2)), 0.0);
    }

    #[test]
    fn a_graphics_card_counts_beside_the_processors() {
        let card = [
            ("hwmon/hwmon2/name", "xe"),
            ("hwmon/hwmon2/energy1_input", "7000000"),
            ("hwmon/hwmon3/name", "nvme"),
            ("hwmon/hwmon3/energy1_input", "1"),
        ];
        assert!(Meter::under(class(&card).path()).is_none(), "the card alone is not the machine");
        let package = [
            ("powercap/intel-rapl:0/name", "package-0"),
            ("powercap/intel-rapl:0/energy_uj", "1000000"),
            ("powercap/intel-rapl:0/max_energy_range_uj", "10000000"),
        ];
        let class = class(&[card.as_slice(), &package].concat());
        let meter = Meter::under(class.path()).unwrap();
        assert!(meter.describe().contains("graphics card"));
        let first = meter.read().unwrap();
        fs::write(class.path().join("hwmon/hwmon2/energy1_input"), "9500000").unwrap();
        fs::write(class.path().join("powercap/intel-rapl:0/energy_uj"), "2000000").unwrap();
        assert_eq!(meter.joules(&first, &meter.read().unwrap()), 3.5);
        fs::remove_file(class.path().join("powercap/intel-rapl:0/energy_uj")).unwrap();
        assert!(meter.read().is_none());
    }

    #[test]
    fn current_and_voltage_are_the_power_of_a_battery() {
        let class = class(&[
            ("power_supply/BAT1/type", "Battery"),
            ("power_supply/BAT1/status", "Discharging"),
            ("power_supply/BAT1/current_now", "500000"),
            ("power_supply/BAT1/voltage_now", "12000000"),
        ]);
        let meter = Meter::under(class.path()).unwrap();
        assert_eq!(meter.read().unwrap().values, [6_000_000]);
        fs::write(class.path().join("power_supply/BAT1/status"), "Charging").unwrap();
        assert!(meter.read().is_none(), "the machine is on mains power");
    }

    #[test]
    fn a_battery_counts_while_it_feeds_the_machine() {
        let files = |status| {
            class(&[
                ("power_supply/AC/type", "Mains"),
                ("power_supply/BAT0/type", "Battery"),
                ("power_supply/BAT0/status", status),
                ("power_supply/BAT0/power_now", "4000000"),
            ])
        };
        let class = files("Discharging");
        let meter = Meter::under(class.path()).unwrap();
        let first = meter.read().unwrap();
        fs::write(class.path().join("power_supply/BAT0/power_now"), "8000000").unwrap();
        let joules = meter.micro(&first, &meter.read().unwrap(), Duration::from_secs(2)) / 1e6;
        assert_eq!((first.values.as_slice(), joules), ([4_000_000].as_slice(), 12.0));
        assert!(Meter::under(files("Charging").path()).is_none());
    }

    #[test]
    fn a_machine_without_counters_has_no_meter() {
        assert!(Meter::under(Path::new("/nonexistent")).is_none());
        assert!(Meter::under(class(&[("powercap/intel-rapl:0/name", "package-0")]).path()).is_none());
    }
}
