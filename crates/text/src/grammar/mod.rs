//! Grammars of generated text: the tokens that keep an answer inside a JSON schema, a Lark grammar or a regular
//! expression.
//!
//! [`GrammarCompiler`] belongs to a tokenizer, [`GrammarMatcher`] to one answer. Both use the `llguidance` crate;
//! `vocabulary` describes the tokenizer to it. Grammars come from outside: the size of a grammar, the work of compiling
//! it and the work of each step are bounded.

mod best_effort;
mod digits;
mod forced_text;
mod formats;
mod keyword_values;
mod lark_error;
mod lark_tokens;
mod limits;
mod message;
mod numbers;
mod pattern;
mod references;
mod refusal;
mod schema;
mod schema_size;
mod vocabulary;

use std::sync::Arc;

use llguidance::{
    JsonCompileOptions, Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    earley::SlicedBiasComputer,
    regex_to_lark,
    toktrie::{InferenceCapabilities, TokEnv},
};
use narthex_spec::TokenId;
use serde_json::{Map, Value, json};

use crate::{
    catch_panic::contain,
    compile_thread::{self, NoResult, ThreadStartError},
    tokenizer::Tokenizer,
};

pub use best_effort::best_effort;
use digits::{DigitLimit, DigitTokens};
pub(crate) use formats::format_pattern;
use limits::{
    MAX_BYTES, MAX_DEPTH, check_size, check_text, max_grammar_bytes, prepared_lark, too_many_combinations,
};
use message::cleaned;
pub(crate) use pattern::{text_expression, text_pattern};
use refusal::refusal;

/// Maximum number of items of the parser at one position. Each optional property of an object has up to four.
const MAX_ITEMS: usize = 16_384;

/// Bytes of stack for compiling a grammar, which recurses along its rules. Only pages that are used take memory.
const COMPILE_STACK: usize = 256 << 20;

/// Maximum number of states of a grammar's lexer; a state takes 1 to 3 KiB. Answers that need more begin again with the
/// states of their tokens.
const MAX_LEXER_STATES: usize = 10_000;

/// Statement of a Lark grammar for a compiler that does not look for the text that must come next.
const WITHOUT_FORCING: &str = "%llguidance {\"no_forcing\": true}\n";

/// A grammar that was refused, or whose matching failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The source is too large.
    #[error("the grammar has {found} bytes, but at most {MAX_BYTES} are allowed")]
    TooLarge {
        /// Size of its source.
        found: usize,
    },
    /// The source nests too deep.
    #[error("the grammar nests {found} brackets, but at most {MAX_DEPTH} are allowed")]
    TooDeep {
        /// Depth of its brackets.
        found: usize,
    },
    /// The schema has keywords that cannot be enforced.
    #[error("the schema has keywords that cannot be enforced: {keywords}; remove them")]
    UnsupportedKeywords {
        /// Names of the keywords.
        keywords: String,
    },
    /// A value of a keyword, or a regular expression, cannot be enforced.
    #[error("{what} cannot be enforced: {reason}")]
    UnsupportedValue {
        /// The keyword and its value, or the expression.
        what: String,
        /// Reason.
        reason: String,
    },
    /// The source is malformed, too complex or not satisfiable.
    #[error("the grammar is not usable: {reason}")]
    Unusable {
        /// Reason.
        reason: String,
    },
    /// The compiler cannot run.
    #[error(transparent)]
    Thread(#[from] ThreadStartError),
    /// The grammar was no longer needed before it was compiled.
    #[error("the grammar was not compiled in time; use fewer and simpler parts")]
    Unneeded,
    /// The vocabulary cannot be used.
    #[error("this model's tokenizer cannot follow a grammar: {reason}")]
    Vocabulary {
        /// Error message of the compiler.
        reason: String,
    },
}

impl GrammarError {
    fn unsupported(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::UnsupportedValue { what: what.into(), reason: reason.into() }
    }

    fn unusable(reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into() }
    }
}

/// A set of texts.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// JSON texts that are valid under a JSON schema.
    JsonSchema(Value),
    /// Texts of a grammar in llguidance's variant of Lark.
    Lark(String),
    /// Texts that match a regular expression as a whole.
    Regex(String),
}

