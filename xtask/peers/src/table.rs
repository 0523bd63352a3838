//! Output of a run: a page and files.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::Context;
use xtask_tools::{
    record::{BENCH, RecordArgs},
    terminal,
    workspace::{Workspace, relative},
};

use crate::{
    Part,
    drafts::DraftResult,
    embeddings::Embeddings,
    plot,
    report::{Report, SpeedRun},
    server_side::ServerFailure,
    servers::Servers,
    spread::Spread,
    turns::Turns,
    verdict::verdicts,
};

/// Prints a run, and writes it as JSON, as a page and as a plot.
pub(super) fn write(workspace: &Workspace, report: &Report, args: RecordArgs) -> anyhow::Result<()> {
    let page = page(report)?;
    terminal::line(format!("\n{page}"));
    let (folder, name) = if args.record {
        (workspace.root.join(BENCH), name(report))
    } else {
        (workspace.target.join("peers"), "latest".to_owned())
    };
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let json = serde_json::to_string_pretty(report)? + "\n";
    let plot = plot::draw(report);
    let files = [("json", Some(&json)), ("md", Some(&page)), ("svg", plot.as_ref())];
    for (ending, text) in files.into_iter().filter_map(|(ending, text)| Some((ending, text?))) {
        let path = folder.join(format!("{name}.{ending}"));
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        terminal::line(format!("written to {}", relative(&path, &workspace.root)));
    }
    Ok(())
}

/// Returns the day, the processor and its number of threads, as in `2026-11-21-amd-epyc-2`, followed by the measured
/// parts if they are not the standard one. Records of different parts are different files.
fn name(report: &Report) -> String {
    let cpu = report.machine.cpu.to_lowercase();
    let words: Vec<&str> =
        cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let mut name = format!("{}-{}-{}", report.date, words.join("-"), report.machine.threads);
    if report.parts != [Part::Standard] {
        for part in &report.parts {
            name = name + "-" + <&str>::from(*part);
        }
    }
    name
}

fn page(report: &Report) -> anyhow::Result<String> {
    let machine = &report.machine;
    let load =
        machine.load.map_or_else(|| "unknown load".to_owned(), |load| format!("load {load:.2} before"));
    let mut text = format!(
        "# Narthex beside its peers, {}\n\n{}, {} threads, {}, {load}. Commit {}; `{}`.\n\n{} rounds, each measuring every \
         side once. Medians, followed by the smallest and the largest round.\n",
        report.date,
        machine.cpu,
        machine.threads,
        machine.platform,
        report.commit,
        report.command,
        report.rounds,
    );
    for run in &report.speeds {
        let SpeedRun { model, prompt_tokens, decode_tokens, repeat, .. } = run;
        writeln!(
            text,
            "\n## {model}, prompts of {prompt_tokens} tokens, answers of {decode_tokens}\n\nRepetitions in a measurement: \
             {repeat}.\n"
        )?;
        sides(&mut text, run)?;
        ratios(&mut text, run, &run.suffix())?;
        resources(&mut text, run)?;
    }
    servers(&mut text, &report.servers)?;
    if let Some(found) = &report.turns {
        turns(&mut text, found)?;
    }
    drafts(&mut text, &report.drafts)?;
    if let Some(found) = &report.embeddings {
        embeddings(&mut text, found)?;
    }
    quality(&mut text, report)?;
    bounds(&mut text, report)?;
    Ok(text)
}

fn sides(text: &mut String, run: &SpeedRun) -> anyhow::Result<()> {
    text.push_str("| Side | What runs | Prefill, tokens/s | Decode, tokens/s |\n|---|---|---:|---:|\n");
    for side in &run.sides {
        let (prefill, decode) = match &side.speed {
            Some(speed) => (speed.prefill.format(1), speed.decode.format(1)),
            None => ("did not run".to_owned(), "did not run".to_owned()),
        };
        let about = about(side.about, &side.versions);
        writeln!(text, "| {} | {about} | {prefill} | {decode} |", side.side)?;
    }
    for side in &run.sides {
        if let Some(reason) = &side.failed {
            writeln!(text, "\n`{}` did not run: {}", side.side, reason.replace('\n', " "))?;
        }
    }
    Ok(())
}

