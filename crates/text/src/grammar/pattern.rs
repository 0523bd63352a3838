//! Grammars as one regular expression, for a text inside a JSON string.
//!
//! The compiler follows regular expressions inside JSON strings, but not grammars. In a Lark grammar without recursion,
//! each name can be replaced by its definition, which gives a regular expression. The definitions and their expressions
//! have limits, because a short grammar can have a long expression.

use std::collections::HashMap;

use llguidance::regex_to_lark;

use super::{
    Grammar, GrammarError,
    lark_tokens::{Definitions, LarkToken, read_definitions},
    limits::{MAX_BYTES, check_text},
};

/// Maximum depth of names and groups, which are expanded by recursion.
const MAX_NESTING: usize = 64;

/// Maximum bytes of the expressions of all names.
const MAX_EXPANDED: usize = 1 << 20;

impl Grammar {
    /// Returns an anchored regular expression of the same texts. It ignores the priorities of terminals: a text belongs
    /// to it if any division of the text into terminals follows the grammar.
    ///
    /// # Errors
    /// The grammar is a schema, refers to itself, or has parts without a regular expression.
    pub fn pattern(&self) -> Result<String, GrammarError> {
        let source = match self {
            Self::JsonSchema(_) => {
                return Err(GrammarError::unsupported(
                    "a JSON schema",
                    "expected a Lark grammar or a regular expression",
                ));
            }
            Self::Regex(source) => {
                check_text(source)?;
                let source = source.strip_prefix('^').unwrap_or(source);
                let is_escaped = source.ends_with("\\$");
                source.strip_suffix('$').filter(|_| !is_escaped).unwrap_or(source).to_owned()
            }
            Self::Lark(source) => {
                check_text(source)?;
                lark_expression(source)?
            }
        };
        Ok(format!("^(?:{source})$"))
    }
}

/// Returns a regular expression that matches a text. It may stand between the slashes of a Lark grammar.
pub(crate) fn text_expression(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() * 2);
    for char in text.chars() {
        if r"\.+*?()|[]{}^$#&~/".contains(char) {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

/// Returns the regular expression of the texts that match a schema's `pattern`, for use between the slashes of a Lark
/// grammar; `None` if it has anchors inside, or parts that are no regular expression.
pub(crate) fn text_pattern(pattern: &str) -> Option<String> {
    let start = pattern.strip_prefix('^');
    let inside = start.unwrap_or(pattern);
    let backslashes =
        inside.strip_suffix('$').map(|inside| inside.len() - inside.trim_end_matches('\\').len());
    let end = inside.strip_suffix('$').filter(|_| backslashes.is_some_and(|count| count % 2 == 0));
    let inside = end.unwrap_or(inside);

    let mut depth = 0_usize;
    let mut is_escaped = false;
    let mut is_in_class = false;
    let mut has_alternatives = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            // Boundaries and references to groups.
            b'b' | b'B' | b'0'..=b'9' | b'k' | b'A' | b'z' | b'Z' if is_escaped && !is_in_class => {
                return None;
            }
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b']' => is_in_class = false,
            _ if is_in_class => {}
            b'[' => is_in_class = true,
            b'^' | b'$' => return None,
            b'(' => {
                let group = &inside[at + 1..];
                if group.starts_with('?') && !group.starts_with("?:") {
                    return None;
                }
                depth += 1;
            }
            b')' => depth = depth.checked_sub(1)?,
            b'|' => has_alternatives |= depth == 0,
            _ => {}
        }
    }
    let is_anchored = start.is_some() || end.is_some();
    if depth > 0 || is_escaped || is_in_class || is_anchored && has_alternatives {
        return None;
    }
    let anything = "(\\n|.)*";
    let before = if start.is_some() { "" } else { anything };
    let after = if end.is_some() { "" } else { anything };
    Some(format!("{before}({}){after}", regex_to_lark(inside, "dw")))
}

