//! The registry of Windows, with the hardware of a machine. It is empty on other systems.

/// Returns a text value of the local machine, if it exists.
#[cfg(windows)]
pub(crate) fn text(key: &str, name: &str) -> Option<String> {
    use windows_sys::Win32::{
        Foundation::ERROR_SUCCESS,
        System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW},
    };

    /// Maximum length of a value in UTF-16 code units.
    const MAX_UNITS: usize = 1024;
    let [key, name] = [key, name].map(|text| text.encode_utf16().chain([0]).collect::<Vec<u16>>());
    let mut value = [0u16; MAX_UNITS];
    let mut bytes = size_of_val(&value) as u32;
    // SAFETY: both names end with a zero, `bytes` is the size of `value`, and all of them outlive the call.
    let status = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            name.as_ptr(),
            RRF_RT_REG_SZ,
            std::ptr::null_mut(),
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let text = String::from_utf16_lossy(value.get(..bytes as usize / 2)?);
    let text = text.trim_matches(['\0', ' ']);
    (status == ERROR_SUCCESS && !text.is_empty()).then(|| text.to_owned())
}

/// Returns a 64-bit number of the local machine, if it exists.
#[cfg(windows)]
pub(crate) fn number(key: &str, name: &str) -> Option<u64> {
    use windows_sys::Win32::{
        Foundation::ERROR_SUCCESS,
        System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_QWORD, RegGetValueW},
    };

    let [key, name] = [key, name].map(|text| text.encode_utf16().chain([0]).collect::<Vec<u16>>());
    let mut value = 0u64;
    let mut bytes = size_of_val(&value) as u32;
    // SAFETY: both names end with a zero, `bytes` is the size of `value`, and all of them outlive the call.
    let status = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            name.as_ptr(),
            RRF_RT_REG_QWORD,
            std::ptr::null_mut(),
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    (status == ERROR_SUCCESS).then_some(value)
}

/// Returns `None`, because this system has no registry.
#[cfg(not(windows))]
pub(crate) fn number(_: &str, _: &str) -> Option<u64> {
    None
}

/// Returns `None`, because this system has no registry.
#[cfg(not(windows))]
pub(crate) fn text(_: &str, _: &str) -> Option<String> {
    None
}
