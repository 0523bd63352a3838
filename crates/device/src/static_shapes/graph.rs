//! A graph of fixed shapes with its inputs and outputs bound to its own memory, and its past to the cache of one slot
//! at a time.

use std::{ffi::CString, ops::Range};

use half::f16;
use narthex_engine::executor::StepError;
use narthex_spec::{
    DType, SlotId,
    dtype::Dim,
    manifest::{Binding as TensorBinding, GraphEntry, KvContent, Part, Slot},
};

use super::{cache::StaticKvCache, window::WindowCache};
use crate::{
    error::DeviceError,
    ort::{Binding, Session, Tensor},
    package,
    placement::GraphPlacement,
};

/// A loaded graph and its tensors, all in half precision.
pub(super) struct StaticGraph {
    // Declared first, so that it is dropped first: it belongs to the session and refers to the memory below.
    binding: Binding,
    session: Session,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Index of its first cache entry within the whole model.
    first: usize,
    /// Names and shapes of the past keys and values of each entry; `None` for a short convolution, whose rows are an input
    /// of the graph's own.
    past: Vec<Option<[PastInput; 2]>>,
    slot: Option<SlotId>,
    file: String,
}

/// Name and shape of an input for past keys or values.
type PastInput = (CString, Vec<i64>);

/// An input or output with its memory.
struct Port {
    slot: Slot,
    data: Vec<f16>,
}

fn extents(bound: &TensorBinding) -> Result<Vec<i64>, DeviceError> {
    if bound.dtype != DType::F16 {
        return Err(DeviceError::package(format!("{} in f16", bound.name), format!("{:?}", bound.dtype)));
    }
    let shape: Option<Vec<i64>> = bound
        .shape
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(extent) => i64::try_from(*extent).ok(),
            Dim::Symbol(_) => None,
        })
        .collect();
    shape.ok_or_else(|| DeviceError::package(format!("a fixed shape of {}", bound.name), "a symbolic one"))
}

/// Returns whether an input or output is bound to memory of another owner: the cache of a slot, or of a window.
fn is_cached(slot: Slot) -> bool {
    matches!(
        slot,
        Slot::PastKey { .. } | Slot::PastValue { .. } | Slot::CrossKey { .. } | Slot::CrossValue { .. }
    )
}

impl StaticGraph {
    /// Binds a graph to its own memory. Its past is bound by [`Self::run_over`], and keys and values of a window by
    /// [`Self::bind_window`].
    pub(super) fn new(entry: &GraphEntry, session: Session) -> Result<Self, DeviceError> {
        let mut binding = Binding::new(&session).map_err(DeviceError::binding)?;
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();

        for bound in &entry.inputs {
            if !is_cached(bound.slot) {
                let name = package::input(entry, bound.slot)?;
                let (mut port, shape) = port(bound)?;
                let tensor = Tensor::new(&mut port.data, DType::F16, &shape);
                // SAFETY: the port owns its memory, never moves its elements, and is dropped after the binding.
                unsafe { binding.input(&name, tensor) }.map_err(DeviceError::binding)?;
                inputs.push(port);
            }
        }

        for bound in entry.outputs.iter().filter(|bound| !is_cached(bound.slot)) {
            let name = package::output(entry, bound.slot)?;
            let (mut port, shape) = port(bound)?;
            let tensor = Tensor::new(&mut port.data, DType::F16, &shape);
            // SAFETY: as for the inputs.
            unsafe { binding.output(&name, tensor) }.map_err(DeviceError::binding)?;
            outputs.push(port);
        }

        let first = entry
            .inputs
            .iter()
            .filter_map(|bound| match bound.slot {
                Slot::PastKey { layer } | Slot::PastConvolution { layer } => Some(layer),
                _ => None,
            })
            .min()
            .unwrap_or(0);

        let past = (first..)
            .zip(&entry.kv)
            .map(|(layer, layout)| {
                if layout.content == KvContent::ConvolutionInputs {
                    return Ok(None);
                }
                let [key, value] = [Slot::PastKey { layer }, Slot::PastValue { layer }].map(|slot| {
                    let shape = entry.input(slot).map_or(Ok(Vec::new()), extents)?;
                    Ok::<_, DeviceError>((package::input(entry, slot)?, shape))
                });
                Ok(Some([key?, value?]))
            })
            .collect::<Result<_, DeviceError>>()?;
        let graph =
            Self { inputs, outputs, first, past, slot: None, file: entry.file.clone(), binding, session };
        graph.check_new_tokens(entry)?;
        Ok(graph)
    }

