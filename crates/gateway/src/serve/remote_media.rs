//! Media at addresses: their files are read before a conversation is rendered.

use std::time::{Duration, Instant};

use narthex_catalog::remote_file::{self, FetchedFile, RemoteFileError, RemoteFileLimits};
use narthex_text::template::{Content, Media, Message, Part, RemoteMedia, Role};

use super::{media::omission_note, permits::DOWNLOADS};
use crate::{cancel::Cancel, error::Error, model_settings::MediaUrls};

/// Maximum number of media at addresses in a conversation.
const MAX_REMOTE: usize = 16;

/// Maximum bytes of all media at addresses in a conversation.
const MAX_BYTES: u64 = 20 << 20;

/// Maximum time for all media of a conversation.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Replaces media at addresses by those in their files. In the results of tools, notes stand for media that cannot be
/// read, because an agent that has received one sends it with every later request.
///
/// # Errors
/// [`Error::RemoteMedia`] for the first medium that cannot be read, and for any that may not be read.
pub(super) fn read(urls: MediaUrls, messages: &mut [Message], cancel: &Cancel) -> Result<(), Error> {
    let parts = messages.iter().flat_map(|message| message.content.parts());
    if !parts.clone().any(|part| matches!(part, Part::Remote(_))) {
        return Ok(());
    }
    if let Some(next_step) = urls.refusal() {
        let problem = format!(
            "expected a data URL, such as \"data:image/png;base64,…\", found an address, which this server does not \
             open; {next_step}"
        );
        return replace(messages, |remote| Err(refused(remote, problem.clone())));
    }

    let _permit = DOWNLOADS.take(1, cancel)?;
    let deadline = Instant::now() + MAX_TIME;
    let mut downloads = Downloads { bytes: MAX_BYTES, count: MAX_REMOTE };
    replace(messages, |remote| {
        downloads.read(remote, |limit| {
            remote_file::fetch(&remote.url, RemoteFileLimits { bytes: limit, deadline }, cancel.flag())
        })
    })
}

/// Number of media, and their bytes, that a conversation may still read.
struct Downloads {
    bytes: u64,
    count: usize,
}

impl Downloads {
    /// Reads a medium with `fetch`, which receives the maximum number of bytes.
    fn read(
        &mut self,
        remote: &RemoteMedia,
        fetch: impl FnOnce(u64) -> Result<FetchedFile, RemoteFileError>,
    ) -> Result<Media, Error> {
        self.count = self.count.checked_sub(1).ok_or_else(|| {
            refused(remote, format!("expected at most {MAX_REMOTE} addresses in a conversation"))
        })?;
        let file = fetch(self.bytes).map_err(|error| match error {
            RemoteFileError::Cancelled => Error::Cancelled,
            RemoteFileError::TooLarge { .. } => {
                refused(remote, format!("expected files of at most {MAX_BYTES} bytes in a conversation"))
            }
            error => refused(remote, error.to_string()),
        })?;
        self.bytes = self.bytes.saturating_sub(file.bytes.len() as u64);

        let kind = remote.kind.as_str();
        let is_of_kind = file.media_type.as_deref().is_none_or(|media_type| {
            remote.kind.has_type(media_type) || media_type.ends_with("/octet-stream")
        });
        match is_of_kind {
            true => Ok(Media::new(remote.kind, file.media_type, file.bytes)),
            false => {
                let media_type = file.media_type.unwrap_or_default();
                let shown = &media_type[..media_type.floor_char_boundary(80)];
                Err(refused(remote, format!("expected a file of type {kind}/…, found {shown:?}")))
            }
        }
    }
}

/// Replaces media at addresses by those that `read` returns.
fn replace(
    messages: &mut [Message],
    mut read: impl FnMut(&RemoteMedia) -> Result<Media, Error>,
) -> Result<(), Error> {
    for message in messages {
        let is_result = message.role == Role::Tool;
        let parts = std::mem::take(&mut message.content).into_parts().into_iter();
        let parts = parts.map(|part| match part {
            Part::Remote(remote) => match read(&remote) {
                Err(Error::RemoteMedia { .. }) if is_result => {
                    Ok(Part::text(omission_note(remote.kind.as_str())))
                }
                media => media.map(Part::Media),
            },
            other => Ok(other),
        });
        message.content = parts.collect::<Result<Content, Error>>()?;
    }
    Ok(())
}

