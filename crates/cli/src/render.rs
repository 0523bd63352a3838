//! Values as text for people.

mod package;
mod plan;

use comfy_table::{Cell, CellAlignment, Table, presets};
use narthex_gateway::{
    PlacementReport, RunningServer, RuntimeListing,
    bench::{self, BenchReport, Comparison, Contender, Outcome, Spread},
    doctor::{Doctor, Level},
    models::{Access, Figures, ModelListing, ModelState, ModelStatus},
    request::Summary,
};
use narthex_spec::Scheme;

pub(crate) use self::{
    package::{changes, contexts, manifest},
    plan::plan,
};

/// `98.4 MB`: decimal units, as disks and downloads are counted.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// `135 M`: parameters.
fn count(count: u64) -> String {
    match count as f64 {
        n if n >= 999.5e6 => format!("{:.1} B", n / 1e9),
        n if n >= 999.5e3 => format!("{:.0} M", n / 1e6),
        n => format!("{:.0} k", n / 1e3),
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().map(Cell::new));
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}

/// What is said of a runtime that was installed just now, and what the machine needs besides it.
pub(crate) fn runtime_installed(kind: &str, version: &str, needs: Option<&str>) -> String {
    let needs = needs.map(|needs| format!("; it also needs {needs}")).unwrap_or_default();
    format!("installed {kind} {version}{needs}")
}

/// The last line of an answer.
pub(crate) fn answer_line(status: &ModelStatus, summary: &Summary) -> String {
    let (placement, tokens) = (status.placement.as_ref(), summary.completion_tokens);
    let on = placement.map_or_else(|| "no device".to_owned(), place);
    let stand_in = placement.and_then(PlacementReport::stand_in);
    let speed = match (summary.times, stand_in) {
        (Some(times), None) => {
            let first_token = times.first_token.as_secs_f64() * 1e3;
            format!("first token {first_token:.0} ms · {:.1} tokens/s", times.decode_rate(tokens))
        }
        (_, Some(stand_in)) => format!("{}: no time is told", stand_in.describe()),
        (None, None) => "no time is told".to_owned(),
    };
    format!("{} ({}) on {on} · {speed} · {tokens} tokens", status.name, status.scheme)
}

/// Where a model runs: `cpu, all 304 nodes`, or `qnn, 2940 of 2942 nodes`.
fn place(report: &PlacementReport) -> String {
    let count = |own: bool| -> usize {
        let is_own = |ep| report.place().devices().iter().any(|device| device.ep() == ep);
        let lines = report.lines.iter().filter(|line| !own || is_own(line.ep));
        lines.map(|line| line.nodes).sum()
    };
    match (count(true), count(false)) {
        (own, all) if own == all => format!("{}, all {all} nodes", report.name()),
        (own, all) => format!("{}, {own} of {all} nodes", report.name()),
    }
}

/// Installed models.
pub(crate) fn installed(models: &[ModelListing]) -> String {
    let mut columns = vec!["MODEL", "KIND", "SCHEME", "SIZE", "CONTEXT"];
    let mut packages = models.iter().flat_map(|model| &model.installed);
    let any_bound = packages.any(|package| package.bound.is_some());
    columns.extend(any_bound.then_some("RUNS ON"));
    let mut table = table(&columns);
    for model in models {
        for package in &model.installed {
            let bound = package.bound.as_ref().map_or("", |bound| bound.device.as_str());
            let cells = [
                Cell::new(&model.name),
                Cell::new(model.kind.as_str()),
                Cell::new(package.scheme),
                right(bytes(package.bytes)),
                right(package.max_length),
            ];
            table.add_row(cells.into_iter().chain(any_bound.then(|| Cell::new(bound))));
        }
    }
    table.trim_fmt()
}

