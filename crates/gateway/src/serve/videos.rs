//! Videos in conversations: their frames take their places, as pictures.

use narthex_image::{VideoError, VideoReader};
use narthex_text::template::{Content, Media, Message, Part, Role};

use super::{
    media::{check_number, omission_note},
    permits::VIDEOS,
};
use crate::{cancel::Cancel, error::Error, serve::request::MediaKind};

/// Replaces videos by their frames. In the results of tools, notes stand for videos that cannot be read, because an agent that
/// has received one sends it with every later request.
pub(super) fn take_frames(messages: &mut [Message], cancel: &Cancel) -> Result<(), Error> {
    let parts = messages.iter().flat_map(|message| message.content.parts());
    if !parts.clone().any(|part| part.media_kind() == Some(MediaKind::Video)) {
        return Ok(());
    }
    let _permit = VIDEOS.take(1, cancel)?;
    let mut reader = VideoReader::default();
    for message in &mut *messages {
        let mut content = Content::default();
        for part in std::mem::take(&mut message.content).into_parts() {
            match part {
                Part::Media(media) if media.kind() == MediaKind::Video => {
                    content.extend(frames(&mut reader, &media, message.role, cancel)?);
                }
                other => content.push(other),
            }
        }
        message.content = content;
    }
    check_number(messages)
}

/// Returns the parts in place of a video in a message of this role.
fn frames(reader: &mut VideoReader, video: &Media, role: Role, cancel: &Cancel) -> Result<Vec<Part>, Error> {
    match reader.frames(video.bytes(), &|| cancel.is_cancelled()) {
        Ok(frames) => {
            let frames = frames.into_iter();
            let media = frames
                .map(|frame| Media::new(MediaKind::Image, Some(frame.media_type.to_owned()), frame.bytes));
            Ok(media.map(Part::Media).collect())
        }
        Err(VideoError::Cancelled) => Err(Error::Cancelled),
        Err(_) if role == Role::Tool => Ok(vec![Part::text(omission_note(video.kind().as_str()))]),
        Err(error) => Err(Error::invalid("messages", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: &[u8] = include_bytes!("../../../image/tests/videos/parts.gif");

    fn video(bytes: &[u8]) -> Part {
        Part::Media(Media::new(MediaKind::Video, None, bytes.to_vec()))
    }

    fn message(role: Role, parts: impl IntoIterator<Item = Part>) -> Message {
        Message::new(role, parts.into_iter().collect::<Content>())
    }

    #[test]
    fn frames_take_the_place_of_their_video() {
        let mut messages = [message(Role::User, [Part::text("a"), video(CLIP), Part::text("b")])];
        take_frames(&mut messages, &Cancel::new()).unwrap();
        let kinds: Vec<_> = messages[0].content.parts().iter().map(Part::media_kind).collect();
        let image = Some(MediaKind::Image);
        assert_eq!(kinds, [None, image, image, image, image, None]);
        let frames: Vec<_> = messages[0].content.media().collect();
        // The second one is still shown when the third one is taken.
        assert!(frames[0] != frames[1] && frames[1] == frames[2] && frames[2] != frames[3]);
        // The same video has the same frames, so that a later request finds their rows.
        let mut again = [message(Role::User, [video(CLIP)])];
        take_frames(&mut again, &Cancel::new()).unwrap();
        assert_eq!(again[0].content.media().collect::<Vec<_>>(), frames);
    }

    #[test]
    fn videos_that_cannot_be_read_are_refused_and_become_notes_in_results() {
        let mp4 = b"\0\0\0\x20ftypisom";
        let error = take_frames(&mut [message(Role::User, [video(mp4)])], &Cancel::new()).unwrap_err();
        assert!(error.param() == Some("messages") && error.to_string().contains("found an MP4"), "{error}");
        let mut result = [message(Role::Tool, [video(mp4)])];
        take_frames(&mut result, &Cancel::new()).unwrap();
        assert_eq!(result[0].content, &*omission_note("video"));
        let cancel = Cancel::new();
        cancel.cancel();
        let cancelled = take_frames(&mut [message(Role::User, [video(CLIP)])], &cancel);
        assert!(matches!(cancelled, Err(Error::Cancelled)));
    }

    #[test]
    fn the_frames_of_a_conversation_have_a_maximum_number() {
        let clips = |count| [message(Role::User, std::iter::repeat_n(video(CLIP), count))];
        take_frames(&mut clips(25), &Cancel::new()).unwrap();
        let error = take_frames(&mut clips(26), &Cancel::new()).unwrap_err().to_string();
        assert!(error.contains("found 104"), "{error}");
    }
}
