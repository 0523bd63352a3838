//! Estimates of a model.

use comfy_table::{Cell, ContentArrangement};
use narthex_gateway::plan::{
    CacheEstimate, DeviceFit, MemoryPlan, MinimumMemory, ModelEstimate, PlanReport, SchemeEstimate,
    SchemeFit, TargetEstimate, WeightsMemory,
};

use narthex_spec::Scheme;

use super::{bytes, right, table};

/// Renders an estimate.
pub(crate) fn plan(report: &PlanReport) -> String {
    let estimate = &report.estimate;
    let mut text = format!("{}\n", report.subject);
    let mut fact = |name: &str, value: String| text.push_str(&format!("  {name:<11} {value}\n"));
    fact("structure", estimate.structure.clone());
    for (name, tower) in [("vision", &estimate.vision), ("audio", &estimate.audio)] {
        if let Some(tower) = tower {
            let share = thousands(tower.parameters);
            fact(name, format!("{}; {share} of the parameters", tower.structure));
        }
    }
    fact("parameters", thousands(estimate.parameters));
    fact("context", format!("{} tokens at most", estimate.longest));

    let origin = &report.origin;
    if let Some(factor) = origin.yarn.filter(|_| report.yarn.is_none()) {
        let tokens = estimate.longest * factor.get();
        fact("with YaRN", format!("{tokens} tokens with --yarn {factor}, as its model card describes"));
    }
    origin.source.iter().for_each(|source| fact("source", source.clone()));
    origin.license.iter().for_each(|license| fact("licence", license.clone()));
    origin.access.and_then(super::models::access).iter().for_each(|text| fact("access", (*text).to_owned()));
    origin.download_bytes.iter().for_each(|size| fact("download", bytes(*size)));
    origin.notes.iter().for_each(|notes| fact("note", notes.clone()));
    for known in &origin.divergences {
        let answers = format!("its answers differ from the CPU's by {} nats", known.divergence);
        fact("numerics", format!("{}: {answers} ({})", known.provider, known.measured));
    }

    if !estimate.cache.is_empty() {
        fact("KV cache", cached(estimate));
    }
    windows(&estimate.cache).into_iter().for_each(|text| fact("attention", text));
    text.push_str(&format!("\n{}\n", schemes(&estimate.schemes)));
    let with_rules = targets(&estimate.schemes);
    if !with_rules.is_empty() {
        text.push_str(&format!("\n{with_rules}\n"));
    }
    text.push_str(&format!("\nryzen-ai\n {}\n", report.ryzen_ai));
    if !with_rules.is_empty() {
        text.push_str("\nPredicted: by rules. `narthex check` asks the vendor's compiler.\n");
    }
    if let Some((scheme, target)) = estimate.best(|_| true) {
        text.push_str(&format!("\n{} in {scheme}: {}", target.target, target.score));
    }

    let budget = if estimate.cache.is_empty() {
        String::new()
    } else {
        format!(", with a KV cache of at most {} (--kv-budget)", bytes(report.kv_budget))
    };
    text.push_str(&format!("\nthis machine{budget}\n{}", machine(&report.machine)));
    text.extend(report.memory.as_ref().map(memory));
    text.extend(report.least.as_ref().map(|minimum| least(minimum, &report.machine)));
    text
}

/// Formats a number with thousands separators: `1 235 814 400`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Renders the memory of the KV cache in each element type of a CPU, and on NPUs if they run the model.
fn cached(estimate: &ModelEstimate) -> String {
    let [i8, f16, f32, npu] = [
        estimate.cpu_token_bytes_in_i8(),
        estimate.cpu_token_bytes(),
        estimate.token_bytes(),
        estimate.npu_token_bytes,
    ]
    .map(|token_bytes| bytes(token_bytes * 1000));
    let on_npu = if estimate.npu_token_bytes > 0 { format!("; {npu} on an NPU") } else { String::new() };
    let states = match estimate.state_bytes {
        0 => String::new(),
        state_bytes => format!("; at most {} of states per conversation", bytes(state_bytes)),
    };
    format!("{i8} per 1000 tokens in i8, {f16} in f16, {f32} in f32 on a CPU{on_npu}{states}")
}

/// Renders the layers whose attention has a window.
fn windows(cache: &[CacheEstimate]) -> Vec<String> {
    let all: usize = cache.iter().map(|cache| cache.layers).sum();
    let mut windows = Vec::new();
    for CacheEstimate { window, layers, .. } in cache {
        if let Some(window) = window {
            windows.push(format!("a window of {window} tokens in {layers} of {all} layers with a KV cache"));
        }
    }
    windows
}

fn schemes(schemes: &[SchemeEstimate]) -> String {
    let mut columns = vec!["SCHEME", "WEIGHTS"];
    let has_npu_graphs = schemes.iter().any(|found| found.fixed_bytes.is_some());
    columns.extend(has_npu_graphs.then_some("WITH GRAPHS FOR NPUS"));
    let mut table = table(&columns);
    for found in schemes {
        let npu_graphs = right(found.fixed_bytes.map_or_else(|| "-".to_owned(), bytes));
        let cells = [Cell::new(found.scheme), right(bytes(found.bytes))];
        table.add_row(cells.into_iter().chain(has_npu_graphs.then_some(npu_graphs)));
    }
    table.trim_fmt()
}

