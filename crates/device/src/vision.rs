//! The vision tower of a decoder, in the dynamic variant: turns the values of a picture into embedding rows.

use std::path::Path;

use narthex_engine::executor::StepError;
use narthex_spec::{
    Elements, Feed, Variant,
    arch::{DecoderArch, Structure, VisionArch},
    manifest::{GraphEntry, Manifest, Slot},
};

use crate::{
    ep::Device,
    error::DeviceError,
    ort::Session,
    packed_weights::PackedWeights,
    placement::Placement,
    runtime::Runtime,
    tower::{self, TowerOptions, binding},
};

/// A loaded vision tower, in the dynamic variant.
pub struct VisionTower {
    session: Session,
    /// File of the graph in the package.
    graph: String,
    pixels: String,
    rows: String,
    shape: [usize; 4],
    /// Number of rows and their width.
    output: [usize; 2],
}

impl VisionTower {
    /// Loads the tower of a package on a device.
    ///
    /// # Errors
    /// [`DeviceError::Package`] for a package without a tower for this device, [`DeviceError::Ort`] for a graph that ONNX
    /// Runtime refuses.
    pub fn open(
        runtime: &Runtime,
        package: &Path,
        manifest: &Manifest,
        device: &Device,
        options: &TowerOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let VisionParts { arch, vision, entry } = parts(manifest, Variant::Dynamic)?;
        let output = [vision.rows(), arch.hidden];
        let shape = vision.pixels();
        let pixels = binding(entry.input(Slot::Pixels), "pixels of the vision tower", Some(&shape))?;
        let rows = Some(&[1, output[0], output[1]][..]);
        let rows = binding(entry.output(Slot::PictureRows), "rows of the vision tower", rows)?;
        Ok(Self {
            session: tower::open(runtime, package, manifest, entry, device, options)?,
            graph: entry.file.clone(),
            pixels: pixels.name.clone(),
            rows: rows.name.clone(),
            shape,
            output,
        })
    }

    /// Returns the number of rows of a picture.
    pub fn rows(&self) -> usize {
        self.output[0]
    }

    /// Returns the number of elements of a row.
    pub fn width(&self) -> usize {
        self.output[1]
    }

    /// Returns the file of the graph in the package.
    pub fn graph(&self) -> &str {
        &self.graph
    }

    /// Returns the placement of the graph's nodes.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    /// Returns the packed weights of the graph, if the CPU computes with packed weights. A later load of the same package
    /// need not pack them again if they are stored and passed in its options.
    pub fn packed_weights(&self) -> Option<&PackedWeights> {
        self.session.packed_weights()
    }

    /// Returns the rows `[rows, width]` for the values `[3, side, side]` of a picture.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for another number of values, [`StepError::Device`] if the run fails.
    pub fn encode(&mut self, pixels: Vec<f32>) -> Result<Vec<f32>, StepError> {
        check_pixels(&pixels, self.shape.iter().product())?;
        let feed =
            Feed { name: self.pixels.clone(), shape: self.shape.to_vec(), elements: Elements::F32(pixels) };
        let failed = |message: String| StepError::Device { message: format!("read a picture: {message}") };
        let outputs = self.session.run(vec![feed], &[&self.rows]).map_err(failed)?;
        match outputs.into_iter().next().map(|output| output.elements) {
            Some(Elements::F32(rows)) if rows.len() == self.rows() * self.width() => Ok(rows),
            _ => Err(failed(format!("expected {} rows of {} elements", self.rows(), self.width()))),
        }
    }
}

/// Fails unless a picture has the expected number of values.
pub(crate) fn check_pixels(pixels: &[f32], expected: usize) -> Result<(), StepError> {
    match pixels.len() {
        found if found == expected => Ok(()),
        found => Err(StepError::bad_plan(format!("expected {expected} values of a picture, found {found}"))),
    }
}

/// Parts of a manifest with a vision tower.
pub(crate) struct VisionParts<'a> {
    arch: &'a DecoderArch,
    vision: &'a VisionArch,
    /// Graph of the tower.
    pub(crate) entry: &'a GraphEntry,
}

/// Returns the vision tower of a package, with its graph of this variant.
pub(crate) fn parts(manifest: &Manifest, variant: Variant) -> Result<VisionParts<'_>, DeviceError> {
    if let (Structure::Decoder(arch), Some(entry)) = (&manifest.architecture, &manifest.vision)
        && let Some(vision) = &arch.vision
    {
        let entry = tower::graph(&entry.graphs, variant, "vision tower")?;
        return Ok(VisionParts { arch, vision, entry });
    }
    Err(DeviceError::package("a decoder with a vision tower", "none"))
}