/// Sorts models by how well they suit an NPU, those that it refuses last; of equals, the smaller goes first.
pub(crate) fn rank(models: &mut [ModelListing]) {
    models.sort_by(|a, b| {
        let runs = |model: &ModelListing| model.figures.is_some_and(|figures| figures.runs);
        let score = |model: &ModelListing| model.figures.map_or(-1.0, |figures| figures.score);
        let size = |model: &ModelListing| (model.parameters, model.name.clone());
        (runs(b).cmp(&runs(a))).then(score(b).total_cmp(&score(a))).then_with(|| size(a).cmp(&size(b)))
    });
}

/// The catalogue, in the order given.
pub(crate) fn catalogue(models: &[ModelListing]) -> String {
    let columns = ["MODEL", "KIND", "NPU", "PARAMETERS", "DOWNLOAD", "W8", "W4", "LICENCE", "STATE"];
    let mut table = table(&columns);
    for model in models {
        let state = match model.access {
            _ if !model.installed.is_empty() => "installed",
            Access::Gated => "gated",
            Access::Open => "available",
        };
        let size = |size: Option<u64>| right(size.map_or_else(|| "-".to_owned(), bytes));
        let figures = model.figures;
        table.add_row([
            Cell::new(&model.name),
            Cell::new(model.kind.as_str()),
            right(figures.map_or_else(|| "-".to_owned(), suits)),
            right(model.parameters.map_or_else(|| "?".to_owned(), count)),
            size(model.download_bytes),
            size(figures.map(|figures| figures.w8)),
            size(figures.map(|figures| figures.w4)),
            Cell::new(model.license.as_deref().unwrap_or("?")),
            Cell::new(state),
        ]);
    }
    table.trim_fmt()
}

/// What must be done before a model can be downloaded.
fn access(access: Access) -> Option<&'static str> {
    match access {
        Access::Open => None,
        Access::Gated => {
            Some("gated: accept its licence on the model's page, and set HF_TOKEN to a token of that account")
        }
    }
}

/// A score, with the scheme that it needs where that is not the usual one.
fn suits(figures: Figures) -> String {
    match (figures.runs, figures.scheme) {
        (false, _) => "refused".to_owned(),
        (true, Scheme::W8) => format!("{:.1}", figures.score),
        (true, scheme) => format!("{:.1} in {scheme}", figures.score),
    }
}

/// What is to be told of a model that no column has room for, a line each: why it is not loaded, why it runs where it does,
/// what was refused on the way, and which devices should have run it and did not.
fn told(model: &ModelStatus) -> Vec<String> {
    if let ModelState::Failed { reason, hint } = &model.state {
        // The reason names the devices too.
        let hint = hint.as_ref().map(|hint| format!("can be mended: {hint}"));
        return std::iter::once(format!("failed: {reason}")).chain(hint).collect();
    }
    let report = model.placement.as_ref();
    let why = report.and_then(|report| report.why.clone());
    let fallen = report.filter(|report| !report.fallback.is_empty());
    let fallen = fallen.map(|report| format!("elsewhere: {}", report.fallback));
    let announced = model.passed_over.iter().filter(|passed| passed.announced);
    let reasons = announced.map(|passed| format!("not {}: {}", passed.device, passed.reason));
    let notes = report.into_iter().flat_map(|report| report.notes.iter().cloned());
    why.into_iter().chain(fallen).chain(notes).chain(reasons).collect()
}

/// Running servers, and below them what is to be told of each model.
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
            let device = model.placement.as_ref().map_or_else(|| "-".to_owned(), PlacementReport::name);
            let cells = [model.name.to_string(), model.scheme.to_string(), state.to_owned(), device];
            table.add_row(first.clone().into_iter().chain(cells.map(Cell::new)));
            for line in told(model) {
                below.push_str(&format!("\n{} ({}) {line}", model.name, model.scheme));
            }
        }
    }
    table.trim_fmt() + &below
}

/// Runtimes.
pub(crate) fn runtimes(runtimes: &[RuntimeListing]) -> String {
    let mut table = table(&["RUNTIME", "VERSION", "STATE"]);
    for runtime in runtimes {
        let state = match (&runtime.installed, &runtime.refusal) {
            (Some(path), _) => format!("installed in {}", path.display()),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "available".to_owned(),
        };
        table.add_row([&runtime.kind, &runtime.version, &state]);
    }
    table.trim_fmt()
}