impl MediaUrls {
    /// Returns what a client can do if addresses are refused.
    fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Refused => Some("send the file itself, or start the server with --allow-media-urls"),
            Self::Offline => Some("send the file itself, because the server is offline"),
            Self::Read => None,
        }
    }
}

fn refused(remote: &RemoteMedia, problem: String) -> Error {
    Error::RemoteMedia { param: remote.param.clone(), problem }
}

#[cfg(test)]
mod tests {
    use narthex_spec::MediaKind;

    use super::*;

    fn remote(url: &str) -> Part {
        let param = "messages[0].content[1].image_url.url".to_owned();
        Part::Remote(RemoteMedia { kind: MediaKind::Image, url: url.to_owned(), param })
    }

    fn message(role: Role, parts: impl IntoIterator<Item = Part>) -> Message {
        Message::new(role, parts.into_iter().collect::<Content>())
    }

    fn png(_limit: u64) -> Result<FetchedFile, RemoteFileError> {
        Ok(FetchedFile { bytes: vec![1; 3], media_type: Some("image/png".to_owned()) })
    }

    #[test]
    fn media_take_the_places_of_their_addresses() {
        let mut messages =
            [message(Role::User, [Part::text("a"), remote("https://host/1"), Part::text("b")])];
        let mut downloads = Downloads { bytes: 5, count: 2 };
        replace(&mut messages, |remote| downloads.read(remote, png)).unwrap();
        let [Part::Text { .. }, Part::Media(media), Part::Text { .. }] = messages[0].content.parts() else {
            panic!("{messages:?}")
        };
        assert_eq!((media.bytes(), media.media_type()), (&[1; 3][..], Some("image/png")));
        assert_eq!((downloads.bytes, downloads.count), (2, 1));
    }

    #[test]
    fn the_media_of_a_conversation_are_bounded() {
        let mut messages = [message(Role::User, (0..3).map(|_| remote("https://host/1")))];
        let mut downloads = Downloads { bytes: 7, count: 2 };
        let mut limits = Vec::new();
        let error = replace(&mut messages, |remote| {
            downloads.read(remote, |limit| {
                limits.push(limit);
                png(limit)
            })
        });
        assert_eq!(limits, [7, 4]);
        let error = error.unwrap_err();
        assert_eq!(error.param(), Some("messages[0].content[1].image_url.url"));
        assert!(error.to_string().contains("at most 16 addresses"), "{error}");
    }

    #[test]
    fn files_that_are_no_pictures_are_refused_and_become_notes_in_results() {
        let html = |_| Ok(FetchedFile { bytes: vec![1], media_type: Some("text/html".to_owned()) });
        let mut of_user = [message(Role::User, [remote("https://host/1")])];
        let error = replace(&mut of_user, |remote| Downloads { bytes: 9, count: 9 }.read(remote, html));
        assert!(error.unwrap_err().to_string().contains("found \"text/html\""));
        let mut of_tool = [message(Role::Tool, [remote("https://host/1")])];
        replace(&mut of_tool, |remote| Downloads { bytes: 9, count: 9 }.read(remote, html)).unwrap();
        assert_eq!(of_tool[0].content, &*omission_note("image"));
    }

    #[test]
    fn addresses_are_refused_unless_they_are_allowed_and_public() {
        let check = |urls: MediaUrls, expect: &str| {
            let mut messages = [message(Role::User, [remote("http://127.0.0.1:9/a.png")])];
            let error = read(urls, &mut messages, &Cancel::new()).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        };
        check(MediaUrls::Refused, "--allow-media-urls");
        check(MediaUrls::Offline, "the server is offline");
        check(MediaUrls::Read, "expected a public address, found 127.0.0.1");
        let cancel = Cancel::new();
        cancel.cancel();
        let mut messages = [message(Role::User, [remote("http://127.0.0.1:9/a.png")])];
        assert!(matches!(read(MediaUrls::Read, &mut messages, &cancel), Err(Error::Cancelled)));
    }
}
