//! The formats of a transcript, compared with exact texts.

use super::*;

const SEGMENTS: Granularities = Granularities { segments: true, words: false };

fn transcript() -> Transcript {
    let segment = |id, start, end, text: &str| Segment {
        id,
        seek: 0,
        start,
        end,
        text: text.to_owned(),
        tokens: vec![50_364, 400],
        temperature: 0.0,
        avg_logprob: -0.25,
        compression_ratio: 1.5,
        no_speech_prob: 0.125,
        logprobs: Vec::new(),
    };
    Transcript {
        task: Task::Transcribe,
        language: Some("en".to_owned()),
        duration: 3_725.5,
        text: " Ask not. R&D <x> --> y.".to_owned(),
        segments: vec![
            segment(0, 0.0, 1.9996, " Ask not."),
            segment(1, 2.5, 3_725.04, " R&D <x>\n\n --> y."),
        ],
        words: vec![Word { word: " Ask".to_owned(), start: 0.25, end: 0.5, probability: Some(0.5) }],
    }
}

#[test]
fn json_has_the_text() {
    let json = transcript().write(TranscriptFormat::Json, SEGMENTS);
    assert_eq!(json, r#"{"text":"Ask not. R&D <x> --> y.","usage":{"type":"duration","seconds":3726}}"#);
}

#[test]
fn verbose_json_has_the_requested_parts() {
    let segments = concat!(
        r#""segments":[{"id":0,"seek":0,"start":0.0,"end":1.9996,"text":" Ask not.","tokens":[50364,400],"#,
        r#""temperature":0.0,"avg_logprob":-0.25,"compression_ratio":1.5,"no_speech_prob":0.125},"#,
        r#"{"id":1,"seek":0,"start":2.5,"end":3725.04,"text":" R&D <x>\n\n --> y.","tokens":[50364,400],"#,
        r#""temperature":0.0,"avg_logprob":-0.25,"compression_ratio":1.5,"no_speech_prob":0.125}],"#,
    );
    let words = r#""words":[{"word":"Ask","start":0.25,"end":0.5,"probability":0.5}],"#;
    let cases = [
        (SEGMENTS, segments.to_owned()),
        (Granularities { segments: false, words: true }, words.to_owned()),
        (Granularities { segments: true, words: true }, [segments, words].concat()),
    ];
    for (parts, expect) in cases {
        let json = transcript().write(TranscriptFormat::VerboseJson, parts);
        let start = r#"{"task":"transcribe","language":"english","duration":3725.5,"text":"Ask not. R&D <x> --> y.","#;
        let end = r#""usage":{"type":"duration","seconds":3726}}"#;
        assert_eq!(json, [start, &expect, end].concat());
    }
}

#[test]
fn text_is_one_line() {
    assert_eq!(transcript().write(TranscriptFormat::Text, SEGMENTS), "Ask not. R&D <x> --> y.\n");
}

#[test]
fn subtitles_have_times_and_single_lines() {
    let srt = "1\n00:00:00,000 --> 00:00:02,000\nAsk not.\n\n\
               2\n00:00:02,500 --> 01:02:05,040\nR&D <x> -> y.\n\n";
    assert_eq!(transcript().write(TranscriptFormat::Srt, SEGMENTS), srt);

    let vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nAsk not.\n\n\
               00:00:02.500 --> 01:02:05.040\nR&amp;D &lt;x> -> y.\n\n";
    assert_eq!(transcript().write(TranscriptFormat::Vtt, SEGMENTS), vtt);
}

#[test]
fn an_empty_transcript_is_valid_in_every_format() {
    let empty = Transcript {
        task: Task::Translate,
        language: None,
        duration: 0.0,
        text: String::new(),
        segments: Vec::new(),
        words: Vec::new(),
    };
    let expect = [
        (TranscriptFormat::Json, r#"{"text":"","usage":{"type":"duration","seconds":0}}"#),
        (
            TranscriptFormat::VerboseJson,
            r#"{"task":"translate","duration":0.0,"text":"","segments":[],"usage":{"type":"duration","seconds":0}}"#,
        ),
        (TranscriptFormat::Text, "\n"),
        (TranscriptFormat::Srt, ""),
        (TranscriptFormat::Vtt, "WEBVTT\n\n"),
    ];
    for (format, text) in expect {
        assert_eq!(empty.write(format, SEGMENTS), text, "{}", format.name());
    }
}
