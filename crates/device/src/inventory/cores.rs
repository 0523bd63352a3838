//! The cores of this machine that this process may use, and the fast ones of processors that have cores of several speeds.
//!
//! A computation is divided evenly among its threads and ends with the slowest one, so slow cores delay fast ones. On
//! Linux, the speed of a core is its type (Intel), its capacity or its highest frequency; on Windows it is its efficiency
//! class.

use std::{collections::BTreeSet, fs, path::Path, sync::OnceLock};

/// Share of the highest speed from which a core is fast.
const MIN_SPEED: f64 = 0.7;

/// Number of fast cores from which slow ones are left out. Fewer would do less than all cores together.
const MIN_FAST: usize = 4;

/// A logical core.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LogicalCore {
    /// Number of the system, from 0.
    number: usize,
    /// Number of the physical core among those of the machine.
    physical: usize,
    /// Speed, as a number that only compares cores.
    speed: f64,
}

/// The fast cores of a processor that has slow ones too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FastCores {
    /// Numbers of the logical cores, from 0.
    pub(crate) logical: Vec<usize>,
    /// Number of physical cores.
    pub(crate) physical: usize,
}

impl FastCores {
    /// Returns the fast cores of this machine; `None` if its cores have one speed, if too few are fast, or if the system does
    /// not report speeds.
    pub(crate) fn here() -> Option<&'static Self> {
        static HERE: OnceLock<Option<FastCores>> = OnceLock::new();
        HERE.get_or_init(|| Self::of(&system::cores()?)).as_ref()
    }

    fn of(cores: &[LogicalCore]) -> Option<Self> {
        let highest = cores.iter().map(|core| core.speed).fold(0.0, f64::max);
        let fast: Vec<&LogicalCore> = cores.iter().filter(|core| core.speed >= highest * MIN_SPEED).collect();
        let physical = physical(fast.iter().copied());
        (physical >= MIN_FAST && fast.len() < cores.len())
            .then(|| Self { logical: fast.iter().map(|core| core.number).collect(), physical })
    }

    /// Returns the setting of ONNX Runtime that keeps the threads of a session on the fast cores; `None` if the threads
    /// need more cores. The calling thread computes too, and is left to the system.
    pub(crate) fn affinities(&self, threads: usize) -> Option<String> {
        let numbers: Vec<String> = self.logical.iter().map(|number| (number + 1).to_string()).collect();
        let one = numbers.join(",");
        (2..=self.physical).contains(&threads).then(|| vec![one; threads - 1].join(";"))
    }
}

/// Returns the number of physical cores that this process may use, if the system reports it.
pub(super) fn physical_cores() -> Option<usize> {
    Some(physical(&system::cores()?))
}

fn physical<'a>(cores: impl IntoIterator<Item = &'a LogicalCore>) -> usize {
    cores.into_iter().map(|core| core.physical).collect::<BTreeSet<usize>>().len()
}

/// Returns the cores of Linux with its root folder at `root`, of which this process may use `allowed`.
#[cfg_attr(windows, allow(dead_code, reason = "only Linux has these files"))]
fn linux_cores(root: &Path, allowed: &[usize]) -> Option<Vec<LogicalCore>> {
    let folder = root.join("sys/devices/system/cpu");
    let speeds = speeds_of_types(root, allowed)
        .or_else(|| speeds_in(&folder, "cpu_capacity", allowed))
        .or_else(|| speeds_in(&folder, "cpufreq/cpuinfo_max_freq", allowed))
        .unwrap_or_else(|| vec![1.0; allowed.len()]);

    let mut physical = Vec::new();
    let mut cores = Vec::with_capacity(allowed.len());
    for (&cpu, speed) in allowed.iter().zip(speeds) {
        let topology = folder.join(format!("cpu{cpu}/topology"));
        let package = fs::read_to_string(topology.join("physical_package_id")).ok()?;
        let core = (package, fs::read_to_string(topology.join("core_id")).ok()?);
        let index = physical.iter().position(|known| *known == core).unwrap_or_else(|| {
            physical.push(core);
            physical.len() - 1
        });
        cores.push(LogicalCore { number: cpu, physical: index, speed });
    }
    Some(cores)
}