fn ratios(text: &mut String, run: &SpeedRun, suffix: &str) -> anyhow::Result<()> {
    if run.ratios.is_empty() {
        return Ok(());
    }
    text.push_str("\n| Speed over speed, round by round | Prefill | Decode |\n|---|---:|---:|\n");
    for ratio in &run.ratios {
        let (prefill, decode) = (ratio.prefill.format(3), ratio.decode.format(3));
        writeln!(text, "| {} over {}{suffix} | {prefill} | {decode} |", ratio.of, ratio.to)?;
    }
    Ok(())
}

/// Writes the machine's limits, and shares of them, load times and memory of the sides.
fn resources(text: &mut String, run: &SpeedRun) -> anyhow::Result<()> {
    if let Some(limits) = &run.limits {
        writeln!(
            text,
            "\nLimits of the machine: {} G multiply-accumulates/s of 8-bit weights and activations, {} G with 4-bit weights, \
             {} GB/s.",
            limits.multiply_accumulates_per_second.times(1e-9).format(0),
            limits.multiply_accumulates_4_bit_per_second.times(1e-9).format(0),
            limits.bytes_per_second.times(1e-9).format(1)
        )?;
    }
    text.push_str(
        "\n| Side | Prefill, % of the limit | Decode, % of the limit | Weights, MB | Load, ms | Peak memory, MB |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    let scaled = |spread: Option<&Spread>, factor: f64| {
        spread.map_or_else(|| "unknown".to_owned(), |spread| spread.times(factor).format(0))
    };
    for side in run.sides.iter().filter(|side| side.speed.is_some()) {
        let shares = side.shares.as_ref();
        let weights = side.weight_bytes;
        let weights =
            weights.map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6));
        writeln!(
            text,
            "| {} | {} | {} | {weights} | {} | {} |",
            side.side,
            scaled(shares.map(|shares| &shares.prefill), 100.0),
            scaled(shares.map(|shares| &shares.decode), 100.0),
            scaled(side.load_ms.as_ref(), 1.0),
            scaled(side.peak_bytes.as_ref(), 1e-6)
        )?;
    }
    Ok(())
}

fn turns(text: &mut String, found: &Turns) -> anyhow::Result<()> {
    writeln!(
        text,
        "\n## Growing turns\n\nA conversation of {} turns, each with about 75 new tokens and an answer of {}. Sides may \
         keep the keys and values of earlier turns.\n\n| Server | First turn, ms | Last turn, ms | All turns, ms |\n\
         |---|---:|---:|---:|",
        found.turns, found.answer_tokens
    )?;
    for result in &found.results {
        let times = [&result.first_turn_ms, &result.last_turn_ms, &result.conversation_ms];
        let [first, last, all] = times.map(|spread| spread.format(0));
        writeln!(text, "| {} | {first} | {last} | {all} |", result.server)?;
    }
    text.push_str("\n| Speed over speed, round by round | Last turn | All turns |\n|---|---:|---:|\n");
    for ratio in &found.ratios {
        let (last, all) = (ratio.last_turn.format(3), ratio.conversation.format(3));
        writeln!(text, "| {} over {} | {last} | {all} |", ratio.of, ratio.to)?;
    }
    failures(text, &found.failures)
}

fn drafts(text: &mut String, results: &[DraftResult]) -> anyhow::Result<()> {
    if results.is_empty() {
        return Ok(());
    }
    text.push_str(
        "\n## Drafts from earlier text\n\nDecode of `narthex serve`, answers of 160 tokens: quotes from a text of about \
         300 tokens, and new text with a temperature of 1.\n\n| Scheme | Text | Without drafts, tokens/s | With drafts, \
         tokens/s | Ratio | Accepted, % of the tokens |\n|---|---|---:|---:|---:|---:|\n",
    );
    for result in results {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            result.scheme,
            result.text,
            result.without.format(1),
            result.with.format(1),
            result.ratio.format(3),
            result.accepted.times(100.0).format(0)
        )?;
    }
    Ok(())
}

