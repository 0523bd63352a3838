//! Bar charts of a run as SVG. The bars are medians, and the lines extend from the smallest to the largest round.

use std::fmt::Write as _;

use crate::peers::{
    report::{Report, Speed, SpeedRun},
    spread::Spread,
};

/// Width of the labels of a row, in pixels.
const LABELS: f64 = 150.0;

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

/// Draws prefill and decode of every run of the report; `None` if no side was measured.
pub(super) fn draw(report: &Report) -> Option<String> {
    let charts = report.speeds.iter().flat_map(|run| {
        [chart(run, "Prefill", |speed| &speed.prefill), chart(run, "Decode", |speed| &speed.decode)]
    });
    let charts: Vec<Chart<'_>> = charts.filter(|chart| !chart.bars.is_empty()).collect();
    if charts.is_empty() {
        return None;
    }
    let height: f64 = charts.iter().map(|chart| TITLE + ROW * chart.bars.len() as f64).sum::<f64>() + ROW;
    let width = LABELS + BARS + FIGURES;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut top = 0.0;
    for chart in &charts {
        chart.draw(top, &mut svg);
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

impl Chart<'_> {
    fn draw(&self, top: f64, svg: &mut String) {
        text(svg, 8.0, top + TITLE * 0.65, &escape(&self.title));
        let longest = self.bars.iter().map(|bar| bar.spread.max).fold(f64::MIN_POSITIVE, f64::max);
        for (row, bar) in self.bars.iter().enumerate() {
            let (y, scale) = (top + TITLE + ROW * row as f64, BARS / longest);
            let Spread { median, min, max, .. } = bar.spread;
            let color = if bar.label.starts_with("narthex") { "#1f6feb" } else { "#9aa4b2" };
            text(svg, 8.0, y + ROW * 0.7, &escape(bar.label));
            let (height, middle) = (ROW - 6.0, y + ROW / 2.0);
            rectangle(svg, &[LABELS, y + 3.0, median * scale, height], color);
            rectangle(svg, &[LABELS + min * scale, middle - 1.0, (max - min) * scale, 2.0], "#24292f");
            text(svg, LABELS + max * scale + 6.0, y + ROW * 0.7, &format!("{median:.0}"));
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
    use crate::peers::report::tests::report;

    #[test]
    fn every_measured_side_has_a_bar_in_both_charts() {
        let svg = draw(&report()).unwrap();
        assert_eq!((svg.matches(">narthex-w8<").count(), svg.matches(">loop-w8<").count()), (2, 2));
        assert!(!svg.contains("openvino") && svg.contains(">72<") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 1 + 2 * 2 * 2);
        let empty = Report { speeds: Vec::new(), ..report() };
        assert!(draw(&empty).is_none());
    }
}
