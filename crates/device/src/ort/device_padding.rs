//! Copies between tensors of a device whose capacities differ. ONNX Runtime copies only tensors of equal shapes, so a
//! session with a single `Pad` node makes the copy on the device.

use narthex_engine::executor::StepError;
use narthex_graph::{Builder, build::NodeSpec};
use narthex_spec::{DType, dtype::Dim};

use super::{Binding, DeviceTensor, Session, SessionOptions, Tensor};
use crate::{error::DeviceError, runtime::Runtime};

/// Names of the graph's values.
const SOURCE: &str = "source";
const PADS: &str = "pads";
const RESULT: &str = "result";

/// Axis of the capacity in tensors `[1, heads, capacity, head_size]`.
const CAPACITY: usize = 2;

/// Rank of these tensors.
const RANK: usize = 4;

/// A session that copies tensors of one element type.
pub(crate) struct DevicePadding {
    // Declared before the session, so that it is dropped first.
    binding: Binding,
    pads: Box<[i64; 2 * RANK]>,
    session: Session,
}

impl DevicePadding {
    /// Loads the session on the device of these options.
    pub(crate) fn new(
        runtime: &Runtime,
        dtype: DType,
        options: SessionOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let session = Session::from_memory(runtime, &graph(dtype), options)?;
        let binding = Binding::new(&session).map_err(DeviceError::binding)?;
        Ok(Self { binding, pads: Box::new([0; 2 * RANK]), session })
    }

    /// Copies `source` to `result`, whose capacity is at least as large, and fills the rest of each head with zeros.
    pub(crate) fn copy(&mut self, source: &DeviceTensor, result: &mut DeviceTensor) -> Result<(), StepError> {
        self.pads[RANK + CAPACITY] = result.extent(CAPACITY) - source.extent(CAPACITY);
        let shape = [self.pads.len() as i64];
        let pads = Tensor::new(&mut self.pads[..], DType::I64, &shape);
        // SAFETY: the numbers are in an allocation of this value, which moves with neither it nor the binding.
        unsafe { self.binding.input(c"pads", pads) }?;
        self.binding.device_input(c"source", source)?;
        self.binding.device_output(c"result", result)?;
        let copied = self.binding.run(&mut self.session);
        // Otherwise the binding would keep the memory of released slots.
        self.binding.clear();
        copied
    }
}

fn graph(dtype: DType) -> Vec<u8> {
    let [source, result] = ["capacity", "padded"].map(|capacity| {
        [Dim::Fixed(1), Dim::symbol("heads"), Dim::symbol(capacity), Dim::symbol("head_size")]
    });
    let mut graph = Builder::new("padding", &[("", 20)]);
    graph.input(SOURCE, dtype, &source);
    graph.input(PADS, DType::I64, &[Dim::Fixed(2 * RANK as u64)]);
    let spec = NodeSpec { name: "/Pad", op: "Pad", domain: "", inputs: &[SOURCE, PADS], attributes: &[] };
    graph.node_to(spec, &[RESULT]);
    graph.output(RESULT, dtype, &result);
    graph.finish().encode()
}
