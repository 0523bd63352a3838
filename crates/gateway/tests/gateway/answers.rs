//! Answers to requests: equal requests get equal tokens, alone or in a batch, and every answer ends when it should.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeSet, sync::mpsc};

use narthex_gateway::{
    Cancel, Config, Drain, Error, ErrorKind, Gateway, TokenCount,
    request::{
        CallLimit, ChatRequest, EmbedRequest, FinishReason, GenerateOptions, GenerationEvent, Grammar,
        InputOverflow, Prompt, Repetition, Strictness, TokenizeOptions, Tool, ToolChoice, ToolSettings,
    },
};
use narthex_spec::{KvPrecision, ToolFormat, progress::Quiet};
use narthex_testkit::checkpoint::{self, BERT_MAX_LENGTH, LLAMA_CONTEXT, Meta};

use crate::support::{
    Answer, LONG_CONTEXT, SEED, Tiny, ask, complete, events, eventually, greedy, question, ready, text,
    warnings, whole,
};

/// Minimum difference of a step's two best log-probabilities from which rounding cannot make another token the best
/// one. Kernels round by the size of a batch.
const MARGIN: f32 = 1e-3;

fn sampled(seed: u64) -> GenerateOptions {
    GenerateOptions { temperature: Some(1.0), seed: Some(seed), ..greedy(24) }
}

#[test]
fn a_seeded_request_repeats() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.chat(), tiny.gateway());
    let answer = |seed| ask(&gateway, &model, question("the cat", sampled(seed))).text;
    assert_eq!(answer(7), answer(7));
    let texts: BTreeSet<String> = (0..4).map(answer).collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
}

/// Compiles a tiny Llama whose publisher recommends to sample among the likeliest tokens. Returns its name.
fn with_sampling(tiny: &Tiny, top_k: u32) -> String {
    let mut gguf = checkpoint::tiny_llama(SEED);
    gguf.set("general.sampling.temp", Meta::F32(1.5));
    gguf.set("general.sampling.top_k", Meta::U32(top_k));
    gguf.set("general.sampling.penalty_repeat", Meta::F32(1.5));
    tiny.gguf_chat("recommended", &gguf)
}

#[test]
fn a_request_that_states_no_sampling_gets_that_of_the_publisher() {
    let tiny = Tiny::new();
    let (model, gateway) = (with_sampling(&tiny, 1), tiny.gateway());
    let found = gateway.model(&model).unwrap().installed[0].sampling;
    assert_eq!((found.temperature, found.top_k, found.top_p), (Some(1.5), Some(1), None));
    let answer = |change: fn(&mut GenerateOptions)| {
        let mut options = GenerateOptions { temperature: None, ..greedy(24) };
        change(&mut options);
        ask(&gateway, &model, question("the cat", options)).text
    };
    // The likeliest token is the only one, whatever the seed.
    let recommended = answer(|_| {});
    assert_eq!(answer(|options| options.seed = Some(1)), recommended);
    // A stated value replaces the publisher's.
    let free: BTreeSet<String> = [
        answer(|options| (options.top_k, options.seed) = (Some(0), Some(1))),
        answer(|options| (options.top_k, options.seed) = (Some(0), Some(2))),
    ]
    .into();
    assert_eq!(free.len(), 2, "{free:?}");
    // A greedy answer has no penalty.
    let greedy = answer(|options| options.temperature = Some(0.0));
    assert_ne!(greedy, recommended);
    let explicit = |options: &mut GenerateOptions| {
        (options.temperature, options.repetition_penalty) = (Some(0.0), Some(1.0));
    };
    assert_eq!(answer(explicit), greedy);
}

#[test]
fn an_answer_that_repeats_itself_ends_if_that_is_requested() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.long_chat(), tiny.gateway());
    let options = |repetition, max_tokens| GenerateOptions {
        logit_bias: [(5, 100.0)].into(),
        max_tokens: Some(max_tokens),
        repetition,
        ..greedy(0)
    };
    let stopped = ask(&gateway, &model, question("the cat", options(Repetition::End, 1000)));
    assert_eq!(stopped.reason, FinishReason::Repetition);
    assert_eq!(stopped.summary.completion_tokens, 256);
    let whole = ask(&gateway, &model, question("the cat", options(Repetition::Allow, 300)));
    assert_eq!((whole.reason, whole.summary.completion_tokens), (FinishReason::Length, 300));
}

