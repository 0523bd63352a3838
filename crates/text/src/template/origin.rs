//! The origin of each character of a prompt: the template or the conversation.
//!
//! A template joins, cuts, replaces and re-cases its inputs, and a control token must still be one only if the template
//! wrote all of it. The origin is therefore encoded in the characters. Those of the template's own strings are shifted
//! to the private planes 15 and 16 ([`mark`]), where they keep their number and order; characters of a conversation
//! that are already there are spelled with noncharacters ([`Escaper`]). Functions that compare or inspect strings
//! receive the template's characters unshifted ([`unmarked`]), and a string that a function creates belongs to the
//! conversation.

use std::{borrow::Cow, cell::Cell, ops::Range};

use minijinja::{
    Error, ErrorKind, Value,
    value::{DynObject, Kwargs, Tuple, ValueKind},
};

use super::large_integer;

/// Distance between a character and its mark. Only planes 0 and 1 have marks.
const SHIFT: u32 = 0xF_0000;

/// First character of a spelled character; `DIGITS` hexadecimal digits follow.
pub(super) const ESCAPE: char = '\u{FDD0}';

/// The digit 0; the other fifteen follow it.
const ZERO: u32 = 0xFDE0;

/// Number of digits of a spelled character.
const DIGITS: usize = 6;

/// Number of bytes of a spelled character: [`ESCAPE`] and the digits have three each.
const SPELLED: usize = 3 * (1 + DIGITS);

/// Maximum number of characters of one conversation that are spelled. Ordinary text has few of them.
const MAX_SPELLED: usize = 256 << 10;

/// Way in which a function reads its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// Reads strings, and the first level of containers; the result is one of the arguments or small.
    FirstLevel,
    /// Reads strings as a whole.
    Text,
    /// Reads strings character by character.
    Characters,
}

/// A prompt with the origin of each part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    written: Vec<Range<usize>>,
}