impl Grammar {
    /// Returns the grammar of every JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({"type": "object"}))
    }

    /// Returns the right side of a Lark rule for the texts of the grammar.
    ///
    /// # Errors
    /// The source is too large, or a schema that is not an object.
    pub fn rule(&self) -> Result<String, GrammarError> {
        match self {
            Self::JsonSchema(schema) => json_rule(schema),
            Self::Lark(source) => Ok(format!("%lark {{\n{}\n}}", prepared_lark(source)?)),
            Self::Regex(source) => {
                check_text(source)?;
                Ok(format!("/{}/", regex_to_lark(source, "")))
            }
        }
    }

    /// Checks the size of the source and returns it in the compiler's form.
    fn source(&self) -> Result<TopLevelGrammar, GrammarError> {
        match self {
            Self::JsonSchema(schema) => {
                let schema = prepared_schema(schema)?;
                if forced_text::in_schema(&schema) {
                    let source = format!("start: %json {schema}\n{WITHOUT_FORCING}");
                    return Ok(TopLevelGrammar::from_lark(source));
                }
                Ok(TopLevelGrammar::from_json_schema(schema))
            }

            Self::Lark(source) => {
                let mut source = prepared_lark(source)?.into_owned();
                if forced_text::in_lark(&source) {
                    source.push('\n');
                    source.push_str(WITHOUT_FORCING);
                }
                Ok(TopLevelGrammar::from_lark(source))
            }
            Self::Regex(source) => {
                check_text(source)?;
                if forced_text::in_regex(source) {
                    let source = format!("start: /{}/\n{WITHOUT_FORCING}", regex_to_lark(source, ""));
                    return Ok(TopLevelGrammar::from_lark(source));
                }
                Ok(TopLevelGrammar::from_regex(source))
            }
        }
    }
}

/// Returns the right side of a Lark rule for the JSON texts that are valid under a schema.
///
/// # Errors
/// The schema is too large or not an object.
pub fn json_rule(schema: &Value) -> Result<String, GrammarError> {
    let rule = format!("%json {}", prepared_schema(schema)?);
    check_size(rule.len())?;
    Ok(rule)
}

/// Returns the schema as it is compiled: without keywords that restrict nothing, without properties beyond those that
/// an object names, and with the spacing of the JSON that models write: one space after `:` and `,`, and no other white
/// space. Small models would otherwise fill their answer with properties and white space, and fixed punctuation is
/// forced without the model.
fn prepared_schema(schema: &Value) -> Result<Value, GrammarError> {
    let length = schema.to_string().len();
    check_size(length)?;
    let mut fields = match schema {
        Value::Bool(true) => Map::new(),
        Value::Object(fields) => fields.clone(),
        other => {
            let reason = format!("expected a schema that is an object, found {}", kind(other));
            return Err(GrammarError::unusable(reason));
        }
    };
    let spacing = JsonCompileOptions {
        item_separator: ", ".to_owned(),
        key_separator: ": ".to_owned(),
        whitespace_flexible: false,
        ..JsonCompileOptions::default()
    };

    references::resolve(&mut fields)?;
    schema::remove_annotations(&mut fields);
    keyword_values::check(&mut fields)?;
    schema::replace_decimal_patterns(&mut fields);
    formats::replace_times(&mut fields);
    numbers::make_exact(&mut fields)?;
    schema::close_objects(&mut fields);
    let max = max_grammar_bytes(length);
    schema_size::remaining(&fields, max).ok_or_else(|| too_many_combinations(max))?;
    let mut schema = Value::Object(fields);
    spacing.apply_to(&mut schema);
    Ok(schema)
}

/// Replaces what the compiler does not follow, does not enforce exactly, or not within limits.
fn make_safe(schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
    references::resolve(schema)?;
    keyword_values::check(schema)?;
    formats::replace_times(schema);
    numbers::make_exact(schema)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Compiles grammars for one tokenizer. Creating it takes tens to hundreds of milliseconds.
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    digits: Arc<DigitTokens>,
}

impl GrammarCompiler {
    /// Reads the vocabulary. `stop` are the tokens that end an answer.
    ///
    /// # Errors
    /// The vocabulary cannot be used.
    pub fn new(tokenizer: &Tokenizer, stop: &[TokenId]) -> Result<Self, GrammarError> {
        let factory = contain(|| {
            let environment: TokEnv = Arc::new(vocabulary::Vocabulary::new(tokenizer, stop));
            let capabilities = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
            ParserFactory::new(&environment, capabilities, &SlicedBiasComputer::general_slices())
        });
        let factory = factory.map_err(|_| GrammarError::Vocabulary {
            reason: "its tokens are too long or too many".to_owned(),
        })?;
        let mut factory = factory.map_err(|error| GrammarError::Vocabulary { reason: error.to_string() })?;
        factory.quiet();

        *factory.limits_mut() = ParserLimits {
            max_lexer_states: MAX_LEXER_STATES,
            max_items_in_row: MAX_ITEMS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory: Arc::new(factory), digits: Arc::new(DigitTokens::new(tokenizer)) })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// The grammar is too large, malformed or not supported, or no token of the vocabulary can begin a text of it.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarMatcher, GrammarError> {
        self.compile_while(grammar, &CompileScope { is_needed: &|| true, permit: None })
    }

    /// Compiles a grammar as [`Self::compile`], as long as it is needed.
    ///
    /// # Errors
    /// As [`Self::compile`], and [`GrammarError::Unneeded`].
    pub fn compile_while(
        &self,
        grammar: &Grammar,
        scope: &CompileScope<'_>,
    ) -> Result<GrammarMatcher, GrammarError> {
        let source = grammar.source()?;
        let is_json = matches!(grammar, Grammar::JsonSchema(_));
        let has_json = is_json || matches!(grammar, Grammar::Lark(source) if source.contains("%json"));
        let digits = has_json.then(|| DigitLimit::new(self.digits.clone(), is_json));
        let origin = Arc::new(MatcherOrigin { factory: self.factory.clone(), source });
        let permit = scope.permit.clone();

        let compiled = compile_thread::run_while(COMPILE_STACK, scope.is_needed, move || {
            let mut matcher = GrammarMatcher {
                matcher: origin.matcher(),
                origin,
                taken: Vec::new(),
                digits,
                allowed: Vec::new(),
                failure: None,
            };
            matcher.prepare();
            drop(permit);
            matcher
        });
        match compiled {
            Ok(matcher) => match matcher.failure() {
                Some(message) => Err(refusal(grammar, message)),
                None => Ok(matcher),
            },
            Err(NoResult::Start(error)) => Err(error.into()),
            Err(NoResult::Panic) => Err(GrammarError::unusable("the compiler cannot represent it")),
            Err(NoResult::Unneeded) => Err(GrammarError::Unneeded),
        }
    }
}

