//! Loaded models: their devices, and the line after an answer.

use comfy_table::Cell;
use narthex_gateway::{
    PlacementReport, RunningServer, TowerReport,
    models::{ModelState, ModelStatus},
    request::Summary,
};

use super::{bytes, right, table};

/// Renders the line after an answer: device and speed.
pub(crate) fn answer_line(status: &ModelStatus, summary: &Summary) -> String {
    let placement = status.placement.as_ref();
    let tokens = summary.completion_tokens;
    let on = placement.map_or_else(|| "no device".to_owned(), device_nodes);
    let stand_in = placement.and_then(PlacementReport::stand_in);
    let speed = match (summary.times, stand_in) {
        (Some(times), None) => {
            let first_token = times.first_token.as_secs_f64() * 1e3;
            format!("first token {first_token:.0} ms · {:.1} tokens/s", times.decode_rate(tokens))
        }
        (_, Some(stand_in)) => format!("{}: no time is reported", stand_in.describe()),
        (None, None) => "no time is reported".to_owned(),
    };
    let refusals: String = refusals(status).map(|reason| format!(" · {reason}")).collect();
    format!("{} ({}) on {on} · {speed} · {tokens} tokens{refusals}", status.name, status.scheme)
}

/// Returns the reasons of the preferred devices that did not run a model: `not qnn: its runtime is not installed`.
fn refusals(model: &ModelStatus) -> impl Iterator<Item = String> {
    let announced = model.passed_over.iter().filter(|passed| passed.announced);
    announced.map(|passed| format!("not {}: {}", passed.device, passed.reason))
}

/// Renders the device and its nodes: `cpu, all 304 nodes`, or `qnn, 2940 of 2942 nodes`.
fn device_nodes(report: &PlacementReport) -> String {
    let place = report.place();
    let mut all = 0;
    let mut on_device = 0;
    for line in &report.lines {
        all += line.nodes;
        if place.devices().iter().any(|device| device.ep() == line.ep) {
            on_device += line.nodes;
        }
    }
    match on_device == all {
        true => format!("{}, all {all} nodes", report.name()),
        false => format!("{}, {on_device} of {all} nodes", report.name()),
    }
}

/// Returns remarks about a model that fit into no column: the reason of a failed load, the reason for its devices,
/// notes, devices that were passed over, and the draft model.
fn remarks(model: &ModelStatus) -> Vec<String> {
    if let ModelState::Failed { reason, hint } = &model.state {
        // The reason includes the devices.
        let hint = hint.as_ref().map(|hint| format!("hint: {hint}"));
        return std::iter::once(format!("failed: {reason}")).chain(hint).collect();
    }
    let report = model.placement.as_ref();
    let why = report.and_then(|report| report.why.clone());
    let fallback = report.filter(|report| !report.fallback.is_empty());
    let fallback = fallback.map(|report| format!("on other devices: {}", report.fallback));
    let notes = report.into_iter().flat_map(|report| report.notes.iter().cloned());
    let towers = report.into_iter().flat_map(|report| &report.towers).map(tower);
    let loss = model.kv_cache.filter(|kv_cache| kv_cache.loss.is_some());
    let kv_cache = loss.map(|kv_cache| format!("KV cache in {kv_cache}"));
    let draft = model.draft_model.as_ref();
    let draft = draft.map(|draft| format!("draft model: {} ({})", draft.name, draft.scheme));
    why.into_iter()
        .chain(fallback)
        .chain(notes)
        .chain(refusals(model))
        .chain(towers)
        .chain(kv_cache)
        .chain(draft)
        .collect()
}

/// Renders the place of a tower: `reads images on cpu: 412 nodes, 840 MB of weights`.
fn tower(tower: &TowerReport) -> String {
    let TowerReport { reads, device, weight_bytes, .. } = tower;
    let size = bytes(*weight_bytes);
    format!("reads {} on {device}: {} nodes, {size} of weights", reads.plural(), tower.nodes())
}

