//! Bar charts of a run as SVG. The bars are medians, and the lines extend from the smallest to the largest round.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    report::{Report, Speed, SpeedRun},
    servers::Servers,
    spread::Spread,
};

/// Minimum width of the labels of a row, in pixels.
const LABELS: f64 = 150.0;

/// Upper estimate of the mean width of a label's characters.
const CHARACTER: f64 = 7.0;

/// Width of the longest bar.
const BARS: f64 = 420.0;

/// Width of the figures after a bar.
const FIGURES: f64 = 90.0;

/// Height of a row.
const ROW: f64 = 24.0;

/// Height of a chart's title.
const TITLE: f64 = 36.0;

/// A bar with its label.
struct Bar<'a> {
    label: &'a str,
    spread: &'a Spread,
}

/// A chart with bars of one unit.
struct Chart<'a> {
    title: String,
    bars: Vec<Bar<'a>>,
}

/// Draws prefill and decode of every run of the report, and the servers; `None` if no side was measured.
pub(super) fn draw(report: &Report) -> Option<String> {
    let runs = report.speeds.iter().flat_map(|run| {
        [chart(run, "Prefill", |speed| &speed.prefill), chart(run, "Decode", |speed| &speed.decode)]
    });
    let charts = runs.chain(server_charts(&report.servers));
    let charts: Vec<Chart<'_>> = charts.filter(|chart| !chart.bars.is_empty()).collect();
    if charts.is_empty() {
        return None;
    }
    let height: f64 = charts.iter().map(|chart| TITLE + ROW * chart.bars.len() as f64).sum::<f64>() + ROW;
    let labels = charts.iter().flat_map(|chart| &chart.bars).map(|bar| 16.0 + CHARACTER * bar.length());
    let left = labels.fold(LABELS, f64::max);
    let width = left + BARS + FIGURES;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut top = 0.0;
    for chart in &charts {
        chart.draw(left, top, &mut svg);
        top += TITLE + ROW * chart.bars.len() as f64;
    }
    let (cpu, threads, date) = (escape(&report.machine.cpu), report.machine.threads, &report.date);
    text(
        &mut svg,
        8.0,
        top + ROW * 0.7,
        &format!("{cpu}, {threads} threads, {date}; lines: smallest to largest round"),
    );
    svg.push_str("</svg>\n");
    Some(svg)
}

fn chart<'a>(run: &'a SpeedRun, phase: &str, figure: fn(&Speed) -> &Spread) -> Chart<'a> {
    let SpeedRun { model, prompt_tokens, decode_tokens, .. } = run;
    let bars = run.sides.iter().filter_map(|side| {
        let spread = figure(side.speed.as_ref()?);
        Some(Bar { label: side.side, spread })
    });
    Chart {
        title: format!(
            "{phase}, tokens/s: {model}, prompts of {prompt_tokens} tokens, answers of {decode_tokens}"
        ),
        bars: bars.collect(),
    }
}

/// Returns a chart of all servers for each number of clients.
fn server_charts(servers: &Servers) -> impl Iterator<Item = Chart<'_>> {
    let numbers: BTreeSet<usize> = servers.results.iter().map(|result| result.clients).collect();
    numbers.into_iter().map(|clients| {
        let results = servers.results.iter().filter(move |result| result.clients == clients);
        let bars = results.map(|result| Bar { label: result.server, spread: &result.tokens_per_second });
        let ending = if clients == 1 { "" } else { "s" };
        Chart {
            title: format!("Servers, tokens/s of all clients: {clients} client{ending}"),
            bars: bars.collect(),
        }
    })
}

impl Bar<'_> {
    /// Returns the number of characters of its label.
    fn length(&self) -> f64 {
        self.label.chars().count() as f64
    }
}

impl Chart<'_> {
    /// Draws the title at a top position, and below it the bars at a left position.
    fn draw(&self, left: f64, top: f64, svg: &mut String) {
        text(svg, 8.0, top + TITLE * 0.65, &escape(&self.title));
        let longest = self.bars.iter().map(|bar| bar.spread.max).fold(f64::MIN_POSITIVE, f64::max);
        for (row, bar) in self.bars.iter().enumerate() {
            let (y, scale) = (top + TITLE + ROW * row as f64, BARS / longest);
            let Spread { median, min, max, .. } = bar.spread;
            let color = if bar.label.starts_with("narthex") { "#1f6feb" } else { "#9aa4b2" };
            text(svg, 8.0, y + ROW * 0.7, &escape(bar.label));
            let (height, middle) = (ROW - 6.0, y + ROW / 2.0);
            rectangle(svg, &[left, y + 3.0, median * scale, height], color);
            rectangle(svg, &[left + min * scale, middle - 1.0, (max - min) * scale, 2.0], "#24292f");
            text(svg, left + max * scale + 6.0, y + ROW * 0.7, &format!("{median:.0}"));
        }
    }
}

/// Draws a rectangle at a left and top position, with a width and a height.
fn rectangle(svg: &mut String, [x, y, width, height]: &[f64; 4], color: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"#24292f\">{text}</text>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::tests::report, servers::ServerResult};

    fn server(server: &'static str, clients: usize, rounds: [f64; 2]) -> ServerResult {
        let spread = |rounds: [f64; 2]| Spread::of(rounds.to_vec()).unwrap();
        ServerResult { server, clients, tokens_per_second: spread(rounds), slowest_share: spread([0.9, 1.0]) }
    }

    #[test]
    fn every_measured_side_has_a_bar_in_both_charts() {
        let svg = draw(&report()).unwrap();
        assert_eq!((svg.matches(">narthex-w8<").count(), svg.matches(">loop-w8<").count()), (2, 2));
        assert!(!svg.contains("openvino") && svg.contains(">72<") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 1 + 2 * 2 * 2);
        let empty = Report { speeds: Vec::new(), ..report() };
        assert!(draw(&empty).is_none());
    }

    #[test]
    fn servers_have_a_chart_for_each_number_of_clients() {
        let (ours, theirs) = ("narthex serve, w4", "another server with a name of fifty characters, Q4");
        let results = vec![
            server(ours, 1, [60.0, 70.0]),
            server(ours, 16, [300.0, 420.0]),
            server(theirs, 1, [80.0, 84.0]),
            server(theirs, 16, [100.0, 110.0]),
        ];
        let servers = Servers { results, ..Servers::default() };
        let svg = draw(&Report { speeds: Vec::new(), servers, ..report() }).unwrap();
        let titles: Vec<&str> = svg.lines().filter(|line| line.contains("tokens/s")).collect();
        assert_eq!(titles.len(), 2, "{svg}");
        assert!(titles[0].contains(": 1 client<") && titles[1].contains(": 16 clients<"), "{titles:?}");
        assert_eq!((svg.matches(ours).count(), svg.matches(theirs).count()), (2, 2));
        // The bars begin to the right of the longest label. The largest round, 420, is as long as `BARS`.
        let left = 16.0 + CHARACTER * theirs.len() as f64;
        let bar = format!("<rect x=\"{left:.1}\" y=\"123.0\" width=\"{:.1}\"", BARS * 360.0 / 420.0);
        let line = format!("<rect x=\"{:.1}\" y=\"131.0\" width=\"120.0\"", left + 300.0);
        assert!(svg.contains(&bar) && svg.contains(&line), "{bar} {line}\n{svg}");
        assert_eq!(svg.matches("<rect").count(), 1 + 2 * 2 * 2);
    }
}