/// The doctor's findings.
pub(crate) fn doctor(report: &Doctor) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let mark = match finding.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Problem => "FIX ",
        };
        text.push_str(&format!("{mark}  {}: {}\n", finding.subject, finding.text));
        if let Some(fix) = &finding.fix {
            text.push_str(&format!("      → {fix}\n"));
        }
    }
    text
}

/// A benchmark.
pub(crate) fn bench(report: &BenchReport) -> String {
    let mut table = table(&["", "MEDIAN", "MIN", "MAX"]);
    let mut row = |name: String, spread: Spread, digits: usize| {
        let figure = |x: f64| right(format!("{x:.digits$}"));
        table.add_row([Cell::new(name), figure(spread.median), figure(spread.min), figure(spread.max)]);
    };
    row(format!("prefill tokens/s ({})", report.prompt_tokens), report.prefill_tokens_per_second, 1);
    row(format!("decode tokens/s ({})", report.generate_tokens), report.decode_tokens_per_second, 1);
    row("first token ms".to_owned(), report.first_token_ms, 1);
    if let Some(gateway) = &report.gateway {
        row("gateway ms/request".to_owned(), gateway.request_ms, 2);
        let per_token = gateway.token_ratio;
        let percent = |ratio: f64| (ratio - 1.0) * 1e2;
        let spread = Spread {
            min: percent(per_token.min),
            median: percent(per_token.median),
            max: percent(per_token.max),
        };
        row("gateway % per token".to_owned(), spread, 1);
    }
    let machine = &report.machine;
    let memory = report.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    format!(
        "{} ({}) on {}, {} threads of {}\n{}\nload {:.0} ms · peak memory {memory} · {} rounds · narthex {} · ONNX Runtime {}",
        report.model,
        report.scheme,
        report.device,
        machine.threads,
        machine.cpu,
        table.trim_fmt(),
        report.load_ms,
        report.rounds,
        machine.narthex,
        machine.onnxruntime,
    )
}

/// A comparison of devices: medians in a table, then who could not run and why.
pub(crate) fn comparison(report: &Comparison) -> String {
    let mut table = table(&[
        "DEVICE",
        "FIRST TOKEN MS",
        "PREFILL T/S",
        "× CPU",
        "DECODE T/S",
        "× CPU",
        "LOAD MS",
        "MEMORY",
        "JOULES",
    ]);
    let mut refused = String::new();
    for Contender { place, outcome } in &report.contenders {
        match outcome {
            Outcome::Ran(figures) => {
                table.add_row([Cell::new(place)].into_iter().chain(figure_cells(figures)));
            }
            Outcome::Refused { reason, fix } => {
                let fix = fix.as_deref().map(|fix| format!(" ({fix})")).unwrap_or_default();
                refused.push_str(&format!("{place} was not measured: {reason}{fix}\n"));
            }
        }
    }
    let energy = match &report.energy_counter {
        Some(counter) => format!("joules are of one prompt and answer, by {counter}"),
        None => "no energy counter can be read on this machine".to_owned(),
    };
    let machine = &report.machine;
    format!(
        "{} ({}), {} threads of {}\n{}\n{refused}prompts of {} tokens, answers of {} · medians of {} rounds · {energy} · narthex {} · ONNX \
         Runtime {}",
        report.model,
        report.scheme,
        machine.threads,
        machine.cpu,
        table.trim_fmt(),
        report.prompt_tokens,
        report.generate_tokens,
        report.rounds,
        machine.narthex,
        machine.onnxruntime,
    )
}

