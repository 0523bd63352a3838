//! Features of Arm processors that not every standard library detects on Windows.
//!
//! Windows 11 24H2 and later report them (`IsProcessorFeaturePresent`). Earlier versions keep the identification registers
//! of the processor in the registry; their fields are those of the Arm Architecture Reference Manual.

/// Lowest bit of the field for the matrix instructions for bytes in `ID_AA64ISAR1_EL1`.
#[cfg(any(test, all(windows, target_arch = "aarch64")))]
const I8MM_FIELD: u32 = 52;

/// Lowest bit of the field for bf16 in `ID_AA64ISAR1_EL1`.
#[cfg(any(test, all(windows, target_arch = "aarch64")))]
const BF16_FIELD: u32 = 44;

/// Returns true if the processor has the matrix instructions for bytes (`FEAT_I8MM`).
#[cfg(target_arch = "aarch64")]
pub fn has_i8mm() -> bool {
    #[cfg(windows)]
    if windows::has_feature(windows::I8MM)
        || windows::isar1().is_some_and(|isar1| has_field(isar1, I8MM_FIELD))
    {
        return true;
    }
    std::arch::is_aarch64_feature_detected!("i8mm")
}

/// Returns true if the processor has the instructions for bf16 (`FEAT_BF16`).
#[cfg(target_arch = "aarch64")]
pub fn has_bf16() -> bool {
    #[cfg(windows)]
    if windows::has_feature(windows::BF16)
        || windows::isar1().is_some_and(|isar1| has_field(isar1, BF16_FIELD))
    {
        return true;
    }
    std::arch::is_aarch64_feature_detected!("bf16")
}

/// Returns whether the field of four bits that begins at `lowest` is not zero.
#[cfg(any(test, all(windows, target_arch = "aarch64")))]
fn has_field(register: u64, lowest: u32) -> bool {
    register >> lowest & 0xf != 0
}

#[cfg(all(windows, target_arch = "aarch64"))]
#[allow(unsafe_code, reason = "functions of Windows")]
mod windows {
    use windows_sys::Win32::{
        Foundation::ERROR_SUCCESS,
        System::{
            Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_QWORD, RegGetValueW},
            Threading::IsProcessorFeaturePresent,
        },
    };

    /// `PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE`.
    pub(super) const I8MM: u32 = 66;

    /// `PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE`.
    pub(super) const BF16: u32 = 68;

    /// Returns whether Windows reports a feature. It reports none that it does not know.
    pub(super) fn has_feature(feature: u32) -> bool {
        // SAFETY: the function takes any number.
        unsafe { IsProcessorFeaturePresent(feature) != 0 }
    }

    /// Returns the register `ID_AA64ISAR1_EL1`, whose encoding is 4031 in hexadecimal digits.
    pub(super) fn isar1() -> Option<u64> {
        let [key, name] = [r"HARDWARE\DESCRIPTION\System\CentralProcessor\0", "CP 4031"]
            .map(|text| text.encode_utf16().chain([0]).collect::<Vec<u16>>());
        let mut register = 0u64;
        let mut bytes = size_of_val(&register) as u32;
        // SAFETY: both names end with a zero, `bytes` is the size of `register`, and all of them outlive the call.
        let status = unsafe {
            RegGetValueW(
                HKEY_LOCAL_MACHINE,
                key.as_ptr(),
                name.as_ptr(),
                RRF_RT_REG_QWORD,
                std::ptr::null_mut(),
                (&raw mut register).cast(),
                &raw mut bytes,
            )
        };
        (status == ERROR_SUCCESS).then_some(register)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_register_state_the_features() {
        // ID_AA64ISAR1_EL1 of a processor with both features, and of one with neither.
        let (newer, older) = (0x0011_1011_0121_2012, 0x0000_0000_0121_2012);
        assert!(has_field(newer, I8MM_FIELD) && has_field(newer, BF16_FIELD));
        assert!(!has_field(older, I8MM_FIELD) && !has_field(older, BF16_FIELD));
        assert!(has_field(1 << 55, I8MM_FIELD) && !has_field(1 << 56, I8MM_FIELD));
    }
}
