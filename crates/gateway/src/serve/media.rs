//! Media in conversations: checks, and the positions of their rows in a prompt.

use std::sync::LazyLock;

use narthex_catalog::index::Catalog;
use narthex_engine::position::{MediaRows, Position};
use narthex_spec::{MediaKind, ModelName, TokenId};
use narthex_text::{
    media::{MediaPlaceholder, RowRun},
    template::{Content, Media, Message, Part, Role},
};

use crate::{cancel::Cancel, error::Error, load::loaded_model::LoadedModel};

/// Maximum number of media in a conversation.
const MAX_MEDIA: usize = 100;

/// A prompt with the media that it contains.
#[derive(Debug, Default)]
pub(super) struct PromptMedia {
    /// Media of the conversation, in order.
    pub(super) media: Vec<Media>,
    /// Positions that are rows of media.
    pub(super) runs: Vec<RowRun>,
}

impl PromptMedia {
    /// Returns the positions of a prompt, and the rows of its media. Runs the model's towers.
    pub(super) fn positions(
        &self,
        model: &LoadedModel,
        tokens: &[TokenId],
        cancel: &Cancel,
    ) -> Result<(Vec<Position>, Vec<MediaRows>), Error> {
        let mut rows = Vec::with_capacity(self.media.len());
        for media in &self.media {
            let tower = model.towers().reader(media.kind());
            let tower = tower.ok_or_else(|| not_read(model.name(), media.kind()))?;
            cancel.check()?;
            rows.push(tower.rows(media, cancel)?);
        }
        Ok((positions(tokens, &self.runs, &rows)?, rows))
    }
}

/// Returns the positions of tokens, of which some are rows of media.
fn positions(tokens: &[TokenId], runs: &[RowRun], media: &[MediaRows]) -> Result<Vec<Position>, Error> {
    let mut positions = Position::of_tokens(tokens);
    for run in runs {
        let mut rows = media.get(run.medium).into_iter().flat_map(MediaRows::positions).skip(run.row);
        let places = positions.get_mut(run.start..run.start + run.rows);
        for place in places.into_iter().flatten() {
            *place = rows.next().ok_or_else(|| {
                let message = format!("medium {} has fewer rows than its place in the prompt", run.medium);
                Error::invalid("messages", message)
            })?;
        }
    }
    Ok(positions)
}

/// Checks that the model reads the media of a conversation. Those that it does not read become notes in the results of
/// tools, because an agent that has received one sends it with every later request.
pub(super) fn check(model: &LoadedModel, messages: &mut [Message]) -> Result<(), Error> {
    check_kinds(model.name(), model.towers().placeholders(), messages)
}

fn check_kinds(
    model: &ModelName,
    placeholders: &[MediaPlaceholder],
    messages: &mut [Message],
) -> Result<(), Error> {
    let reads = |kind: MediaKind| placeholders.iter().any(|placeholder| placeholder.kind == kind.read_as());
    for message in &mut *messages {
        let unread = message.content.parts().iter().filter_map(Part::media_kind).find(|kind| !reads(*kind));
        match unread {
            None => {}
            Some(_) if message.role == Role::Tool => note_unread(&mut message.content, reads),
            Some(kind) => return Err(not_read(model, kind)),
        }
    }
    check_number(messages)
}

/// Fails if a conversation has too many media.
pub(super) fn check_number(messages: &[Message]) -> Result<(), Error> {
    let parts = messages.iter().flat_map(|message| message.content.parts());
    let count = parts.filter_map(Part::media_kind).count();
    if count > MAX_MEDIA {
        let message =
            format!("expected at most {MAX_MEDIA} images and sounds in a conversation, found {count}");
        return Err(Error::invalid("messages", message));
    }
    Ok(())
}

/// Replaces media by notes, unless the model reads them.
fn note_unread(content: &mut Content, reads: impl Fn(MediaKind) -> bool) {
    let parts = std::mem::take(content).into_parts().into_iter();
    content.extend(parts.map(|part| match part.media_kind().filter(|kind| !reads(*kind)) {
        Some(kind) => Part::text(omission_note(kind.as_str())),
        None => part,
    }));
}

/// Returns the text in place of a part that the model cannot read, in the result of a tool.
pub fn omission_note(what: &str) -> String {
    format!("[{what} omitted: this model reads text]")
}

/// Models of the catalogue that read media, with the kinds.
static READERS: LazyLock<Vec<(ModelName, Vec<MediaKind>)>> = LazyLock::new(|| {
    let catalog = Catalog::builtin().ok();
    let entries = catalog.iter().flat_map(Catalog::entries).filter(|entry| !entry.reads.is_empty());
    entries.map(|entry| (entry.name.clone(), entry.reads.clone())).collect()
});

