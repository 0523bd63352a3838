//! Constraints of an answer: the engine's port over a grammar, the bounds of reasoning and a minimum length.
//!
//! Reasoning is unconstrained; the grammar applies to the text after it. Reasoning that has reached its budget is ended
//! by forced tokens. During reasoning, the tokens that end an answer are forbidden if a grammar must follow.

use narthex_engine::constraint::{AllowedTokens, Constraint, Progress};
use narthex_spec::TokenId;
use narthex_text::{
    detokenize::Detokenizer,
    grammar::GrammarMatcher,
    tokenizer::{Specials, Tokenizer},
    tools::{ReasoningEvent, ReasoningParser},
};

use super::tools::special_tokens;

/// Reasoning of an answer, followed by its tokens.
#[derive(Clone)]
pub(super) struct ReasoningTrack {
    detokenizer: Detokenizer,
    tokenizer: Tokenizer,
    parser: ReasoningParser,
    /// Token that begins a block, if it is one token.
    open: Option<TokenId>,
    /// Tokens that end a block.
    end: Vec<TokenId>,
    /// Number of tokens of `end` that were taken.
    ended: usize,
    /// Maximum number of tokens.
    budget: Option<usize>,
    /// Number of tokens in the block.
    tokens: usize,
    /// Tokens of the markers, if the reasoning is a message.
    markers: Vec<(TokenId, &'static str)>,
}

impl ReasoningTrack {
    /// Creates a track for an answer whose text `parser` divides.
    pub(super) fn new(tokenizer: &Tokenizer, parser: ReasoningParser, budget: Option<usize>) -> Self {
        let (open, close) = parser.markers();
        let ending = if parser.has_messages() { close.to_owned() } else { format!("\n{close}\n\n") };
        let end = tokenizer.encode(&ending, Specials::Parse).unwrap_or_default();
        let all = parser.all_markers();
        Self {
            detokenizer: Detokenizer::new(tokenizer.clone()).showing(&all),
            open: tokenizer.token_id(open),
            tokenizer: tokenizer.clone(),
            parser,
            end,
            ended: 0,
            budget,
            tokens: 0,
            markers: special_tokens(tokenizer, &all),
        }
    }

    /// Returns true inside the block, and where the text after it may begin with the marker of a frame.
    fn is_inside(&self) -> bool {
        self.parser.is_inside() || self.parser.is_in_frame_marker()
    }

    /// Returns the tokens that end the block, once the budget is used up.
    fn ending(&self) -> &[TokenId] {
        let is_used_up = self.budget.is_some_and(|budget| self.tokens >= budget);
        if is_used_up && self.parser.is_inside() || self.ended > 0 { &self.end[self.ended..] } else { &[] }
    }

    /// Takes a token. If it ends the block, returns the tokens of the text after the block.
    fn accept(&mut self, token: TokenId) -> Option<Vec<TokenId>> {
        let is_forced = self.ending().first() == Some(&token);
        self.tokens += 1;
        self.ended += usize::from(is_forced);
        let text = self.detokenizer.push(token).unwrap_or_default();
        let marker = self.markers.iter().find(|(marker, _)| *marker == token).map(|(_, marker)| *marker);
        let events = self.parser.push_tokens(&text, marker);
        if is_forced {
            return (self.ended == self.end.len()).then(Vec::new);
        }
        let behind: String = events
            .into_iter()
            .filter_map(|event| match event {
                ReasoningEvent::Text(text) => Some(text),
                ReasoningEvent::Reasoning(_) => None,
            })
            .collect();
        self.parser.is_in_text().then(|| self.tokenizer.encode(&behind, Specials::AsText).unwrap_or_default())
    }
}

pub(super) struct AnswerConstraint {
    grammar: Option<GrammarMatcher>,
    /// Reasoning that may go on; `None` once text has begun.
    reasoning: Option<ReasoningTrack>,
    /// The grammar has that of the reasoning, which is a message.
    covers_reasoning: bool,
    /// Tokens that end an answer.
    stop: Vec<TokenId>,
    /// Number of tokens before the answer may end.
    min_tokens: usize,
    /// Number of tokens of the vocabulary.
    vocab: usize,
    /// Bits of the tokens that may come next, if not all may.
    allowed: Option<Vec<u32>>,
}

#[derive(Clone, Default)]
pub(super) struct ConstraintParts {
    /// Grammar at its beginning.
    pub(super) grammar: Option<GrammarMatcher>,
    /// Reasoning at its beginning.
    pub(super) reasoning: Option<ReasoningTrack>,
    /// Number of tokens before the answer may end.
    pub(super) min_tokens: usize,
}

impl AnswerConstraint {
    /// Creates the constraint of one answer, or `None` if nothing restricts it. `stop` are the tokens that end an
    /// answer.
    pub(super) fn new(parts: ConstraintParts, stop: &[TokenId], vocab: usize) -> Option<Self> {
        let ConstraintParts { grammar, reasoning, min_tokens } = parts;
        let is_bounded = reasoning.as_ref().is_some_and(|track| track.budget.is_some());
        let restricts = grammar.is_some() || is_bounded || min_tokens > 0;
        restricts.then(|| Self {
            covers_reasoning: grammar.is_some()
                && reasoning.as_ref().is_some_and(|track| track.parser.has_messages()),
            grammar,
            reasoning,
            stop: stop.to_vec(),
            min_tokens,
            vocab,
            allowed: None,
        })
    }

