//! An audio tower in a graph for the longest sound, in half precision.

use std::path::Path;

use half::f16;
use narthex_engine::executor::StepError;
use narthex_spec::{
    Variant,
    arch::ConformerTower,
    manifest::{Manifest, Slot},
};

use super::{GraphLoad, graph::StaticGraph, open};
use crate::{
    audio::{frames, parts, sound_rows},
    error::DeviceError,
    placement::GraphPlacement,
    runtime::Runtime,
};

/// An audio tower on an NPU, on an emulation of one, or on the CPU as their reference.
pub struct StaticAudioTower {
    graph: StaticGraph,
    arch: ConformerTower,
    /// Number of elements of a row.
    width: usize,
}

impl StaticAudioTower {
    /// Loads the tower of a package on a device.
    ///
    /// # Errors
    /// [`DeviceError::Package`] for a package without a tower in the static variant, and the errors of
    /// [`StaticExecutor::open`](super::StaticExecutor::open).
    pub fn open(
        runtime: &Runtime,
        folder: &Path,
        manifest: &Manifest,
        place: GraphLoad<'_>,
    ) -> Result<Self, DeviceError> {
        let parts = parts(manifest, Variant::Static)?;
        let graph = StaticGraph::new(parts.entry, open(runtime, folder, manifest, parts.entry, place)?)?;
        Ok(Self { graph, arch: parts.audio.clone(), width: parts.arch.hidden })
    }

    /// Returns the placement of the graph's nodes.
    pub fn placement(&self) -> GraphPlacement {
        self.graph.placement()
    }

    /// Returns the rows for the features `[frames, bins]` of a sound.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for no frames, more than a sound may have, or incomplete ones, [`StepError::Device`] if the run
    /// fails.
    pub fn encode(&mut self, features: &[f32]) -> Result<Vec<f32>, StepError> {
        let frames = frames(&self.arch, features)?;
        let ones = vec![1.0; frames];
        for (slot, values) in [(Slot::FrameFeatures, features), (Slot::FrameMask, &ones)] {
            let input = self.graph.input(slot);
            if input.len() < values.len() {
                return Err(StepError::bad_plan(format!("expected room for {frames} frames")));
            }
            input.fill(f16::ZERO);
            for (place, value) in input.iter_mut().zip(values) {
                *place = f16::from_f32(*value);
            }
        }

        self.graph.run()?;
        let output: Vec<f32> =
            self.graph.output(Slot::SoundRows).iter().map(|value| value.to_f32()).collect();
        sound_rows(&self.arch, &output, frames, self.width).ok_or_else(|| StepError::Device {
            message: format!("read a sound: no rows for {frames} frames"),
        })
    }
}
