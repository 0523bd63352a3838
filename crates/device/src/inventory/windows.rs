//! Accelerators of Windows: NPUs and GPUs in the registry's device classes, and the memory of GPUs from DXGI.

use super::{Accelerator, AcceleratorKind, Driver};
use crate::registry;

/// Device classes: `ComputeAccelerator` and `Display`.
const CLASSES: [(AcceleratorKind, &str); 2] = [
    (AcceleratorKind::Npu, "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"),
    (AcceleratorKind::Gpu, "{4d36e968-e325-11ce-bfc1-08002be10318}"),
];

/// Number of registry entries that are tried for each class; their numbers may have gaps.
const MAX_ENTRIES: usize = 16;

/// Memory below which a GPU's own memory is taken for the part of an integrated GPU that the firmware sets aside. Models
/// are then in the memory that it shares with the processor.
const MIN_OWN_MEMORY: u64 = 1 << 30;

/// A device in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RegisteredDevice {
    kind: AcceleratorKind,
    name: String,
    /// Company that provides the driver.
    provider: String,
    version: String,
    /// Size of a GPU's own memory in bytes, if its driver states it.
    memory: Option<u64>,
}

/// A graphics adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GraphicsAdapter {
    pub(super) name: String,
    /// Number of the vendor on the PCI bus.
    pub(super) vendor: u32,
    /// Bytes of its own memory.
    pub(super) dedicated: u64,
    /// Bytes of the machine's memory that it may use.
    pub(super) shared: u64,
}

/// Returns the NPUs and GPUs of the registry; none on other systems.
pub(super) fn accelerators() -> Vec<Accelerator> {
    devices().into_iter().map(RegisteredDevice::into_accelerator).collect()
}

/// Returns the drivers of the NPUs and GPUs of the registry; none on other systems.
pub(super) fn drivers() -> impl Iterator<Item = Driver> {
    devices().into_iter().map(|RegisteredDevice { kind, name, version, .. }| {
        let text = format!("{name} {version}").trim_end().to_owned();
        Driver { kind, text }
    })
}

/// Replaces the GPUs by those of DXGI, which reports the sizes of their memory, if it reports any.
pub(super) fn with_graphics(mut accelerators: Vec<Accelerator>) -> Vec<Accelerator> {
    let adapters = graphics_adapters();
    if !adapters.is_empty() {
        accelerators.retain(|found| found.kind != AcceleratorKind::Gpu);
        accelerators.extend(adapters.into_iter().map(GraphicsAdapter::into_accelerator));
    }
    accelerators
}

fn devices() -> Vec<RegisteredDevice> {
    let mut devices = Vec::new();
    for (kind, class) in CLASSES {
        devices.extend((0..MAX_ENTRIES).filter_map(|index| {
            let key = format!(r"SYSTEM\CurrentControlSet\Control\Class\{class}\{index:04}");
            Some(RegisteredDevice {
                kind,
                name: registry::text(&key, "DriverDesc")?,
                provider: registry::text(&key, "ProviderName").unwrap_or_default(),
                version: registry::text(&key, "DriverVersion").unwrap_or_default(),
                memory: registry::number(&key, "HardwareInformation.qwMemorySize"),
            })
        }));
    }
    devices
}

impl RegisteredDevice {
    fn into_accelerator(self) -> Accelerator {
        let Self { kind, name, provider, version, memory } = self;
        let words = format!("{name} {provider}").to_ascii_lowercase();
        let driver = driver_of(kind, &words).unwrap_or(&name).to_owned();
        let version = if version.is_empty() { String::new() } else { format!(" (driver {version})") };
        let memory = memory.filter(|bytes| *bytes >= MIN_OWN_MEMORY);
        Accelerator { kind, driver, text: format!("{name}{version}"), memory }
    }
}

/// Returns the name by which the rest of the program knows a driver, which is that of the driver on Linux.
fn driver_of(kind: AcceleratorKind, words: &str) -> Option<&'static str> {
    let names: &[(&str, &str)] = match kind {
        AcceleratorKind::Npu => &[
            ("qualcomm", "fastrpc"),
            ("hexagon", "fastrpc"),
            ("snapdragon", "fastrpc"),
            ("intel", "intel_vpu"),
            ("amd", "amdxdna"),
            ("advanced micro devices", "amdxdna"),
        ],
        AcceleratorKind::Gpu => &[("nvidia", "nvidia")],
    };
    names.iter().find(|(word, _)| words.contains(word)).map(|(_, driver)| *driver)
}

