//! LongRoPE: two sets of rotary factors, selected by the length of a sequence.

use std::path::Path;

use narthex_spec::{arch::DecoderArch, manifest::Manifest};

use super::graph::AngleTables;
use crate::{
    error::DeviceError,
    rope_switch::RopeFactors,
    table::{LONG, SHORT, pair},
};

/// Both sets of rotary angles.
pub(crate) struct LongRope {
    short: AngleTables,
    long: AngleTables,
}

impl LongRope {
    /// Returns the two sets of a package, or `None` if its model has only one.
    pub(super) fn open(
        package: &Path,
        manifest: &Manifest,
        arch: &DecoderArch,
    ) -> Result<Option<Self>, DeviceError> {
        if arch.switch().is_none() {
            return Ok(None);
        }
        let short = pair(package, manifest, SHORT)?;
        let long = pair(package, manifest, LONG)?;
        Ok(Some(Self {
            short: AngleTables::read(short.each_ref()),
            long: AngleTables::read(long.each_ref()),
        }))
    }

    pub(super) fn angles(&mut self, factors: RopeFactors) -> &mut AngleTables {
        match factors {
            RopeFactors::Short => &mut self.short,
            RopeFactors::Long => &mut self.long,
        }
    }
}
