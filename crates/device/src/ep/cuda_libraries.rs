//! Requirements of NVIDIA's GPUs that the `cuda` runtime does not contain: the driver and the CUDA libraries.

#[cfg(target_os = "linux")]
use std::ffi::CStr;

/// Linux driver of the GPU.
pub(super) const DRIVER: &str = "nvidia";

/// Libraries that the provider's library needs on Linux.
#[cfg(target_os = "linux")]
const REQUIRED: [&CStr; 4] =
    [c"libcudart.so.13", c"libcublasLt.so.13", c"libcublas.so.13", c"libcurand.so.10"];

/// Returns the name of a required library that the linker does not find; `None` if all are installed, or if the system
/// cannot be asked.
pub(super) fn missing() -> Option<String> {
    #[cfg(target_os = "linux")]
    return first_missing(&REQUIRED).map(|name| name.to_string_lossy().into_owned());
    #[cfg(not(target_os = "linux"))]
    None
}

/// Returns the first of these libraries that the linker does not find.
#[cfg(target_os = "linux")]
fn first_missing<'a>(names: &[&'a CStr]) -> Option<&'a CStr> {
    names
        .iter()
        .find(|name| {
            // SAFETY: the name ends with a zero. The initialisers of a library run, as they do when the provider loads it.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                // SAFETY: the handle is valid and closed once.
                unsafe { libc::dlclose(handle) };
            }
            handle.is_null()
        })
        .copied()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_missing_library_is_named() {
        assert_eq!(
            first_missing(&[c"libc.so.6", c"libno-such.so.1", c"libm.so.6"]),
            Some(c"libno-such.so.1")
        );
        assert_eq!(first_missing(&[c"libc.so.6"]), None);
    }
}