fn failures(text: &mut String, failures: &[ServerFailure]) -> anyhow::Result<()> {
    for failure in failures {
        writeln!(text, "\n{} failed: {}", failure.server, failure.reason.replace('\n', " "))?;
    }
    Ok(())
}

fn servers(text: &mut String, servers: &Servers) -> anyhow::Result<()> {
    if servers.results.is_empty() && servers.failures.is_empty() {
        return Ok(());
    }
    text.push_str(
        "\n## Servers\n\nPrompts of about 220 tokens, answers of 64; 16 slots. The slowest client's rate is given as a share \
         of the median client's.\n\n| Server | Clients | Tokens/s of all clients | Slowest client |\n|---|---:|---:|---:|\n",
    );
    for result in &servers.results {
        let (speed, slowest) = (result.tokens_per_second.format(1), result.slowest_share.format(2));
        writeln!(text, "| {} | {} | {speed} | {slowest} |", result.server, result.clients)?;
    }
    text.push_str("\n| Tokens/s over tokens/s, round by round | Clients | Ratio |\n|---|---:|---:|\n");
    for ratio in &servers.ratios {
        writeln!(text, "| {} over {} | {} | {} |", ratio.of, ratio.to, ratio.clients, ratio.ratio.format(3))?;
    }
    failures(text, &servers.failures)
}

fn embeddings(text: &mut String, found: &Embeddings) -> anyhow::Result<()> {
    let tokens = found.batch_tokens.as_ref().map_or_else(|| "unknown".to_owned(), |tokens| tokens.format(0));
    writeln!(
        text,
        "\n## Embeddings of {}\n\nA batch of {} texts, tokens without padding: {tokens}; {} texts one by one. All times \
         include the tokenizer. The cosine is the smallest one to the vectors of `onnxruntime-f32`.\n\n| Side | What runs | \
         Batch, tokens/s | One by one, texts/s | Cosine |\n|---|---|---:|---:|---:|",
        found.model, found.batch_texts, found.single_texts
    )?;
    for side in &found.sides {
        let about = about(side.about, &side.versions);
        let (batch, single) = match &side.speed {
            Some(speed) => (speed.batch.format(0), speed.single.format(1)),
            None => ("did not run".to_owned(), "did not run".to_owned()),
        };
        let cosine = side.cosine.map_or_else(|| "unknown".to_owned(), |cosine| format!("{cosine:.5}"));
        writeln!(text, "| {} | {about} | {batch} | {single} | {cosine} |", side.side)?;
    }
    for side in &found.sides {
        if let Some(reason) = &side.failed {
            writeln!(text, "\n`{}` did not run: {}", side.side, reason.replace('\n', " "))?;
        }
    }
    if !found.ratios.is_empty() {
        text.push_str("\n| Speed over speed, round by round | Batch | One by one |\n|---|---:|---:|\n");
    }
    for ratio in &found.ratios {
        let (batch, single) = (ratio.batch.format(3), ratio.single.format(3));
        writeln!(text, "| {} over {} | {batch} | {single} |", ratio.of, ratio.to)?;
    }
    for left_out in found.left_out {
        writeln!(text, "\nLeft out: {left_out}.")?;
    }
    Ok(())
}

/// Describes a side with its versions.
fn about(about: &str, versions: &BTreeMap<String, String>) -> String {
    let versions: Vec<String> = versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    if versions.is_empty() { about.to_owned() } else { format!("{about}; {}", versions.join(", ")) }
}

