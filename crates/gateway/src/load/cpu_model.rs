//! Models whose graphs run only on the CPU, because their shapes depend on the input: voices, and imported models that
//! transcribe speech.

use narthex_device::{
    cpu_graph::{CpuGraph, OutputTensor},
    placement::GraphPlacement,
};
use narthex_spec::{
    DeviceName, Elements, Feed, NpuPolicy,
    manifest::{GraphEntry, Slot},
};

use crate::{
    error::Error,
    load::{
        placement,
        request::{DeviceAssignment, LoadRequest},
    },
    report::{fallback::FallbackNodes, models::DeviceRefusal, placement::PlacementReport},
};

/// Input of a graph: its slot, shape and elements.
pub(crate) type SlotFeed = (Slot, Vec<usize>, Elements);

/// A graph on the CPU, with its entry in the manifest.
pub(crate) struct SlotGraph {
    graph: CpuGraph,
    pub(crate) entry: GraphEntry,
}

impl SlotGraph {
    pub(crate) fn open(request: &LoadRequest<'_>, entry: &GraphEntry) -> Result<Self, Error> {
        Ok(Self { graph: open_graph(request, &entry.file)?, entry: entry.clone() })
    }

    /// Runs the graph with the inputs that it has. Returns the outputs of these slots.
    pub(crate) fn run(
        &mut self,
        inputs: Vec<SlotFeed>,
        outputs: &[Slot],
    ) -> Result<Vec<OutputTensor>, Error> {
        let feeds = inputs.into_iter().filter_map(|(slot, shape, elements)| {
            Some(Feed { name: self.entry.input(slot)?.name.clone(), shape, elements })
        });
        // The manifest was checked: the graph has the outputs.
        let outputs: Vec<&str> =
            outputs.iter().filter_map(|slot| Some(self.entry.output(*slot)?.name.as_str())).collect();
        Ok(self.graph.run(feeds.collect(), &outputs)?)
    }
}

/// Opens a graph of a package.
pub(crate) fn open_graph(request: &LoadRequest<'_>, file: &str) -> Result<CpuGraph, Error> {
    let path = request.package.folder.join(file);
    Ok(CpuGraph::open(request.runtime, &path, request.config.threads)?)
}

/// Returns the placement of a model's graphs. `reason` states why they run on the CPU.
pub(crate) fn report(
    request: &LoadRequest<'_>,
    graphs: &[&SlotGraph],
    reason: &str,
) -> Result<PlacementReport, Error> {
    let placements = graphs.iter().map(|graph| GraphPlacement {
        graph: graph.entry.file.clone(),
        placement: graph.graph.placement().clone(),
    });
    let placements: Vec<GraphPlacement> = placements.collect();
    let mut report = placement::report(request, &DeviceAssignment::cpu(), &placements, Vec::new())?;
    report.why = Some(reason.to_owned());
    Ok(report)
}

/// Fails if the settings exclude the CPU. `reason` states why the model runs on it.
pub(crate) fn check_cpu(request: &LoadRequest<'_>, reason: &str) -> Result<(), Error> {
    let config = &request.config;
    let has_cpu = config.providers.devices().contains(&DeviceName::Cpu);
    if has_cpu && config.npu != NpuPolicy::Require {
        return Ok(());
    }
    let refusal = DeviceRefusal {
        device: DeviceName::Cpu,
        reason: format!("{reason}, which the settings exclude"),
        fix: Some("allow the CPU: --npu prefer, and `cpu` in --providers".to_owned()),
        announced: true,
        fallback: FallbackNodes::default(),
    };
    let name = request.manifest().name.clone();
    Err(Error::NoDevice { name, policy: config.npu, passed_over: vec![refusal] })
}
