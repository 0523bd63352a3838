//! Rules on the English of doc comments and string literals, as far as a program can check them.

use crate::{
    finding::{Finding, Rule},
    source::{Role, Source},
    texts::{Text, TextKind},
};

/// Words that must not be the first of a doc comment.
const OPENINGS: &[&str] = &["What", "Who", "Whether", "Say", "Tell", "How"];

/// Words that must not occur in doc comments and string literals.
const WORDS: &[&str] = &["told", "whoever", "mended"];

/// Sequences of words that must not occur in doc comments and string literals. `None` in capitals is code.
const PHRASES: &[&str] = &["is none", "tell of", "tells of"];

/// Checks one source, without its tests.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    if source.role == Role::Tests {
        return Vec::new();
    }
    let finding = |text: &Text, word: &str, message: &str| {
        let message = format!("line {}: {message} {word:?}", text.line);
        Finding::excusable(Rule::Prose, format!("{}::{word}", source.path), message)
    };
    let mut findings = Vec::new();
    for text in &source.texts {
        let opening = words(&text.text).next().unwrap_or_default();
        if text.kind == TextKind::Opening && OPENINGS.contains(&opening) {
            let message = "begin doc comments with a noun phrase or a third-person verb, not with";
            findings.push(finding(text, opening, message));
        }
        let refused =
            WORDS.iter().filter(|word| words(&text.text).any(|found| found.eq_ignore_ascii_case(word)));
        findings.extend(refused.map(|word| finding(text, word, "use a plainer word than")));
        let sequence = format!(" {} ", words(&text.text).collect::<Vec<_>>().join(" "));
        let refused = PHRASES.iter().filter(|phrase| sequence.contains(&format!(" {phrase} ")));
        findings.extend(refused.map(|phrase| finding(text, phrase, "use plainer words than")));
    }
    findings
}

/// Returns the words of a text. An identifier such as `is_none` is one word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;

    fn check_text(text: &str, expect: &[&str]) {
        let found = brief(&check(&Source::parse("b.rs", text).unwrap()));
        let expect: Vec<String> = expect.iter().map(|word| format!("prose b.rs::{word}")).collect();
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn doc_comments_open_with_a_noun_phrase_or_a_verb() {
        check_text("//! What lives here.\n\n/// Who\nfn f() {}", &["What", "Who"]);
        check_text("/// Returns the rows.\n/// What follows is a second line.\nstruct A;", &[]);
        check_text(
            "struct A {\n    /// Whether it is on.\n    on: bool,\n    /// How many.\n    n: u8 }",
            &["Whether", "How"],
        );
        check_text(
            "enum A {\n    /// Say so.\n    B,\n}\nimpl A {\n    /// Tell it.\n    fn f() {}\n}",
            &["Say", "Tell"],
        );
        check_text(
            "/// Whatever else, Howard and Whole words are fine.\n// What a plain comment says.\nfn f() {}",
            &[],
        );
    }

    #[test]
    fn some_words_are_refused_in_docs_and_strings() {
        check_text("/// The device.\n/// It was told.\nfn f() { g(\"Whoever\") }", &["told", "whoever"]);
        check_text("#[error(\"must be mended\")] struct A;", &["mended"]);
        check_text("fn f() { println!(\"{}\", g(\"told\", 'x')) }", &["told"]);
        check_text("fn f() { g(\"untold\"); /* told */ }", &[]);
    }

    #[test]
    fn identifiers_are_single_words() {
        check_text(
            "struct A {\n    #[serde(skip_serializing_if = \"Option::is_none\")]\n    a: Option<u8> }",
            &[],
        );
    }

    #[test]
    fn some_phrases_are_refused_in_docs_and_strings() {
        check_text(
            "/// The device, if there\n/// is none.\nfn f() { g(\"tells of it\") }",
            &["is none", "tells of"],
        );
        check_text(
            "/// This nonet. A missing key is `None`.\nfn f() { g(\"is not none\"); /* tell of it */ }",
            &[],
        );
    }

    #[test]
    fn tests_are_left_out() {
        check_text("#[cfg(test)] mod tests { /// What it is.\n fn f() { g(\"told\") } }", &[]);
        let tests = Source::parse("crates/a/tests/b.rs", "/// What it is.\nfn f() {}").unwrap();
        assert_eq!(check(&tests), []);
    }
}