impl GraphicsAdapter {
    fn into_accelerator(self) -> Accelerator {
        const NVIDIA: u32 = 0x10DE;
        let Self { name, vendor, dedicated, shared } = self;
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let text = format!(
            "{name} ({:.1} GB of its own, {:.1} GB shared with the processor)",
            gigabytes(dedicated),
            gigabytes(shared)
        );
        let driver = if vendor == NVIDIA { "nvidia".to_owned() } else { name };
        let memory = Some(if dedicated < MIN_OWN_MEMORY { shared } else { dedicated });
        Accelerator { kind: AcceleratorKind::Gpu, driver, text, memory }
    }
}

#[cfg(not(windows))]
fn graphics_adapters() -> Vec<GraphicsAdapter> {
    Vec::new()
}

#[cfg(windows)]
fn graphics_adapters() -> Vec<GraphicsAdapter> {
    dxgi::adapters().unwrap_or_default()
}

/// The interfaces of DXGI, with the functions that are called here.
#[cfg(windows)]
#[allow(unsafe_code, reason = "COM objects are called through tables of function pointers")]
mod dxgi {
    use std::{ffi::c_void, mem, ptr};

    use windows_sys::{
        Win32::{
            Foundation::LUID,
            System::LibraryLoader::{GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW},
        },
        core::{GUID, HRESULT, w},
    };

    use super::GraphicsAdapter;

    /// Maximum number of adapters.
    const MAX_ADAPTERS: u32 = 16;

    /// Flag of an adapter that the processor computes.
    const SOFTWARE: u32 = 2;

    const IID_FACTORY: GUID = GUID::from_u128(0x770aae78_f26f_4dba_a829_253c83d1b387);

    type CreateFactory = unsafe extern "system" fn(*const GUID, *mut *mut c_void) -> HRESULT;

    /// `IDXGIFactory1`.
    #[repr(C)]
    struct FactoryTable {
        before: [*const c_void; 2],
        release: unsafe extern "system" fn(*mut c_void) -> u32,
        between: [*const c_void; 9],
        enum_adapters: unsafe extern "system" fn(*mut c_void, u32, *mut *mut c_void) -> HRESULT,
    }

    /// `IDXGIAdapter1`.
    #[repr(C)]
    struct AdapterTable {
        before: [*const c_void; 2],
        release: unsafe extern "system" fn(*mut c_void) -> u32,
        between: [*const c_void; 7],
        describe: unsafe extern "system" fn(*mut c_void, *mut Description) -> HRESULT,
    }

    /// `DXGI_ADAPTER_DESC1`.
    #[repr(C)]
    struct Description {
        name: [u16; 128],
        vendor: u32,
        device: u32,
        subsystem: u32,
        revision: u32,
        dedicated_video: usize,
        dedicated_system: usize,
        shared_system: usize,
        luid: LUID,
        flags: u32,
    }

    /// A COM object that is released when it is dropped.
    struct Object(*mut c_void);

    impl Object {
        /// Returns the object's table.
        ///
        /// # Safety
        /// The object has an interface whose table begins with `T`.
        unsafe fn table<T>(&self) -> &T {
            // SAFETY: every COM object begins with the pointer to its table.
            unsafe { &**self.0.cast::<*const T>() }
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            // SAFETY: the third function of every COM interface releases it, and the object is released once.
            unsafe { (self.table::<FactoryTable>().release)(self.0) };
        }
    }

    /// Returns the adapters of the hardware; `None` if DXGI cannot be used.
    pub(super) fn adapters() -> Option<Vec<GraphicsAdapter>> {
        let factory = factory()?;
        let mut adapters = Vec::new();
        for index in 0..MAX_ADAPTERS {
            let mut adapter = ptr::null_mut();
            // SAFETY: the factory has this interface, and `adapter` is valid for a write.
            let status = unsafe {
                (factory.table::<FactoryTable>().enum_adapters)(factory.0, index, &raw mut adapter)
            };
            if status < 0 || adapter.is_null() {
                break;
            }
            adapters.extend(described(&Object(adapter)));
        }
        Some(adapters)
    }