#[test]
fn a_stream_is_an_iterator_over_the_text_of_an_answer() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.long_chat(), tiny.gateway());
    let request = |tokens| ChatRequest { options: greedy(tokens), ..ChatRequest::user("the cat") };
    let expect = ask(&gateway, &model, question("the cat", greedy(24)));
    let mut stream = gateway.stream(&model, request(24)).unwrap();
    let parts: Vec<String> = stream.by_ref().map(Result::unwrap).collect();
    assert!(parts.len() > 1 && parts.concat() == expect.text, "{parts:?}");
    assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
    assert_eq!(stream.summary().unwrap().completion_tokens, 24);
    assert_eq!(gateway.stream(&model, request(24)).unwrap().text().unwrap(), expect.text);
    // A dropped stream makes room for others.
    let mut dropped = gateway.stream(&model, request(20_000)).unwrap();
    dropped.next().unwrap().unwrap();
    drop(dropped);
    let running =
        || gateway.status().iter().filter_map(|one| one.engine).map(|engine| engine.running).sum::<usize>();
    eventually("the end of the answer", || running() == 0);
}

fn with_top_two(prompt: &str) -> narthex_gateway::request::CompletionRequest {
    text(prompt, GenerateOptions { logprobs: Some(2), ..greedy(48) })
}

/// Returns the tokens of an answer up to the first one that rounding may have decided.
fn decided(answer: &Answer) -> Vec<Vec<u8>> {
    let sure = |token: &&narthex_gateway::request::TokenInfo| {
        token.top.len() == 2 && token.top[0].logprob - token.top[1].logprob >= MARGIN
    };
    answer.tokens.iter().take_while(sure).map(|token| token.bytes.clone()).collect()
}

#[test]
fn a_request_gets_the_same_tokens_alone_and_among_eight() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.chat(), tiny.gateway());
    let prompts: Vec<String> =
        (0..8).map(|n| format!("{} {n}", "the cat runs to the river ".repeat(n + 1))).collect();
    let alone: Vec<Answer> = prompts
        .iter()
        .map(|prompt| {
            // A new gateway, so that its cache has nothing of the other prompts.
            complete(&tiny.gateway(), &model, with_top_two(prompt))
        })
        .collect();
    let pending: Vec<mpsc::Receiver<GenerationEvent>> = prompts
        .iter()
        .map(|prompt| {
            let (sink, events) = events();
            gateway.complete(&model, with_top_two(prompt), sink).unwrap();
            events
        })
        .collect();
    let mut compared = 0;
    for (alone, together) in alone.iter().zip(&pending) {
        let together = whole(together);
        let sure = decided(alone);
        let found: Vec<Vec<u8>> = together.tokens.iter().take(sure.len()).map(|t| t.bytes.clone()).collect();
        assert_eq!(found, sure, "{:?} / {:?}", alone.text, together.text);
        compared += sure.len();
    }
    // Most steps of these answers are clearly decided; with ties everywhere, the test would prove nothing.
    assert!(compared > 8 * 48 / 2, "only {compared} tokens could be compared");
}

#[test]
fn a_cancelled_turn_ends_in_the_middle_and_frees_its_slot() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let gateway = Gateway::open(Config { slots: 1, max_queue: 1, ..tiny.config() }).unwrap();
    let (sink, received) = events();
    let turn = gateway.chat(&model, question("the cat", greedy(LONG_CONTEXT)), sink).unwrap();
    assert_eq!(turn.model.as_str(), model);
    let started = received.recv().unwrap();
    assert_eq!(started, GenerationEvent::Started { prompt_tokens: turn.prompt_tokens });
    assert!(matches!(received.recv().unwrap(), GenerationEvent::Text { .. }));
    turn.cancel();
    let answer = whole(&received);
    assert_eq!(answer.reason, FinishReason::Cancelled);
    assert!(answer.summary.completion_tokens < LONG_CONTEXT / 2, "{:?}", answer.summary);
    assert_eq!(ask(&gateway, &model, question("a dog", greedy(4))).summary.completion_tokens, 4);
}

