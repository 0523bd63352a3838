//! Two sets of rotary factors, of which a sequence's length decides.

use std::path::Path;

use narthex_engine::executor::Limits;
use narthex_spec::{arch::DecoderArch, manifest::Manifest};

use super::graph::Angles;
use crate::{
    error::DeviceError,
    switch::{Factors, Switch},
    table::{LONG, SHORT, pair},
};

/// What a model with two sets of rotary factors needs beside others.
pub(crate) struct Long {
    pub(super) switch: Switch,
    short: Angles,
    long: Angles,
}

impl Long {
    /// The two sets of a package, where its model has two.
    pub(super) fn open(
        package: &Path,
        manifest: &Manifest,
        arch: &DecoderArch,
        limits: &Limits,
    ) -> Result<Option<Self>, DeviceError> {
        let Some(at) = arch.switch() else { return Ok(None) };
        let read = |roles| Ok::<_, DeviceError>(Angles::read(pair(package, manifest, roles)?.each_ref()));
        Ok(Some(Self {
            switch: Switch::new(at, limits.slots, limits.chunk),
            short: read(SHORT)?,
            long: read(LONG)?,
        }))
    }

    pub(super) fn angles(&mut self, factors: Factors) -> &mut Angles {
        match factors {
            Factors::Short => &mut self.short,
            Factors::Long => &mut self.long,
        }
    }
}