    fn factory() -> Option<Object> {
        // SAFETY: the name ends with a zero, and the library is searched in the system's folder alone. It stays loaded.
        let library =
            unsafe { LoadLibraryExW(w!("dxgi.dll"), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the library is loaded, and the name ends with a zero.
        let create = unsafe { GetProcAddress(library, c"CreateDXGIFactory1".as_ptr().cast()) }?;
        // SAFETY: the function has this type.
        let create: CreateFactory = unsafe { mem::transmute(create) };
        let mut factory = ptr::null_mut();
        // SAFETY: `factory` is valid for a write.
        let status = unsafe { create(&IID_FACTORY, &raw mut factory) };
        (status >= 0 && !factory.is_null()).then(|| Object(factory))
    }

    /// Returns the description of an adapter of the hardware.
    fn described(adapter: &Object) -> Option<GraphicsAdapter> {
        // SAFETY: a description of zeros is a value of its type.
        let mut description: Description = unsafe { mem::zeroed() };
        // SAFETY: the adapter has this interface, and `description` is valid for a write.
        let status = unsafe { (adapter.table::<AdapterTable>().describe)(adapter.0, &raw mut description) };
        if status < 0 || description.flags & SOFTWARE != 0 {
            return None;
        }
        let length = description.name.iter().position(|unit| *unit == 0).unwrap_or(description.name.len());
        Some(GraphicsAdapter {
            name: String::from_utf16_lossy(&description.name[..length]).trim().to_owned(),
            vendor: description.vendor,
            dedicated: (description.dedicated_video + description.dedicated_system) as u64,
            shared: description.shared_system as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_the_registry_have_the_names_of_their_drivers() {
        let check = |kind, name: &str, provider: &str, expected: (&str, &str)| {
            let device = RegisteredDevice {
                kind,
                name: name.to_owned(),
                provider: provider.to_owned(),
                version: "32.0.1".to_owned(),
                memory: Some(1 << 27),
            };
            let found = device.into_accelerator();
            assert_eq!(
                (found.driver.as_str(), found.text.as_str(), found.memory),
                (expected.0, expected.1, None)
            );
        };
        let npu = AcceleratorKind::Npu;
        check(npu, "Intel(R) AI Boost", "Intel", ("intel_vpu", "Intel(R) AI Boost (driver 32.0.1)"));
        let amd = "NPU Compute Accelerator Device";
        check(npu, amd, "Advanced Micro Devices, Inc.", ("amdxdna", &format!("{amd} (driver 32.0.1)")));
        let qualcomm = "Snapdragon(R) X Elite - X1E78100 - Qualcomm(R) Hexagon(TM) NPU";
        check(npu, qualcomm, "Qualcomm", ("fastrpc", &format!("{qualcomm} (driver 32.0.1)")));
        check(npu, "NPU 9", "Other", ("NPU 9", "NPU 9 (driver 32.0.1)"));
        let gpu = AcceleratorKind::Gpu;
        check(gpu, "NVIDIA GeForce", "NVIDIA", ("nvidia", "NVIDIA GeForce (driver 32.0.1)"));
        check(gpu, "Intel(R) Arc(TM)", "Intel", ("Intel(R) Arc(TM)", "Intel(R) Arc(TM) (driver 32.0.1)"));
    }

    #[test]
    fn an_integrated_gpu_has_the_memory_that_it_shares() {
        let check = |dedicated: u64, shared: u64, expected: u64| {
            let adapter = GraphicsAdapter { name: "GPU".to_owned(), vendor: 0x8086, dedicated, shared };
            let found = adapter.into_accelerator();
            assert_eq!(found.memory, Some(expected));
            assert_eq!((found.driver.as_str(), found.kind), ("GPU", AcceleratorKind::Gpu));
        };
        check(128 << 20, 8 << 30, 8 << 30);
        check(8 << 30, 16 << 30, 8 << 30);
        check(4 << 30, 14 << 30, 4 << 30);
        let text = GraphicsAdapter {
            name: "A".to_owned(),
            vendor: 0x10DE,
            dedicated: 8_000_000_000,
            shared: 500_000_000,
        }
        .into_accelerator();
        assert_eq!(text.text, "A (8.0 GB of its own, 0.5 GB shared with the processor)");
        assert_eq!(text.driver, "nvidia");
    }
}