#[test]
fn a_caller_that_leaves_ends_its_turn() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let gateway = Gateway::open(Config { slots: 1, max_queue: 1, ..tiny.config() }).unwrap();
    let (sink, received) = events();
    gateway.chat(&model, question("the cat", greedy(LONG_CONTEXT)), sink).unwrap();
    received.recv().unwrap();
    drop(received);
    let engine = || gateway.status()[0].engine.unwrap();
    eventually("the slot's end", || engine().running == 0 && engine().waiting == 0);
    assert!(engine().generated_tokens < (LONG_CONTEXT / 2) as u64, "{:?}", engine());
}

#[test]
fn an_overlong_prompt_is_refused_with_both_numbers_whichever_bound_it_breaks() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let check = |gateway: &Gateway, tokens: usize, bound: usize| {
        let (sink, _events) = events();
        let prompt = Prompt::Tokens(vec![5; tokens]);
        let request = narthex_gateway::request::CompletionRequest { prompt, ..text("", greedy(64)) };
        let error = gateway.complete(&model, request, sink).err().expect("it is too long");
        assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("prompt")), "{error}");
        let message = error.to_string();
        assert!(message.contains(&tokens.to_string()) && message.contains(&bound.to_string()), "{message}");
    };
    check(&tiny.gateway(), LLAMA_CONTEXT, LLAMA_CONTEXT);
    // The KV budget has room for fewer tokens than the context: 2 layers, keys and values, 2 heads of 16 halves, 256
    // bytes a token.
    let longer = tiny.long_chat();
    let gateway = Gateway::open(Config { kv_budget: Some(256 * 300), ..tiny.config() }).unwrap();
    let (sink, _events) = events();
    let prompt = Prompt::Tokens(vec![5; 400]);
    let request = narthex_gateway::request::CompletionRequest { prompt, ..text("", greedy(64)) };
    let error = gateway.complete(&longer, request, sink).err().expect("it is too long");
    let message = error.to_string();
    assert!(message.contains("400") && message.contains("257"), "{message}");
    // An admitted request ends at the bound with a result, not with a failure.
    let prompt = Prompt::Tokens(vec![5; 200]);
    let request = narthex_gateway::request::CompletionRequest { prompt, ..text("", greedy(LONG_CONTEXT)) };
    let answer = complete(&gateway, &longer, request);
    assert_eq!((answer.reason, answer.summary.completion_tokens), (FinishReason::Length, 57));
}

#[test]
fn the_context_in_lists_and_reports_is_the_one_that_requests_have() {
    let tiny = Tiny::new();
    let longer = tiny.long_chat();
    let open = |kv_budget: usize, context: Option<usize>| {
        Gateway::open(Config { kv_budget: Some(kv_budget), context, ..tiny.config() }).unwrap()
    };
    let listed = |gateway: &Gateway| gateway.model(&longer).unwrap().installed[0].clone();
    let load = |gateway: &Gateway| gateway.load(&longer, &Quiet, &Cancel::new());

    // 2 layers, keys and values, 2 heads of 16 numbers: 512 bytes a token in single precision, and 160 in eight bits with
    // their scales.
    let gateway = open(256 * 600, None);
    assert_eq!((listed(&gateway).context_length, listed(&gateway).kv_cache), (257, None));
    let status = load(&gateway).unwrap();
    assert_eq!((status.max_length, listed(&gateway).context_length), (Some(769), 769));
    let kv_cache = status.kv_cache.unwrap();
    assert_eq!(kv_cache.dtype, KvPrecision::I8);
    assert!(kv_cache.loss.is_some_and(|loss| loss.divergence < 0.005), "{kv_cache:?}");
    // The stored comparison tells the element type to later processes.
    let later = listed(&open(256 * 600, None));
    assert_eq!((later.context_length, later.kv_cache, later.max_length), (769, Some(kv_cache), LONG_CONTEXT));

    let gateway = open(1 << 30, Some(40));
    assert_eq!((listed(&gateway).context_length, load(&gateway).unwrap().max_length), (40, Some(40)));
    let (sink, _events) = events();
    let prompt = Prompt::Tokens(vec![5; 50]);
    let request = narthex_gateway::request::CompletionRequest { prompt, ..text("", greedy(64)) };
    let error = gateway.complete(&longer, request, sink).err().expect("it is too long");
    assert!(error.to_string().contains("context length is 40 tokens"), "{error}");
    let gateway = open(1 << 30, Some(usize::MAX));
    assert_eq!(load(&gateway).unwrap().max_length, Some(LONG_CONTEXT));

    let refused = |kv_budget, context| load(&open(kv_budget, context)).unwrap_err().to_string();
    assert!(refused(256 * 100, None).contains("which hold 0 tokens; raise --kv-budget"));
    assert!(refused(256 * 600, Some(800)).ends_with("hold 768 tokens; raise --kv-budget or lower --context"));
}

