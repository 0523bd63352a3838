//! Names, switched-off lints, flags and module docs.

use xtask_workspace::workspace::Package;

use crate::{
    exceptions,
    finding::{Finding, Rule},
    source::{NameKind, Role, Source},
};

/// Words without meaning in any name.
const EMPTY_WORDS: &[&str] = &[
    "manager",
    "managers",
    "handler",
    "handlers",
    "helper",
    "helpers",
    "util",
    "utils",
    "utility",
    "utilities",
];

/// Words without meaning in the name of a type or module; functions may use them, as in `common_prefix`.
const EMPTY_NOUNS: &[&str] = &["common", "base", "misc"];

/// Nouns and adjectives in "ed" that may be the whole name of a type. All other such names are participles, which state
/// what was done to something and not what it is.
const NOT_PARTICIPLES: &[&str] = &["Feed", "Seed", "Speed"];

/// Lints that guard the design; switching one off needs an exception.
const GUARDED: &[&str] = &[
    "unsafe_code",
    "clippy::too_many_lines",
    "clippy::too_many_arguments",
    "clippy::unwrap_used",
    "clippy::expect_used",
];

/// Checks one source.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = check_names(source);
    findings.extend(check_participles(source));
    findings.extend(check_escapes(source));
    findings.extend(check_flags(source));
    if !source.has_docs {
        let message = "opens without `//!`; describe its contents, its limits, and where to start";
        findings.push(Finding::firm(Rule::ModuleDocs, &source.path, message));
    }
    findings
}

fn check_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for named in &source.names {
        let empty = |word: &&String| {
            EMPTY_WORDS.contains(&word.as_str())
                || (named.kind != NameKind::Function && EMPTY_NOUNS.contains(&word.as_str()))
        };
        if let Some(word) = words(&named.name).iter().find(empty) {
            let message = format!("{word:?} has no meaning; name it after its function or its contents");
            findings.push(Finding::excusable(
                Rule::Names,
                format!("{}::{}", source.path, named.name),
                message,
            ));
        }
    }
    findings
}

/// Finds types, outside tests, that are named after a participle alone.
fn check_participles(source: &Source) -> Vec<Finding> {
    if source.role == Role::Tests {
        return Vec::new();
    }
    let types = source.scopes.iter().flat_map(|scope| &scope.types);
    let bare = types.filter(|name| {
        name.ends_with("ed") && is_one_word(name) && !NOT_PARTICIPLES.contains(&name.as_str())
    });
    let finding = |name: &String| {
        let message = "is a bare participle; name the thing, as in `PackedWeights`";
        Finding::excusable(Rule::Names, format!("{}::{name}", source.path), message)
    };
    bare.map(finding).collect()
}

/// Returns true if a name is a single word.
fn is_one_word(name: &str) -> bool {
    words(name).iter().filter(|word| !word.is_empty()).count() == 1
}

/// Returns the words of a name, in lower case: `RequestHandler` and `request_handler` both have two.
fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, &letter) in letters.iter().enumerate() {
        let after_lower = at.checked_sub(1).is_some_and(|before| !letters[before].is_uppercase());
        let before_lower = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        // The last capital of `HTTPHandler` begins a word, the ones before it do not.
        if !letter.is_alphanumeric() || (letter.is_uppercase() && (after_lower || before_lower)) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphanumeric()) {
            word.extend(letter.to_lowercase());
        }
    }
    words
}

fn check_escapes(source: &Source) -> Vec<Finding> {
    let guarded = source.escapes.iter().filter(|lint| GUARDED.contains(&lint.as_str()));
    let finding = |lint: &String| {
        let message =
            format!("switches {lint} off; fix the code, or give the reason in {}", exceptions::FILE);
        Finding::excusable(Rule::LintEscapes, format!("{}::{lint}", source.path), message)
    };
    guarded.map(finding).collect()
}

fn check_flags(source: &Source) -> Vec<Finding> {
    let flagged = source.functions.iter().filter(|function| !function.flags.is_empty());
    let finding = |function: &super::source::Function| {
        let message = format!("takes `{}: bool`; name the two cases in an enum", function.flags.join("`, `"));
        Finding::excusable(Rule::BoolParameters, format!("{}::{}", source.path, function.name), message)
    };
    flagged.map(finding).collect()
}

/// Checks that folders have the names of their packages, and that these have a meaning.
pub(crate) fn check_folders(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let expected = match package.name.split_once('-') {
            Some(("narthex", noun)) => format!("crates/{noun}"),
            // `cargo install narthex` needs this name.
            None if package.name == "narthex" => "crates/cli".to_owned(),
            Some(("xtask", noun)) => format!("xtask/{noun}"),
            _ => package.name.clone(),
        };
        if package.folder != expected {
            let message = format!("is in {} instead of {expected}; rename one of them", package.folder);
            findings.push(Finding::firm(Rule::Folders, &package.name, message));
        }
        let is_empty = |word: &&String| [EMPTY_WORDS, EMPTY_NOUNS].concat().contains(&word.as_str());
        if let Some(word) = words(&package.name).iter().find(is_empty) {
            let message = format!("{word:?} has no meaning; name the crate after its responsibility");
            findings.push(Finding::excusable(Rule::Names, &package.name, message));
        }
    }
    findings
}

