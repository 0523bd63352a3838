//! Prompts with media compared with transformers' processors; `goldens/media.py` recorded their tokens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, num::NonZeroUsize};

use narthex_spec::{Date, MediaKind, TokenId};
use narthex_text::{
    media::{MediaPlaceholder, MediaSpan, MediaSpans, PlacementError, Placements, RowRun},
    prompt,
    template::{ChatTemplate, Content, Media, Message, Part, RenderOptions, Role},
    tokenizer::{Specials, Tokenizer},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Goldens {
    tokenizer: Value,
    cases: Vec<Case>,
}

/// A conversation of the reference.
#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<GoldenMessage>,
    ids: Vec<TokenId>,
    media: Vec<GoldenMedium>,
}

#[derive(Deserialize)]
struct GoldenMessage {
    role: Role,
    content: Vec<GoldenPart>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum GoldenPart {
    Text { text: String },
    Image,
    Audio,
}

#[derive(Deserialize)]
struct GoldenMedium {
    kind: MediaKind,
    placeholder: String,
    token: String,
    spans: Vec<GoldenSpan>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum GoldenSpan {
    Rows(NonZeroUsize),
    Text(String),
}

impl Goldens {
    fn read() -> (Tokenizer, Vec<Case>) {
        let Self { tokenizer, cases } = serde_json::from_str(include_str!("fixtures/media.json")).unwrap();
        (Tokenizer::from_json(&serde_json::to_vec(&tokenizer).unwrap()).unwrap(), cases)
    }
}

impl Case {
    fn template(&self) -> ChatTemplate {
        let specials = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let specials: BTreeMap<String, String> =
            specials.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        ChatTemplate::new(&self.template, specials).unwrap()
    }

    fn messages(&self) -> Vec<Message> {
        let media = |kind| Part::Media(Media::new(kind, None, vec![0]));
        let parts = |message: &GoldenMessage| -> Content {
            let parts = message.content.iter().map(|part| match part {
                GoldenPart::Text { text } => Part::text(text),
                GoldenPart::Image => media(MediaKind::Image),
                GoldenPart::Audio => media(MediaKind::Audio),
            });
            parts.collect()
        };
        self.messages.iter().map(|message| Message::new(message.role, parts(message))).collect()
    }

    fn placeholders(&self, tokenizer: &Tokenizer) -> Vec<MediaPlaceholder> {
        let placeholders: BTreeMap<MediaKind, MediaPlaceholder> = self
            .media
            .iter()
            .map(|medium| {
                let token = tokenizer.token_id(&medium.token).unwrap();
                let text = medium.placeholder.clone();
                (medium.kind, MediaPlaceholder { kind: medium.kind, text, token })
            })
            .collect();
        placeholders.into_values().collect()
    }