#[test]
fn more_choices_than_can_ever_be_queued_are_a_wrong_request() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let gateway = Gateway::open(Config { slots: 2, max_queue: 1, ..tiny.config() }).unwrap();
    let choices = |n| {
        let (sink, received) = events();
        gateway.chat(&model, question("the cat", GenerateOptions { n, ..greedy(4) }), sink).map(|_| {
            received.iter().filter(|event| matches!(event, GenerationEvent::Finished { .. })).count()
        })
    };
    assert_eq!(choices(3).unwrap(), 3);
    let error = choices(4).unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("n")), "{error}");
}

#[test]
fn without_a_queue_one_request_runs_and_the_next_is_refused() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.long_chat(), tiny.embedding());
    let gateway = Gateway::open(Config { slots: 1, max_queue: 0, ..tiny.config() }).unwrap();
    let (sink, received) = events();
    let turn = gateway.chat(&model, question("the cat", greedy(LONG_CONTEXT)), sink).unwrap();
    let (second, _events) = events();
    let error = gateway.chat(&model, question("a dog", greedy(4)), second).err().expect("nobody may wait");
    assert!(matches!(error, Error::Overloaded { queued: 0, .. }), "{error}");
    turn.cancel();
    whole(&received);
    assert_eq!(embed(&gateway, &embedding, &["the cat"]).len(), 1);
}

fn embed(gateway: &Gateway, model: &str, texts: &[&str]) -> Vec<Vec<f32>> {
    let inputs = texts.iter().map(|text| Prompt::Text((*text).to_owned())).collect();
    let request = EmbedRequest { inputs, overlong: InputOverflow::Refuse, dimensions: None, prompt: None };
    gateway.embed(model, &request, &Cancel::new()).unwrap_or_else(|error| panic!("{error}")).vectors
}

#[test]
fn a_batch_changes_no_vector() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.embedding(), tiny.gateway());
    let texts = ["the cat runs", "a", "what is it that sleeps in the house on the river", "dog: 42!"];
    let together = embed(&gateway, &model, &texts);
    for (text, vector) in texts.iter().zip(&together) {
        let alone = &embed(&gateway, &model, &[text])[0];
        let apart = alone.iter().zip(vector).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "{text}: {apart}");
        let norm: f32 = vector.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-4, "{norm}");
    }
    assert_ne!(together[0], together[1]);
}

#[test]
fn an_overlong_text_is_refused_with_both_numbers_or_cut() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.embedding(), tiny.gateway());
    let run = |words: usize, overlong| {
        let inputs = vec![Prompt::Text("a".to_owned()), Prompt::Text("cat ".repeat(words))];
        gateway.embed(
            &model,
            &EmbedRequest { inputs, overlong, dimensions: None, prompt: None },
            &Cancel::new(),
        )
    };
    let error = run(100, InputOverflow::Refuse).unwrap_err();
    assert!(
        matches!(
            error,
            Error::InputTooLong { index: 1, found: TokenCount::Exact(102), limit: BERT_MAX_LENGTH }
        ),
        "{error}"
    );
    let cut = run(100, InputOverflow::Truncate).unwrap();
    // `a` takes three tokens with the two special tokens. The other text is truncated to the maximum length.
    assert_eq!(cut.prompt_tokens, 3 + BERT_MAX_LENGTH);
    let fits = run(BERT_MAX_LENGTH - 2, InputOverflow::Refuse).unwrap();
    assert_eq!(cut.vectors, fits.vectors);
}

#[test]
fn a_shutdown_ends_answers_or_lets_them_finish_and_refuses_new_ones() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let check = |drain, max_tokens: usize, expect| {
        let gateway = tiny.gateway();
        let (sink, received) = events();
        gateway.chat(&model, question("the cat", greedy(max_tokens)), sink).unwrap();
        received.recv().unwrap();
        gateway.shutdown(drain);
        let answer = whole(&received);
        assert_eq!(answer.reason, expect);
        assert_eq!(answer.summary.completion_tokens == max_tokens, expect == FinishReason::Length);
        let (sink, _events) = events();
        let error = gateway.chat(&model, question("a dog", greedy(4)), sink).err().unwrap();
        assert!(matches!(error, Error::ShuttingDown), "{error}");
    };
    check(Drain::Finish, 64, FinishReason::Length);
    check(Drain::Now, LONG_CONTEXT - 64, FinishReason::Cancelled);
}

