//! A session on one device, with a record of the placement of its nodes.

use std::{
    ffi::{CStr, CString},
    path::Path,
};

use narthex_spec::{Ep, KvPrecision, manifest::GraphEntry};
use ort::{
    AsPointer,
    logging::LogLevel,
    session::builder::{GraphOptimizationLevel, SessionBuilder},
    value::TensorElementType,
};
use parking_lot::Mutex;

use super::{process_exit, redirect_stdout::StdoutRedirect};
use crate::{
    ep::Device,
    error::DeviceError,
    operators::{OwnOperators, PaddedInputs, RewriteOptions},
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

/// Use of a context, the provider's compiled form of a graph.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Context<'a> {
    /// The context is compiled for this session only, or loaded with a binary of its own.
    Own,
    /// The context is loaded, and other sessions use graphs in the same binary.
    Shared,
    /// The context is compiled and written to files.
    Written {
        /// The ONNX file of the context; the binary is next to it.
        path: &'a Path,
        /// Sharing of the binary.
        sharing: SharedWeights,
    },
}

/// Sharing of the weights in one binary by several graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedWeights {
    /// The graph has a binary of its own.
    None,
    /// The graph shares a binary, and more graphs follow.
    MoreFollow,
    /// The graph is the last of those that share a binary.
    Last,
}

fn failed<R>(what: &'static str) -> impl FnOnce(ort::Error<R>) -> DeviceError {
    move |error| DeviceError::Ort { what, message: error.message().to_owned() }
}

impl Context<'_> {
    /// Returns the session settings, by ONNX Runtime's names.
    fn entries(self) -> Vec<(&'static str, String)> {
        const SHARE: &str = "ep.share_ep_contexts";
        let (path, sharing) = match self {
            Self::Own => return Vec::new(),
            // Otherwise each session would load the whole binary.
            Self::Shared => return vec![(SHARE, "1".to_owned())],
            Self::Written { path, sharing } => (path, sharing),
        };
        let mut entries = vec![
            ("ep.context_enable", "1".to_owned()),
            ("ep.context_embed_mode", "0".to_owned()),
            ("ep.context_file_path", path.to_string_lossy().into_owned()),
        ];
        if sharing != SharedWeights::None {
            entries.push((SHARE, "1".to_owned()));
        }
        if sharing == SharedWeights::Last {
            entries.push(("ep.stop_share_ep_contexts", "1".to_owned()));
        }
        entries
    }
}

/// Binds a session of a graph to a device.
fn with_device(
    builder: SessionBuilder,
    runtime: &Runtime,
    model: &Path,
    options: &SessionOptions<'_>,
) -> Result<SessionBuilder, DeviceError> {
    let (what, device) = ("choose the device", options.device);
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
            let prefixed = |(key, value)| (format!("{name}.{key}"), value);
            let entries: Vec<(String, String)> =
                device.options_for(model).into_iter().chain(diagnostics).map(prefixed).collect();
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
    let failed = |message: String| DeviceError::Ort { what: "choose the device", message };
    let text = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
    let name = text(name)?;
    let keys = options.iter().map(|(key, _)| text(key)).collect::<Result<Vec<_>, _>>()?;
    let values = options.iter().map(|(_, value)| text(value)).collect::<Result<Vec<_>, _>>()?;
    let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
    let (keys, values) = (pointers(&keys), pointers(&values));
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
    .map_err(|error| failed(error.message().to_owned()))?;
    Ok(builder)
}