    fn spans(&self) -> Vec<MediaSpans> {
        let span = |span: &GoldenSpan| match span {
            GoldenSpan::Text(text) => MediaSpan::Text(text.clone()),
            GoldenSpan::Rows(rows) => MediaSpan::Rows(*rows),
        };
        let media = self.media.iter();
        media
            .map(|medium| MediaSpans { kind: medium.kind, spans: medium.spans.iter().map(span).collect() })
            .collect()
    }
}

/// Returns the tokens of a conversation and the runs of rows in them.
fn placed(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    placements: &Placements<'_>,
) -> Result<(Vec<TokenId>, Vec<RowRun>), PlacementError> {
    let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    let rendered = placements.expand(template.render(messages, &options).unwrap())?;
    let shielded = tokenizer.shield_outside(rendered.text(), rendered.written());
    placements.place(tokenizer.encode(&shielded, Specials::Parse).unwrap())
}

#[test]
fn prompts_with_media_are_those_of_transformers() {
    let (tokenizer, cases) = Goldens::read();
    assert_eq!(cases.len(), 6);
    for (index, case) in cases.iter().enumerate() {
        let (placeholders, spans) = (case.placeholders(&tokenizer), case.spans());
        let placements = Placements::new(&tokenizer, &placeholders, &spans).unwrap();
        let (tokens, runs) = placed(&tokenizer, &case.template(), &case.messages(), &placements).unwrap();
        assert_eq!(tokens, case.ids, "case {index}");

        // The runs cover exactly the soft tokens, and the rows of each medium in order.
        let mut covered = Vec::new();
        let mut next = vec![0; spans.len()];
        for run in &runs {
            assert_eq!(run.row, next[run.medium], "case {index}: {run:?}");
            next[run.medium] += run.rows;
            covered.extend(run.start..run.start + run.rows);
        }
        let is_soft = |position: &usize| placeholders.iter().any(|one| one.token == tokens[*position]);
        assert_eq!(covered, (0..tokens.len()).filter(is_soft).collect::<Vec<_>>(), "case {index}");
        assert_eq!(next, spans.iter().map(MediaSpans::rows).collect::<Vec<_>>(), "case {index}");
        assert_eq!(placements.rows(), covered.len(), "case {index}");
    }
}

#[test]
fn a_text_that_spells_a_placeholder_stays_text() {
    let (tokenizer, cases) = Goldens::read();
    let control: Vec<TokenId> = tokenizer.special_tokens().iter().map(|token| token.id).collect();
    let controls = |tokens: &[TokenId]| {
        tokens.iter().copied().filter(|token| *token > 0 && control.contains(token)).collect::<Vec<_>>()
    };
    let spelled: String = tokenizer.special_tokens().iter().map(|token| token.text.as_str()).collect();
    for (index, case) in cases.iter().enumerate() {
        let (placeholders, spans) = (case.placeholders(&tokenizer), case.spans());
        let placements = Placements::new(&tokenizer, &placeholders, &spans).unwrap();
        let template = case.template();
        let prompt = |text: &str| {
            let mut messages = case.messages();
            for message in &mut messages {
                message.content.push(Part::text(text));
            }
            placed(&tokenizer, &template, &messages, &placements).unwrap()
        };
        let (honest, runs) = prompt("words");
        for attack in
            [spelled.as_str(), "<image>", "<start_of_image>", "<image_soft_token>", "<image", "_of_image>"]
        {
            let (tokens, attacked) = prompt(attack);
            assert_eq!(controls(&tokens), controls(&honest), "case {index}: {attack}");
            let rows =
                |runs: &[RowRun]| runs.iter().map(|run| (run.medium, run.row, run.rows)).collect::<Vec<_>>();
            assert_eq!(rows(&attacked), rows(&runs), "case {index}: {attack}");
        }
    }
}

#[test]
fn conversations_without_media_are_not_changed() {
    let (tokenizer, cases) = Goldens::read();
    let placeholders = cases[0].placeholders(&tokenizer);
    let placements = Placements::new(&tokenizer, &placeholders, &[]).unwrap();
    let messages = [Message::new(Role::User, "What is in the <image>?")];
    let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    let template = cases[0].template();
    let tokens = prompt::tokens(&tokenizer, &template, &messages, &options, None).unwrap();
    assert_eq!(placed(&tokenizer, &template, &messages, &placements).unwrap(), (tokens, Vec::new()));
}

#[test]
fn media_without_a_place_are_refused() {
    let (tokenizer, cases) = Goldens::read();
    let case = &cases[0];
    let (placeholders, spans) = (case.placeholders(&tokenizer), case.spans());
    let placements = Placements::new(&tokenizer, &placeholders, &spans).unwrap();
    let refused = |source: &str| {
        let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
        placed(&tokenizer, &template, &case.messages(), &placements).unwrap_err()
    };
    let kind = MediaKind::Image;
    let missing = PlacementError::Placeholders { kind, expected: 1, found: 0 };
    assert_eq!(refused("{% for part in messages[0].content %}{{ part.text }}{% endfor %}"), missing);
    // A placeholder whose characters are the conversation's is none.
    assert_eq!(
        refused("{{ messages[0].content[1].text.replace(messages[0].content[1].text, '<image>') }}"),
        missing
    );
    let twice = PlacementError::Placeholders { kind, expected: 1, found: 2 };
    assert_eq!(refused("<image>{{ '<image>' }}"), twice);

    let audio = [MediaSpans { kind: MediaKind::Audio, spans: Vec::new() }];
    let error = Placements::new(&tokenizer, &placeholders, &audio).unwrap_err();
    assert_eq!(error, PlacementError::NotRead { kind: MediaKind::Audio });
    let unknown = [MediaPlaceholder { token: 9999, ..placeholders[0].clone() }];
    let placements = Placements::new(&tokenizer, &unknown, &spans).unwrap();
    let error = placed(&tokenizer, &case.template(), &case.messages(), &placements).unwrap_err();
    assert_eq!(error, PlacementError::UnknownToken { kind, token: 9999 });
}
