//! A session on one device, with a record of the placement of its nodes.

use std::{
    ffi::{CStr, CString},
    path::Path,
};

use narthex_graph::half_precision;
use narthex_spec::{Elements, Ep, Feed, KvPrecision, manifest::GraphEntry};
use ort::{
    AsPointer,
    logging::LogLevel,
    session::builder::{GraphOptimizationLevel, SessionBuilder},
    value::{DynValue, Tensor, TensorElementType},
};
use parking_lot::Mutex;

use super::{context::Context, process_exit, redirect_stdout::StdoutRedirect};
use crate::{
    ep::Device,
    error::DeviceError,
    inventory::cores::FastCores,
    operators::{AttentionSwitch, OwnOperators, PaddedInputs, RewriteOptions, read_graph},
    packed_weights::PackedWeights,
    placement::{self, Placement},
    runtime::Runtime,
};

/// A loaded graph.
pub(crate) struct Session {
    inner: ort::session::Session,
    placement: Placement,
    copies_inputs: bool,
    packed_weights: Option<PackedWeights>,
    packs_rows: bool,
    /// Switch of attention that operators of Narthex compute.
    bidirectional: Option<AttentionSwitch>,
}

/// An output of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTensor {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements.
    pub elements: Elements,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionOptions<'a> {
    /// Number of threads of each operator on the CPU.
    pub(crate) threads: usize,
    pub(crate) device: &'a Device,
    /// Use of the provider's compiled form of the graph.
    pub(crate) context: Context<'a>,
    /// Diagnostic files that the provider writes.
    pub(crate) diagnostics: Diagnostics<'a>,
    /// Implementation of operators on the CPU.
    pub(crate) operators: CpuOperators,
    /// Precision of the KV cache of attention that operators of Narthex compute.
    pub(crate) kv_precision: KvPrecision,
    /// Folder with packed weights of an earlier load for operators of Narthex.
    pub(crate) packed_weights: Option<&'a Path>,
    /// Inputs of an encoder whose padding operators of Narthex may remove.
    pub(crate) padded: Option<PaddedInputs<'a>>,
}

/// Implementation of the operators of a graph on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuOperators {
    /// Narthex's operators for nodes that they support, ONNX Runtime's for the others.
    Narthex,
    /// Only ONNX Runtime's.
    OnnxRuntime,
}