fn tool() -> ToolSettings {
    let parameters = serde_json::json!({
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": false,
    });
    let strictness = Strictness::BestEffort;
    let tool = Tool {
        name: "set".to_owned(),
        description: None,
        parameters: parameters.into(),
        strictness,
        text: None,
        field: None,
    };
    ToolSettings { tools: vec![tool], choice: ToolChoice::Required, calls: CallLimit::One }
}

#[test]
fn the_format_of_calls_can_be_chosen_for_all_models_or_one() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let request = || ChatRequest { tools: tool(), ..question("the cat", greedy(300)) };
    let check = |config: Config, mark: &str| {
        let gateway = Gateway::open(config).unwrap();
        let prompt = ready(&gateway, &model).chat_prompt(request(), &Cancel::new()).unwrap().text;
        assert!(prompt.contains(&format!("{mark}{{\"name\": \"FUNCTION\"")), "{mark}: {prompt}");
        assert_eq!(ask(&gateway, &model, request()).reason, FinishReason::ToolCalls, "{mark}");
    };
    let all = |format| Config { tool_format: format, ..tiny.config() };
    let one = |name: &str, format| [(name.to_owned(), format)].into();
    check(all(None), "<tool_call>\n");
    check(all(Some(ToolFormat::Mistral)), "[TOOL_CALLS][");
    let other =
        Config { tool_formats: one("smollm2:135m", ToolFormat::Granite), ..all(Some(ToolFormat::Mistral)) };
    check(other, "[TOOL_CALLS][");
    check(
        Config { tool_formats: one(&model, ToolFormat::Granite), ..all(Some(ToolFormat::Mistral)) },
        "<|tool_call|>[",
    );
    let unknown = Config { tool_formats: one("smollm2:136m", ToolFormat::Granite), ..tiny.config() };
    let error = Gateway::open(unknown).err().unwrap().to_string();
    assert!(error.starts_with("tool_format: no model is named"), "{error}");
}

#[test]
fn a_malformed_call_is_named_in_the_log() {
    warnings::record();
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.long_chat(), tiny.gateway());
    let warned = || warnings::recorded(&["the model wrote a malformed tool call", &model]).len();
    let request = |options| ChatRequest { tools: tool(), ..question("the cat", options) };
    assert_eq!(ask(&gateway, &model, request(greedy(300))).reason, FinishReason::ToolCalls);
    assert_eq!(warned(), 0);
    let mut tools = tool();
    (tools.choice, tools.tools[0].strictness) = (ToolChoice::Auto, Strictness::BestEffort);
    // The grammar allows a call or this text, and the bias prefers the text.
    let x = *ready(&gateway, &model)
        .tokenize("x", TokenizeOptions::default(), &Cancel::new())
        .unwrap()
        .first()
        .unwrap();
    let mut options =
        GenerateOptions { grammar: Some(Grammar::Regex("<tool_call>x".to_owned()).into()), ..greedy(60) };
    options.logit_bias.insert(x, 100.0);
    let answer = ask(&gateway, &model, ChatRequest { tools, ..request(options) });
    assert_eq!((answer.text.as_str(), answer.reason), ("<tool_call>x", FinishReason::MalformedCall));
    assert_eq!(warned(), 1);
}

#[test]
fn tokenizing_has_a_limit_and_can_be_cancelled() {
    let tiny = Tiny::new();
    let (model, gateway) = (tiny.chat(), tiny.gateway());
    let (ready, cancel) = (ready(&gateway, &model), Cancel::new());
    assert!(!ready.tokenize("the cat", TokenizeOptions::default(), &cancel).unwrap().is_empty());
    let error = ready
        .tokenize(&" ".repeat((256 << 10) + 1), TokenizeOptions::default(), &cancel)
        .unwrap_err()
        .to_string();
    assert!(error.contains("at most 262144 bytes, found 262145 bytes"), "{error}");
    cancel.cancel();
    let tokenized = ready.tokenize("the cat", TokenizeOptions::default(), &cancel).map(drop);
    let prompted = ready.chat_prompt(question("the cat", greedy(1)), &cancel).map(drop);
    for outcome in [tokenized, prompted] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
