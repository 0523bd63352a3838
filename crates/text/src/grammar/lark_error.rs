//! Errors of the compiler about a Lark grammar in the words of Lark: the position, what was found there, and what is
//! allowed.

use super::{
    lark_tokens::common_names,
    message::{expression_reason, shortened},
};

/// Reason if the compiler's message is not one of those below.
const UNKNOWN: &str = "it has a form that is not supported";

/// Messages of the compiler, each with the reason for the client. The first that a message contains applies.
const REASONS: [(&str, &str); 37] = [
    ("lexer error", "expected a part of a grammar; a text or an expression may lack its end"),
    ("error parsing string", "expected a text with escapes as in JSON"),
    ("error parsing ", "expected an integer"),
    ("failed to parse \"%json\"", "expected a JSON value after %json"),
    ("failed to parse %llguidance", "%llguidance has an unknown option, or one of another type"),
    ("failed to parse", "expected a JSON value after the statement"),
    ("no start rule found", "the rule start is missing"),
    ("range start must be a single", "a range of characters has one character on each side"),
    ("range end must be a single", "a range of characters has one character on each side"),
    ("invalid range order", "a range of characters ends before it begins"),
    ("l-flag", "the flag l of an expression is not supported"),
    ("flags not allowed", "the texts of a range have no flags"),
    ("template usage", "templates are not supported"),
    ("params not supported", "templates are not supported"),
    ("priority not supported", "priorities are not supported; leave out the number after the name"),
    ("override statement", "%override is not supported"),
    ("declare statement", "%declare is not supported"),
    ("ranges not supported with operators", "a repetition has either an operator or a range"),
    ("range start must be >= 0", "a repetition has a negative minimum"),
    ("range end must be >= ", "a repetition has a maximum below its minimum"),
    ("End number in range", "the maximum of a repetition is 0"),
    ("is only supported for tokens", "& is allowed only in terminals; write the name in capital letters"),
    ("only supported on TERMINALS", "temperature and max_tokens are allowed only for rules of one terminal"),
    ("stop/suffix conditions", "a rule has at most one of stop and suffix"),
    ("stop= and suffix=", "a rule has at most one of stop and suffix"),
    ("Cannot have multiple stop_capture", "a rule has at most one stop_capture"),
    ("stop_capture_name requires", "stop_capture needs stop or suffix"),
    (" parametric", "a rule with a parameter is used without one, or a rule without one is used with it"),
    ("special tokens (like", "a terminal cannot have a special token; use it in a rule"),
    ("%json literals cannot", "a terminal cannot have %json; use it in a rule"),
    ("nested %lark", "a terminal cannot have %lark; use it in a rule"),
    ("grammar references (like", "a terminal cannot have a reference to a grammar"),
    ("grammar references no longer", "a grammar cannot be referred to by its number"),
    ("unknown grammar", "a reference to a grammar of another name is not supported"),
    ("Expected '{' after %lark", "expected a grammar in braces after %lark"),
    ("Unmatched %lark", "the braces of %lark are not closed"),
    ("oken range", "a range of tokens needs two identifiers of the vocabulary, the lower one first"),
];

/// Messages of the compiler that end with a name in quotes, each with the reason, in which `{}` stands for the name.
const OF_NAMES: [(&str, &str); 8] = [
    ("circular reference in token ", "the terminal {} refers to itself"),
    ("unknown name: ", "the name {} is not defined"),
    ("rule ", "the rule {} is not defined"),
    ("duplicate rule: ", "the name {} is defined twice"),
    ("duplicate token: ", "the name {} is defined twice"),
    ("duplicate token (in import): ", "the name {} is defined twice"),
    ("unknown special token: ", "the vocabulary has no special token {}"),
    ("Unknown attribute: ", "rules have no attribute {}"),
];

/// Messages of the compiler that do not name what they expected, and its name.
const EXPECTED: [(&str, &str); 4] = [
    ("Expected value", "a text, an expression or a name"),
    ("expecting rule, token or statement", "a rule, a terminal or a statement"),
    ("Expected name", "a name"),
    ("Expected at least one name", "a name"),
];

/// Kinds of tokens in the compiler's messages, and their names.
const TOKENS: [(&str, &str); 11] = [
    ("'rule_name'", "the name of a rule"),
    ("'TOKEN_NAME'", "the name of a terminal"),
    ("\"string...\"", "a text"),
    ("/regexp.../", "an expression"),
    ("'+' or '*' or '?'", "an operator"),
    ("a 0x-hex-number", "a hexadecimal number"),
    ("'\\n'", "the end of a line"),
    ("<special_token>", "a special token"),
    ("@grammar_name", "a reference to a grammar"),
    ("end of input", "the end of the grammar"),
    ("EOF", "the end of the grammar"),
];