fn quality(text: &mut String, report: &Report) -> anyhow::Result<()> {
    for footprint in &report.footprints {
        writeln!(text, "\n{}", footprint.describe())?;
    }
    for comparison in &report.perplexity {
        let (ours, theirs) = (&comparison.ours, &comparison.theirs);
        match (&comparison.found, &comparison.failed) {
            (Some(found), _) => writeln!(
                text,
                "\nPerplexity of the fixed text: {ours} {:.3}, {theirs} {:.3}, ratio {:.4}; {} tokens predicted in {} \
                 windows of {}.",
                found.ours,
                found.theirs,
                found.ratio,
                found.predicted_tokens,
                found.windows,
                found.window_tokens
            )?,
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or("no reason was given").replace('\n', " ");
                writeln!(text, "\nPerplexity of {ours} beside {theirs} was not measured: {reason}")?;
            }
        }
    }
    Ok(())
}

fn bounds(text: &mut String, report: &Report) -> anyhow::Result<()> {
    let verdicts = verdicts(report);
    if verdicts.is_empty() {
        return Ok(());
    }
    text.push_str("\n| Bound | Wanted | Found | Met |\n|---|---:|---:|---|\n");
    for verdict in verdicts {
        let met = if verdict.met { "yes" } else { "**no**" };
        writeln!(text, "| {} | {} | {} | {met} |", verdict.what, verdict.wanted, verdict.found)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn files_are_named_after_day_and_machine() {
        assert_eq!(name(&report()), "2026-11-21-some-cpu-r-2");
    }

    #[test]
    fn a_page_holds_figures_ratios_reasons_and_bounds() {
        let page = page(&report()).unwrap();
        let check = |line: &str| assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        check("# Narthex beside its peers, 2026-11-21");
        check("## smollm2:135m, prompts of 256 tokens, answers of 64");
        check(
            "Some CPU (R), 2 threads, linux x86_64, load 0.07 before. Commit 0123456789ab; `cargo xtask peers --rounds 2`.",
        );
        check(
            "| narthex-w8 | `narthex bench`, package w8; onnxruntime 1.31.1 | 72.0 (48.0 to 96.0) | 47.0 (47.0 to \
             47.0) |",
        );
        check("`openvino-q4_1` did not run: no wheel | for this machine");
        check("| narthex-w8 over loop-w8 | 0.960 (0.960 to 0.960) | 0.940 (0.940 to 0.940) |");
        check("| narthex-w8 over loop-w8, decode | at least 0.95 | 0.940 (0.940 to 0.940) | **no** |");
        check(
            "Limits of the machine: 1 (0 to 1) G multiply-accumulates/s of 8-bit weights and activations, 2 (1 to 2) G with \
             4-bit weights, 10.0 (10.0 to 10.0) GB/s.",
        );
        check("| narthex-w8 | 24 (24 to 24) | 70 (70 to 70) | 150 | 80 (80 to 80) | 300 (300 to 300) |");
        check("| loop-w8 | unknown | unknown | unknown | 80 (80 to 80) | 300 (300 to 300) |");
        check("| narthex serve, w4 | 150 (100 to 200) | 75 (50 to 100) | 225 (150 to 300) |");
        check(
            "| narthex serve, w4 over llama-server, Q4_0 | 2.000 (2.000 to 2.000) | 2.000 (2.000 to 2.000) |",
        );
        check(
            "| w4 | quotes | 75.0 (50.0 to 100.0) | 145.0 (90.0 to 200.0) | 1.900 (1.800 to 2.000) | 62 (50 to 75) |",
        );
        check("## Embeddings of tiny");
        check(
            "| openvino | OpenVINO in its default precision, groups of 32; runtime 1.2 | 5625 (3750 to 7500) | 64.0 \
             (64.0 to 64.0) | 0.99504 |",
        );
        check("`openvino-f32` did not run: no wheel");
        check("| narthex-w8 over openvino | 1.200 (1.200 to 1.200) | 1.000 (1.000 to 1.000) |");
        check("| narthex-w8: cold start, ms | at most 1500 | 900 (900 to 900) | yes |");
    }
}