fn lark_expression(source: &str) -> Result<String, GrammarError> {
    let Definitions { bodies, ignored } = read_definitions(source)?;
    let mut expansion = Expansion {
        bodies: &bodies,
        ignored: String::new(),
        known: HashMap::new(),
        open: Vec::new(),
        nesting: 0,
        bytes: 0,
    };
    let mut texts = Vec::new();
    let mut bytes = 0;
    for body in &ignored {
        let text = expansion.body(body, DefinitionKind::Terminal)?;
        bytes += text.len();
        check_length(bytes, MAX_BYTES)?;
        texts.push(text);
    }
    if !texts.is_empty() {
        expansion.ignored = format!("(?:{})*", texts.join("|"));
    }
    let start = expansion.name("start")?;
    Ok(expansion.ignored + &start)
}

/// Kind of the definition that is expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DefinitionKind {
    /// Ignored texts may follow each terminal.
    Rule,
    /// Nothing is ignored inside a terminal.
    Terminal,
}

impl DefinitionKind {
    /// Returns the kind of a name: names of rules have small letters.
    fn of(name: &str) -> Self {
        let first = name.chars().find(char::is_ascii_alphabetic);
        if first.is_some_and(|first| first.is_ascii_lowercase()) { Self::Rule } else { Self::Terminal }
    }
}

/// Expansion of the names of a grammar into their expressions.
struct Expansion<'a> {
    bodies: &'a HashMap<String, Vec<LarkToken>>,
    /// Expression of the ignored texts; empty if there are none.
    ignored: String,
    known: HashMap<&'a str, String>,
    /// Names under expansion, from the outermost to the innermost.
    open: Vec<&'a str>,
    nesting: usize,
    /// Bytes of the expressions in `known`.
    bytes: usize,
}

/// Tokens of a definition that were not read yet.
struct Rest<'a> {
    tokens: &'a [LarkToken],
    kind: DefinitionKind,
}

impl<'a> Rest<'a> {
    fn next(&mut self) -> Option<&'a LarkToken> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    /// Takes the next token if it is this symbol.
    fn take(&mut self, symbol: char) -> bool {
        let is_next = self.tokens.first() == Some(&LarkToken::Symbol(symbol));
        if is_next {
            self.tokens = &self.tokens[1..];
        }
        is_next
    }

    fn expect(&mut self, symbol: char) -> Result<(), GrammarError> {
        if self.take(symbol) {
            return Ok(());
        }
        let found = self.tokens.first().map_or_else(|| "the end of the rule".to_owned(), ToString::to_string);
        Err(GrammarError::unusable(format!("expected {symbol:?}, found {found}")))
    }

    fn number(&mut self) -> Option<u32> {
        let Some(&LarkToken::Number(number)) = self.tokens.first() else { return None };
        self.tokens = &self.tokens[1..];
        Some(number)
    }
}

impl<'a> Expansion<'a> {
    /// Returns the expression of a name.
    fn name(&mut self, name: &str) -> Result<String, GrammarError> {
        if let Some(known) = self.known.get(name) {
            return Ok(known.clone());
        }
        let Some((name, body)) = self.bodies.get_key_value(name) else {
            return Err(GrammarError::unusable(format!("the name {name} is not defined")));
        };
        if self.open.contains(&name.as_str()) {
            let reason = "recursive rules are not supported in the input of a custom tool";
            return Err(GrammarError::unsupported(format!("the rule {name}"), reason));
        }
        self.open.push(name);
        let text = self.body(body, DefinitionKind::of(name))?;
        self.open.pop();
        self.bytes += text.len();
        check_length(self.bytes, MAX_EXPANDED)?;
        self.known.insert(name, text.clone());
        Ok(text)
    }

    fn body(&mut self, tokens: &'a [LarkToken], kind: DefinitionKind) -> Result<String, GrammarError> {
        let mut rest = Rest { tokens, kind };
        let text = self.choice(&mut rest)?;
        match rest.next() {
            None => Ok(text),
            Some(token) => Err(GrammarError::unusable(format!("expected the end of a rule, found {token}"))),
        }
    }

