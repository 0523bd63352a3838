//! Packed weights of a package for the CPU. The first load stores them in this machine's folder of the package, and later
//! loads map them.

use std::path::PathBuf;

use narthex_catalog::store::MachineFolder;
use narthex_device::packed_weights::PackedWeights;
use narthex_spec::{
    ProgressSink,
    progress::{Stage, Unit},
};

use crate::error::Error;

/// Folder of the packed weights.
const FOLDER: &str = "packed";

/// Returns the folder with the packed weights that an earlier load has stored, if they have not changed since then.
pub(crate) fn stored(machine: &MachineFolder) -> Option<PathBuf> {
    machine.unchanged_folder(FOLDER).unwrap_or_else(|error| {
        tracing::warn!("the stored packed weights cannot be used; the weights are packed again: {error}");
        None
    })
}

/// Stores the packed weights of a package's graphs, unless all of them come from the store. A load does not depend on
/// this, so a store that is full or read-only is not an error.
pub(crate) fn store(machine: &MachineFolder, weights: &[PackedWeights], progress: &dyn ProgressSink) {
    if weights.iter().all(PackedWeights::is_stored) {
        return;
    }
    let _stage =
        Stage::start(progress, "Packing the weights for this CPU (first load only)", Unit::Nothing, None);
    if let Err(error) = write(machine, weights) {
        tracing::warn!("the packed weights are not stored, and each load packs them: {error}");
    }
}

fn write(machine: &MachineFolder, weights: &[PackedWeights]) -> Result<(), Error> {
    // Another process may have stored the same weights since this load began. It may have mapped them.
    if let Ok(Some(folder)) = machine.unchanged_folder(FOLDER)
        && weights.iter().all(|weights| weights.are_in(&folder))
    {
        return Ok(());
    }
    let staging = machine.stage(FOLDER)?;
    for weights in weights {
        weights.write(staging.path()).map_err(Error::io("write packed weights to", staging.path()))?;
    }
    staging.commit_with_state()?;
    Ok(())
}