/// Bounds of a compilation.
pub struct CompileScope<'a> {
    /// Returns false once nothing waits for the result.
    pub is_needed: &'a dyn Fn() -> bool,
    /// Value that is dropped when the compiler has ended, which may be after the call.
    pub permit: Option<Arc<dyn Send + Sync>>,
}

/// Source from which a matcher was compiled.
struct MatcherOrigin {
    factory: Arc<ParserFactory>,
    source: TopLevelGrammar,
}

impl MatcherOrigin {
    fn matcher(&self) -> Matcher {
        Matcher::new(self.factory.create_parser(self.source.clone()))
    }
}

/// State of one answer in its grammar.
#[derive(Clone)]
pub struct GrammarMatcher {
    matcher: Matcher,
    origin: Arc<MatcherOrigin>,
    /// Tokens of the answer.
    taken: Vec<TokenId>,
    /// Limit of the digits of numbers, if the text has JSON.
    digits: Option<DigitLimit>,
    /// Bit set of the tokens that may come next.
    allowed: Vec<u32>,
    failure: Option<String>,
}

impl GrammarMatcher {
    /// Computes the tokens that may come next.
    pub fn prepare(&mut self) {
        let mut mask = self.matcher.compute_mask_or_eos();
        if mask.as_ref().is_err_and(|error| is_out_of_states(&error.to_string())) && self.begin_again() {
            mask = self.matcher.compute_mask_or_eos();
        }
        match mask {
            Ok(mask) => {
                self.allowed.clear();
                self.allowed.extend_from_slice(&mask.as_slice()[..mask.len().div_ceil(32)]);
                // The last word may have bits for tokens beyond the vocabulary; clear them.
                if let Some(last) = self.allowed.last_mut()
                    && !mask.len().is_multiple_of(32)
                {
                    *last &= (1 << (mask.len() % 32)) - 1;
                }
                if let Some(digits) = &self.digits {
                    digits.apply(&mut self.allowed);
                }
                if self.allowed.iter().all(|&word| word == 0) {
                    self.failure = Some("no token is allowed next".to_owned());
                }
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Returns the tokens that may come next, as of the last call of [`Self::prepare`]: token `t` is bit `t % 32` of
    /// word `t / 32`. The stop tokens are included if the text may end.
    pub fn allowed(&self) -> &[u32] {
        &self.allowed
    }

    /// Takes the next token.
    pub fn accept(&mut self, token: TokenId) {
        if let Some(digits) = &mut self.digits {
            digits.accept(token);
        }
        self.taken.push(token);
        if let Err(error) = self.matcher.consume_token(token)
            && !(is_out_of_states(&error.to_string()) && self.begin_again())
        {
            self.fail(&error.to_string());
        }
    }

    /// Compiles the grammar again and takes the tokens of the answer, which need far fewer states than the masks between
    /// them. Returns false if this fails.
    fn begin_again(&mut self) -> bool {
        let Ok(Some(mut matcher)) = compile_thread::run(COMPILE_STACK, || self.origin.matcher()) else {
            return false;
        };
        let is_taken = matcher.consume_tokens(&self.taken).is_ok();
        if is_taken {
            self.matcher = matcher;
        }
        is_taken
    }

    /// Appends the tokens that must come next.
    pub fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        if !self.matcher.is_stopped() {
            tokens.extend(self.matcher.compute_ff_tokens());
        }
    }

    /// Returns true if no token can follow.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Returns the reason why matching failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn fail(&mut self, reason: &str) {
        self.failure = Some(cleaned(reason));
    }
}

/// Returns true for the compiler's error about [`MAX_LEXER_STATES`].
fn is_out_of_states(message: &str) -> bool {
    message.contains("too many states")
}
