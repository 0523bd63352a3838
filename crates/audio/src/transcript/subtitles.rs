//! Subtitles: SubRip and WebVTT.

use std::fmt::Write;

use crate::transcript::Segment;

/// Returns SubRip subtitles, one for each segment.
pub(super) fn srt(segments: &[Segment]) -> String {
    let mut text = String::new();
    for (at, segment) in segments.iter().enumerate() {
        let start = timestamp(segment.start, ',');
        let end = timestamp(segment.end, ',');
        let _ = write!(text, "{}\n{start} --> {end}\n{}\n\n", at + 1, line(&segment.text));
    }
    text
}

/// Returns WebVTT subtitles, one for each segment.
pub(super) fn vtt(segments: &[Segment]) -> String {
    let mut text = "WEBVTT\n\n".to_owned();
    for segment in segments {
        let start = timestamp(segment.start, '.');
        let end = timestamp(segment.end, '.');
        let content = line(&segment.text).replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(text, "{start} --> {end}\n{content}\n\n");
    }
    text
}

/// Returns the text of a subtitle: one line, because an empty line ends it, without the arrow of the times.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("-->", "->")
}

/// Returns a time as hours, minutes, seconds and milliseconds. A time that is not a number or negative is 0.
fn timestamp(seconds: f64, point: char) -> String {
    let milliseconds = (seconds * 1_000.0).round() as u64;
    format!(
        "{:02}:{:02}:{:02}{point}{:03}",
        milliseconds / 3_600_000,
        milliseconds / 60_000 % 60,
        milliseconds / 1_000 % 60,
        milliseconds % 1_000
    )
}