/// Checks that a package's manifest inherits the workspace's lints.
pub(crate) fn check_lints(package: &Package, manifest: &str) -> anyhow::Result<Option<Finding>> {
    let manifest: toml::Table = toml::from_str(manifest)?;
    let inherits =
        manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    Ok((inherits != Some(true)).then(|| {
        let message = "does not inherit the workspace's lints; write `[lints] workspace = true`";
        Finding::excusable(Rule::Lints, &package.name, message)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;

    fn check_text(path: &str, text: &str, expect: &[&str]) {
        let text = format!("//! Docs.\n{text}");
        assert_eq!(brief(&check(&Source::parse(path, &text).unwrap())), expect, "{text}");
    }

    fn package(name: &str, folder: &str) -> Package {
        Package { name: name.into(), folder: folder.into(), dependencies: vec![] }
    }

    #[test]
    fn empty_words_are_findings() {
        let path = "crates/a/src/b.rs";
        check_text(path, "struct CacheManager;", &["names crates/a/src/b.rs::CacheManager"]);
        check_text(path, "enum BaseModel {}", &["names crates/a/src/b.rs::BaseModel"]);
        check_text(path, "trait HTTPHandler {}", &["names crates/a/src/b.rs::HTTPHandler"]);
        check_text(path, "fn chat_helper() {}", &["names crates/a/src/b.rs::chat_helper"]);
        check_text(path, "mod utils;", &["names crates/a/src/b.rs::utils"]);
        check_text(path, "impl X { fn run_handler(&self) {} }", &["names crates/a/src/b.rs::run_handler"]);
        check_text("crates/a/tests/common.rs", "", &["names crates/a/tests/common.rs::common"]);
    }

    #[test]
    fn words_that_contain_others_are_fine() {
        check_text(
            "crates/a/src/b.rs",
            "struct Base64; struct Database; fn common_prefix() {} mod utilisation;",
            &[],
        );
    }

    #[test]
    fn participles_alone_are_not_type_names() {
        let path = "crates/a/src/b.rs";
        check_text(path, "struct Packed;", &["names crates/a/src/b.rs::Packed"]);
        check_text(path, "mod c { type Rated = u8; }", &["names crates/a/src/b.rs::Rated"]);
        check_text(path, "enum E { Packed } fn packed() {}", &[]);
        check_text(path, "struct PackedWeights; struct BedFeed; struct Feed;", &[]);
        check_text(path, "#[cfg(test)] mod tests { struct Packed; }", &[]);
        check_text("crates/a/tests/c.rs", "struct Packed;", &[]);
    }

    #[test]
    fn guarded_lints_stay_on() {
        let path = "crates/a/src/b.rs";
        check_text(path, "#[allow(unsafe_code)] fn f() {}", &["lint-escapes crates/a/src/b.rs::unsafe_code"]);
        check_text(
            path,
            "#[expect(clippy::too_many_lines, reason = \"a table\")] fn f() {}",
            &["lint-escapes crates/a/src/b.rs::clippy::too_many_lines"],
        );
        check_text(path, "#[allow(clippy::type_complexity)] fn f() {}", &[]);
        check_text(path, "#[cfg(test)] mod tests { #![allow(clippy::unwrap_used)] }", &[]);
        check_text(
            "crates/a/tests/c.rs",
            "#![allow(unsafe_code)]",
            &["lint-escapes crates/a/tests/c.rs::unsafe_code"],
        );
    }

    #[test]
    fn public_functions_take_no_bools() {
        let path = "crates/a/src/b.rs";
        check_text(path, "pub fn f(loud: bool) {}", &["bool-parameters crates/a/src/b.rs::f"]);
        check_text(
            path,
            "impl X { pub fn g(self, a: u8, b: bool) {} }",
            &["bool-parameters crates/a/src/b.rs::g"],
        );
        check_text(path, "pub trait T { fn h(&self, b: bool); }", &["bool-parameters crates/a/src/b.rs::h"]);
        check_text(path, "pub(crate) fn f(loud: bool) {} pub fn g() -> bool { true }", &[]);
    }

    #[test]
    fn modules_have_docs() {
        let source = Source::parse("crates/a/src/b.rs", "// Not docs.\nfn f() {}").unwrap();
        assert_eq!(brief(&check(&source)), ["module-docs crates/a/src/b.rs"]);
    }

    #[test]
    fn folders_have_the_names_of_packages() {
        let packages = [("narthex", "crates/cli"), ("narthex-text", "crates/text"), ("xtask", "xtask")]
            .map(|(name, folder)| package(name, folder));
        assert_eq!(brief(&check_folders(&packages)), [""; 0]);
        assert_eq!(
            brief(&check_folders(&[package("narthex-text", "crates/strings")])),
            ["folders narthex-text"]
        );
        assert_eq!(
            brief(&check_folders(&[package("narthex-utils", "crates/utils")])),
            ["names narthex-utils"]
        );
    }

    #[test]
    fn manifests_inherit_lints() {
        let finding = |manifest: &str| check_lints(&package("narthex-a", "crates/a"), manifest).unwrap();
        assert_eq!(finding("[lints]\nworkspace = true\n"), None);
        assert!(finding("[lints.rust]\nunsafe_code = \"allow\"\n").is_some());
        assert!(finding("").is_some());
    }
}
