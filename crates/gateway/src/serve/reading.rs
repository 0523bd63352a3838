//! Question-answering models behind chat: the last message of the user is the question, and the answer is the best span of
//! the earlier messages, the instructions and the documents of the request.
//!
//! Each text is read in windows of its own, so that no answer is in two texts.

use std::{
    mem,
    time::{Duration, Instant},
};

use narthex_text::{
    template::{Part, Role},
    tokenizer::Specials,
};

use crate::{
    cancel::Cancel,
    error::Error,
    load::residency::ReadyModel,
    report::models::ModelKind,
    serve::{
        answer,
        generation::Generation,
        options::{self, Length},
        request::{
            AnswerRequest, ChatRequest, FinishReason, GenerationEvent, GenerationSink, MAX_ANSWER_TEXT,
            Message, ReadSource, ReadSpan, Reading, ReadingSettings, StopTokens, Summary, Times, ToolChoice,
        },
    },
};

/// Answer to a question that no text answers.
const NO_ANSWER: &str = "The text does not answer this question.";

/// A text that is read.
#[derive(Debug, PartialEq, Eq)]
struct SourceText {
    source: ReadSource,
    text: String,
}

impl ReadyModel {
    /// Returns true if the model answers conversations with parts of their texts.
    pub fn reads_texts(&self) -> bool {
        self.loaded.kind() == ModelKind::Answer
    }

    /// Answers the last question of a conversation. Sends all events before it returns.
    pub(super) fn read_conversation(
        &self,
        request: ChatRequest,
        mut sink: Box<dyn GenerationSink>,
    ) -> Result<Generation, Error> {
        let started = Instant::now();
        let cancel = sink.cancel();
        check(&request)?;
        let limits = self.settings_of(&request)?;
        let (question, sources) = self.divide(request)?;
        let found = self.read(&question, &sources, &limits, &cancel).map_err(in_terms_of_chat)?;

        let FoundReading { reading, prompt_tokens } = found;
        let answered = reading.span.as_ref().filter(|_| reading.is_answered);
        let text = answered.map_or(NO_ANSWER, |span| &span.answer.text).to_owned();
        let completion_tokens = self.loaded.tokenizer()?.encode(&text, Specials::AsText)?;
        let total = started.elapsed();
        let times = Times { queued: Duration::ZERO, first_token: total, total };
        let summary = Summary {
            prompt_tokens,
            completion_tokens: completion_tokens.len(),
            times: self.loaded.placement().stand_in().is_none().then_some(times),
            ..Summary::default()
        };
        let events = [
            GenerationEvent::Started { prompt_tokens },
            GenerationEvent::Text { choice: 0, text, tokens: Vec::new() },
            GenerationEvent::Finished { choice: 0, reason: FinishReason::Stop },
            GenerationEvent::Done(summary),
        ];
        // A caller that is gone takes no more events.
        let _ = events.into_iter().try_for_each(|event| sink.event(event));
        Ok(Generation::of_reading(&self.loaded, prompt_tokens, reading))
    }
}

/// Result of reading the texts of a conversation.
struct FoundReading {
    reading: Reading,
    prompt_tokens: usize,
}

/// Bounds of an answer.
struct AnswerLimits {
    /// Maximum number of tokens; `None` for the usual one.
    longest: Option<usize>,
    min_score: f64,
}

impl ReadyModel {
    fn settings_of(&self, request: &ChatRequest) -> Result<AnswerLimits, Error> {
        let min_score = request.reading.min_score.unwrap_or(ReadingSettings::MIN_SCORE);
        if !(0.0..=1.0).contains(&min_score) {
            return Err(Error::invalid("min_answer_score", format!("expected 0 to 1, found {min_score}")));
        }
        Ok(AnswerLimits { longest: request.options.max_tokens, min_score })
    }

