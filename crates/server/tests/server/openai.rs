//! OpenAI's API as used by the Rust client `async-openai`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use async_openai::{
    Client,
    config::OpenAIConfig,
    error::{ApiErrorResponse, OpenAIError},
    types::{
        chat::{CreateChatCompletionRequest, FinishReason},
        completions::CreateCompletionRequest,
        embeddings::CreateEmbeddingRequest,
    },
};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{Live, Tiny, chat, unending, with};

fn client(live: &Live) -> Client<OpenAIConfig> {
    let config = OpenAIConfig::new().with_api_base(live.base()).with_api_key("unused");
    // A proxy in the environment must not be used for this machine.
    Client::build(reqwest::Client::builder().no_proxy().build().unwrap(), config)
}

fn typed<T: DeserializeOwned>(request: Value) -> T {
    serde_json::from_value(request).unwrap()
}

fn refused<T>(outcome: Result<T, OpenAIError>) -> ApiErrorResponse {
    match outcome {
        Err(OpenAIError::ApiError(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_adds_up_to_the_whole_answer() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let client = client(&live);
    let request: CreateChatCompletionRequest = typed(chat(&model, 24));
    let whole = client.chat().create(request.clone()).await.unwrap();
    let choice = &whole.choices[0];
    assert_eq!((whole.model.as_str(), whole.object.as_str()), (model.as_str(), "chat.completion"));
    assert_eq!(choice.finish_reason, Some(FinishReason::Length));
    let usage = whole.usage.unwrap();
    assert_eq!((usage.completion_tokens, usage.total_tokens), (24, usage.prompt_tokens + 24));

    let request: CreateChatCompletionRequest =
        typed(with(chat(&model, 24), json!({"stream": true, "stream_options": {"include_usage": true}})));
    let mut stream = client.chat().create_stream(request).await.unwrap();
    let (mut text, mut finish, mut counted) = (String::new(), None, None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.unwrap();
        assert_eq!((chunk.model.as_str(), chunk.object.as_str()), (model.as_str(), "chat.completion.chunk"));
        assert!(counted.is_none(), "the usage comes last");
        for choice in &chunk.choices {
            text.push_str(choice.delta.content.as_deref().unwrap_or(""));
            finish = choice.finish_reason.or(finish);
        }
        if let Some(usage) = chunk.usage {
            assert!(chunk.choices.is_empty());
            counted = Some((usage.prompt_tokens, usage.completion_tokens));
        }
    }
    assert!(!text.is_empty());
    assert_eq!(Some(text), choice.message.content);
    assert_eq!(finish, Some(FinishReason::Length));
    assert_eq!(counted, Some((usage.prompt_tokens, 24)));
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_log_probabilities_and_stop_strings() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let client = client(&live);
    let fields = json!({"n": 3, "temperature": 1, "seed": 11, "logprobs": true, "top_logprobs": 2});
    let request: CreateChatCompletionRequest = typed(with(chat(&model, 12), fields));
    let answer = client.chat().create(request.clone()).await.unwrap();
    assert_eq!(answer.choices.iter().map(|choice| choice.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_ne!(answer.choices[0].message.content, answer.choices[1].message.content);
    for choice in &answer.choices {
        let tokens = choice.logprobs.as_ref().unwrap().content.as_ref().unwrap();
        assert_eq!(tokens.len(), 12);
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.bytes.clone().unwrap()).collect();
        // The limit may cut a character, which is then no part of the text.
        let text = String::from_utf8_lossy(&bytes);
        let whole = text.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&text);
        assert!([&text, whole].contains(&choice.message.content.as_deref().unwrap()), "{text}");
        assert!(tokens.iter().all(|token| token.logprob <= 0.0 && token.top_logprobs.len() == 2));
    }
    let again = client.chat().create(request).await.unwrap();
    assert_eq!(again.choices, answer.choices);

    let text = client.chat().create(typed(chat(&model, 24))).await.unwrap();
    let text = text.choices[0].message.content.clone().unwrap();
    let (at, stop) = text.char_indices().skip(4).find(|(_, c)| c.is_ascii_alphanumeric()).unwrap();
    let request = typed(with(chat(&model, 24), json!({"stop": [stop.to_string()]})));
    let stopped = client.chat().create(request).await.unwrap();
    let first = text.find(stop).unwrap();
    assert!(first <= at);
    assert_eq!(stopped.choices[0].message.content.as_deref(), Some(&text[..first]));
    assert_eq!(stopped.choices[0].finish_reason, Some(FinishReason::Stop));
}

#[tokio::test(flavor = "multi_thread")]
async fn text_completions_whole_and_streamed() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let client = client(&live);
    let request = |fields: Value| -> CreateCompletionRequest {
        typed(with(
            json!({
                "model": model, "prompt": "the cat", "max_tokens": 12, "temperature": 0,
                "logit_bias": unending(),
            }),
            fields,
        ))
    };
    let whole = client.completions().create(request(json!({}))).await.unwrap();
    let text = whole.choices[0].text.clone();
    assert_eq!((whole.object.as_str(), whole.usage.unwrap().completion_tokens), ("text_completion", 12));
    let echoed = client.completions().create(request(json!({"echo": true}))).await.unwrap();
    assert_eq!(echoed.choices[0].text, format!("the cat{text}"));
    let several = request(json!({"prompt": ["the cat", "a dog", "the cat"]}));
    let several = client.completions().create(several).await.unwrap();
    let texts: Vec<&str> = several.choices.iter().map(|choice| choice.text.as_str()).collect();
    assert!(texts.len() == 3 && texts[0] == text && texts[1] != text && texts[2] == text, "{texts:?}");
    assert_eq!(several.usage.unwrap().completion_tokens, 36);
    let mut stream = client.completions().create_stream(request(json!({"stream": true}))).await.unwrap();
    let mut streamed = String::new();
    while let Some(chunk) = stream.next().await {
        streamed.extend(chunk.unwrap().choices.iter().map(|choice| choice.text.clone()));
    }
    assert_eq!(streamed, text);
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_as_numbers_and_as_base64() {
    let tiny = Tiny::new();
    let model = tiny.embedding();
    let live = Live::start(tiny.config());
    let client = client(&live);
    let request = |fields: Value| -> CreateEmbeddingRequest {
        typed(with(json!({"model": model, "input": ["the cat", "a dog sleeps"]}), fields))
    };
    let floats = client.embeddings().create(request(json!({}))).await.unwrap();
    assert_eq!(floats.data.iter().map(|one| one.index).collect::<Vec<_>>(), [0, 1]);
    assert_ne!(floats.data[0].embedding, floats.data[1].embedding);
    assert_eq!(floats.usage.prompt_tokens, floats.usage.total_tokens);
    let encoded =
        client.embeddings().create_base64(request(json!({"encoding_format": "base64"}))).await.unwrap();
    for (one, other) in floats.data.iter().zip(encoded.data) {
        assert_eq!(one.embedding, Vec::<f32>::from(other.embedding));
        let norm: f32 = one.embedding.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-4);
    }
    let short = client.embeddings().create(request(json!({"dimensions": 5}))).await.unwrap();
    assert!(short.data.iter().all(|one| one.embedding.len() == 5));
    let tokens =
        client.embeddings().create(request(json!({"input": [[2, 9, 3], [2, 10, 3]]}))).await.unwrap();
    assert_eq!((tokens.data.len(), tokens.usage.prompt_tokens), (2, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_and_shown() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let client = client(&live);
    let listed = client.models().list().await.unwrap();
    let found = listed.data.iter().find(|entry| entry.id == model).unwrap();
    assert!((found.object.as_str(), found.owned_by.as_str()) == ("model", "narthex") && found.created > 0);
    assert_eq!(&client.models().retrieve(&model).await.unwrap(), found);
    // Model names of chat requests are valid here too.
    assert_eq!(client.models().retrieve(&format!("{model}@f32")).await.unwrap().id, model);
    assert_eq!(client.models().retrieve("smollm2-135m").await.unwrap().id, "smollm2:135m");
    let error = refused(client.models().retrieve("nothing").await);
    assert_eq!((error.status_code.as_u16(), error.api_error.code.as_deref()), (404, Some("model_not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_carry_their_code_and_parameter() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let client = client(&live);
    let ask = async |request: Value| refused(client.chat().create(typed(request)).await);
    let error = ask(chat("smolm2:135m", 4)).await;
    assert_eq!(error.status_code.as_u16(), 404);
    assert_eq!(error.api_error.code.as_deref(), Some("model_not_found"));
    assert_eq!(error.api_error.param.as_deref(), Some("model"));
    assert!(error.api_error.message.contains("smollm2:135m"), "{error}");
    let error = ask(with(chat(&model, 4), json!({"temperature": 3.5}))).await;
    assert_eq!(error.status_code.as_u16(), 400);
    assert_eq!(error.api_error.param.as_deref(), Some("temperature"));
    assert!(error.api_error.message.contains("3.5"), "{error}");
    let error = ask(chat(&embedding, 4)).await;
    assert_eq!((error.status_code.as_u16(), error.api_error.param.as_deref()), (400, Some("model")));
    let request = typed(with(chat(&model, 4), json!({"messages": [], "stream": true})));
    let Err(error) = client.chat().create_stream(request).await else { panic!("it was not refused") };
    let OpenAIError::ApiError(error) = error else { panic!("{error}") };
    assert_eq!(error.api_error.param.as_deref(), Some("messages"));
    let request: CreateEmbeddingRequest = typed(json!({"model": model, "input": "the cat"}));
    let error = refused(client.embeddings().create(request).await);
    assert_eq!((error.status_code.as_u16(), error.api_error.param.as_deref()), (400, Some("model")));
}