    /// Reads alternatives.
    fn choice(&mut self, rest: &mut Rest<'a>) -> Result<String, GrammarError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            let reason = format!("expected at most {MAX_NESTING} nested rules and groups, found more");
            return Err(GrammarError::unusable(reason));
        }
        let mut text = format!("(?:{}", self.sequence(rest)?);
        while rest.take('|') {
            text.push('|');
            text.push_str(&self.sequence(rest)?);
            check_length(text.len(), MAX_BYTES)?;
        }
        self.nesting -= 1;
        text.push(')');
        Ok(text)
    }

    fn sequence(&mut self, rest: &mut Rest<'a>) -> Result<String, GrammarError> {
        let mut text = String::new();
        while let Some(item) = self.item(rest)? {
            text.push_str(&item);
            text.push_str(&repetition(rest)?);
            check_length(text.len(), MAX_BYTES)?;
        }
        // The name of an alternative has no effect.
        if rest.tokens.first() == Some(&LarkToken::Arrow) {
            rest.next();
            rest.next();
        }
        Ok(text)
    }

    /// Reads an item without its repetition; `None` at the end of a sequence.
    fn item(&mut self, rest: &mut Rest<'a>) -> Result<Option<String>, GrammarError> {
        use LarkToken::{Arrow, Name, Regex, Symbol, Text};
        let terminal = match rest.tokens.first() {
            None | Some(Symbol('|' | ')' | ']') | Arrow) => return Ok(None),
            Some(Name(name)) => {
                rest.next();
                let text = self.name(name)?;
                if DefinitionKind::of(name) == DefinitionKind::Rule {
                    return Ok(Some(text));
                }
                text
            }
            Some(Symbol('(')) => {
                rest.next();
                let text = self.choice(rest)?;
                rest.expect(')')?;
                return Ok(Some(text));
            }
            Some(Symbol('[')) => {
                rest.next();
                let text = self.choice(rest)?;
                rest.expect(']')?;
                return Ok(Some(format!("(?:{text}?)")));
            }
            Some(Text { text, is_caseless }) => {
                rest.next();
                let text = match range_end(rest)? {
                    Some(end) => range(text, end)?,
                    None => text_expression(text),
                };
                if *is_caseless { format!("(?i:{text})") } else { format!("(?:{text})") }
            }
            Some(Regex(expression)) => {
                rest.next();
                expression.clone()
            }
            Some(other) => {
                return Err(GrammarError::unsupported(other.to_string(), "it has no regular expression"));
            }
        };

        let is_followed = rest.kind == DefinitionKind::Rule && !self.ignored.is_empty();
        Ok(Some(if is_followed { format!("(?:{terminal}{})", self.ignored) } else { terminal }))
    }
}

/// Reads the second text of a range of characters, if there is one.
fn range_end<'a>(rest: &mut Rest<'a>) -> Result<Option<&'a str>, GrammarError> {
    if rest.tokens.first() != Some(&LarkToken::Range) {
        return Ok(None);
    }
    rest.next();
    match rest.next() {
        Some(LarkToken::Text { text, .. }) => Ok(Some(text)),
        _ => Err(GrammarError::unusable("expected a string after \"..\"")),
    }
}

fn single_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// Returns the class of the characters from one to another.
fn range(first: &str, last: &str) -> Result<String, GrammarError> {
    match (single_char(first), single_char(last)) {
        (Some(first), Some(last)) if first <= last => {
            Ok(format!("[\\x{{{:x}}}-\\x{{{:x}}}]", u32::from(first), u32::from(last)))
        }
        _ => {
            Err(GrammarError::unusable(format!("expected a range of characters, found {first:?}..{last:?}")))
        }
    }
}

fn no_number() -> GrammarError {
    GrammarError::unusable("expected the number of repetitions")
}