    /// Returns whether the answer is inside a block of reasoning, to which the grammar does not apply.
    fn is_reasoning(&self) -> bool {
        !self.covers_reasoning && self.reasoning.as_ref().is_some_and(ReasoningTrack::is_inside)
    }

    /// Forbids the tokens that end an answer, unless no other token is allowed.
    fn forbid_stop(&mut self) {
        let mut words = self.allowed.take().unwrap_or_else(|| vec![u32::MAX; self.vocab.div_ceil(32)]);
        let mut cleared = Vec::new();
        for &token in &self.stop {
            let word = token as usize / 32;
            let bit = 1 << (token % 32);
            if let Some(word) = words.get_mut(word).filter(|word| **word & bit != 0) {
                *word &= !bit;
                cleared.push(token);
            }
        }
        if words.iter().all(|&word| word == 0) {
            cleared.iter().for_each(|&token| words[token as usize / 32] |= 1 << (token % 32));
        }
        self.allowed = Some(words);
    }
}

impl Constraint for AnswerConstraint {
    fn prepare(&mut self) {
        self.allowed = None;
        let is_reasoning = self.is_reasoning();
        if let Some(grammar) = self.grammar.as_mut().filter(|_| !is_reasoning) {
            grammar.prepare();
            let reasoning = self.reasoning.as_ref().filter(|_| !self.covers_reasoning);
            if reasoning.is_some() || self.min_tokens > 0 {
                let mut words = grammar.allowed().to_vec();
                // Before its text, an answer may begin with reasoning.
                if let Some(open) = reasoning.and_then(|track| track.open)
                    && let Some(word) = words.get_mut(open as usize / 32)
                {
                    *word |= 1 << (open % 32);
                }
                self.allowed = Some(words);
            }
        }
        if self.min_tokens > 0 || is_reasoning && self.grammar.is_some() {
            self.forbid_stop();
        }
    }

    fn allowed(&self) -> AllowedTokens<'_> {
        let is_reasoning = self.is_reasoning();
        let grammar = self.grammar.as_ref().filter(|_| !is_reasoning);
        match (grammar.and_then(GrammarMatcher::failure), &self.allowed) {
            (Some(reason), _) => AllowedTokens::Failed(reason),
            (None, Some(words)) => AllowedTokens::Only(words),
            (None, None) => {
                grammar.map_or(AllowedTokens::All, |grammar| AllowedTokens::Only(grammar.allowed()))
            }
        }
    }

    fn accept(&mut self, token: TokenId) -> Progress {
        self.min_tokens = self.min_tokens.saturating_sub(1);
        let mut behind = vec![token];
        if self.covers_reasoning {
            if self.reasoning.as_mut().is_some_and(|track| track.accept(token).is_some() && track.ended == 0)
            {
                self.reasoning = None;
            }
        } else if let Some(track) = &mut self.reasoning {
            // With a grammar, reasoning begins only with the marker's token; any other token is text.
            let begins_text =
                self.grammar.is_some() && !track.is_inside() && track.ended == 0 && track.open != Some(token);
            if !begins_text {
                match track.accept(token) {
                    None => return Progress::Open,
                    Some(tokens) => behind = tokens,
                }
            }
            self.reasoning = None;
        }
        let Some(grammar) = &mut self.grammar else { return Progress::Open };
        behind.into_iter().for_each(|token| grammar.accept(token));
        if grammar.is_complete() { Progress::Complete } else { Progress::Open }
    }

    fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        let ending = self.reasoning.as_ref().map_or(&[][..], ReasoningTrack::ending);
        if !ending.is_empty() {
            tokens.extend_from_slice(ending);
        } else if (self.covers_reasoning || self.reasoning.is_none())
            && let Some(grammar) = &mut self.grammar
        {
            grammar.forced(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::ReasoningFormat;
    use narthex_text::{
        grammar::{Grammar, GrammarCompiler},
        tokenizer::GgufVocab,
    };

    use super::*;

    const OPEN: TokenId = 96;
    const CLOSE: TokenId = 97;
    const END: TokenId = 98;
    const VOCAB: usize = 99;

    /// Returns a tokenizer of single printable characters, a line break, `><`, and the markers of reasoning.
    fn tokenizer() -> Tokenizer {
        let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
        tokens.extend(["Ċ", "><", "<think>", "</think>", "<|end|>"].map(str::to_owned));
        let types = (0..tokens.len()).map(|id| if id < OPEN as usize { 1 } else { 3 }).collect();
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    /// Returns the constraint of an answer after this prompt, whose grammar allows only `yes`.
    fn constraint(prompt: &str, budget: Option<usize>, min_tokens: usize) -> AnswerConstraint {
        constraint_of(ReasoningFormat::Think, prompt, budget, min_tokens)
    }

    fn constraint_of(
        format: ReasoningFormat,
        prompt: &str,
        budget: Option<usize>,
        min_tokens: usize,
    ) -> AnswerConstraint {
        let tokenizer = tokenizer();
        let grammar = GrammarCompiler::new(&tokenizer, &[END]).unwrap();
        let grammar = grammar.compile(&Grammar::Regex("yes|no{1,9}".to_owned())).unwrap();
        let parser = ReasoningParser::new(format, prompt);
        let reasoning = Some(ReasoningTrack::new(&tokenizer, parser, budget));
        let parts = ConstraintParts { grammar: Some(grammar), reasoning, min_tokens };
        AnswerConstraint::new(parts, &[END], VOCAB).unwrap()
    }

    fn token(char: char) -> TokenId {
        tokenizer().token_id(&char.to_string()).unwrap()
    }

    /// Returns the tokens that are allowed next; `None` for all.
    fn allowed(constraint: &mut AnswerConstraint) -> Option<Vec<TokenId>> {
        constraint.prepare();
        match constraint.allowed() {
            AllowedTokens::All => None,
            AllowedTokens::Failed(reason) => panic!("{reason}"),
            AllowedTokens::Only(words) => {
                let is_set = |token: &TokenId| words[*token as usize / 32] >> (token % 32) & 1 == 1;
                Some((0..=END).filter(is_set).collect())
            }
        }
    }

    fn forced(constraint: &mut AnswerConstraint) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        constraint.forced(&mut tokens);
        tokens
    }

    #[test]
    fn the_grammar_begins_behind_the_reasoning() {
        let mut answer = constraint("", None, 0);
        assert_eq!(allowed(&mut answer), Some(vec![token('n'), token('y'), OPEN]));
        answer.accept(OPEN);
        // All tokens but the end token are allowed, because the grammar must follow.
        assert_eq!(allowed(&mut answer), Some((0..END).collect()));
        assert!(forced(&mut answer).is_empty());
        answer.accept(token('x'));
        answer.accept(CLOSE);
        assert_eq!(allowed(&mut answer), Some(vec![token('n'), token('y')]));
        for (char, progress) in [('y', Progress::Open), ('e', Progress::Open), ('s', Progress::Complete)] {
            assert_eq!(answer.accept(token(char)), progress);
        }
        // An answer without reasoning follows the grammar at once.
        let mut answer = constraint("", None, 0);
        answer.accept(token('y'));
        assert_eq!(allowed(&mut answer), Some(vec![token('e')]));
    }

    #[test]
    fn the_grammar_needs_no_frame() {
        let begin = Some(vec![token('n'), token('y')]);
        let mut answer = constraint_of(ReasoningFormat::ThinkResponse, "<think>", None, 0);
        answer.accept(CLOSE);
        assert_eq!(allowed(&mut answer), begin);
        answer.accept(token('y'));
        assert_eq!(allowed(&mut answer), Some(vec![token('e')]));
        // The token that ends the block begins a frame.
        let mut answer = constraint_of(ReasoningFormat::ThinkResponse, "<think>", None, 0);
        "</think".chars().for_each(|char| _ = answer.accept(token(char)));
        answer.accept(tokenizer().token_id("><").unwrap());
        for char in "response>".chars() {
            assert_eq!(allowed(&mut answer), Some((0..END).collect()), "{char}");
            answer.accept(token(char));
        }
        assert_eq!(allowed(&mut answer), begin);
    }

    #[test]
    fn a_budget_ends_the_reasoning_by_forced_tokens() {
        let line = tokenizer().token_id("Ċ").unwrap();
        let end = vec![line, CLOSE, line, line];
        let mut answer = constraint("<think>\n", Some(2), 0);
        answer.accept(token('a'));
        assert!(forced(&mut answer).is_empty());
        answer.accept(token('b'));
        assert_eq!(forced(&mut answer), end);
        for (index, token) in end.iter().enumerate() {
            assert_eq!(forced(&mut answer), end[index..]);
            answer.accept(*token);
        }
        assert_eq!(allowed(&mut answer), Some(vec![token('n'), token('y')]));
        assert_eq!(forced(&mut constraint("<think>\n", Some(0), 0)), end);
        assert!(forced(&mut constraint("", Some(0), 0)).is_empty());
    }

    #[test]
    fn an_answer_ends_after_its_minimum() {
        let mut answer = constraint("<think></think>", None, 4);
        for char in ['n', 'o', 'o'] {
            answer.accept(token(char));
            assert_eq!(allowed(&mut answer), Some(vec![token('o')]), "{char}");
        }
        answer.accept(token('o'));
        assert_eq!(allowed(&mut answer), Some(vec![token('o'), END]));
        assert!(AnswerConstraint::new(ConstraintParts::default(), &[END], VOCAB).is_none());
        let parts = ConstraintParts { min_tokens: 1, ..ConstraintParts::default() };
        let mut free = AnswerConstraint::new(parts, &[END], VOCAB).unwrap();
        assert_eq!(allowed(&mut free), Some((0..END).collect()));
        free.accept(0);
        assert_eq!(allowed(&mut free), None);
    }
}