/// The columns after a device's name.
fn figure_cells(figures: &bench::Figures) -> [Cell; 8] {
    let figure = |x: f64, digits: usize| format!("{x:.digits$}");
    let ratio = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |r| figure(r.median, 2));
    [
        figure(figures.first_token_ms.median, 1),
        figure(figures.prefill_tokens_per_second.median, 1),
        ratio(figures.to_cpu.map(|ratios| ratios.prefill)),
        figure(figures.decode_tokens_per_second.median, 1),
        ratio(figures.to_cpu.map(|ratios| ratios.decode)),
        figure(figures.load_ms, 0),
        figures.memory_bytes.map_or_else(|| "?".to_owned(), bytes),
        figures.energy_joules.map_or_else(|| "-".to_owned(), |joules| figure(joules.median, 1)),
    ]
    .map(right)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narthex_gateway::{
        FallbackNodes,
        bench::Overhead,
        models::{ModelKind, PassedOver},
        request::Times,
    };
    use narthex_spec::{DeviceName, OpenVinoDevice};

    use super::*;
    use crate::page::tests::{comparison as made_up, machine};

    fn has(text: &str, words: &str) -> bool {
        text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == words)
    }

    #[test]
    fn what_a_runtime_needs_is_said_when_it_is_installed() {
        assert_eq!(runtime_installed("cpu", "1.2", None), "installed cpu 1.2");
        assert_eq!(
            runtime_installed("cuda", "1.2", Some("a driver")),
            "installed cuda 1.2; it also needs a driver"
        );
    }

    #[test]
    fn a_benchmark_shows_what_the_gateway_adds() {
        let spread = |min, median, max| Spread { min, median, max };
        let gateway = Overhead {
            prompt_tokens: 292,
            engine_token_ms: spread(9.0, 10.0, 11.0),
            gateway_token_ms: spread(9.0, 10.2, 11.5),
            token_ratio: spread(0.99, 1.02, 1.045),
            request_ms: spread(0.31, 0.42, 0.58),
        };
        let mut report = BenchReport {
            model: "tiny".to_owned(),
            scheme: Scheme::W8,
            device: "cpu".to_owned(),
            machine: machine(),
            prompt_tokens: 256,
            generate_tokens: 64,
            rounds: 5,
            prefill_tokens_per_second: spread(390.0, 400.0, 410.0),
            decode_tokens_per_second: spread(97.0, 99.5, 101.0),
            first_token_ms: spread(620.0, 640.0, 660.0),
            gateway: Some(gateway),
            load_ms: 812.4,
            peak_rss_bytes: None,
        };
        let text = bench(&report);
        let check = |words: &str| assert!(has(&text, words), "{words}\n{text}");
        check("tiny (w8) on cpu, 2 threads of Some CPU");
        check("prefill tokens/s (256) 400.0 390.0 410.0");
        check("gateway ms/request 0.42 0.31 0.58");
        check("gateway % per token 2.0 -1.0 4.5");
        check("load 812 ms · peak memory unknown · 5 rounds · narthex 0.1.0 · ONNX Runtime 1.31.1");
        report.gateway = None;
        assert!(!bench(&report).contains("gateway"));
    }

    /// A model that runs on `prefill=qnn,decode=cpu`.
    fn running() -> (ModelStatus, PlacementReport) {
        let Outcome::Ran(figures) = made_up().contenders.remove(1).outcome else { panic!("it ran") };
        let status = ModelStatus {
            name: "tiny".parse().unwrap(),
            kind: Some(ModelKind::Chat),
            scheme: Scheme::W8,
            state: ModelState::Ready,
            placement: Some(figures.placement.clone()),
            passed_over: Vec::new(),
            engine: None,
            max_length: None,
        };
        (status, figures.placement)
    }

    #[test]
    fn an_answer_ends_with_its_speed_but_never_with_a_stand_in_s() {
        let (mut status, report) = running();
        let times = Times { first_token: Duration::from_millis(250), total: Duration::from_millis(1250) };
        let (prompt_tokens, cached_tokens, completion_tokens) = (7, 0, 11);
        let timed = Summary { prompt_tokens, cached_tokens, completion_tokens, times: Some(times) };
        let mut check = |decode, summary: Summary, expected: &str| {
            status.placement = Some(PlacementReport { decode: Some(decode), ..report.clone() });
            let line = answer_line(&status, &summary);
            assert!(line.ends_with(expected), "{line}");
            assert_eq!(line.contains("tokens/s"), expected.contains("tokens/s"), "{line}");
        };
        check(DeviceName::Cpu, timed, " · first token 250 ms · 10.0 tokens/s · 11 tokens");
        let untold = Summary { times: None, ..timed };
        check(DeviceName::QnnEmulation, untold, " · HTP emulation: no time is told · 11 tokens");
        let openvino = DeviceName::OpenVino(OpenVinoDevice::Cpu);
        check(openvino, untold, " · OpenVINO's CPU device: no time is told · 11 tokens");
    }

    #[test]
    fn a_running_model_says_where_and_why() {
        let (mut status, placement) = running();
        let lines = |model: &ModelStatus| {
            let (pid, address, started) = (7, "127.0.0.1:8000".to_owned(), std::time::SystemTime::UNIX_EPOCH);
            let text = servers(&[RunningServer { pid, address, started, models: vec![model.clone()] }]);
            let squeezed = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            squeezed.skip(1).collect::<Vec<_>>()
        };
        let row = |rest: &str| format!("127.0.0.1:8000 7 tiny w8 {rest}");
        let note = "tiny (w8) the kept contexts were refused & made anew".to_owned();
        assert_eq!(lines(&status), [row("ready prefill=qnn,decode=cpu"), note.clone()]);
        let why = Some("measured on this machine, 5 ms".to_owned());
        status.placement = Some(PlacementReport { why, ..placement.clone() });
        status.passed_over = vec![PassedOver {
            device: DeviceName::WebGpu,
            reason: "it is in quarantine".to_owned(),
            fix: None,
            announced: true,
            fallback: FallbackNodes::default(),
        }];
        let expected = [
            row("ready prefill=qnn,decode=cpu"),
            "tiny (w8) measured on this machine, 5 ms".to_owned(),
            note,
            "tiny (w8) not webgpu: it is in quarantine".to_owned(),
        ];
        assert_eq!(lines(&status), expected);
        let (reason, hint) = ("tiny runs on no device".to_owned(), Some("narthex doctor".to_owned()));
        status = ModelStatus { state: ModelState::Failed { reason, hint }, placement: None, ..status };
        let expected = [
            row("failed -"),
            "tiny (w8) failed: tiny runs on no device".to_owned(),
            "tiny (w8) can be mended: narthex doctor".to_owned(),
        ];
        assert_eq!(lines(&status), expected);
    }

    #[test]
    fn a_comparison_has_a_row_for_each_that_ran_and_a_reason_for_each_that_did_not() {
        let text = comparison(&made_up());
        let check = |words: &str| assert!(has(&text, words), "{words}\n{text}");
        check("cpu 640.0 400.0 1.00 100.0 1.00 812 310 MB 12.0");
        check("prefill=qnn,decode=cpu 160.0 1600.0 4.00 95.0 0.95 2400 ? -");
        check(
            "openvino was not measured: the <openvino> runtime is not installed (narthex runtime install openvino)",
        );
        assert!(text.contains("medians of 5 rounds") && text.contains("(RAPL)"), "{text}");
        let without = Comparison { energy_counter: None, ..made_up() };
        assert!(comparison(&without).contains("no energy counter"));
    }

    #[test]
    fn sizes() {
        let check = |value, expected: &str| assert_eq!(bytes(value), expected);
        check(0, "0 B");
        check(999, "999 B");
        check(1_000, "1.0 kB");
        check(98_362_432, "98 MB");
        check(9_960_000_000, "10 GB");
        assert_eq!(
            (count(134_515_008), count(1_100_000_000), count(22_000)),
            ("135 M".into(), "1.1 B".into(), "22 k".into())
        );
    }
}
