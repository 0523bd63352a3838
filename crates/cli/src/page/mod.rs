//! A comparison of devices as one self-contained HTML page: no scripts, no external resources, plots as inline SVG.
//! All text from the machine or the model is escaped.

mod plot;

use std::fmt::{Display, Write};

use narthex_gateway::bench::{ComparedDevice, Comparison, Figures, Outcome, Spread};

use crate::render::bytes;
use plot::Bar;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid #d5dce3;vertical-align:top;\
overflow-wrap:anywhere}figure{margin:1.5rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}\
svg text{font:13px system-ui,sans-serif}svg text.name{text-anchor:end}rect{fill:#5b8db8}line{stroke:#1c2733}";

pub(crate) fn page(report: &Comparison) -> String {
    let title = format!("{} ({}) on {}", report.model, report.scheme, report.machine.cpu);
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n",
        title = escape(&title)
    );
    text.push_str(&method(report));
    for (title, figure) in PLOTS {
        text.push_str(&plotted(title, *figure, report));
    }

    text.push_str(&section(
        "Figures",
        &[
            "device",
            "first token ms",
            "prefill tokens/s",
            "× CPU",
            "decode tokens/s",
            "× CPU",
            "load ms",
            "memory",
            "joules",
        ],
        figures(report),
    ));
    text.push_str(&section(
        "Placement",
        &["device", "graph", "provider", "nodes", "parts", "weights", "share of the graph's work"],
        placements(report),
    ));
    text.push_str(&section("Machine", &["", ""], machine(report)));
    text.push_str(&section("Devices", &["device", "state", "fix"], devices(report)));
    text + "</body>\n</html>\n"
}

/// A plot: its title and its figure.
type Plot = (&'static str, fn(&Figures) -> Option<Spread>);

const PLOTS: &[Plot] = &[
    ("Milliseconds to the first token (less is better)", |figures| Some(figures.first_token_ms)),
    ("Prompt tokens per second (more is better)", |figures| Some(figures.prefill_tokens_per_second)),
    ("Generated tokens per second (more is better)", |figures| Some(figures.decode_tokens_per_second)),
    ("Joules of one prompt and answer (less is better)", |figures| figures.energy_joules),
];

/// Describes the measurement.
fn method(report: &Comparison) -> String {
    let energy = match &report.energy_counter {
        Some(counter) => format!("Energy was measured by {counter}."),
        None => "No energy counter can be read on this machine.".to_owned(),
    };
    let text = format!(
        "{}, Narthex {}. Prompts of {} tokens, answers of {}, {} rounds after a warm-up round. The devices take turns \
         within each round; figures are medians, with the smallest and the largest as a line in each bar, and ratios are taken \
         within a round. {energy}",
        report.date, report.machine.narthex, report.prompt_tokens, report.generate_tokens, report.rounds
    );
    format!("<p>{}</p>\n", escape(&text))
}

/// Returns the devices that ran.
fn ran(report: &Comparison) -> impl Iterator<Item = (String, &Figures)> {
    report.contenders.iter().filter_map(|ComparedDevice { place, outcome }| match outcome {
        Outcome::Measured(figures) => Some((place.to_string(), figures.as_ref())),
        Outcome::Refused { .. } => None,
    })
}

fn plotted(title: &str, of: fn(&Figures) -> Option<Spread>, report: &Comparison) -> String {
    let bars: Vec<Bar> = ran(report)
        .filter_map(|(name, figures)| {
            let spread = of(figures)?;
            Some(Bar { name, median: spread.median, range: (spread.min, spread.max) })
        })
        .collect();
    if bars.is_empty() { String::new() } else { plot::bars(title, &bars) }
}

fn figures(report: &Comparison) -> Vec<Vec<String>> {
    let mut rows = Vec::with_capacity(report.contenders.len());
    for ComparedDevice { place, outcome } in &report.contenders {
        rows.push(match outcome {
            Outcome::Measured(figures) => vec![
                place.to_string(),
                ranged(figures.first_token_ms),
                ranged(figures.prefill_tokens_per_second),
                ranged_or_dash(figures.to_cpu.map(|ratios| ratios.prefill)),
                ranged(figures.decode_tokens_per_second),
                ranged_or_dash(figures.to_cpu.map(|ratios| ratios.decode)),
                figure(figures.load_ms),
                figures.memory_bytes.map_or_else(|| "unknown".to_owned(), bytes),
                ranged_or_dash(figures.energy_joules),
            ],
            Outcome::Refused { reason, .. } => vec![place.to_string(), format!("not measured: {reason}")],
        });
    }
    rows
}

fn ranged_or_dash(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "–".to_owned(), ranged)
}

