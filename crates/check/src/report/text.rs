//! Text form of a report.

use std::{
    borrow::Cow,
    fmt::{self, Display, Formatter},
};

use narthex_spec::{Ep, Target};

use crate::{
    numbers::{count, plural},
    report::{Basis, Finding, FixAuthor, PartSummary, Report, Severity, Verdict},
};

/// Maximum number of listed places of a finding; JSON has all of them.
const PLACES: usize = 3;

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("runs completely on the NPU"),
            Self::Partly { elsewhere_percent, elsewhere_nodes } => {
                let nodes = plural(*elsewhere_nodes, "node");
                write!(f, "runs with {elsewhere_percent:.1} % of the work on other devices ({nodes})")
            }
            Self::Refused { .. } => f.write_str("refused"),
        }
    }
}

/// Replaces control characters in a text from a file, because a terminal would execute them.
fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

impl Report {
    /// States the compiler that compiled the graphs, its version and the NPU for which it did, as far as they are known.
    fn compiled_by(&self) -> String {
        let vendor = if self.target.ep() == Ep::Qnn { "Qualcomm" } else { "Intel" };
        let version = self.compiler.iter().map(|version| format!(" {version}")).collect::<String>();
        let npu = match self.target {
            Target::IntelNpu(chip) => format!(" for NPU {}", chip.spec().platform),
            Target::Qnn(_) | Target::OpenVino(_) => String::new(),
        };
        format!("compiled by {vendor}'s compiler{version}{npu}")
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let basis = match self.basis {
            Basis::Predicted => "predicted by rules".to_owned(),
            Basis::Compiled => self.compiled_by(),
            Basis::Ran => "ran on this machine".to_owned(),
        };
        writeln!(f, "{} for {}: {} ({basis})", plain(&self.subject), self.target, self.verdict)?;
        if let Verdict::Refused { reason } = &self.verdict {
            writeln!(f, "  {}", plain(reason))?;
        }

        if !self.assumed.is_empty() {
            let pairs: Vec<String> =
                self.assumed.iter().map(|(symbol, extent)| format!("{symbol}={extent}")).collect();
            writeln!(f, "  counted with {} (--set changes them)", plain(&pairs.join(", ")))?;
        }

        write!(f, "\n{}", self.score)?;
        if !self.parts.is_empty() {
            writeln!(f, "\ngraphs")?;
        }
        for part in &self.parts {
            write_part(f, part)?;
        }
        if !self.findings.is_empty() {
            writeln!(f, "\nfindings")?;
        }
        for finding in &self.findings {
            write_finding(f, finding, self.parts.len() > 1)?;
        }

        if let Some(after) = &self.after_fix {
            writeln!(f, "\nafter --fix: {} (predicted by rules), score {:.0}", after.verdict, after.score)?;
            for change in &after.changes {
                writeln!(f, "  {}", plain(change))?;
            }
        }
        Ok(())
    }
}

fn write_part(f: &mut Formatter<'_>, part: &PartSummary) -> fmt::Result {
    writeln!(
        f,
        "  {}: {} of {} nodes on the NPU in {}, {} computed at load; {} multiply-accumulates; weights {:.1} MB ({})",
        plain(&part.name),
        part.npu_nodes,
        part.nodes,
        plural(part.npu_pieces as u64, "piece"),
        part.folded_nodes,
        count(part.multiply_accumulates),
        part.weight_bytes as f64 / 1e6,
        part.scheme
    )
}

fn write_finding(f: &mut Formatter<'_>, finding: &Finding, several: bool) -> fmt::Result {
    let mark = match finding.severity {
        Severity::Blocking => "REFUSES",
        Severity::Fallback => "FALLS",
        Severity::Cost => "costs",
        Severity::Note => "note",
    };
    let part = finding
        .part
        .as_deref()
        .filter(|_| several)
        .map_or_else(String::new, |part| format!("{}: ", plain(part)));
    writeln!(f, "  {mark:<7}  {part}{} [{}]", plain(&finding.message), finding.rule.as_str())?;
    if !finding.places.is_empty() {
        let rest = finding.places.len().saturating_sub(PLACES);
        let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        let shown: Vec<&str> = finding.places.iter().take(PLACES).map(String::as_str).collect();
        writeln!(f, "           at {}{more}", plain(&shown.join(", ")))?;
    }
    if let Some(fix) = &finding.fix {
        let by = if fix.by == FixAuthor::Narthex { "fix (--fix)" } else { "fix" };
        writeln!(f, "           {by}: {}", plain(&fix.text))?;
    }
    Ok(())
}