/// Returns the speeds of the two types of cores that Intel's processors may have.
fn speeds_of_types(root: &Path, allowed: &[usize]) -> Option<Vec<f64>> {
    let fast = fs::read_to_string(root.join("sys/devices/cpu_core/cpus")).ok()?;
    let fast = cpu_list(fast.trim())?;
    if !root.join("sys/devices/cpu_atom").exists() {
        return None;
    }
    Some(allowed.iter().map(|cpu| if fast.contains(cpu) { 1.0 } else { 0.5 }).collect())
}

/// Returns the numbers in a file of each core.
fn speeds_in(folder: &Path, file: &str, allowed: &[usize]) -> Option<Vec<f64>> {
    let speeds = allowed.iter().map(|cpu| {
        let path = folder.join(format!("cpu{cpu}")).join(file);
        fs::read_to_string(path).ok()?.trim().parse::<f64>().ok()
    });
    speeds.collect()
}

/// Parses a list of numbers in the kernel's form, such as `0-3,8`.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    /// Maximum number of processors that Linux supports.
    const MAX_CPUS: usize = 8192;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = first.parse::<usize>().ok()?;
        let last = last.parse::<usize>().ok()?;
        cpus.extend((last < MAX_CPUS).then_some(first..=last)?);
    }
    Some(cpus)
}

#[cfg(not(windows))]
mod system {
    use std::{fs, path::Path};

    use super::{LogicalCore, cpu_list, linux_cores};

    /// Returns the cores on which this process may run.
    pub(super) fn cores() -> Option<Vec<LogicalCore>> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        linux_cores(Path::new("/"), &cpu_list(allowed.trim())?)
    }
}

#[cfg(windows)]
#[allow(unsafe_code, reason = "the standard library does not list cores")]
mod system {
    use std::{mem, ptr};

    use windows_sys::Win32::System::{
        SystemInformation::{GetSystemCpuSetInformation, SYSTEM_CPU_SET_INFORMATION},
        Threading::{GetCurrentProcess, GetProcessAffinityMask},
    };

    use super::LogicalCore;