fn placements(report: &Comparison) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (name, figures) in ran(report) {
        let placement = &figures.placement;
        rows.extend(placement.lines.iter().map(|line| {
            vec![
                name.clone(),
                line.graph.clone(),
                line.ep.to_string(),
                line.nodes.to_string(),
                line.subgraphs.to_string(),
                bytes(line.weight_bytes),
                percent(line.compute_share),
            ]
        }));
        rows.push(vec![name.clone(), format!("{} on the NPU", placement.share_in_words())]);
        rows.extend(placement.notes.iter().map(|note| vec![name.clone(), note.clone()]));
    }
    rows
}

fn machine(report: &Comparison) -> Vec<Vec<String>> {
    let machine = &report.machine;
    let memory = machine.memory_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    let accelerators =
        if machine.accelerators.is_empty() { "none".to_owned() } else { machine.accelerators.join("; ") };
    let system = match &machine.system {
        Some(system) => format!("{system}, {}", machine.platform),
        None => machine.platform.clone(),
    };
    let cpu = format!("{}, {} cores, {} threads used", machine.cpu, machine.cores, machine.threads);
    let rows = [
        ("processor", cpu),
        ("memory", memory),
        ("system", system),
        ("GPUs and NPUs", accelerators),
        ("Narthex", machine.narthex.clone()),
        ("ONNX Runtime", machine.onnxruntime.clone()),
        ("runtimes", report.runtimes.join("; ")),
        ("package", format!("{} ({}), {}", report.model, report.scheme, report.package)),
    ];
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn devices(report: &Comparison) -> Vec<Vec<String>> {
    let mut rows = Vec::with_capacity(report.devices.len());
    for status in &report.devices {
        let state = status.reason.clone().unwrap_or_else(|| "usable".to_owned());
        rows.push(vec![status.device.to_string(), state, status.fix.clone().unwrap_or_default()]);
    }
    rows
}

/// Returns a heading and a table. The last cell of a short row spans the remaining columns.
fn section(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut text = format!("<h2>{}</h2>\n<table>\n", escape(title));
    // Writing to a string cannot fail.
    if header.iter().any(|cell| !cell.is_empty()) {
        let cells: String = header.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    for row in rows {
        let left = header.len().saturating_sub(row.len());
        let cells = row.iter().enumerate().map(|(index, cell)| {
            let last = left > 0 && index + 1 == row.len();
            let span = if last { format!(" colspan=\"{}\"", left + 1) } else { String::new() };
            format!("<td{span}>{}</td>", escape(cell))
        });
        let _ = writeln!(text, "<tr>{}</tr>", cells.collect::<String>());
    }
    text + "</table>\n"
}

/// Renders a median with minimum and maximum.
fn ranged(spread: Spread) -> String {
    format!("{} ({}–{})", figure(spread.median), figure(spread.min), figure(spread.max))
}

/// Renders a figure with three significant digits.
fn figure(x: f64) -> String {
    match x.abs() {
        size if size >= 99.95 => format!("{x:.0}"),
        size if size >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Escapes text for any place in the page; control characters are replaced.
fn escape(text: impl Display) -> String {
    let mut escaped = String::new();
    for c in text.to_string().chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(' '),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
pub(crate) mod tests;
