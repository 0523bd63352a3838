//! Bars as inline SVG.

use std::fmt::Write;

use super::escape;

const WIDTH: f64 = 720.0;
/// Left edge of the bars, to the right of their names.
const LEFT: f64 = 230.0;
/// Space to the right of the bars for their figures.
const RIGHT: f64 = 110.0;
const ROW: f64 = 30.0;
const THICK: f64 = 18.0;

/// One bar: name, median, and range from minimum to maximum.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) median: f64,
    pub(super) range: (f64, f64),
}

/// Returns a bar plot as SVG. A line in each bar spans its minimum to its maximum.
pub(super) fn bars(title: &str, bars: &[Bar]) -> String {
    let largest = bars.iter().map(|bar| bar.median.max(bar.range.1)).fold(f64::MIN_POSITIVE, f64::max);
    let height = ROW * bars.len() as f64 + 6.0;
    let mut text = format!(
        "<figure>\n<figcaption>{title}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n",
        title = escape(title)
    );

    for (index, bar) in bars.iter().enumerate() {
        let top = ROW * index as f64 + 6.0;
        let middle = top + THICK / 2.0;
        let base = top + THICK - 4.0;
        let [end, low, high] = [bar.median, bar.range.0, bar.range.1]
            .map(|value| LEFT + (value / largest).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{base:.1}\" class=\"name\">{}</text>\n\
             <rect x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{THICK:.1}\"/>\n\
             <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\n\
             <text x=\"{:.1}\" y=\"{base:.1}\">{}</text>",
            LEFT - 8.0,
            escape(&bar.name),
            end - LEFT,
            end.max(high) + 8.0,
            super::figure(bar.median),
        );
    }
    text + "</svg>\n</figure>\n"
}
