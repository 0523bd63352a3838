//! Benchmarks and comparisons of devices.

use comfy_table::Cell;
use narthex_gateway::{
    bench::{BenchReport, ComparedDevice, Comparison, Figures, Outcome, PictureReport, Spread},
    compare::PackageComparison,
};
use narthex_spec::manifest::CertificateFigures;

use super::{bytes, package::perplexity_change, right, table};

/// Renders a benchmark.
pub(crate) fn bench(report: &BenchReport) -> String {
    let mut table = table(&["", "MEDIAN", "MIN", "MAX"]);
    let prefill = format!("prefill tokens/s ({})", report.prompt_tokens);
    let decode = format!("decode tokens/s ({})", report.generate_tokens);
    table.add_row(spread_cells(&prefill, report.prefill_tokens_per_second, 1));
    table.add_row(spread_cells(&decode, report.decode_tokens_per_second, 1));
    table.add_row(spread_cells("first token ms", report.first_token_ms, 1));
    if let Some(gateway) = &report.gateway {
        table.add_row(spread_cells("gateway ms/request", gateway.request_ms, 2));
        let Spread { min, median, max } = gateway.token_ratio;
        let [min, median, max] = [min, median, max].map(|ratio| (ratio - 1.0) * 1e2);
        if min < 0.0 {
            table.add_row(["gateway, % per token", "below the noise"]);
        } else {
            table.add_row(spread_cells("gateway, % per token", Spread { min, median, max }, 1));
        }
    }

    let machine = &report.machine;
    let memory = report.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    format!(
        "{} ({}) on {}, {} threads of {}\n{}\nload {:.0} ms · peak memory {memory} · {} · narthex {} · ONNX Runtime {}",
        report.model,
        report.scheme,
        report.device,
        machine.threads,
        machine.cpu,
        table.trim_fmt(),
        report.load_ms,
        rounds(report.rounds),
        machine.narthex,
        machine.onnxruntime,
    )
}

/// Renders the times of a vision tower and of questions about pictures.
pub(crate) fn pictures(report: &PictureReport) -> String {
    let mut table = table(&["", "MEDIAN", "MIN", "MAX"]);
    let tower = &report.tower;
    table.add_row(spread_cells(&format!("read a picture ms ({})", tower.device), report.read_ms, 1));
    table.add_row(spread_cells("first question ms", report.first_question_ms, 1));
    table.add_row(spread_cells("next question ms", report.next_question_ms, 1));
    table.add_row(spread_cells("question without picture ms", report.text_ms, 1));

    let machine = &report.machine;
    let [width, height] = report.size;
    format!(
        "{} ({}) on {}, {} threads of {}\n{}\npictures of {width} × {height} pixels, {} rows each · tower of {} nodes and {} on {}\n\
         {} · narthex {} · ONNX Runtime {}",
        report.model,
        report.scheme,
        report.device,
        machine.threads,
        machine.cpu,
        table.trim_fmt(),
        report.rows,
        tower.nodes(),
        bytes(tower.weight_bytes),
        tower.device,
        rounds(report.rounds),
        machine.narthex,
        machine.onnxruntime,
    )
}

/// Returns the cells of a name and a figure.
fn spread_cells(name: &str, spread: Spread, digits: usize) -> [Cell; 4] {
    let [median, min, max] =
        [spread.median, spread.min, spread.max].map(|figure| right(format!("{figure:.digits$}")));
    [Cell::new(name), median, min, max]
}

