//! Encoders: `/v1/rerank`, `/v1/classify`, `/predict`, `/v1/answer`, `/v1/fill`, conversations with question-answering models, and token
//! lists of `/v1/embeddings` over tiny models, including invalid requests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::{Value, json};

use crate::support::{Head, Live, Tiny, with};

#[test]
fn documents_are_ranked() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.encoder("bert", Head::Score), tiny.embedding());
    let live = Live::start(tiny.config());
    let documents =
        json!(["the cat sleeps in the house.", {"text": "a dog runs to the river."}, "what is it?"]);
    let request = json!({"model": model, "query": "what sleeps?", "documents": documents});
    let ask = |fields: Value| live.post("/v1/rerank", &with(request.clone(), fields));
    let answer = ask(json!({"return_documents": true})).json();
    let results = answer["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|one| one["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..=1.0).contains(score)));
    let mut indices: Vec<u64> = results.iter().map(|one| one["index"].as_u64().unwrap()).collect();
    let second = results.iter().find(|one| one["index"] == 1).unwrap();
    assert_eq!(second["document"], json!({"text": "a dog runs to the river."}));
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);
    assert_eq!(
        (answer["model"].as_str(), &answer["usage"]["total_tokens"]),
        (Some(&*model), &answer["usage"]["prompt_tokens"])
    );
    let best = ask(json!({"top_n": 1})).json()["results"].clone();
    assert_eq!((best.as_array().unwrap().len(), &best[0]["index"]), (1, &results[0]["index"]));
    assert!(best[0].get("document").is_none());

    let refused = |fields: Value, param: &str, text: &str| {
        let error = ask(fields).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    refused(json!({"unknown": 1}), "unknown", "not supported");
    refused(json!({"documents": []}), "documents", "expected 1 to 2048 documents, found 0");
    refused(json!({"documents": "the cat"}), "documents", "expected a list");
    refused(json!({"documents": [3]}), "documents[0]", "expected a text, or an object with the field text");
    refused(json!({"query": null}), "query", "string");
    refused(json!({"top_n": 0}), "top_n", "above zero");
    refused(json!({"max_chunks_per_doc": 3}), "max_chunks_per_doc", "not supported");
    refused(json!({"model": embedding}), "model", "is an embedding model, not a reranker");
    let long = json!({"documents": ["the cat ".repeat(40)]});
    refused(long.clone(), "documents", "at most 64");
    assert_eq!(ask(with(long, json!({"truncate": true}))).status, 200);
    assert_eq!(live.get("/v1/rerank").status, 405);
}