impl RenderedPrompt {
    /// Reads a rendered text with marks and spelled characters.
    pub(super) fn new(marked: &str) -> Self {
        // Marked characters take four bytes.
        let bytes = marked.chars().map(|char| plain_char(char).len_utf8()).sum();
        let mut rendered = Self { text: String::with_capacity(bytes), written: Vec::new() };
        let mut chars = marked.chars();

        while let Some(char) = chars.next() {
            if let Some(own) = unshifted(char) {
                let start = rendered.text.len();
                rendered.text.push(own);
                let end = rendered.text.len();
                match rendered.written.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => rendered.written.push(start..end),
                }
            } else if char == ESCAPE {
                let digits = chars.as_str();
                let spelled = digits.chars().take(DIGITS).map(digit).collect::<Option<Vec<u32>>>();
                let code = spelled.filter(|digits| digits.len() == DIGITS);
                let code = code.map(|digits| digits.iter().fold(0, |code, digit| code << 4 | digit));
                // A template may cut a spelled character in two.
                let Some(own) = code.and_then(char::from_u32) else {
                    rendered.text.push(char::REPLACEMENT_CHARACTER);
                    continue;
                };
                rendered.text.push(own);
                chars.nth(DIGITS - 1);
            } else if digit(char).is_none() && char != large_integer::MARK {
                rendered.text.push(char);
            }
        }
        rendered
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text without its origins.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Appends a text of the conversation.
    pub fn append(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends a text that counts as written by the template.
    pub fn append_written(&mut self, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        match self.written.last_mut() {
            Some(last) if last.end == start => last.end = self.text.len(),
            _ => self.written.push(start..self.text.len()),
        }
    }

    /// Appends a range of another prompt with its origins.
    pub(crate) fn append_range(&mut self, other: &Self, range: Range<usize>) {
        let mut end = range.start;
        for written in &other.written {
            let start = written.start.clamp(end, range.end);
            let next = written.end.clamp(start, range.end);
            self.append(&other.text[end..start]);
            if start < next {
                self.append_written(&other.text[start..next]);
            }
            end = next;
        }
        self.append(&other.text[end..range.end]);
    }

    /// Returns the byte ranges that the template wrote, in order and not adjacent.
    pub fn written(&self) -> &[Range<usize>] {
        &self.written
    }
}

fn digit(char: char) -> Option<u32> {
    u32::from(char).checked_sub(ZERO).filter(|&digit| digit < 16)
}

fn unshifted(char: char) -> Option<char> {
    u32::from(char).checked_sub(SHIFT).and_then(char::from_u32)
}

/// Returns the character without its mark.
pub(super) fn plain_char(char: char) -> char {
    unshifted(char).unwrap_or(char)
}

/// Returns a string of the template with its characters marked.
pub(super) fn mark(text: &str) -> String {
    let mut marked = String::with_capacity(text.len() * 4);
    for char in text.chars() {
        match u32::from(char) {
            code @ ..0x2_0000 => marked.push(char::from_u32(code + SHIFT).unwrap_or(char)),
            ..SHIFT => marked.push(char),
            _ => push_spelled(char, &mut marked),
        }
    }
    marked
}

/// Encoder of the strings of one conversation.
#[derive(Debug, Default)]
pub(super) struct Escaper {
    /// Number of characters spelled so far.
    spelled: Cell<usize>,
}

impl Escaper {
    /// Returns a string in which characters with a meaning here are spelled.
    ///
    /// # Errors
    /// Fails if the conversation has more than [`MAX_SPELLED`] such characters, since each takes up to seven times its
    /// bytes.
    pub(super) fn escape<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, Error> {
        let found = text.chars().filter(|char| is_reserved(*char)).count();
        if found == 0 {
            return Ok(Cow::Borrowed(text));
        }
        let spelled = self.spelled.get() + found;
        if spelled > MAX_SPELLED {
            let message = format!(
                "expected at most {MAX_SPELLED} characters of the private planes or without a meaning in Unicode, found more"
            );
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        self.spelled.set(spelled);
        let mut escaped = String::with_capacity(text.len() + found * SPELLED);
        for char in text.chars() {
            if is_reserved(char) { push_spelled(char, &mut escaped) } else { escaped.push(char) }
        }
        Ok(Cow::Owned(escaped))
    }
}

/// Returns true for a character with a meaning in a rendered text.
fn is_reserved(char: char) -> bool {
    matches!(u32::from(char), 0xFDD0..=0xFDEF | SHIFT..)
}

fn push_spelled(char: char, text: &mut String) {
    text.push(ESCAPE);
    let digits = (0..DIGITS).rev().map(|place| u32::from(char) >> (4 * place) & 15);
    text.extend(digits.filter_map(|digit| char::from_u32(ZERO + digit)));
}

/// Returns a string without marks. Spelled characters remain.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(|char| unshifted(char).is_some()) {
        Cow::Owned(text.chars().map(plain_char).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns a value without marks in its strings, keys and elements.
pub(super) fn unmarked(value: Value) -> Value {
    changed(&value).unwrap_or(value)
}

/// Returns a value for output: a container without marks in its elements, a string unchanged.
pub(super) fn spelled(value: Value) -> Value {
    if value.as_str().is_some() { value } else { unmarked(value) }
}

/// Returns the value without marks, or `None` if it has no marks. The recursion is limited by the depth that
/// [`super::limits`] allows.
fn changed(value: &Value) -> Option<Value> {
    if let Some(text) = value.as_str() {
        return match plain(text) {
            Cow::Owned(text) => Some(Value::from(text)),
            Cow::Borrowed(_) => None,
        };
    }
    let is_map = value.kind() == ValueKind::Map;
    if !(is_map || value.kind() == ValueKind::Seq) || is_namespace(value) {
        return None;
    }
    let mut any = false;
    let mut plain = |item: Value| {
        let changed = changed(&item);
        any |= changed.is_some();
        changed.unwrap_or(item)
    };

    let items = value.try_iter().ok()?;
    let rebuilt = if is_map {
        let pairs: Vec<(Value, Value)> = items
            .map(|key| {
                let element = plain(value.get_item(&key).unwrap_or_default());
                (plain(key), element)
            })
            .collect();
        if value.is_kwargs() {
            let named = pairs.into_iter().map(|(key, element)| (key.to_string(), element));
            Value::from(named.collect::<Kwargs>())
        } else {
            Value::from_pairs(pairs)
        }
    } else {
        let items: Vec<Value> = items.map(plain).collect();
        if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
    };
    any.then_some(rebuilt)
}

/// Returns the arguments in the form that a function receives: with marks only if it passes them on unchanged.
pub(super) fn arguments(name: &str, read: Read, args: &[Value]) -> Vec<Value> {
    let seen = args.iter().enumerate().map(|(index, value)| {
        if passes_on(name, read, index, value) { value.clone() } else { unmarked(value.clone()) }
    });
    seen.collect()
}

/// Returns the result of a function. Marks in a string that the function did not pass on are forged, as by `'%c' |
/// format(n)`, and removed.
pub(super) fn made(name: &str, read: Read, args: &[Value], value: Value) -> Value {
    let passed_on = args.first().is_none_or(|subject| passes_on(name, read, 0, subject));
    if passed_on || value.as_str().is_none() { value } else { unmarked(value) }
}

/// Returns true if a function passes an argument on instead of inspecting it. The elements of a container count as
/// passed on, unless the container is written as text.
pub(super) fn passes_on(name: &str, read: Read, index: usize, value: &Value) -> bool {
    let is_string = value.as_str().is_some();
    match name {
        "d" | "default" | "dict" | "namespace" => true,
        "join" => index <= 1 && !value.is_kwargs(),
        "trim" | "string" | "safe" | "strip" | "lstrip" | "rstrip" => index == 0 && is_string,
        "first" | "last" | "list" => index == 0,
        "get" => index != 1,
        _ => index == 0 && !is_string && read != Read::Text,
    }
}

/// Returns true if a value is a namespace, the only mutable container.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().map(DynObject::type_name).is_some_and(|name| name.ends_with("::Namespace"))
}
