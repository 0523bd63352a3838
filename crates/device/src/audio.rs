//! The audio tower of a decoder, in the dynamic variant: turns the features of a sound into embedding rows.

use std::path::Path;

use narthex_engine::executor::StepError;
use narthex_spec::{
    Elements, Feed, Variant,
    arch::{ConformerTower, DecoderArch, Structure},
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

/// A loaded audio tower, in the dynamic variant.
pub struct AudioTower {
    session: Session,
    /// File of the graph in the package.
    graph: String,
    features: String,
    mask: String,
    rows: String,
    arch: ConformerTower,
    /// Number of elements of a row.
    width: usize,
}

impl AudioTower {
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
        let AudioParts { arch, audio, entry } = parts(manifest, Variant::Dynamic)?;
        let features = binding(entry.input(Slot::FrameFeatures), "features of the audio tower", None)?;
        let mask = binding(entry.input(Slot::FrameMask), "mask of the audio tower", None)?;
        let rows = binding(entry.output(Slot::SoundRows), "rows of the audio tower", None)?;
        if rows.shape.last() != Some(&arch.hidden.into()) {
            let expected = format!("rows of the audio tower of {} elements", arch.hidden);
            return Err(DeviceError::package(expected, format!("{:?}", rows.shape)));
        }
        Ok(Self {
            session: tower::open(runtime, package, manifest, entry, device, options)?,
            graph: entry.file.clone(),
            features: features.name.clone(),
            mask: mask.name.clone(),
            rows: rows.name.clone(),
            arch: audio.clone(),
            width: arch.hidden,
        })
    }

    /// Returns the number of rows of a sound, with that of the token after them.
    pub fn rows(&self) -> usize {
        self.arch.rows + 1
    }

    /// Returns the number of elements of a row.
    pub fn width(&self) -> usize {
        self.width
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

    /// Returns the rows `[rows, width]` for the features `[frames, bins]` of a sound.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] for no frames, more than a sound may have, or incomplete ones, [`StepError::Device`] if the run
    /// fails.
    pub fn encode(&mut self, features: Vec<f32>) -> Result<Vec<f32>, StepError> {
        let frames = frames(&self.arch, &features)?;
        let length = self.arch.padded_frames(frames);
        let feeds = vec![
            Feed {
                name: self.features.clone(),
                shape: vec![1, length, self.arch.bins],
                elements: Elements::F32(padded(features, length * self.arch.bins)),
            },
            Feed {
                name: self.mask.clone(),
                shape: vec![1, length],
                elements: Elements::F32(padded(vec![1.0; frames], length)),
            },
        ];
        let failed = |message: String| StepError::Device { message: format!("read a sound: {message}") };
        let outputs = self.session.run(feeds, &[&self.rows]).map_err(failed)?;
        let rows = match outputs.into_iter().next().map(|output| output.elements) {
            Some(Elements::F32(rows)) => sound_rows(&self.arch, &rows, frames, self.width),
            _ => None,
        };
        rows.ok_or_else(|| failed(format!("expected rows of {} elements for {frames} frames", self.width)))
    }
}

fn padded(mut values: Vec<f32>, length: usize) -> Vec<f32> {
    values.resize(length, 0.0);
    values
}

/// Returns the number of frames of a sound's features.
pub(crate) fn frames(arch: &ConformerTower, features: &[f32]) -> Result<usize, StepError> {
    let frames = features.len() / arch.bins.max(1);
    let max = arch.max_frames();
    if (1..=max).contains(&frames) && features.len() == frames * arch.bins {
        return Ok(frames);
    }
    let values = features.len();
    Err(StepError::bad_plan(format!(
        "expected 1 to {max} frames of {} bins, found {values} values",
        arch.bins
    )))
}

/// Returns the rows of a sound in the decoder: those of its frames, that of the token in place of missing ones as often as
/// needed, and that of the token after them. `output` has the rows of the graph, the last two of which are those of the tokens.
pub(crate) fn sound_rows(
    arch: &ConformerTower,
    output: &[f32],
    frames: usize,
    width: usize,
) -> Option<Vec<f32>> {
    let (rows, tokens) = output.split_at_checked(output.len().checked_sub(2 * width)?)?;
    let (padding, end) = tokens.split_at(width);
    let count = arch.rows_of(frames);
    let mut sound = rows.get(..count * width)?.to_vec();
    for _ in count..arch.rows {
        sound.extend_from_slice(padding);
    }
    sound.extend_from_slice(end);
    Some(sound)
}

/// Parts of a manifest with an audio tower.
pub(crate) struct AudioParts<'a> {
    pub(crate) arch: &'a DecoderArch,
    pub(crate) audio: &'a ConformerTower,
    /// Graph of the tower.
    pub(crate) entry: &'a GraphEntry,
}

/// Returns the audio tower of a package, with its graph of this variant.
pub(crate) fn parts(manifest: &Manifest, variant: Variant) -> Result<AudioParts<'_>, DeviceError> {
    if let (Structure::Decoder(arch), Some(entry)) = (&manifest.architecture, &manifest.audio)
        && let Some(audio) = &arch.audio
    {
        let entry = tower::graph(&entry.graphs, variant, "audio tower")?;
        return Ok(AudioParts { arch, audio, entry });
    }
    Err(DeviceError::package("a decoder with an audio tower", "none"))
}