    /// Returns the question and the texts that may answer it: instructions and messages before the question, then documents.
    fn divide(&self, request: ChatRequest) -> Result<(String, Vec<SourceText>), Error> {
        let ChatRequest { mut messages, reading, .. } = request;
        let given = messages.len();
        self.settings.answers.add_system(&mut messages);
        // The instructions of the settings stand before the messages of the request.
        let added = messages.len() - given;
        divide(messages, added, reading)
    }

    /// Reads the texts in overlapping windows.
    fn read(
        &self,
        question: &str,
        sources: &[SourceText],
        limits: &AnswerLimits,
        cancel: &Cancel,
    ) -> Result<FoundReading, Error> {
        let model = &*self.loaded;
        let queued = model.encoder(ModelKind::Answer)?.enter(cancel, &self.computed)?;
        let mut found = FoundReading {
            reading: Reading { span: None, is_answered: false, no_answer: 1.0 },
            prompt_tokens: 0,
        };
        for SourceText { source, text } in sources {
            let mut request = AnswerRequest::new(question, text.as_str());
            request.longest = limits.longest.unwrap_or(request.longest).clamp(1, request.longest);
            let answers = answer::find(model, &queued, &request, cancel)?;
            found.prompt_tokens += answers.prompt_tokens;
            found.reading.no_answer = found.reading.no_answer.min(answers.no_answer);
            if let Some(answer) = answers.answers.into_iter().next()
                && found.reading.span.as_ref().is_none_or(|best| best.answer.score < answer.score)
            {
                found.reading.span = Some(ReadSpan { answer, source: source.clone() });
            }
        }

        let least = limits.min_score.max(found.reading.no_answer);
        found.reading.is_answered =
            found.reading.span.as_ref().is_some_and(|span| span.answer.score >= least);
        Ok(found)
    }
}

/// Fails for settings of a request that only question-answering models have.
pub(super) fn check_absent(reading: &ReadingSettings) -> Result<(), Error> {
    let expected = "only question-answering models have it";
    if !reading.documents.is_empty() {
        let message = format!("{expected}; put the texts into the messages");
        return Err(Error::invalid("documents", message));
    }
    match reading.min_score {
        Some(_) => Err(Error::invalid("min_answer_score", expected)),
        None => Ok(()),
    }
}

/// Refuses parameters that would change an answer that is a part of a text.
fn check(request: &ChatRequest) -> Result<(), Error> {
    let ChatRequest { messages, tools, options, .. } = request;
    options::check(options, Length::Some)?;
    let has_tools = !tools.tools.is_empty() && tools.choice != ToolChoice::None;
    let has_media = messages.iter().any(|message| message.content.has_media());
    let changes = [
        ("tools", has_tools),
        ("messages", has_media),
        ("n", options.n > 1),
        ("logprobs", options.logprobs.is_some()),
        ("stop", !options.stop.is_empty()),
        ("logit_bias", !options.logit_bias.is_empty()),
        ("min_tokens", options.min_tokens > 0),
        ("ignore_eos", options.stop_tokens == StopTokens::Never),
    ];
    let changed = changes.into_iter().find(|(_, is_given)| *is_given).map(|(param, _)| param);
    let grammar = options.grammar.as_ref().map(|grammar| grammar.field);
    match changed.or(grammar) {
        None => Ok(()),
        Some(param) => {
            let what = if param == "messages" { "images and sounds" } else { param };
            let message =
                format!("a question-answering model answers with a part of a text, so it supports no {what}");
            Err(Error::invalid(param, message))
        }
    }
}

