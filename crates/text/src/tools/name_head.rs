//! The name of a function before the JSON object of its arguments, with markers between them.

use super::MAX_NAME;

/// Markers between the name of a function and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadMarkers {
    /// Marker before the id of the call, if calls may have one.
    pub(super) id: Option<&'static str>,
    /// Marker before the arguments.
    pub(super) arguments: &'static str,
}

/// A name before an object of arguments.
pub(super) enum Head<'a> {
    /// The name, and the length of the text before the object.
    Name { name: &'a str, length: usize },
    /// More text is needed.
    Wait,
    /// The text is not a name.
    Other,
}

impl HeadMarkers {
    /// Reads a name with the markers after it, each of which may be missing.
    pub(super) fn head(self, text: &str) -> Head<'_> {
        let Some((name, mut rest)) = word(text) else { return Head::Other };
        let markers = [(self.id, true), (Some(self.arguments), false)];
        for (marker, has_value) in markers.into_iter().filter_map(|(marker, has)| Some((marker?, has))) {
            rest = rest.trim_start();
            match rest.strip_prefix(marker) {
                Some(after) if has_value => match word(after) {
                    Some((_, after)) => rest = after,
                    None => return Head::Other,
                },
                Some(after) => rest = after,
                None if marker.starts_with(rest) => return Head::Wait,
                None => {}
            }
        }
        rest = rest.trim_start();
        match rest.chars().next() {
            Some('{') => Head::Name { name, length: text.len() - rest.len() },
            Some(_) => Head::Other,
            None => Head::Wait,
        }
    }
}

/// Divides a text after its first name; `None` if the name is too long.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(|c| !is_name_char(c)).unwrap_or(text.len());
    (end <= MAX_NAME).then(|| text.split_at(end))
}

/// Returns true if names of functions may contain a character.
pub(super) fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}