    /// Returns the cores on which this process may run; `None` on machines with more than 64.
    pub(super) fn cores() -> Option<Vec<LogicalCore>> {
        let mut length = 0;
        // SAFETY: without a buffer, the function writes only the length that it needs.
        unsafe { GetSystemCpuSetInformation(ptr::null_mut(), 0, &raw mut length, GetCurrentProcess(), 0) };
        let count = (length as usize).div_ceil(size_of::<SYSTEM_CPU_SET_INFORMATION>());
        let mut buffer = vec![SYSTEM_CPU_SET_INFORMATION::default(); count];
        let bytes = u32::try_from(mem::size_of_val(buffer.as_slice())).ok()?;
        // SAFETY: `bytes` is the size of the buffer, which outlives the call.
        let is_read = unsafe {
            GetSystemCpuSetInformation(buffer.as_mut_ptr(), bytes, &raw mut length, GetCurrentProcess(), 0)
        };
        let mut allowed = 0usize;
        let mut machine = 0usize;
        // SAFETY: both pointers are valid for a write.
        let has_mask =
            unsafe { GetProcessAffinityMask(GetCurrentProcess(), &raw mut allowed, &raw mut machine) };
        if is_read == 0 || has_mask == 0 {
            return None;
        }

        buffer.truncate(length as usize / size_of::<SYSTEM_CPU_SET_INFORMATION>());
        // SAFETY: the function has written entries of this form.
        let sets = buffer.iter().map(|entry| unsafe { entry.Anonymous.CpuSet });
        let sets: Vec<_> = sets.collect();
        let fastest = sets.iter().map(|set| set.EfficiencyClass).max()?;
        if sets.iter().any(|set| set.Group != 0) {
            return None;
        }
        let usable = sets.iter().filter(|set| (allowed >> set.LogicalProcessorIndex) & 1 == 1);
        let cores = usable.map(|set| LogicalCore {
            number: set.LogicalProcessorIndex.into(),
            physical: set.CoreIndex.into(),
            speed: if set.EfficiencyClass == fastest { 1.0 } else { 0.5 },
        });
        Some(cores.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the root of a machine with these cores, each with its physical core.
    fn machine(physical: &[usize]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (cpu, core) in physical.iter().enumerate() {
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            write(root.path(), &format!("{topology}/physical_package_id"), "0\n");
            write(root.path(), &format!("{topology}/core_id"), &format!("{core}\n"));
        }
        root
    }

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn fast(root: &Path, cores: usize) -> Option<(Vec<usize>, usize)> {
        let cores = linux_cores(root, &(0..cores).collect::<Vec<_>>()).unwrap();
        FastCores::of(&cores).map(|fast| (fast.logical, fast.physical))
    }

    #[test]
    fn intel_s_processors_name_the_types_of_their_cores() {
        // Four cores with two threads each, and four slow ones.
        let root = machine(&[0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7]);
        assert_eq!(fast(root.path(), 12), None);
        write(root.path(), "sys/devices/cpu_core/cpus", "0-7\n");
        write(root.path(), "sys/devices/cpu_atom/cpus", "8-11\n");
        assert_eq!(fast(root.path(), 12), Some(((0..8).collect(), 4)));
        let cores = linux_cores(root.path(), &[0, 1, 2, 8, 9]).unwrap();
        assert_eq!(FastCores::of(&cores), None, "two fast cores are too few");
        assert_eq!(physical(&cores), 4);
    }

    #[test]
    fn arm_s_cores_have_a_capacity() {
        let root = machine(&[0, 1, 2, 3, 4, 5, 6, 7]);
        for (cpu, capacity) in [300, 300, 300, 300, 900, 900, 900, 1024].iter().enumerate() {
            write(
                root.path(),
                &format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"),
                &format!("{capacity}\n"),
            );
        }
        assert_eq!(fast(root.path(), 8), Some((vec![4, 5, 6, 7], 4)));
        assert_eq!(fast(root.path(), 4), None, "cores of one speed");
    }

    #[test]
    fn other_cores_have_a_highest_frequency() {
        let root = machine(&[0, 1, 2, 3, 4, 5]);
        for (cpu, frequency) in
            [5_100_000, 5_000_000, 4_900_000, 5_100_000, 3_300_000, 3_300_000].iter().enumerate()
        {
            let file = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq");
            write(root.path(), &file, &frequency.to_string());
        }
        assert_eq!(fast(root.path(), 6), Some((vec![0, 1, 2, 3], 4)));
    }

    #[test]
    fn threads_up_to_the_number_of_fast_cores_stay_on_them() {
        let cores = FastCores { logical: vec![0, 1, 4], physical: 3 };
        assert_eq!(cores.affinities(1), None);
        assert_eq!(cores.affinities(2).as_deref(), Some("1,2,5"));
        assert_eq!(cores.affinities(3).as_deref(), Some("1,2,5;1,2,5"));
        assert_eq!(cores.affinities(4), None);
    }

    #[test]
    fn this_machine_has_cores() {
        if cfg!(any(target_os = "linux", windows)) {
            let usable = std::thread::available_parallelism().unwrap().get();
            assert!(physical_cores().unwrap() >= 1);
            assert!(FastCores::here().is_none_or(|fast| fast.physical <= usable.max(fast.logical.len())));
        }
    }

    #[test]
    fn lists_of_processors() {
        let check = |text: &str, expected: Option<&[usize]>| assert_eq!(cpu_list(text).as_deref(), expected);
        check("0", Some(&[0]));
        check("0-2,5,8-9", Some(&[0, 1, 2, 5, 8, 9]));
        check("3-1", Some(&[]));
        check("", None);
        check("0-", None);
        check("0-99999999999", None);
    }
}