/// Reads a repetition: `+`, `*`, `?`, `{1,3}`, or Lark's `~ 3` and `~ 1..3`.
fn repetition(rest: &mut Rest<'_>) -> Result<String, GrammarError> {
    for symbol in ['+', '*', '?'] {
        if rest.take(symbol) {
            return Ok(symbol.to_string());
        }
    }
    if rest.take('~') {
        let least = rest.number().ok_or_else(no_number)?;
        if rest.tokens.first() != Some(&LarkToken::Range) {
            return Ok(format!("{{{least}}}"));
        }
        rest.next();
        let most = rest.number().ok_or_else(no_number)?;
        return Ok(format!("{{{least},{most}}}"));
    }

    if rest.take('{') {
        let least = rest.number();
        let is_range = rest.take(',');
        let most = rest.number();
        rest.expect('}')?;
        return match (least, is_range, most) {
            (Some(count), false, None) => Ok(format!("{{{count}}}")),
            (_, true, Some(most)) => Ok(format!("{{{},{most}}}", least.unwrap_or(0))),
            (Some(least), true, None) => Ok(format!("{{{least},}}")),
            _ => Err(no_number()),
        };
    }
    Ok(String::new())
}

fn check_length(found: usize, limit: usize) -> Result<(), GrammarError> {
    if found <= limit {
        return Ok(());
    }
    Err(GrammarError::unusable(format!(
        "expected a regular expression of at most {limit} bytes, found a longer one"
    )))
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::Regex;

    use super::*;

    /// Grammar of the patches of Codex.
    const PATCH: &str = r#"
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"#;

    fn check(grammar: &Grammar, texts: &[(&str, bool)]) {
        let pattern = grammar.pattern().unwrap();
        let inside = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$')).unwrap();
        for (text, expect) in texts {
            let mut regex = Regex::new(&regex_to_lark(inside, "dw")).unwrap();
            assert_eq!(regex.is_match(text), *expect, "{text:?}: {pattern}");
        }
    }

    fn lark(source: &str, texts: &[(&str, bool)]) {
        check(&Grammar::Lark(source.to_owned()), texts);
    }

    #[test]
    fn repeated_prefixes_and_ignored_texts_are_bounded() {
        lark(&format!("{}start: \"a\"", "?!".repeat(50_000)), &[("a", true)]);
        let ignored = "%ignore A\n".repeat(1000);
        let source = format!("start:\nA: \"{}\"\n{ignored}", "x".repeat(20_000));
        let error = Grammar::Lark(source).pattern().unwrap_err();
        assert!(error.to_string().contains("regular expression of at most"), "{error}");
    }

    #[test]
    fn a_grammar_without_recursion_is_an_expression() {
        let update = "*** Update File: a b.rs\n@@ fn main\n-a \"b\"\n+c\\n\n*** End of File\n";
        let patch = |hunks: &str| format!("*** Begin Patch\n{hunks}*** End Patch");
        lark(
            PATCH,
            &[
                (&patch("*** Add File: a.txt\n+hello\n+\n"), true),
                (&patch(&format!("{update}*** Delete File: x\n")), true),
                (&(patch("*** Delete File: x\n") + "\n"), true),
                (&patch(""), false),
                (&patch("*** Add File: a.txt\nhello\n"), false),
                ("{}", false),
            ],
        );
        lark(
            "?start.2: (word [\",\"] | NUMBER~2..3 | \"x\"i{2,} | \"a\"..\"c\")? # comment\n// comment\n\
             !word: /[d-f]+/i\n  | \"/\\\"\"\n%import common (INT)\n%import common.INT -> NUMBER",
            &[
                ("", true),
                ("DEf,", true),
                ("/\"", true),
                ("12", true),
                ("xX", true),
                ("b", true),
                ("x", false),
                ("bb", false),
            ],
        );
    }

    #[test]
    fn ignored_texts_follow_terminals() {
        let source = "start: \"a\" pair+ END\npair: \"(\" WORD \")\"\nEND: \"e\" \"nd\"\n\
                      %import common.WORD\n%ignore /[ \\n]+/\n%ignore \"#\"";
        lark(
            source,
            &[
                (" a ( b )# (c)\nend ", true),
                ("a(b)end", true),
                ("a (b) e nd", false),
                ("a (b b) end", false),
            ],
        );
    }

    #[test]
    fn expressions_match_a_whole_text() {
        for source in ["a|b", "^a|b$"] {
            check(&Grammar::Regex(source.to_owned()), &[("a", true), ("b", true), ("ab", false)]);
        }
        check(&Grammar::Regex("a\\$".to_owned()), &[("a$", true), ("a", false)]);
    }

    #[test]
    fn patterns_become_expressions_of_the_texts_that_match() {
        let check = |pattern: &str, expect: Option<&str>| {
            assert_eq!(text_pattern(pattern).as_deref(), expect, "{pattern}");
        };
        check(r"^(?:a/(b|c)\)[)]\d)$", Some(r"((?:a\/(b|c)\)[)][0-9]))"));
        check("^a$", Some("(a)"));
        check("a|b", Some("(\\n|.)*(a|b)(\\n|.)*"));
        check("^a", Some("(a)(\\n|.)*"));
        check(r"[\b^$]\$", Some(r"(\n|.)*([\b^$]\$)(\n|.)*"));
        for refused in
            ["^(?:a)|(?:b)$", r"^(?:a\)$", "a^b", "a$b", "(?=a)", "(?<n>a)", r"\ba", r"(a)\1", "[a", "a)"]
        {
            check(refused, None);
        }
    }

    #[test]
    fn grammars_without_an_expression_are_refused() {
        let check = |source: &str, expect: &str| {
            let error = Grammar::Lark(source.to_owned()).pattern().unwrap_err().to_string();
            assert!(error.contains(expect), "{source}: {error}");
        };
        check("start: \"(\" start \")\" | \"a\"", "the rule start cannot be enforced: recursive rules");
        check("start: a\na: b\nb: a?", "recursive rules");
        check("start: other", "the name other is not defined");
        check("begin: \"a\"", "the name start is not defined");
        check("start: A & ~B\nA: \"a\"\nB: \"b\"", "'&' cannot be enforced");
        check("start: %json {\"type\": \"object\"}", "%json cannot be enforced");
        lark("start: A\nA.-1: \"a\"", &[("a", true), ("b", false)]);
        check("start: <[7]>", "found '<'");
        check("start[lazy]: \"a\"", "expected ':'");
        check("%import other.A\nstart: A", "other");
        check("%import common.NONE\nstart: NONE", "NONE");
        check("start: (\"a\"", "expected ')'");
        check("start: \"a\")", "expected the end of a rule");
        check("start: \"a", "string");
        check("start: /a", "regular expression");
        check("start: \"ab\"..\"c\"", "range of characters");
        check("start: \"a\"{,}", "number of repetitions");
        check("start: \"a\"\nstart: \"b\"", "defined twice");
        assert!(Grammar::json_object().pattern().is_err());
    }

    #[test]
    fn parts_of_a_grammar_are_read_or_refused() {
        let source = PATCH.to_owned() + "%ignore \"é\"i\nX: /é\\é/is ~ 2..3 [\"a\"..\"é\"]";
        for (at, _) in source.char_indices() {
            for part in [&source[at..], &source[..at]] {
                let _ = Grammar::Lark(part.to_owned()).pattern();
            }
        }
    }

    #[test]
    fn the_length_of_an_expression_is_limited() {
        let doubled = (0..40).map(|rule| format!("r{rule}: r{0} r{0}\n", rule + 1)).collect::<String>();
        let doubled = format!("start: r0\n{doubled}r40: \"a\"\n");
        let error = Grammar::Lark(doubled).pattern().unwrap_err().to_string();
        assert!(error.contains("at most") && error.contains("bytes"), "{error}");
        let chain = (0..100).map(|rule| format!("r{rule}: r{}\n", rule + 1)).collect::<String>();
        let error = Grammar::Lark(format!("start: r0\n{chain}r100: \"a\"\n")).pattern().unwrap_err();
        assert!(error.to_string().contains("nested"), "{error}");
    }
}
