//! LongRoPE: two sets of rotary factors, selected by the length of a sequence.

use std::path::Path;

use narthex_engine::executor::Limits;
use narthex_spec::{arch::DecoderArch, manifest::Manifest};

use super::graph::AngleTables;
use crate::{
    error::DeviceError,
    rope_switch::{RopeFactors, RopeSwitch},
    table::{LONG, SHORT, pair},
};

/// Both sets of rotary angles, and the state that selects between them.
pub(crate) struct LongRope {
    pub(super) switch: RopeSwitch,
    short: AngleTables,
    long: AngleTables,
}

impl LongRope {
    /// Returns the two sets of a package, or `None` if its model has only one.
    pub(super) fn open(
        package: &Path,
        manifest: &Manifest,
        arch: &DecoderArch,
        limits: &Limits,
    ) -> Result<Option<Self>, DeviceError> {
        let Some(at) = arch.switch() else { return Ok(None) };
        let read =
            |roles| Ok::<_, DeviceError>(AngleTables::read(pair(package, manifest, roles)?.each_ref()));
        Ok(Some(Self {
            switch: RopeSwitch::new(at, limits.slots, limits.chunk),
            short: read(SHORT)?,
            long: read(LONG)?,
        }))
    }

    pub(super) fn angles(&mut self, factors: RopeFactors) -> &mut AngleTables {
        match factors {
            RopeFactors::Short => &mut self.short,
            RopeFactors::Long => &mut self.long,
        }
    }
}