#[test]
fn questions_are_answered() {
    let tiny = Tiny::new();
    let (model, ranker) = (tiny.encoder("distilbert", Head::Spans), tiny.encoder("bert", Head::Score));
    let live = Live::start(tiny.config());
    let context = "é the cat sleeps in the house. a dog runs to the river.";
    let request =
        json!({"model": model, "question": "where does the dog run?", "context": context, "top_k": 3});
    let ask = |fields: Value| live.post("/v1/answer", &with(request.clone(), fields));
    let answer = ask(json!({})).json();
    let answers = answer["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 3);
    for span in answers {
        let place = |key: &str| span[key].as_u64().unwrap() as usize;
        let text = span["text"].as_str().unwrap();
        assert_eq!(&context[place("start_byte")..place("end_byte")], text);
        let chars: String =
            context.chars().skip(place("start")).take(place("end") - place("start")).collect();
        assert_eq!(chars, text);
    }
    let score = |value: &Value| value.as_f64().unwrap();
    let certain = score(&answers[0]["score"]) >= score(&answer["no_answer_score"]);
    assert_eq!(answer["answer"], if certain { answers[0]["text"].clone() } else { Value::Null });
    assert_eq!(ask(json!({"top_k": null})).json()["answers"], json!([answers[0]]));
    let short = ask(json!({"max_answer_tokens": 1})).json();
    assert!(!short["answers"][0]["text"].as_str().unwrap().contains(' '));

    let refused = |fields: Value, param: &str, text: &str| {
        let error = ask(fields).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    refused(json!({"unknown": 1}), "unknown", "not supported");
    refused(json!({"top_k": 0}), "top_k", "expected 1 to 100, found 0");
    refused(json!({"max_answer_tokens": 0}), "max_answer_tokens", "expected 1 to 384");
    refused(json!({"max_answer_tokens": u64::MAX}), "max_answer_tokens", "expected 1 to 384");
    refused(json!({"context": " "}), "context", "expected some text");
    refused(json!({"question": 3}), "question", "string");
    refused(json!({"model": ranker}), "model", "is a reranker, not a question-answering model");
}

#[test]
fn masks_are_filled_and_tokens_added() {
    let tiny = Tiny::new();
    let (model, ranker) = (tiny.encoder("mobilebert", Head::Masked), tiny.encoder("bert", Head::Score));
    let live = Live::start(tiny.config());
    let request = json!({"model": model, "text": "a [MASK] runs to the [MASK]."});
    let ask = |fields: Value| live.post("/v1/fill", &with(request.clone(), fields));
    let answer = ask(json!({"top_k": 2})).json();
    assert_eq!((&answer["object"], answer["model"].as_str()), (&json!("fill"), Some(&*model)));
    let masks = answer["masks"].as_array().unwrap();
    assert_eq!(masks.iter().map(|mask| mask.as_array().unwrap().len()).collect::<Vec<_>>(), [2, 2]);
    assert!(masks[0][0]["score"].as_f64() >= masks[0][1]["score"].as_f64());
    assert!(masks[0][0]["text"].is_string() && masks[0][0]["token"].is_u64());
    assert_eq!(ask(json!({})).json()["masks"][1].as_array().unwrap().len(), 5);

    let more = json!({"text": "the cat", "generate": 3, "rounds": 2});
    let answer = ask(more.clone()).json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 3);
    let (text, generated) = (answer["text"].as_str().unwrap(), answer["generated"].as_str().unwrap());
    assert!(text.starts_with("the cat") && text.ends_with(generated), "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], 7);
    assert_eq!(ask(more).json(), answer);

    let refused = |fields: Value, param: &str, text: &str| {
        let error = ask(fields).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    refused(json!({"unknown": 1}), "unknown", "not supported");
    refused(json!({"top_k": 101}), "top_k", "expected 1 to 100, found 101");
    refused(json!({"text": "the cat"}), "text", "expected [MASK] at least once");
    refused(json!({"generate": 3}), "text", "expected [MASK] at most once");
    refused(json!({"generate": 3, "top_k": 2}), "top_k", "cannot be combined with generate");
    refused(json!({"rounds": 2}), "rounds", "requires generate");
    refused(json!({"generate": 1000}), "generate", "expected 1 to 64, found 1000");
    refused(json!({"model": ranker}), "model", "is a reranker, not a masked language model");
}

#[test]
fn tokens_of_an_encoder_are_those_of_its_texts() {
    let tiny = Tiny::new();
    let model = tiny.embedding();
    let live = Live::start(tiny.config());
    let tokens = |fields: Value| {
        live.post("/tokenize", &with(json!({"model": model, "content": "the cat"}), fields)).json()["tokens"]
            .clone()
    };
    let embed = |input: Value| live.post("/v1/embeddings", &json!({"model": model, "input": input}));
    let vector = |input: Value| embed(input).json()["data"][0]["embedding"].clone();
    assert_eq!(vector(tokens(json!({}))), vector(json!("the cat")));
    assert_eq!(tokens(json!({"add_special_tokens": true})), tokens(json!({})));
    let bare = tokens(json!({"add_special": false}));
    assert_eq!(bare.as_array().unwrap()[..], tokens(json!({})).as_array().unwrap()[1..=2]);
    let error = embed(json!([bare])).error(400);
    assert!(error["message"].as_str().unwrap().contains("check_embedding_ctx_length"), "{error}");
}

#[test]
fn a_request_without_a_model_has_the_only_classifier() {
    let tiny = Tiny::new();
    let live = Live::start(tiny.config());
    let predict = |model: Value| live.post("/predict", &json!({"inputs": "the cat sleeps", "model": model}));
    let message = || predict(Value::Null).error(400)["message"].as_str().unwrap().to_owned();
    assert_eq!(message(), "expected the name of a model, as no classifier is installed");
    let (model, _) = (tiny.encoder("bert", Head::Labels), tiny.embedding());
    let answer = live.post("/predict", &json!({"inputs": "the cat sleeps"})).json();
    assert_eq!(answer, predict(json!(model)).json());
    assert_eq!(answer, predict(Value::Null).json());
    let tagger = tiny.encoder("bert", Head::Tokens);
    let message = message();
    assert!(message.contains(&model) && message.contains(&tagger), "{message}");
}

#[test]
fn texts_and_tokens_are_classified() {
    let tiny = Tiny::new();
    let (model, tagger) = (tiny.encoder("bert", Head::Labels), tiny.encoder("bert", Head::Tokens));
    let live = Live::start(tiny.config());
    let labels = json!(["O", "B-PER", "I-PER", "B-LOC", "LOC"]);
    let texts = ["the cat sleeps", "a dog runs to the river"];
    let classify =
        |fields: Value| live.post("/v1/classify", &with(json!({"model": model, "input": texts}), fields));
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let answer = classify(json!({})).json();
    assert_eq!((&answer["object"], &answer["labels"]), (&json!("list"), &labels));
    let second = &answer["data"][1];
    let probs = numbers(&second["probs"]);
    let best = probs.iter().copied().fold(0.0, f64::max);
    let index = probs.iter().position(|prob| *prob == best).unwrap();
    assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-5 && second["index"] == 1);
    assert_eq!((&second["label"], &second["num_classes"]), (&labels[index], &json!(5)));
    let logits = numbers(&classify(json!({"use_activation": false})).json()["data"][1]["probs"]);
    assert!(logits.iter().any(|logit| *logit < 0.0), "{logits:?}");

    let predict = |inputs: Value, fields: Value| {
        live.post("/predict", &with(json!({"model": model, "inputs": inputs}), fields))
    };
    let one = predict(json!(texts[1]), json!({})).json();
    assert_eq!(one[0]["label"], labels[index]);
    let scores: Vec<f64> = one.as_array().unwrap().iter().map(|x| x["score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.len() == 5 && scores[0] == best);
    let batch = predict(json!([[texts[1]], texts]), json!({})).json();
    assert_eq!((&batch[0], batch.as_array().unwrap().len()), (&one, 2));
    assert_eq!(batch[1], predict(json!(texts), json!({})).json(), "two texts are a pair");
    let raw = predict(json!(texts[1]), json!({"raw_scores": true})).json();
    assert_eq!(raw[0]["score"].as_f64(), logits.iter().copied().reduce(f64::max));

    let tagged = live.post("/v1/classify", &json!({"model": tagger, "input": "the été"})).json();
    for entity in tagged["data"][0]["entities"].as_array().unwrap() {
        let place = |key: &str| entity[key].as_u64().unwrap() as usize;
        let text: String =
            "the été".chars().skip(place("start")).take(place("end") - place("start")).collect();
        assert_eq!(entity["text"], text);
        assert_eq!("the été"[place("start_byte")..place("end_byte")], text);
    }
    let words = live.post("/predict", &json!({"model": tagger, "inputs": "the été"})).json();
    assert_eq!(words[0]["entity_group"], tagged["data"][0]["entities"][0]["label"]);

    let list = live.get("/v1/models").json();
    let found = list["data"].as_array().unwrap().iter().map(|one| (&one["kind"], &one["capabilities"]));
    let found: Vec<_> = found.collect();
    for kind in ["classification", "token-classification"] {
        assert!(found.contains(&(&json!(kind), &json!(["classify"]))), "{found:?}");
    }
    let refused = |path: &str, body: Value, param: &str, text: &str| {
        let error = live.post(path, &body).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    let long = "the cat ".repeat(40);
    refused("/predict", json!({"model": model, "inputs": long}), "inputs", "82");
    refused("/v1/classify", json!({"model": model, "input": long}), "input", "82");
    assert_eq!(predict(json!(long), json!({"truncate": true})).status, 200);
    refused("/predict", json!({"model": tagger, "inputs": texts}), "inputs", "this model classifies tokens");
    refused(
        "/v1/classify",
        json!({"model": model, "input": "a", "dimensions": 3}),
        "dimensions",
        "not supported",
    );
    refused(
        "/v1/rerank",
        json!({"model": model, "query": "a", "documents": ["b"]}),
        "model",
        "is a text classifier",
    );
}

#[test]
fn a_question_answering_model_answers_every_protocol() {
    let tiny = Tiny::new();
    let (model, chat) = (tiny.encoder("distilbert", Head::Spans), tiny.chat());
    let live = Live::start(tiny.config());
    let (context, question) = ("the cat sleeps in the house. a dog runs to the river.", "where does it run?");
    let expected =
        live.post("/v1/answer", &json!({"model": model, "question": question, "context": context}));
    let span = expected.json()["answers"][0].clone();
    let user = json!([{"role": "user", "content": question}]);
    let documents = json!([{"title": "report.md", "text": context}]);
    let body = json!({"model": model, "messages": user, "documents": documents, "min_answer_score": 0});
    let check = |reading: &Value, source: Value| {
        for key in ["text", "start", "end", "start_byte", "end_byte", "score"] {
            assert_eq!(reading["span"][key], span[key], "{reading}");
        }
        assert_eq!(reading["span"]["source"], source, "{reading}");
    };

    let answer = live.post("/v1/chat/completions", &body).json();
    check(&answer["reading"], json!({"type": "document", "index": 0, "title": "report.md"}));
    let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let unsure = "The text does not answer this question.";
    assert_eq!(
        said,
        if answer["reading"]["answered"] == true { span["text"].as_str().unwrap() } else { unsure }
    );
    let strict =
        live.post("/v1/chat/completions", &with(body.clone(), json!({"min_answer_score": 1}))).json();
    assert_eq!(strict["choices"][0]["message"]["content"], unsure);
    assert_eq!(strict["reading"]["answered"], json!(false));

    let streamed = live.post("/v1/chat/completions", &with(body.clone(), json!({"stream": true}))).text();
    let chunks: Vec<Value> =
        streamed.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!((text.as_str(), &chunks.last().unwrap()["reading"]), (said, &answer["reading"]));

    let system = json!([{"role": "system", "content": context}, {"role": "user", "content": question}]);
    let source = json!({"type": "message", "index": 0});
    let nulls = with(body.clone(), json!({"messages": system, "documents": null}));
    check(&live.post("/v1/chat/completions", &nulls).json()["reading"], source.clone());
    let bodies = [
        ("/v1/responses", json!({"model": model, "instructions": context, "input": question})),
        ("/v1/messages", json!({"model": model, "system": context, "messages": user, "max_tokens": 30})),
        ("/api/chat", json!({"model": model, "messages": system, "stream": false})),
    ];
    for (path, body) in bodies {
        check(&live.post(path, &body).json()["reading"], source.clone());
        let stream = live.post(path, &with(body, json!({"stream": true}))).text();
        assert!(stream.contains(r#""no_answer_score""#), "{path}: {stream}");
    }

    let refused = |fields: Value, param: &str, text: &str| {
        let error = live.post("/v1/chat/completions", &with(body.clone(), fields)).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    };
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    refused(json!({"tools": tool}), "tools", "supports no tools");
    refused(json!({"logprobs": true}), "logprobs", "supports no logprobs");
    refused(json!({"response_format": {"type": "json_object"}}), "response_format", "supports no");
    refused(json!({"documents": []}), "messages", "this model answers from a text");
    refused(json!({"model": chat}), "documents", "only question-answering models have it");
    refused(json!({"model": chat, "documents": []}), "min_answer_score", "only question-answering models");
    let kinds = live.get(&format!("/v1/models/{model}")).json();
    assert_eq!(kinds["capabilities"], json!(["answer", "chat", "responses", "messages"]));
}