/// Returns the reason for a message of the compiler about the Lark grammar `source`.
pub(super) fn lark_reason(source: &str, message: &str) -> String {
    let positioned = PositionedMessage::read(message);
    let reason = positioned.reason();
    match positioned.position {
        Some((line, column)) if is_of_client(source, line) => {
            format!("line {line}, column {column}: {reason}")
        }
        _ => reason,
    }
}

/// Returns true if the lines before this one are those that the client has written. Schemas and grammars within the
/// grammar may have been rewritten, which moves the lines after them.
fn is_of_client(source: &str, line: usize) -> bool {
    line > 0 && !source.lines().take(line - 1).any(|text| text.contains("%json") || text.contains("%lark"))
}

/// A message of the compiler, divided.
struct PositionedMessage<'a> {
    /// Line and column, from 1.
    position: Option<(usize, usize)>,
    message: &'a str,
    /// Kind of the token at the position.
    found: Option<&'a str>,
}

impl<'a> PositionedMessage<'a> {
    /// Divides `1(8): MESSAGE (at VALUE (KIND))`, `at 1(8): MESSAGE` or `at EOF: MESSAGE`. Messages of nested grammars have
    /// several positions, of which the last is the most exact.
    fn read(message: &'a str) -> Self {
        let mut positioned = Self { position: None, message, found: None };
        loop {
            if let Some(rest) = positioned.message.strip_prefix("at EOF: ") {
                positioned = Self { position: None, message: rest, found: Some("end of input") };
                continue;
            }
            let rest = positioned.message.strip_prefix("at ");
            let Some((position, after)) = position(rest.unwrap_or(positioned.message)) else { break };
            positioned.position = Some(position);
            positioned.message = after;
            // Only messages without "at" end with the token.
            if rest.is_none()
                && let Some((before, token)) = after.split_once(" (at ")
            {
                let kind = token.rsplit_once(" (").map(|(_, kind)| kind.trim_end_matches(')'));
                (positioned.message, positioned.found) = (before, kind);
            }
        }
        positioned
    }

    fn reason(&self) -> String {
        if let Some(rest) = self.message.strip_prefix("invalid regex \"") {
            return wrong_expression(rest);
        }
        if let Some(reason) = self.expected() {
            return reason;
        }
        if let Some(rest) = self.message.strip_prefix("Unknown common regex: ") {
            let name = rest.split(';').next().unwrap_or(rest);
            return format!("%import: expected one of {}, found {name}", common_names());
        }
        if let Some(reason) = OF_NAMES.iter().find_map(|(begin, reason)| of_name(self.message, begin, reason))
        {
            return reason;
        }
        let known = REASONS.iter().find(|(part, _)| self.message.contains(part));
        known.map_or(UNKNOWN, |(_, reason)| reason).to_owned()
    }

    /// Returns the reason for a message about a token that was expected.
    fn expected(&self) -> Option<String> {
        let named = self.message.strip_prefix("Expected token ").and_then(|rest| rest.split_once(", found "));
        let (expected, found) = if let Some((expected, found)) = named {
            (token_name(expected), Some(found))
        } else {
            let known = EXPECTED.iter().find(|(begin, _)| self.message.starts_with(begin));
            (known?.1, self.found)
        };
        let found = found.map_or_else(String::new, |kind| format!(", found {}", token_name(kind)));
        Some(format!("expected {expected}{found}"))
    }
}

/// Returns the reason if a message has this beginning, then a name, and then nothing or one of a few ends.
fn of_name(message: &str, begin: &str, reason: &str) -> Option<String> {
    let rest = message.strip_prefix(begin)?;
    let end = rest.find([' ', ';']).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    let is_whole =
        after.is_empty() || after.starts_with(';') || [" not found", " definition"].contains(&after);
    is_whole.then(|| reason.replace("{}", &shortened(name.trim_matches('"'))))
}

/// Returns the reason for an expression that cannot be parsed. `rest` is `EXPRESSION" (in KIND): MESSAGE`.
fn wrong_expression(rest: &str) -> String {
    let (expression, message) = rest.split_once("\" (in ").unwrap_or((rest, ""));
    // The reason is the end of the message, which may have been cut.
    let reason = if message.ends_with('…') { "it cannot be parsed" } else { expression_reason(message) };
    format!("the expression \"{}\": {reason}", shortened(expression))
}

/// Returns the name of a kind of tokens, or the symbol itself in quotes.
fn token_name(kind: &str) -> &str {
    TOKENS.iter().find(|(of_compiler, _)| *of_compiler == kind).map_or(kind, |(_, name)| name)
}

/// Divides `1(8): REST`.
fn position(message: &str) -> Option<((usize, usize), &str)> {
    let (line, rest) = message.split_once('(')?;
    let (column, rest) = rest.split_once("): ")?;
    Some(((line.parse().ok()?, column.parse().ok()?), rest))
}
