//! Energy consumption of this machine, from the counters of its processors (RAPL), or else from the gauge of its
//! battery.
//!
//! Only Linux offers them as files. They measure the whole machine or its processors, not one program, so programs must
//! be compared by running each alone.

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
    /// Processor packages. Their counters are in microjoules and restart from zero after `range`.
    Packages(Vec<Package>),
    /// Files with the power in microwatts that each battery supplies.
    Batteries(Vec<PathBuf>),
}

#[derive(Debug)]
struct Package {
    energy: PathBuf,
    range: u64,
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
        Self::find(Path::new("/sys/class"))
    }

    fn find(class: &Path) -> Option<Self> {
        let packages: Vec<Package> = folders(&class.join("powercap")).filter_map(|at| package(&at)).collect();
        let batteries: Vec<PathBuf> =
            folders(&class.join("power_supply")).filter_map(|at| battery(&at)).collect();
        if !packages.is_empty() {
            return Some(Self { source: Source::Packages(packages) });
        }
        (!batteries.is_empty()).then_some(Self { source: Source::Batteries(batteries) })
    }

    /// Returns a description of the counters and of the parts of the machine that they measure.
    pub fn describe(&self) -> &'static str {
        match self.source {
            Source::Packages(_) => {
                "the processors' own counters (RAPL), without memory, screen and other chips"
            }
            Source::Batteries(_) => "the battery gauge (whole machine, coarse)",
        }
    }

    /// Reads the counters; `None` if one of them can no longer be read.
    pub fn read(&self) -> Option<Reading> {
        let values = match &self.source {
            Source::Packages(packages) => packages.iter().map(|package| number(&package.energy)).collect(),
            Source::Batteries(batteries) => {
                batteries.iter().map(|power| number(power)).collect::<Option<_>>()
            }
        };
        Some(Reading { at: Instant::now(), values: values? })
    }

    /// Returns the joules between two readings. A battery reports only power, so the energy is the mean power of the
    /// two readings multiplied by the time between them.
    pub fn joules(&self, from: &Reading, to: &Reading) -> f64 {
        self.micro(from, to, to.at.saturating_duration_since(from.at)) / 1e6
    }

    fn micro(&self, from: &Reading, to: &Reading, time: Duration) -> f64 {
        let values = from.values.iter().zip(&to.values);
        match &self.source {
            Source::Packages(packages) => {
                let spent = values.zip(packages).map(|((&from, &to), package)| match to.checked_sub(from) {
                    Some(spent) => spent,
                    None => (to + package.range).saturating_sub(from),
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

/// Returns a zone's counter if the zone is a processor package (`intel-rapl:0`, also on AMD's processors). Nested zones
/// and the platform's zone are excluded, because they would be counted twice.
fn package(zone: &Path) -> Option<Package> {
    let place = zone.file_name()?.to_str()?.strip_prefix("intel-rapl:")?;
    let outermost = !place.contains(':') && text(&zone.join("name"))?.starts_with("package");
    let energy = zone.join("energy_uj");
    number(&energy)?;
    outermost.then_some(Package { energy, range: number(&zone.join("max_energy_range_uj"))? })
}

/// Returns the file with a battery's power, if the battery is discharging.
fn battery(supply: &Path) -> Option<PathBuf> {
    let feeds = text(&supply.join("type"))? == "Battery" && text(&supply.join("status"))? == "Discharging";
    let power = supply.join("power_now");
    number(&power)?;
    feeds.then_some(power)
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
        let meter = Meter::find(class.path()).unwrap();
        assert!(meter.describe().contains("RAPL"));
        let first = meter.read().unwrap();
        assert_eq!(first.values, [9_000_000]);
        fs::write(class.path().join("powercap/intel-rapl:0/energy_uj"), "500000").unwrap();
        assert_eq!(meter.joules(&first, &meter.read().unwrap()), 1.5);
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
        let meter = Meter::find(class.path()).unwrap();
        let first = meter.read().unwrap();
        fs::write(class.path().join("power_supply/BAT0/power_now"), "8000000").unwrap();
        let joules = meter.micro(&first, &meter.read().unwrap(), Duration::from_secs(2)) / 1e6;
        assert_eq!((first.values.as_slice(), joules), ([4_000_000].as_slice(), 12.0));
        assert!(Meter::find(files("Charging").path()).is_none());
    }

    #[test]
    fn a_machine_without_counters_has_no_meter() {
        assert!(Meter::find(Path::new("/nonexistent")).is_none());
        assert!(Meter::find(class(&[("powercap/intel-rapl:0/name", "package-0")]).path()).is_none());
    }
}
