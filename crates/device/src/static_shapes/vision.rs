//! A vision tower in a graph of fixed shape, in half precision.

use std::path::Path;

use half::f16;
use narthex_engine::executor::StepError;
use narthex_spec::{
    Variant,
    manifest::{Manifest, Slot},
};

use super::{GraphLoad, graph::StaticGraph, open};
use crate::{
    error::DeviceError,
    placement::GraphPlacement,
    runtime::Runtime,
    vision::{check_pixels, parts},
};

/// A vision tower on an NPU, on an emulation of one, or on the CPU as their reference.
pub struct StaticVisionTower {
    graph: StaticGraph,
}

impl StaticVisionTower {
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
        let entry = parts(manifest, Variant::Static)?.entry;
        let graph = StaticGraph::new(entry, open(runtime, folder, manifest, entry, place)?)?;
        Ok(Self { graph })
    }

    /// Returns the placement of the graph's nodes.
    pub fn placement(&self) -> GraphPlacement {
        self.graph.placement()
    }

    /// Returns the rows for the values `[3, side, side]` of a picture.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for another number of values, [`StepError::Device`] if the run fails.
    pub fn encode(&mut self, pixels: &[f32]) -> Result<Vec<f32>, StepError> {
        let input = self.graph.input(Slot::Pixels);
        check_pixels(pixels, input.len())?;
        for (place, value) in input.iter_mut().zip(pixels) {
            *place = f16::from_f32(*value);
        }
        self.graph.run()?;
        Ok(self.graph.output(Slot::PictureRows).iter().map(|value| value.to_f32()).collect())
    }
}