/// Loads the rewritten graph of a model file. Its external data files are in the folder of the original.
fn rewritten(
    builder: SessionBuilder,
    own: OwnOperators,
    model: &Path,
) -> Result<ort::Result<ort::session::Session>, DeviceError> {
    const FOLDER: &str = "session.model_external_initializers_file_folder_path";
    let what = "use operators of Narthex";
    let folder = model.parent().unwrap_or(Path::new("")).to_string_lossy();
    let mut builder = builder
        .with_operators(own.domain)
        .map_err(failed(what))?
        .with_config_entry(FOLDER, folder)
        .map_err(failed(what))?;
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
        let builder =
            ort::session::Session::builder(runtime.environment()).map_err(failed("create a session"))?;
        let mut builder = with_device(builder, runtime, model, &options)?
            .with_intra_threads(options.threads)
            .map_err(failed("set the number of threads"))?
            .with_inter_threads(1)
            .map_err(failed("set the number of threads"))?
            .with_optimization_level(GraphOptimizationLevel::All)
            .map_err(failed("set the optimisation level"))?
            .with_config_entry("session.record_ep_graph_assignment_info", "1")
            .map_err(failed("record the placement"))?;
        for (key, value) in options.context.entries() {
            builder = builder.with_config_entry(key, value).map_err(failed("request a compiled graph"))?;
        }
        if let Diagnostics::Everything(_) = options.diagnostics {
            builder = builder.with_log_level(LogLevel::Verbose).map_err(failed("set the log level"))?;
        }
        let _redirect = (options.device.ep() == Ep::Qnn).then(StdoutRedirect::new);
        let own = options.own_operators().then(|| {
            let SessionOptions { threads, kv_precision: cache, packed_weights: stored, padded, .. } = options;
            OwnOperators::of(model, RewriteOptions { stored, threads, cache, padded })
        });
        let mut own = own.flatten();
        let packed_weights = own.as_ref().and_then(|own| own.packed.clone());
        let packs_rows = own.as_ref().is_some_and(|own| own.packs_rows);
        let chains = own.as_mut().map(|own| std::mem::take(&mut own.chains)).unwrap_or_default();
        let loaded = match own {
            Some(own) => rewritten(builder, own, model)?,
            None => builder.commit_from_file(model),
        };
        if options.device.ep() == Ep::Qnn {
            // Registered after every load; otherwise the destructors of libraries loaded in the meantime would run
            // first.
            process_exit::without_destructors();
        }
        let inner = loaded.map_err(failed("load the graph"))?;
        let mut placement = placement::of(&inner)?;
        placement.replace_chains(&chains);
        let own = options.device.ep();
        if let Some(node) = placement.nodes.iter().find(|node| node.ep != own && node.ep != Ep::Cpu) {
            let message = format!("node {} was assigned to {}", node.name, node.ep);
            return Err(DeviceError::Ort { what: "keep the graph on its device", message });
        }
        // ONNX Runtime does not report whether a provider reads inputs from the host's memory. An extra copy does no
        // harm.
        Ok(Self { inner, placement, copies_inputs: own != Ep::Cpu, packed_weights, packs_rows })
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

    /// Returns true if inputs are copied to the device when they are bound, so that the session does not see later
    /// writes.
    pub(super) fn copies_inputs(&self) -> bool {
        self.copies_inputs
    }

    /// Returns the names of its inputs, in order.
    pub(super) fn input_names(&self) -> Vec<&str> {
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

    pub(super) fn ptr(&self) -> *mut ort_sys::OrtSession {
        self.inner.ptr().cast_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_a_binary_on_request() {
        let check = |context: Context<'_>, expected: &[&str]| {
            let entries = context.entries();
            let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, expected, "{context:?}");
        };
        let made = ["ep.context_enable", "ep.context_embed_mode", "ep.context_file_path"];
        let (share, stop) = ("ep.share_ep_contexts", "ep.stop_share_ep_contexts");
        let written = |sharing| Context::Written { path: Path::new("g.onnx"), sharing };
        check(Context::Own, &[]);
        check(Context::Shared, &[share]);
        check(written(SharedWeights::None), &made);
        check(written(SharedWeights::MoreFollow), &[&made[..], &[share]].concat());
        check(written(SharedWeights::Last), &[&made[..], &[share, stop]].concat());
    }
}