/// Returns the error of a medium that a model does not read, which names models that do.
pub(crate) fn not_read(name: &ModelName, kind: MediaKind) -> Error {
    let readers =
        READERS.iter().filter(|(_, kinds)| kinds.contains(&kind.read_as())).map(|(name, _)| name.clone());
    Error::MediaNotRead { name: name.clone(), kind, readers: readers.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(kind: MediaKind, byte: u8) -> Part {
        Part::Media(Media::new(kind, None, vec![byte]))
    }

    fn message(role: Role, parts: impl IntoIterator<Item = Part>) -> Message {
        Message::new(role, parts.into_iter().collect::<Content>())
    }

    fn placeholder(kind: MediaKind) -> MediaPlaceholder {
        MediaPlaceholder { kind, text: format!("<{kind}>"), token: 1 }
    }

    #[test]
    fn media_that_a_model_does_not_read_are_refused_by_name() {
        let name: ModelName = "tiny".parse().unwrap();
        let check = |kind, reads: &[MediaKind], role| {
            let placeholders: Vec<_> = reads.iter().copied().map(placeholder).collect();
            let mut messages = [Message::new(Role::User, "Hi"), message(role, [media(kind, 1)])];
            check_kinds(&name, &placeholders, &mut messages).map_err(|error| error.to_string())
        };
        let (image, audio) = (MediaKind::Image, MediaKind::Audio);
        assert_eq!(check(image, &[image], Role::User), Ok(()));
        for role in [Role::System, Role::User, Role::Assistant] {
            let error = check(image, &[], role).unwrap_err();
            assert!(error.starts_with("tiny does not read images"), "{error}");
        }
        assert!(check(audio, &[image], Role::User).unwrap_err().starts_with("tiny does not read audio"));
    }

    #[test]
    fn unread_media_in_the_results_of_tools_become_notes() {
        let parts = [Part::text("A cat."), media(MediaKind::Image, 1), media(MediaKind::Audio, 2)];
        let result = |placeholders: &[MediaPlaceholder]| {
            let mut messages = [message(Role::Tool, parts.clone())];
            check_kinds(&"tiny".parse().unwrap(), placeholders, &mut messages).unwrap();
            messages[0].content.clone()
        };
        let note = |what: &str| format!("[{what} omitted: this model reads text]");
        assert_eq!(result(&[]), &*format!("A cat.\n{}\n{}", note("image"), note("audio")));
        let kept = result(&[placeholder(MediaKind::Image)]);
        assert_eq!((kept.media().count(), &*kept.text()), (1, &*format!("A cat.\n{}", note("audio"))));
    }

    #[test]
    fn the_media_of_a_conversation_have_a_maximum_number() {
        let check = |count: usize| {
            let parts = std::iter::repeat_n(media(MediaKind::Image, 1), count);
            let placeholders = [placeholder(MediaKind::Image)];
            check_kinds(&"tiny".parse().unwrap(), &placeholders, &mut [message(Role::User, parts)])
        };
        check(MAX_MEDIA).unwrap();
        let error = check(MAX_MEDIA + 1).unwrap_err();
        assert!(error.param() == Some("messages") && error.to_string().contains("found 101"), "{error}");
    }

    #[test]
    fn rows_stand_in_place_of_their_tokens() {
        let rows =
            |digest: u8, count: usize| MediaRows::new([digest; 32], 2, vec![0.5; 2 * count].into()).unwrap();
        let media = [rows(201, 3), rows(202, 2)];
        let tokens = [7, 1, 1, 8, 1, 1, 1, 9];
        let runs = [
            RowRun { start: 1, medium: 0, row: 0, rows: 2 },
            RowRun { start: 4, medium: 0, row: 2, rows: 1 },
            RowRun { start: 5, medium: 1, row: 0, rows: 2 },
        ];
        let [first, second] = media.each_ref().map(|media| media.positions().collect::<Vec<_>>());
        let token = Position::token;
        assert_eq!(
            positions(&tokens, &runs, &media).unwrap(),
            [token(7), first[0], first[1], token(8), first[2], second[0], second[1], token(9)]
        );
        // Prompts with equal tokens and other media are different prompts.
        let other = positions(&tokens, &runs, &[rows(203, 3), rows(202, 2)]).unwrap();
        assert_ne!(positions(&tokens, &runs, &media).unwrap(), other);
        let short = [RowRun { start: 1, medium: 1, row: 1, rows: 2 }];
        assert!(positions(&tokens, &short, &media).is_err());
    }
}