/// Divides a conversation whose first `added` messages are not of the request.
fn divide(
    mut messages: Vec<Message>,
    added: usize,
    reading: ReadingSettings,
) -> Result<(String, Vec<SourceText>), Error> {
    let last = messages.iter().rposition(|message| message.role == Role::User);
    let last =
        last.ok_or_else(|| Error::invalid("messages", "expected a question of the user, found none"))?;
    // A text before the question in the same message is a text to read.
    let mut parts: Vec<String> = texts(&mut messages[last]).collect();
    let question = parts.pop().unwrap_or_default();
    let before =
        messages.iter_mut().enumerate().take(last).map(|(index, message)| (index, texts(message).collect()));
    let texts: Vec<(usize, String)> = before.chain([(last, parts.concat())]).collect();

    let of_messages = texts.into_iter().map(|(index, text)| {
        let source = index.checked_sub(added).map_or(ReadSource::Instructions, ReadSource::Message);
        SourceText { source, text }
    });
    let of_documents = reading.documents.into_iter().enumerate().map(|(index, document)| {
        let source = ReadSource::Document { index, title: document.title };
        SourceText { source, text: document.text }
    });
    let sources = of_messages.chain(of_documents).filter(|source| !source.text.trim().is_empty());
    let sources: Vec<SourceText> = sources.collect();

    if question.trim().is_empty() {
        return Err(Error::invalid(
            "messages",
            "expected a question in the last message of the user, found none",
        ));
    }
    if sources.is_empty() {
        let message = "this model answers from a text; send one in `documents` (`--file`), in a system message or before the question";
        return Err(Error::invalid("messages", message));
    }
    let bytes: usize = sources.iter().map(|source| source.text.len()).sum();
    if bytes > MAX_ANSWER_TEXT || question.len() > MAX_ANSWER_TEXT {
        let found = bytes.max(question.len());
        let message =
            format!("expected texts of at most {MAX_ANSWER_TEXT} bytes in total, found {found} bytes");
        return Err(Error::invalid("messages", message));
    }
    Ok((question, sources))
}

/// Takes the texts of a message.
fn texts(message: &mut Message) -> impl Iterator<Item = String> + use<> {
    mem::take(&mut message.content).into_parts().into_iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text),
        Part::Media(_) | Part::Remote(_) => None,
    })
}

/// Names the field of a conversation in an error about a question.
fn in_terms_of_chat(error: Error) -> Error {
    match error {
        Error::Invalid { param: "question" | "context", message } => Error::invalid("messages", message),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use narthex_text::template::Content;

    use super::*;
    use crate::serve::request::ReadDocument;

    fn message(role: Role, texts: &[&str]) -> Message {
        let mut content = Content::default();
        content.extend(texts.iter().map(|text| Part::text(*text)));
        Message::new(role, content)
    }

    #[test]
    fn the_last_message_of_the_user_is_the_question() {
        let documents = vec![ReadDocument { title: Some("report.md".to_owned()), text: "d".to_owned() }];
        let reading = ReadingSettings { documents, min_score: None };
        let messages = vec![
            message(Role::System, &["s"]),
            message(Role::User, &["u"]),
            message(Role::Assistant, &[" "]),
            message(Role::User, &["before", "question?"]),
        ];
        let (question, sources) = divide(messages.clone(), 1, reading.clone()).unwrap();
        let source = |source, text: &str| SourceText { source, text: text.to_owned() };
        assert_eq!(question, "question?");
        let document = ReadSource::Document { index: 0, title: Some("report.md".to_owned()) };
        let expected = [
            source(ReadSource::Instructions, "s"),
            source(ReadSource::Message(0), "u"),
            source(ReadSource::Message(2), "before"),
            source(document, "d"),
        ];
        assert_eq!(sources, expected);

        let refused = |messages: Vec<Message>, expect: &str| {
            let error = divide(messages, 0, ReadingSettings::default()).unwrap_err();
            assert!(error.param() == Some("messages") && error.to_string().contains(expect), "{error}");
        };
        refused(vec![message(Role::System, &["s"])], "expected a question of the user");
        refused(vec![message(Role::User, &["q"])], "answers from a text");
        refused(vec![message(Role::System, &["s"]), message(Role::User, &[])], "found none");
        let long = "a".repeat(MAX_ANSWER_TEXT + 1);
        refused(vec![message(Role::User, &[&long, "q"])], "at most 1048576 bytes in total");
    }
}