/// Renders the verdict on each NPU in each scheme. NPUs with the same verdicts share a table below their names.
fn targets(schemes: &[SchemeEstimate]) -> String {
    let schemes: Vec<&SchemeEstimate> = schemes.iter().filter(|found| found.fixed_bytes.is_some()).collect();
    let mut groups: Vec<(Vec<String>, Vec<[String; 3]>)> = Vec::new();
    for target in schemes.first().iter().flat_map(|first| &first.targets) {
        let rows: Vec<[String; 3]> = schemes
            .iter()
            .filter_map(|scheme| {
                let estimate = scheme.targets.iter().find(|known| known.target == target.target)?;
                Some(verdict(scheme.scheme, estimate))
            })
            .collect();
        let name = target.target.to_string();
        match groups.iter_mut().find(|(_, known)| *known == rows) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], rows)),
        }
    }

    let mut texts = Vec::with_capacity(groups.len());
    for (names, rows) in groups {
        let mut table = table(&["SCHEME", "SCORE", "VERDICT"]);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(super::columns());
        for [scheme, score, verdict] in rows {
            table.add_row([Cell::new(scheme), right(score), Cell::new(verdict)]);
        }
        texts.push(format!("{}\n{}", names.join(", "), table.trim_fmt()));
    }
    texts.join("\n\n")
}

/// Tokens or texts a second below which the verdict states the highest possible rate.
const SLOW: f64 = 10.0;

/// Returns the scheme, the score and the verdict of a target.
fn verdict(scheme: Scheme, target: &TargetEstimate) -> [String; 3] {
    let verdict = match &target.verdict {
        narthex_gateway::check::Verdict::Refused { reason } => format!("refused: {reason}"),
        other => match target.highest_rate.filter(|&rate| rate < SLOW) {
            Some(rate) => format!("{other} (predicted), at most {rate:.1} tokens/s"),
            None => format!("{other} (predicted)"),
        },
    };
    [scheme.to_string(), format!("{:.1}", target.score.total), verdict]
}

fn machine(devices: &[DeviceFit]) -> String {
    let mut text = String::new();
    for device in devices {
        let memory = device.memory.map_or_else(|| "unknown memory".to_owned(), bytes);
        text.push_str(&format!("  {} {} ({memory})\n", device.device, device.text));
        for fit in &device.schemes {
            text.push_str(&format!("    {:<4} {}\n", fit.scheme.as_str(), longest(fit)));
        }
    }
    text
}

/// Renders the memory of conversations on each device.
fn memory(plan: &MemoryPlan) -> String {
    let conversations = if plan.users == 1 { "one conversation" } else { "conversations" };
    let number = if plan.users == 1 { String::new() } else { format!("{} ", plan.users) };
    let mut text = format!("\nmemory of {number}{conversations} of {} tokens\n", plan.context);
    for device in &plan.devices {
        let weights = match device.weights {
            WeightsMemory::Mapped => "weights are mapped from files",
            WeightsMemory::Copied => "weights are copied",
        };
        text.push_str(&format!("  {} {} ({weights})\n", device.device, device.text));
        let mut table =
            table(&["   SCHEME", "WEIGHTS", "TOWERS", "KV CACHE", "BUFFERS", "TOTAL", "FITS", "LONGEST"]);
        for scheme in &device.schemes {
            table.add_row([
                Cell::new(format!("   {}", scheme.scheme)),
                right(bytes(scheme.weights)),
                right(if scheme.towers > 0 { bytes(scheme.towers) } else { "-".to_owned() }),
                right(bytes(scheme.kv)),
                right(bytes(scheme.buffers)),
                right(bytes(scheme.total())),
                Cell::new(scheme.fits.map_or("unknown", |fits| if fits { "yes" } else { "no" })),
                right(scheme.longest.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string())),
            ]);
        }
        text.push_str(&format!("{}\n", table.trim_fmt()));
        if device.schemes.is_empty() {
            text.push_str("    no scheme runs here\n");
        }
    }
    let kv = plan.devices.iter().flat_map(|device| &device.schemes).map(|scheme| scheme.kv).max();
    if let Some(kv) = kv {
        let budget = kv.div_ceil(1 << 20);
        text.push_str(&format!("  `narthex serve --kv-budget {budget} --slots {}` holds them\n", plan.users));
    }
    text
}

/// Renders the minimum memory of a model that fits on no device of this machine.
fn least(minimum: &MinimumMemory, devices: &[DeviceFit]) -> String {
    let known = devices.iter().all(|device| device.memory.is_some());
    let here = if known { "No device of this machine" } else { "No device whose memory size is known" };
    let MinimumMemory { scheme, memory, context } = minimum;
    let memory = bytes(*memory);
    format!(
        "\n{here} has room for the model. It needs at least {memory} on a CPU, in {scheme} for {context} tokens.\n"
    )
}

fn longest(fit: &SchemeFit) -> String {
    match (fit.context, &fit.reason) {
        (Some(context), _) => format!("up to {context} tokens"),
        (None, Some(reason)) => format!("no: {reason}"),
        (None, None) => "no".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_unknown_memory_are_excluded() {
        let minimum = MinimumMemory { scheme: narthex_spec::Scheme::W4, memory: 5_000_000_000, context: 512 };
        let device = |memory| DeviceFit { device: "gpu", text: String::new(), memory, schemes: Vec::new() };
        let of = |memories: &[Option<u64>]| {
            least(&minimum, &memories.iter().copied().map(device).collect::<Vec<_>>())
        };
        let rest = "has room for the model. It needs at least 5.0 GB on a CPU, in w4 for 512 tokens.\n";
        assert_eq!(of(&[Some(1)]), format!("\nNo device of this machine {rest}"));
        assert_eq!(of(&[Some(1), None]), format!("\nNo device whose memory size is known {rest}"));
    }

    #[test]
    fn numbers_are_grouped() {
        let check = |number, expect: &str| assert_eq!(thousands(number), expect);
        check(0, "0");
        check(999, "999");
        check(1_000, "1 000");
        check(70_553_706_496, "70 553 706 496");
    }
}