/// Renders running servers, followed by remarks on their models.
pub(crate) fn servers(servers: &[RunningServer]) -> String {
    let mut table = table(&["ADDRESS", "PID", "MODEL", "SCHEME", "STATE", "DEVICE"]);
    let mut below = String::new();
    for server in servers {
        let first = [Cell::new(&server.address), right(server.pid)];
        if server.models.is_empty() {
            table.add_row(first.into_iter().chain([Cell::new("none loaded")]));
            continue;
        }
        for model in &server.models {
            let state = match &model.state {
                ModelState::Loading => "loading",
                ModelState::Ready => "ready",
                ModelState::Failed { .. } => "failed",
            };
            let device = model.placement.as_ref().map_or_else(|| "-".to_owned(), PlacementReport::summary);
            let cells = [model.name.to_string(), model.scheme.to_string(), state.to_owned(), device];
            table.add_row(first.clone().into_iter().chain(cells.map(Cell::new)));
            for line in remarks(model) {
                below.push_str(&format!("\n{} ({}) {line}", model.name, model.scheme));
            }
        }
    }
    table.trim_fmt() + &below
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narthex_gateway::{
        Encryption, FallbackNodes,
        bench::Outcome,
        models::{DeviceRefusal, ModelKind},
        request::Times,
    };
    use narthex_spec::{DeviceName, MediaKind, OpenVinoDevice, Scheme};

    use super::*;
    use crate::page::tests::comparison as made_up;

    /// Returns a model that runs on `prefill=qnn,decode=cpu`, with its placement.
    fn running() -> (ModelStatus, PlacementReport) {
        let Outcome::Measured(figures) = made_up().contenders.remove(1).outcome else { panic!("it ran") };
        let status = ModelStatus {
            name: "tiny".parse().unwrap(),
            kind: Some(ModelKind::Chat),
            scheme: Scheme::W8,
            state: ModelState::Ready,
            placement: Some(figures.placement.clone()),
            passed_over: Vec::new(),
            engine: None,
            max_length: None,
            kv_cache: None,
            certificate: None,
            numerics: Vec::new(),
            package_bytes: None,
            draft_model: None,
            expires_in: None,
        };
        (status, figures.placement)
    }

    #[test]
    fn an_answer_ends_with_its_speed_but_never_with_a_stand_in_s() {
        let (mut status, report) = running();
        let times = Times {
            queued: Duration::ZERO,
            first_token: Duration::from_millis(250),
            total: Duration::from_millis(1250),
        };
        let timed =
            Summary { prompt_tokens: 7, completion_tokens: 11, times: Some(times), ..Summary::default() };
        let mut check = |decode, summary: Summary, expected: &str| {
            status.placement = Some(PlacementReport { decode: Some(decode), ..report.clone() });
            let line = answer_line(&status, &summary);
            assert!(line.ends_with(expected), "{line}");
            assert_eq!(line.contains("tokens/s"), expected.contains("tokens/s"), "{line}");
        };
        check(DeviceName::Cpu, timed, " · first token 250 ms · 10.0 tokens/s · 11 tokens");
        let untimed = Summary { times: None, ..timed };
        check(DeviceName::QnnEmulation, untimed, " · HTP emulation: no time is reported · 11 tokens");
        let openvino = DeviceName::OpenVino(OpenVinoDevice::Cpu);
        check(openvino, untimed, " · OpenVINO's CPU device: no time is reported · 11 tokens");
    }

    #[test]
    fn an_answer_ends_with_the_reasons_of_other_devices() {
        let (mut status, _) = running();
        let refusal = |device, announced| DeviceRefusal {
            device,
            reason: "its runtime is not installed".to_owned(),
            fix: None,
            announced,
            fallback: FallbackNodes::default(),
        };
        status.passed_over = vec![refusal(DeviceName::Qnn, true), refusal(DeviceName::WebGpu, false)];
        let line = answer_line(&status, &Summary { completion_tokens: 3, ..Summary::default() });
        assert!(line.ends_with(" · 3 tokens · not qnn: its runtime is not installed"), "{line}");
    }

    #[test]
    fn the_device_and_remarks_of_a_running_model_are_listed() {
        let (mut status, placement) = running();
        let lines = |model: &ModelStatus| {
            let server = RunningServer::new("127.0.0.1:8000", Encryption::None);
            let text = servers(&[RunningServer { pid: 7, models: vec![model.clone()], ..server }]);
            let squeezed = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            squeezed.skip(1).collect::<Vec<_>>()
        };
        let row = |rest: &str| format!("127.0.0.1:8000 7 tiny w8 {rest}");
        let ready = format!("ready {}", placement.summary());
        let note = "tiny (w8) the kept contexts were refused & made anew".to_owned();
        assert_eq!(lines(&status), [row(&ready), note.clone()]);
        let why = Some("measured on this machine, 5 ms".to_owned());
        let towers = vec![TowerReport {
            reads: MediaKind::Image,
            device: DeviceName::Cpu,
            weight_bytes: 840_000_000,
            multiply_accumulates: 1,
            lines: placement.lines.clone(),
        }];
        status.placement = Some(PlacementReport { why, towers, ..placement.clone() });
        status.passed_over = vec![DeviceRefusal {
            device: DeviceName::WebGpu,
            reason: "it is in quarantine".to_owned(),
            fix: None,
            announced: true,
            fallback: FallbackNodes::default(),
        }];
        let expected = [
            row(&ready),
            "tiny (w8) measured on this machine, 5 ms".to_owned(),
            note,
            "tiny (w8) not webgpu: it is in quarantine".to_owned(),
            "tiny (w8) reads images on cpu: 24 nodes, 840 MB of weights".to_owned(),
        ];
        assert_eq!(lines(&status), expected);
        let (reason, hint) = ("tiny runs on no device".to_owned(), Some("narthex doctor".to_owned()));
        status = ModelStatus { state: ModelState::Failed { reason, hint }, placement: None, ..status };
        let expected = [
            row("failed -"),
            "tiny (w8) failed: tiny runs on no device".to_owned(),
            "tiny (w8) hint: narthex doctor".to_owned(),
        ];
        assert_eq!(lines(&status), expected);
    }
}