/// Diagnostic files that a provider writes about the graph that it compiles.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Diagnostics<'a> {
    /// No files.
    Nothing,
    /// The nodes that it accepts and refuses, in this folder.
    Trace(&'a Path),
    /// The graph in the provider's own form, in this folder; for a [control](Device::control_backend).
    Form(&'a Path),
    /// Everything that it can write, in this folder, and all lines of its log.
    Everything(&'a Path),
}

impl<'a> SessionOptions<'a> {
    /// Returns true if nodes may be replaced by operators of Narthex.
    fn own_operators(&self) -> bool {
        *self.device == Device::Cpu && self.operators == CpuOperators::Narthex
    }

    /// Returns options for a graph on a device, compiled at the load if the provider compiles.
    pub(crate) fn on(device: &'a Device, threads: usize) -> Self {
        Self {
            threads,
            device,
            context: Context::Own,
            diagnostics: Diagnostics::Nothing,
            operators: CpuOperators::Narthex,
            kv_precision: KvPrecision::F32,
            packed_weights: None,
            padded: None,
        }
    }
}

fn failed<R>(what: &'static str) -> impl FnOnce(ort::Error<R>) -> DeviceError {
    move |error| DeviceError::Ort { what, message: error.message().to_owned() }
}

/// Returns the error of loading a graph. If the provider could not start, the graph is not the cause.
fn load_error(device: &Device, message: &str) -> DeviceError {
    if !message.contains("Error creating execution provider") {
        return DeviceError::Ort { what: "load the graph", message: message.to_owned() };
    }
    // The provider's own words follow the condition that it checked.
    let reason = message.rsplit(" was false. ").next().unwrap_or(message).trim();
    DeviceError::Unusable { device: device.name().describe(), reason: reason.to_owned() }
}

/// Binds a session of a graph to a device.
fn with_device(
    builder: SessionBuilder,
    runtime: &Runtime,
    model: &Path,
    options: &SessionOptions<'_>,
) -> Result<SessionBuilder, DeviceError> {
    let what = "choose the device";
    let device = options.device;
    let diagnostics = match options.diagnostics {
        Diagnostics::Nothing => Vec::new(),
        Diagnostics::Trace(folder) => device.trace_options(folder),
        Diagnostics::Form(folder) => device.control_options(folder),
        Diagnostics::Everything(folder) => device.diagnostic_options(folder),
    };

    let name = device.ep().ort_name();
    match runtime.device(device) {
        // The device is given explicitly, because a new builder prefers an NPU as soon as a plugin provider is
        // registered.
        Ok(offered) => {
            let entries: Vec<(String, String)> = device
                .options_for(model)
                .into_iter()
                .chain(diagnostics)
                .map(|(key, value)| (format!("{name}.{key}"), value))
                .collect();
            let builder = builder.with_devices([offered], Some(&entries)).map_err(failed(what))?;
            // DirectML requires that memory patterns are disabled.
            let pattern = device.ep() != Ep::DirectMl;
            builder.with_memory_pattern(pattern).map_err(failed(what))
        }
        Err(_) if device.may_lack_device() && runtime.has(device.ep()) => {
            with_provider_by_name(builder, name, device.options_for(model))
        }
        Err(none) => Err(none),
    }
}

/// Binds a session to a provider that is part of ONNX Runtime and offers no device.
fn with_provider_by_name(
    mut builder: SessionBuilder,
    name: &'static str,
    options: Vec<(&'static str, String)>,
) -> Result<SessionBuilder, DeviceError> {
    let name = c_string(name)?;
    let mut texts = Vec::with_capacity(options.len());
    for (key, value) in &options {
        texts.push((c_string(key)?, c_string(value)?));
    }
    let (keys, values): (Vec<_>, Vec<_>) =
        texts.iter().map(|(key, value)| (key.as_ptr(), value.as_ptr())).unzip();

    // SAFETY: the builder is alive, and all strings and lists live until the end of the call, which copies them. `ort`
    // takes ownership of the status and releases it.
    unsafe {
        let status = (ort::api().SessionOptionsAppendExecutionProvider)(
            builder.ptr_mut(),
            name.as_ptr(),
            keys.as_ptr(),
            values.as_ptr(),
            options.len(),
        );
        ort::Error::result_from_status(status)
    }
    .map_err(|error| not_chosen(error.message().to_owned()))?;
    Ok(builder)
}

fn c_string(text: &str) -> Result<CString, DeviceError> {
    CString::new(text).map_err(|error| not_chosen(error.to_string()))
}

fn not_chosen(message: String) -> DeviceError {
    DeviceError::Ort { what: "choose the device", message }
}

/// Returns a builder with all options, for a graph with this path.
fn configured(
    runtime: &Runtime,
    model: &Path,
    options: &SessionOptions<'_>,
) -> Result<SessionBuilder, DeviceError> {
    let builder =
        ort::session::Session::builder(runtime.environment()).map_err(failed("create a session"))?;
    let mut builder = with_device(builder, runtime, model, options)?
        .with_intra_threads(options.threads)
        .map_err(failed("set the number of threads"))?
        .with_inter_threads(1)
        .map_err(failed("set the number of threads"))?
        .with_optimization_level(GraphOptimizationLevel::All)
        .map_err(failed("set the optimisation level"))?
        .with_config_entry("session.record_ep_graph_assignment_info", "1")
        .map_err(failed("record the placement"))?;
    if let Some(affinities) = FastCores::here().and_then(|fast| fast.affinities(options.threads)) {
        builder = builder
            .with_config_entry("session.intra_op_thread_affinities", affinities)
            .map_err(failed("place the threads"))?;
    }
    for (key, value) in options.context.entries() {
        builder = builder.with_config_entry(key, value).map_err(failed("request a compiled graph"))?;
    }
    if let Diagnostics::Everything(_) = options.diagnostics {
        builder = builder.with_log_level(LogLevel::Verbose).map_err(failed("set the log level"))?;
    }
    Ok(builder)
}

/// Sets the folder of the external data files of a graph that is loaded from memory.
fn with_data_of(builder: SessionBuilder, model: &Path) -> Result<SessionBuilder, DeviceError> {
    const FOLDER: &str = "session.model_external_initializers_file_folder_path";
    let folder = model.parent().unwrap_or(Path::new("")).to_string_lossy();
    builder.with_config_entry(FOLDER, folder).map_err(failed("find the weights"))
}

/// Returns the graph of a model file in half precision, for providers whose attention over a cache needs it; `None` if
/// the provider needs no change or the graph cannot be changed.
fn in_half_precision(device: &Device, model: &Path) -> Option<Vec<u8>> {
    let mut graph = (device.ep() == Ep::Cuda).then(|| read_graph(model)).flatten()?;
    half_precision::convert(&mut graph).then(|| graph.encode())
}

/// Loads the rewritten graph of a model file. Its external data files are in the folder of the original.
fn rewritten(
    builder: SessionBuilder,
    own: OwnOperators,
    model: &Path,
) -> Result<ort::Result<ort::session::Session>, DeviceError> {
    let builder = builder.with_operators(own.domain).map_err(failed("use operators of Narthex"))?;
    let mut builder = with_data_of(builder, model)?;
    let mut known = DOMAIN_IS_KNOWN.lock();
    if *known {
        drop(known);
        return Ok(builder.commit_from_memory(&own.graph));
    }
    let loaded = builder.commit_from_memory(&own.graph);
    *known = loaded.is_ok();
    Ok(loaded)
}

/// True once a session with operators of Narthex has been created. ONNX Runtime fails if two threads create the first
/// ones at the same time, because both add the operators' domain to the process's list.
static DOMAIN_IS_KNOWN: Mutex<bool> = Mutex::new(false);

impl Session {
    /// Loads a graph on a device. Nodes that the device refuses are placed on the CPU and on no other device; the
    /// caller decides from the placement whether that is acceptable.
    pub(crate) fn open(
        runtime: &Runtime,
        model: &Path,
        options: SessionOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let mut builder = configured(runtime, model, &options)?;
        let _redirect = (options.device.ep() == Ep::Qnn).then(StdoutRedirect::new);
        let own = options.own_operators().then(|| {
            let SessionOptions { threads, kv_precision: cache, packed_weights: stored, padded, .. } = options;
            OwnOperators::of(model, RewriteOptions { stored, threads, cache, padded })
        });
        let mut own = own.flatten();
        let packed_weights = own.as_ref().and_then(|own| own.packed.clone());
        let packs_rows = own.as_ref().is_some_and(|own| own.packs_rows);
        let bidirectional = own.as_ref().and_then(|own| own.bidirectional.clone());
        let chains = own.as_mut().map(|own| std::mem::take(&mut own.chains)).unwrap_or_default();
        let loaded = match own {
            Some(own) => rewritten(builder, own, model)?,
            None => match in_half_precision(options.device, model) {
                Some(graph) => with_data_of(builder, model)?.commit_from_memory(&graph),
                None => builder.commit_from_file(model),
            },
        };

        if options.device.ep() == Ep::Qnn {
            // Registered after every load; otherwise the destructors of libraries loaded in the meantime would run
            // first.
            process_exit::without_destructors();
        }

        let inner = loaded.map_err(|error| load_error(options.device, error.message()))?;
        let mut session = Self::of(inner, options.device)?;
        session.placement.replace_chains(&chains);
        Ok(Self { packed_weights, packs_rows, bidirectional, ..session })
    }

    /// Loads a graph from the bytes of an ONNX file without data files.
    pub(crate) fn from_memory(
        runtime: &Runtime,
        graph: &[u8],
        options: SessionOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let mut builder = configured(runtime, Path::new(""), &options)?;
        let loaded = builder.commit_from_memory(graph);
        Self::of(loaded.map_err(|error| load_error(options.device, error.message()))?, options.device)
    }

    /// Returns the session after a check that no node is on a third device.
    fn of(inner: ort::session::Session, device: &Device) -> Result<Self, DeviceError> {
        let placement = placement::of(&inner)?;
        let own = device.ep();
        if let Some(node) = placement.nodes.iter().find(|node| node.ep != own && node.ep != Ep::Cpu) {
            let message = format!("node {} was assigned to {}", node.name, node.ep);
            return Err(DeviceError::Ort { what: "keep the graph on its device", message });
        }
        // ONNX Runtime does not report whether a provider reads inputs from the host's memory. An extra copy does no
        // harm.
        let copies_inputs = own != Ep::Cpu;
        Ok(Self {
            inner,
            placement,
            copies_inputs,
            packed_weights: None,
            packs_rows: false,
            bidirectional: None,
        })
    }

    /// Returns the placement of the graph's nodes.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the weights of operators of Narthex, if the session has any.
    pub(crate) fn packed_weights(&self) -> Option<&PackedWeights> {
        self.packed_weights.as_ref()
    }

    /// Returns true if the texts of a batch are packed and not padded: the graph was rewritten with
    /// [`SessionOptions::padded`], and has the input [`ROW_OFFSETS`](crate::operators::ROW_OFFSETS).
    pub(crate) fn packs_rows(&self) -> bool {
        self.packs_rows
    }

    /// Returns the switch of the attention over the cache, if operators of Narthex compute all of it.
    pub(crate) fn bidirectional(&self) -> Option<&AttentionSwitch> {
        self.bidirectional.as_ref()
    }

    /// Returns true if inputs are copied to the device when they are bound, so that the session does not see later
    /// writes.
    pub(super) fn copies_inputs(&self) -> bool {
        self.copies_inputs
    }

    /// Returns the names of its inputs, in order.
    pub(crate) fn input_names(&self) -> Vec<&str> {
        self.inner.inputs().iter().map(|input| input.name()).collect()
    }

    /// Fails if the graph lacks an input or an output that the manifest states.
    pub(crate) fn check_names(&self, entry: &GraphEntry) -> Result<(), DeviceError> {
        let inputs = self.input_names();
        let outputs: Vec<&str> = self.inner.outputs().iter().map(|output| output.name()).collect();
        // Rows that are packed have no padding mask.
        let stated_inputs = entry.inputs.iter().filter(|_| !self.packs_rows);
        let stated = stated_inputs.map(|input| (input, &inputs, "an input"));
        let stated = stated.chain(entry.outputs.iter().map(|output| (output, &outputs, "an output")));
        for (binding, names, kind) in stated {
            if !names.contains(&binding.name.as_str()) {
                let expected = format!("{kind} {} of {}", binding.name, entry.file);
                return Err(DeviceError::package(expected, "none of this name"));
            }
        }
        Ok(())
    }

    /// Returns the element type of an input, if it is a tensor.
    pub(crate) fn input_type(&self, name: &CStr) -> Option<TensorElementType> {
        let mut inputs = self.inner.inputs().iter();
        let input = inputs.find(|input| input.name().as_bytes() == name.to_bytes());
        input.and_then(|input| input.dtype().tensor_type())
    }

    /// Returns the names of its outputs, in order.
    pub(crate) fn output_names(&self) -> Vec<&str> {
        self.inner.outputs().iter().map(|output| output.name()).collect()
    }

    /// Runs the graph and copies the outputs of these names, whose shapes the graph decides. Errors are ONNX Runtime's.
    pub(crate) fn run(&mut self, inputs: Vec<Feed>, outputs: &[&str]) -> Result<Vec<OutputTensor>, String> {
        let mut values = Vec::with_capacity(inputs.len());
        for Feed { name, shape, elements } in inputs {
            let value = match elements {
                Elements::F32(elements) => Tensor::from_array((shape, elements)).map(Tensor::into_dyn),
                Elements::I32(elements) => Tensor::from_array((shape, elements)).map(Tensor::into_dyn),
                Elements::I64(elements) => Tensor::from_array((shape, elements)).map(Tensor::into_dyn),
                Elements::Bool(elements) => {
                    let truths: Vec<bool> = elements.into_iter().map(|element| element != 0).collect();
                    Tensor::from_array((shape, truths)).map(Tensor::into_dyn)
                }
            };
            values.push((name, value.map_err(|error| error.message().to_owned())?));
        }

        let found = self.inner.run(values).map_err(|error| error.message().to_owned())?;
        let mut tensors = Vec::with_capacity(outputs.len());
        for name in outputs {
            let value = found.get(*name).ok_or_else(|| format!("the graph has no output {name}"))?;
            tensors.push(copied(value).ok_or_else(|| format!("the output {name} has another type"))?);
        }
        Ok(tensors)
    }

    pub(super) fn ptr(&self) -> *mut ort_sys::OrtSession {
        self.inner.ptr().cast_mut()
    }
}

/// Copies a tensor of a type that callers read.
fn copied(value: &DynValue) -> Option<OutputTensor> {
    if let Ok((shape, elements)) = value.try_extract_tensor::<f32>() {
        return Some(OutputTensor { shape: extents(shape), elements: Elements::F32(elements.to_vec()) });
    }
    if let Ok((shape, elements)) = value.try_extract_tensor::<i64>() {
        return Some(OutputTensor { shape: extents(shape), elements: Elements::I64(elements.to_vec()) });
    }
    let (shape, elements) = value.try_extract_tensor::<i32>().ok()?;
    Some(OutputTensor { shape: extents(shape), elements: Elements::I32(elements.to_vec()) })
}

fn extents(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&extent| usize::try_from(extent).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_cannot_start_is_not_a_bad_graph() {
        let webgpu = Device::WebGpu(Default::default());
        let message = "plugin.cc:71 CreateProvider Error creating execution provider: webgpu_context.cc:136 Initialize \
                       adapter_result.status == Success was false. Failed to get a WebGPU adapter: No supported \
                       adapters\n\n";
        let error = load_error(&webgpu, message);
        let expected = "WebGPU cannot be used: Failed to get a WebGPU adapter: No supported adapters";
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().unwrap().contains("vulkaninfo"));
        assert!(matches!(load_error(&webgpu, "bad graph"), DeviceError::Ort { .. }));
    }
}