/// Renders two packages side by side.
pub(crate) fn packages(comparison: &PackageComparison) -> String {
    let [reference, other] = &comparison.packages;
    let names = [reference, other].map(|package| format!("{}@{}", package.model, package.scheme));
    let mut table = table(&["", &names[0], &names[1]]);
    let mut add = |name: &str, values: [String; 2]| {
        let [reference, other] = values.map(right);
        table.add_row([Cell::new(name), reference, other]);
    };
    add("size", [reference, other].map(|package| bytes(package.bytes)));
    match comparison.agreement {
        CertificateFigures::Decoder {
            positions,
            perplexity,
            reference_perplexity,
            divergence,
            agreement,
        } => {
            let change = perplexity_change(&comparison.agreement);
            add("perplexity", [format!("{reference_perplexity:.3}"), format!("{perplexity:.3} ({change})")]);
            add("divergence, nats", [String::new(), format!("{divergence:.4}")]);
            add(
                &format!("same best token ({positions} positions)"),
                [String::new(), format!("{:.1} %", agreement * 1e2)],
            );
        }
        CertificateFigures::Encoder { texts, mean_cosine, lowest_cosine } => {
            add(&format!("mean cosine ({texts} texts)"), [String::new(), format!("{mean_cosine:.5}")]);
            add("lowest cosine", [String::new(), format!("{lowest_cosine:.5}")]);
        }
    }
    if let (Some(first), Some(second)) = (&reference.speed, &other.speed) {
        let speeds = [first, second];
        add("prefill tokens/s", speeds.map(|speed| format!("{:.1}", speed.prefill_tokens_per_second.median)));
        add("decode tokens/s", speeds.map(|speed| format!("{:.1}", speed.decode_tokens_per_second.median)));
        add("device", speeds.map(|speed| speed.device.clone()));
    }

    let machine = &comparison.machine;
    format!(
        "{}\nquality on the CPU over one text\n{} threads of {}\nnarthex {} · ONNX Runtime {}",
        table.trim_fmt(),
        machine.threads,
        machine.cpu,
        machine.narthex,
        machine.onnxruntime
    )
}

/// Renders a comparison: medians in a table, then the devices that could not run, with reasons.
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
    for ComparedDevice { place, outcome } in &report.contenders {
        match outcome {
            Outcome::Measured(figures) => {
                table.add_row([Cell::new(place)].into_iter().chain(figure_cells(figures)));
            }
            Outcome::Refused { reason, fix } => {
                let fix = fix.as_deref().map(|fix| format!(" ({fix})")).unwrap_or_default();
                refused.push_str(&format!("{place} was not measured: {reason}{fix}\n"));
            }
        }
    }

    let energy = match &report.energy_counter {
        Some(counter) => format!("energy of one prompt and answer, measured by {counter}"),
        None => "no energy counter can be read on this machine".to_owned(),
    };
    let machine = &report.machine;
    format!(
        "{} ({}), {} threads of {}\n{}\n{refused}prompts of {} tokens, answers of {} · medians of {} · {energy} · narthex {} · ONNX \
         Runtime {}",
        report.model,
        report.scheme,
        machine.threads,
        machine.cpu,
        table.trim_fmt(),
        report.prompt_tokens,
        report.generate_tokens,
        rounds(report.rounds),
        machine.narthex,
        machine.onnxruntime,
    )
}

fn rounds(count: usize) -> String {
    if count == 1 { "1 round".to_owned() } else { format!("{count} rounds") }
}

/// Returns the cells after the name of a device.
fn figure_cells(figures: &Figures) -> [Cell; 8] {
    let [prefill_ratio, decode_ratio] = match figures.to_cpu {
        Some(ratios) => [ratios.prefill, ratios.decode].map(|ratio| format!("{:.2}", ratio.median)),
        None => ["-", "-"].map(str::to_owned),
    };
    [
        format!("{:.1}", figures.first_token_ms.median),
        format!("{:.1}", figures.prefill_tokens_per_second.median),
        prefill_ratio,
        format!("{:.1}", figures.decode_tokens_per_second.median),
        decode_ratio,
        format!("{:.0}", figures.load_ms),
        figures.memory_bytes.map_or_else(|| "?".to_owned(), bytes),
        figures.energy_joules.map_or_else(|| "-".to_owned(), |joules| format!("{:.1}", joules.median)),
    ]
    .map(right)
}

#[cfg(test)]
mod tests {
    use narthex_gateway::bench::Overhead;
    use narthex_spec::Scheme;

    use super::*;
    use crate::page::tests::{comparison as made_up, machine};

    fn has(text: &str, words: &str) -> bool {
        text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == words)
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
        check("gateway, % per token below the noise");
        check("load 812 ms · peak memory unknown · 5 rounds · narthex 0.1.0 · ONNX Runtime 1.31.1");
        if let Some(gateway) = &mut report.gateway {
            gateway.token_ratio = spread(1.01, 1.02, 1.045);
        }
        let text = bench(&report);
        assert!(has(&text, "gateway, % per token 2.0 1.0 4.5"), "{text}");
        report.gateway = None;
        assert!(!bench(&report).contains("gateway"));
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
}