    /// Fails unless the new keys and values of each layer have the elements that its cache expects.
    fn check_new_tokens(&self, entry: &GraphEntry) -> Result<(), DeviceError> {
        let Part::Layers { tokens, .. } = entry.part else { return Ok(()) };
        for (layer, layout) in (self.first..).zip(&entry.kv) {
            let row = layout.heads.saturating_mul(layout.head_size);
            let new = row.saturating_mul(tokens);
            let past = row.saturating_mul(2).saturating_mul(layout.window.unwrap_or(0));
            let output = |slot, expected| (slot, self.output(slot).len(), expected);

            let checks = match layout.content {
                KvContent::KeysAndValues => {
                    [output(Slot::NewKey { layer }, new), output(Slot::NewValue { layer }, new)]
                }
                KvContent::ConvolutionInputs => {
                    let slot = Slot::PastConvolution { layer };
                    let new = output(Slot::NewConvolution { layer }, new.saturating_mul(2));
                    [new, (slot, self.input_length(slot), past)]
                }
                KvContent::RecurrentState { .. } => {
                    let expected = "a cache of keys and values or of inputs of convolutions";
                    return Err(DeviceError::package(expected, "states of recurrences"));
                }
            };
            for (slot, found, expected) in checks {
                if found != expected {
                    let expected = format!("{expected} elements of {slot:?} in {}", entry.file);
                    return Err(DeviceError::package(expected, found));
                }
            }
        }
        Ok(())
    }

    /// Binds the inputs or outputs for the keys and values of a window to its memory.
    pub(super) fn bind_window(
        &mut self,
        entry: &GraphEntry,
        window: &mut WindowCache,
    ) -> Result<(), DeviceError> {
        for bound in &entry.inputs {
            let Some(tensor) = window.tensor(bound.slot, &extents(bound)?)? else { continue };
            let name = package::input(entry, bound.slot)?;
            // SAFETY: the window's memory is not moved during its lifetime, and the model drops it after its graphs; only
            // runs of the encoder write it.
            unsafe { self.binding.input(&name, tensor) }.map_err(DeviceError::binding)?;
        }
        for bound in &entry.outputs {
            let Some(tensor) = window.tensor(bound.slot, &extents(bound)?)? else { continue };
            let name = package::output(entry, bound.slot)?;
            // SAFETY: as for the inputs.
            unsafe { self.binding.output(&name, tensor) }.map_err(DeviceError::binding)?;
        }
        Ok(())
    }

    /// Returns the placement of its nodes.
    pub(super) fn placement(&self) -> GraphPlacement {
        GraphPlacement { graph: self.file.clone(), placement: self.session.placement().clone() }
    }

    /// Returns the indices of its cache entries within the whole model.
    pub(super) fn layers(&self) -> Range<usize> {
        self.first..self.first + self.past.len()
    }

    /// Returns the roles of its inputs except the past.
    pub(super) fn inputs(&self) -> impl Iterator<Item = Slot> {
        self.inputs.iter().map(|port| port.slot)
    }

    /// Returns the memory of an input, to be written before a run; empty if the graph has no such input.
    pub(super) fn input(&mut self, slot: Slot) -> &mut [f16] {
        self.inputs.iter_mut().find(|port| port.slot == slot).map_or(&mut [], |port| &mut port.data)
    }

    /// Returns the number of elements of an input; 0 if the graph has no such input.
    fn input_length(&self, slot: Slot) -> usize {
        self.inputs.iter().find(|port| port.slot == slot).map_or(0, |port| port.data.len())
    }

    /// Returns the memory of an output, written by a run; empty if the graph has no such output.
    pub(super) fn output(&self, slot: Slot) -> &[f16] {
        self.outputs.iter().find(|port| port.slot == slot).map_or(&[], |port| &port.data)
    }

    /// Runs the graph on the cache of one slot.
    pub(super) fn run_over(&mut self, cache: &mut StaticKvCache, slot: SlotId) -> Result<(), StepError> {
        if self.slot != Some(slot) {
            self.slot = None;
            for (layer, names) in cache.layers(slot)?.iter_mut().skip(self.first).zip(&self.past) {
                let Some(names) = names else { continue };
                for (part, (name, shape)) in layer.iter_mut().zip(names) {
                    let elements = shape.iter().product::<i64>().max(0) as usize;
                    let part = part.get_mut(..elements).ok_or_else(|| StepError::Device {
                        message: format!(
                            "{} has a past of {shape:?}, which is longer than its context",
                            self.file
                        ),
                    })?;
                    // SAFETY: a slot's memory is not moved during the cache's lifetime, and the executor drops the
                    // cache after its graphs; the memory is written only between runs.
                    unsafe { self.binding.input(name, Tensor::new(part, DType::F16, shape)) }?;
                }
            }
            self.slot = Some(slot);
        }
        self.run()
    }

    /// Runs the graph with its present bindings; for graphs without a past.
    pub(super) fn run(&mut self) -> Result<(), StepError> {
        self.binding.run(&mut self.session)
    }
}

fn port(bound: &TensorBinding) -> Result<(Port, Vec<i64>), DeviceError> {
    let shape = extents(bound)?;
    let elements: i64 = shape.iter().product();
    Ok((Port { slot: bound.slot, data: vec![f16::ZERO; elements.max(0) as usize] }, shape))
}
