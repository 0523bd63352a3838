//! Comparison of reranking, answers and masked tokens of tiny models with the reference (`goldens/encoders.py`).

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::mpsc;

use narthex_gateway::{
    Cancel, Error, TokenCount,
    request::{
        Aggregation, AnswerRequest, ChatRequest, Classification, ClassifierInput, ClassifyRequest,
        EmbedRequest, FinishReason, GenerateOptions, Grammar, InputOverflow, MaskRequest, Message, Prompt,
        ReadDocument, ReadSource, ReadingSettings, RefineRequest, RerankRequest, Role,
    },
};

use crate::support::{
    Tiny,
    encoders::{FAMILIES, Golden, Head},
    ready, whole,
};

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= 1e-3 * expected.abs() + 1e-5, "{what}: {found}, not {expected}");
}

#[test]
fn scores_are_those_of_the_reference() {
    let tiny = Tiny::new();
    let compiled = FAMILIES.map(|family| (family, tiny.encoder(family, Head::Score)));
    for (family, model) in compiled.into_iter().chain([("bert", tiny.import("reranker"))]) {
        let golden = Golden::read(family);
        let gateway = tiny.gateway();
        let pairs = golden.expected["pairs"].as_array().unwrap();
        let text = |pair: usize, part: usize| pairs[pair]["pair"][part].as_str().unwrap().to_owned();
        for (pair, expected) in pairs.iter().enumerate() {
            let request = RerankRequest {
                query: text(pair, 0),
                documents: vec![text(pair, 1)],
                top_n: None,
                overlong: InputOverflow::Refuse,
            };
            let found = gateway.rerank(&model, &request, &Cancel::new()).unwrap();
            assert_eq!(found.prompt_tokens, expected["ids"].as_array().unwrap().len(), "{}", golden.family);
            let logit = expected["logit"].as_f64().unwrap();
            near(f64::from(found.results[0].score), 1.0 / (1.0 + (-logit).exp()), golden.family);
        }
        // Several documents get the scores that each one gets alone, in descending order.
        let documents: Vec<String> = (0..3).map(|pair| text(pair, 1)).collect();
        let ask = |documents: Vec<String>, top_n| {
            let request =
                RerankRequest { query: text(0, 0), documents, top_n, overlong: InputOverflow::Refuse };
            gateway.rerank(&model, &request, &Cancel::new()).unwrap().results
        };
        let all = ask(documents.clone(), None);
        assert!(all.is_sorted_by(|a, b| a.score >= b.score) && all.len() == 3);
        for ranked in &all {
            let alone = ask(vec![documents[ranked.index].clone()], None)[0].score;
            near(f64::from(ranked.score), f64::from(alone), golden.family);
        }
        assert_eq!(ask(documents, Some(2)).len(), 2);
    }
}

#[test]
fn labels_are_those_of_the_reference() {
    let tiny = Tiny::new();
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = tiny.encoder(family, Head::Labels);
        let cases = golden.classified["labels"].as_array().unwrap();
        let inputs = cases.iter().map(|case| {
            let text = |index: usize| case["texts"][index].as_str().map(str::to_owned);
            let first = text(0).unwrap();
            text(1)
                .map_or(ClassifierInput::Text(first.clone()), |second| ClassifierInput::Pair(first, second))
        });
        let request = ClassifyRequest { inputs: inputs.collect(), ..ClassifyRequest::new([""; 0]) };
        let found = tiny.gateway().classify(&model, &request, &Cancel::new()).unwrap();
        assert_eq!(found.labels, ["O", "B-PER", "I-PER", "B-LOC", "LOC"]);
        let tokens: usize = cases.iter().map(|case| case["ids"].as_array().unwrap().len()).sum();
        assert_eq!((found.results.len(), found.prompt_tokens), (cases.len(), tokens), "{family}");
        for (found, case) in found.results.iter().zip(cases) {
            let Classification::Text(found) = found else { panic!("{found:?}") };
            let logits: Vec<f64> =
                case["logits"].as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(logits[found.best()], most, "{family}");
            for ((score, own), logit) in found.scores.iter().zip(&found.logits).zip(&logits) {
                assert!((f64::from(*own) - logit).abs() < 1e-3, "{family}: {own}, not {logit}");
                assert!((f64::from(*score) - logit.exp() / sum).abs() < 1e-3, "{family}");
            }
        }
    }
}

#[test]
fn entities_are_those_of_the_reference() {
    let tiny = Tiny::new();
    for family in FAMILIES {
        let golden = Golden::read(family);
        let model = tiny.encoder(family, Head::Tokens);
        let cases = golden.classified["tokens"].as_array().unwrap();
        let texts: Vec<&str> = cases.iter().map(|case| case["texts"][0].as_str().unwrap()).collect();
        for (aggregation, key) in [(Aggregation::Simple, "simple"), (Aggregation::None, "none")] {
            let request = ClassifyRequest { aggregation, ..ClassifyRequest::new(texts.iter().copied()) };
            let found = tiny.gateway().classify(&model, &request, &Cancel::new()).unwrap();
            for ((found, case), text) in found.results.iter().zip(cases).zip(&texts) {
                let Classification::Entities(found) = found else { panic!("{found:?}") };
                let expected = case[key].as_array().unwrap();
                assert_eq!(found.len(), expected.len(), "{family} {text}");
                for (found, expected) in found.iter().zip(expected) {
                    let place = ["start", "end"].map(|end| expected[end].as_u64().unwrap() as usize);
                    assert_eq!([found.chars.start, found.chars.end], place, "{family} {text}");
                    assert_eq!(
                        (&*found.label, &*found.text),
                        (expected["label"].as_str().unwrap(), expected["text"].as_str().unwrap())
                    );
                    assert_eq!(text[found.bytes.clone()], found.text);
                    near(f64::from(found.score), expected["score"].as_f64().unwrap(), family);
                }
            }
        }
    }
}

#[test]
fn answers_are_those_of_the_reference() {
    let tiny = Tiny::new();
    let compiled = FAMILIES.map(|family| (family, tiny.encoder(family, Head::Spans)));
    for (family, model) in compiled.into_iter().chain([("distilbert", tiny.import("answers"))]) {
        let golden = Golden::read(family);
        let expected = &golden.expected["answer"];
        let text = |key: &str| expected[key].as_str().unwrap();
        let number = |key: &str| expected[key].as_u64().unwrap() as usize;
        let request = AnswerRequest {
            top_k: 3,
            longest: number("longest"),
            window: number("window"),
            stride: number("stride"),
            ..AnswerRequest::new(text("question"), text("context"))
        };
        let found = tiny.gateway().answer(&model, &request, &Cancel::new()).unwrap();
        near(found.no_answer, expected["null"].as_f64().unwrap(), golden.family);
        let spans = expected["answers"].as_array().unwrap();
        assert_eq!(found.answers.len(), spans.len());
        for (found, span) in found.answers.iter().zip(spans) {
            let what = format!("{} {}", golden.family, found.text);
            let place = ["start", "end"].map(|end| span[end].as_u64().unwrap() as usize);
            assert_eq!([found.chars.start, found.chars.end], place, "{what}");
            assert_eq!(found.text, span["text"].as_str().unwrap(), "{what}");
            assert_eq!(&request.context[found.bytes.clone()], found.text, "{what}");
            near(found.score, span["score"].as_f64().unwrap(), &what);
        }
        assert_eq!(found.best().is_some(), found.answers[0].score >= found.no_answer);
    }
}

#[test]
fn masks_are_filled_as_the_reference_does() {
    let tiny = Tiny::new();
    let compiled = FAMILIES.map(|family| (family, tiny.encoder(family, Head::Masked)));
    for (family, model) in compiled.into_iter().chain([("bert", tiny.import("masked"))]) {
        let golden = Golden::read(family);
        let gateway = tiny.gateway();
        for case in golden.expected["masked"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap().to_owned();
            let found = gateway.fill(&model, &MaskRequest { text, top_k: 3 }, &Cancel::new()).unwrap();
            let rows = case["logits"].as_array().unwrap();
            assert_eq!(found.masks.len(), rows.len());
            for (mask, row) in found.masks.iter().zip(rows) {
                let row: Vec<f64> = row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                assert!(mask.is_sorted_by(|a, b| a.score >= b.score) && mask.len() == 3);
                let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                near(mask[0].score, most.exp() / sum, golden.family);
                for one in mask {
                    near(one.score, row[one.token as usize].exp() / sum, golden.family);
                }
            }
        }
        let error = gateway
            .fill(&model, &MaskRequest { text: "the cat".to_owned(), top_k: 3 }, &Cancel::new())
            .unwrap_err();
        assert!(error.to_string().contains("at least once"), "{error}");
    }
}

#[test]
fn tokens_are_added_as_the_reference_adds_them() {
    let tiny = Tiny::new();
    for golden in FAMILIES.map(Golden::read) {
        let model = tiny.encoder(golden.family, Head::Masked);
        let gateway = tiny.gateway();
        for case in golden.expected["refined"].as_array().unwrap() {
            let list = |key: &str| case[key].as_array().unwrap();
            let text = case["text"].as_str().unwrap();
            let rounds = case["rounds"].as_u64().unwrap() as usize;
            let request = RefineRequest { rounds, ..RefineRequest::new(text, list("tokens").len()) };
            let found = gateway.refine(&model, &request, &Cancel::new()).unwrap();
            let what = format!("{} {text}", golden.family);
            let tokens: Vec<u64> = found.tokens.iter().map(|one| u64::from(one.token)).collect();
            assert_eq!(
                tokens,
                list("tokens").iter().map(|x| x.as_u64().unwrap()).collect::<Vec<_>>(),
                "{what}"
            );
            for (one, score) in found.tokens.iter().zip(list("scores")) {
                near(one.score, score.as_f64().unwrap(), &what);
            }
            assert!(found.text.contains(&found.generated) && !found.text.contains("mask"), "{}", found.text);
            assert_eq!(gateway.refine(&model, &request, &Cancel::new()).unwrap(), found);
        }
        let refused = |request: RefineRequest, param: &str, expect: &str| {
            let error = gateway.refine(&model, &request, &Cancel::new()).unwrap_err();
            assert!(error.param() == Some(param) && error.to_string().contains(expect), "{error}");
        };
        refused(RefineRequest::new("a", 0), "generate", "expected 1 to 64, found 0");
        refused(RefineRequest::new("a", 65), "generate", "expected 1 to 64, found 65");
        refused(RefineRequest { rounds: 0, ..RefineRequest::new("a", 1) }, "rounds", "expected 1 to 64");
        refused(RefineRequest::new("a", 64), "text", "but this model allows at most 64");
    }
}

#[test]
fn texts_that_are_too_long_are_refused_or_cut() {
    let tiny = Tiny::new();
    let (ranker, reader) = (tiny.encoder("bert", Head::Score), tiny.encoder("bert", Head::Spans));
    let gateway = tiny.gateway();
    let long = "the cat ".repeat(40);
    let ask = |query: &str, overlong| {
        let documents = vec!["the dog".to_owned(), long.clone()];
        gateway.rerank(
            &ranker,
            &RerankRequest { query: query.to_owned(), documents, top_n: None, overlong },
            &Cancel::new(),
        )
    };
    let error = ask("a cat", InputOverflow::Refuse).unwrap_err().to_string();
    assert!(error.contains("document 1 have 85 tokens") && error.contains("at most 64"), "{error}");
    assert_eq!(ask("a cat", InputOverflow::Truncate).unwrap().prompt_tokens, 7 + 64);
    let error = ask(&long, InputOverflow::Truncate).unwrap_err();
    assert!(matches!(&error, Error::Invalid { param: "query", .. }), "{error}");
    let (labeller, tagger) = (tiny.encoder("bert", Head::Labels), tiny.encoder("bert", Head::Tokens));
    let classify = |model: &str, inputs: Vec<ClassifierInput>, overlong| {
        let request = ClassifyRequest { inputs, overlong, ..ClassifyRequest::new([""; 0]) };
        gateway.classify(model, &request, &Cancel::new())
    };
    for model in [&labeller, &tagger] {
        let inputs = || vec![ClassifierInput::Text("a".to_owned()), ClassifierInput::Text(long.clone())];
        let error = classify(model, inputs(), InputOverflow::Refuse).unwrap_err();
        let expect = TokenCount::Exact(82);
        assert!(
            matches!(error, Error::InputTooLong { index: 1, found, limit: 64 } if found == expect),
            "{error}"
        );
        assert_eq!(classify(model, inputs(), InputOverflow::Truncate).unwrap().prompt_tokens, 3 + 64);
        let error = classify(model, Vec::new(), InputOverflow::Refuse).unwrap_err();
        assert!(error.to_string().contains("expected 1 to 2048 inputs, found 0"), "{error}");
    }
    let pair = |first: &str| vec![ClassifierInput::Pair(first.to_owned(), long.clone())];
    assert_eq!(classify(&labeller, pair("a cat"), InputOverflow::Truncate).unwrap().prompt_tokens, 64);
    let error = classify(&labeller, pair(&long), InputOverflow::Truncate).unwrap_err();
    assert!(error.param() == Some("input"), "{error}");
    let error = classify(&tagger, pair("a cat"), InputOverflow::Truncate).unwrap_err();
    assert!(error.to_string().contains("this model classifies tokens; input 0 is a pair"), "{error}");
    // A context of any length is read in windows.
    let found = gateway.answer(&reader, &AnswerRequest::new("a cat?", long.clone()), &Cancel::new()).unwrap();
    assert!(found.prompt_tokens > 85 && !found.answers.is_empty());
    let error = gateway.answer(&reader, &AnswerRequest::new(long, "a cat"), &Cancel::new()).unwrap_err();
    assert!(matches!(&error, Error::Invalid { param: "question", .. }), "{error}");
}

#[test]
fn text_without_tokens_has_a_limit_in_bytes() {
    let tiny = Tiny::new();
    let (embedder, ranker) = (tiny.embedding(), tiny.encoder("bert", Head::Score));
    let gateway = tiny.gateway();
    let after = |spaces: usize| " ".repeat(spaces) + "the cat";
    let embed = |text: String, overlong| {
        let request = EmbedRequest { overlong, ..EmbedRequest::new([text]) };
        gateway.embed(&embedder, &request, &Cancel::new()).map(|found| found.vectors)
    };
    let rank = |text: String, overlong| {
        let request = RerankRequest { query: "a".to_owned(), documents: vec![text], top_n: None, overlong };
        gateway.rerank(&ranker, &request, &Cancel::new()).map(|found| found.prompt_tokens)
    };
    for overlong in [InputOverflow::Refuse, InputOverflow::Truncate] {
        assert_eq!(embed(after(20_000), overlong).unwrap(), embed(after(0), overlong).unwrap());
        assert_eq!(rank(after(20_000), overlong).unwrap(), rank(after(0), overlong).unwrap());
        let error = embed(after(100_000), overlong).unwrap_err();
        assert!(matches!(error, Error::InputTooLong { found: TokenCount::AtLeast(_), .. }), "{error}");
        let error = rank(after(100_000), overlong).unwrap_err();
        assert!(matches!(error, Error::Invalid { param: "documents", .. }), "{error}");
        assert!(error.to_string().contains("have at least 65 tokens"), "{error}");
    }
}

#[test]
fn a_model_does_its_own_job_alone() {
    let tiny = Tiny::new();
    let (ranker, reader) = (tiny.encoder("bert", Head::Score), tiny.encoder("bert", Head::Spans));
    let gateway = tiny.gateway();
    let says = |error: Error, expect: &str| {
        assert!(matches!(error, Error::WrongKind { .. }) && error.to_string().ends_with(expect), "{error}");
    };
    let question = AnswerRequest::new("a?", "a");
    says(
        gateway.answer(&ranker, &question, &Cancel::new()).unwrap_err(),
        "is a reranker, not a question-answering model",
    );
    let embed = EmbedRequest {
        inputs: vec![Prompt::Text("a".to_owned())],
        overlong: InputOverflow::Refuse,
        dimensions: None,
        prompt: None,
    };
    says(
        gateway.embed(&reader, &embed, &Cancel::new()).unwrap_err(),
        "is a question-answering model, not an embedding model",
    );
    let classify = ClassifyRequest::new(["a"]);
    let error = gateway.classify(&reader, &classify, &Cancel::new()).unwrap_err();
    says(error, "is a question-answering model, not a text classifier");
    // A reranker is a classifier with one label.
    let found = gateway.classify(&ranker, &classify, &Cancel::new()).unwrap();
    assert_eq!((found.labels.as_slice(), found.results.len()), (&["LABEL_0".to_owned()][..], 1));
    let mask = MaskRequest { text: "a".to_owned(), top_k: 1 };
    says(gateway.fill(&reader, &mask, &Cancel::new()).unwrap_err(), "not a masked language model");
    // Documents belong to question-answering models, but only a chat model has a prompt.
    let documents = vec![ReadDocument { title: None, text: "a".to_owned() }];
    let reading = ReadingSettings { documents, min_score: None };
    let request = ChatRequest { reading, ..ChatRequest::user("a?") };
    let error = ready(&gateway, &reader).render_chat(request, &Cancel::new()).err().unwrap();
    says(error, "is a question-answering model, not a chat model");
}

#[test]
fn a_prompt_stands_before_every_text() {
    let tiny = Tiny::new();
    let model = tiny.prompted_embedding();
    let gateway = tiny.gateway();
    let ask = |input: Prompt, prompt: Option<&str>| {
        let request = EmbedRequest {
            inputs: vec![input],
            overlong: InputOverflow::Refuse,
            dimensions: None,
            prompt: prompt.map(str::to_owned),
        };
        gateway.embed(&model, &request, &Cancel::new()).map(|found| found.vectors)
    };
    let text = |text: &str| Prompt::Text(text.to_owned());
    let (query, none) =
        (ask(text("the cat"), Some("query")).unwrap(), ask(text("the cat"), Some("none")).unwrap());
    assert_eq!(query, ask(text("what is the cat"), Some("none")).unwrap());
    assert_ne!(query, none);
    // Without a prompt name the default prompt is used, but never before token lists.
    assert_eq!(ask(text("the cat"), None).unwrap(), query);
    assert!(ask(Prompt::Tokens(vec![2, 9, 3]), None).is_ok());
    // Tokens of another model have other special tokens, or none.
    for tokens in [vec![9], vec![9, 7, 8], vec![2, 9], vec![9, 3]] {
        let error = ask(Prompt::Tokens(tokens), None).unwrap_err();
        assert!(error.to_string().contains("begin with [2] and end with [3]"), "{error}");
    }
    let refused = |input: Prompt, prompt: &str, expect: &str| {
        let error = ask(input, Some(prompt)).unwrap_err();
        assert!(matches!(error, Error::Invalid { param: "prompt_name", .. }), "{error}");
        assert!(error.to_string().contains(expect), "{error}");
    };
    refused(text("a"), "passage", "expected one of none, query, found \"passage\"");
    refused(Prompt::Tokens(vec![2, 9, 3]), "query", "expected texts");
    let plain = tiny.embedding();
    let request = EmbedRequest {
        inputs: vec![text("a")],
        overlong: InputOverflow::Refuse,
        dimensions: None,
        prompt: Some("query".to_owned()),
    };
    let error = tiny.gateway().embed(&plain, &request, &Cancel::new()).unwrap_err().to_string();
    assert!(error.contains("this model has no prompts"), "{error}");
}

#[test]
fn a_question_answering_model_answers_conversations() {
    let tiny = Tiny::new();
    let model = tiny.encoder("distilbert", Head::Spans);
    let gateway = tiny.gateway();
    let golden = Golden::read("distilbert");
    let text = |key: &str| golden.expected["answer"][key].as_str().unwrap().to_owned();
    let (asked, context) = (text("question"), text("context"));
    // The tiny model is not sure of anything.
    let reading = |min_score| ReadingSettings { min_score: Some(min_score), ..ReadingSettings::default() };
    let conversation = |min_score| {
        let system = Message::new(Role::System, context.clone());
        let messages = vec![system, Message::new(Role::User, asked.clone())];
        ChatRequest { reading: reading(min_score), ..ChatRequest::new(messages) }
    };
    let read = |request: ChatRequest| {
        let (sender, events) = mpsc::channel();
        let generation = gateway.chat(&model, request, Box::new(sender)).unwrap();
        (generation.reading.unwrap(), whole(&events))
    };

    let expected = gateway.answer(&model, &AnswerRequest::new(&asked, &context), &Cancel::new()).unwrap();
    let (found, answer) = read(conversation(0.0));
    let span = found.span.unwrap();
    assert_eq!((&span.answer, &span.source), (&expected.answers[0], &ReadSource::Message(0)));
    assert_eq!((found.no_answer, found.is_answered), (expected.no_answer, expected.best().is_some()));
    let said =
        if found.is_answered { span.answer.text.as_str() } else { "The text does not answer this question." };
    assert_eq!((answer.text.as_str(), answer.reason), (said, FinishReason::Stop));
    assert_eq!(answer.summary.prompt_tokens, expected.prompt_tokens);
    let (unsure, answer) = read(conversation(1.0));
    assert!(!unsure.is_answered && unsure.span.is_some());
    assert_eq!(answer.text, "The text does not answer this question.");

    // The best of several texts is the answer, wherever it stands.
    let documents = ["it", &context].map(|text| ReadDocument { title: None, text: text.to_owned() }).to_vec();
    let request = ChatRequest {
        reading: ReadingSettings { documents, min_score: Some(0.0) },
        ..ChatRequest::user(&asked)
    };
    let scores = ["it", &context].map(|context| {
        let found = gateway.answer(&model, &AnswerRequest::new(&asked, context), &Cancel::new()).unwrap();
        found.answers[0].score
    });
    let index = usize::from(scores[1] > scores[0]);
    let span = read(request).0.span.unwrap();
    assert_eq!(
        (span.source, span.answer.score),
        (ReadSource::Document { index, title: None }, scores[index])
    );

    let refused = |request: ChatRequest, param: &str, expect: &str| {
        let (sender, _events) = mpsc::channel();
        let error = gateway.chat(&model, request, Box::new(sender)).err().unwrap();
        assert!(error.param() == Some(param) && error.to_string().contains(expect), "{error}");
    };
    let with = |options: GenerateOptions| ChatRequest { options, ..conversation(0.0) };
    let options = GenerateOptions::api_defaults;
    refused(with(GenerateOptions { n: 2, ..options() }), "n", "supports no n");
    refused(with(GenerateOptions { logprobs: Some(1), ..options() }), "logprobs", "supports no logprobs");
    refused(with(GenerateOptions { stop: vec!["a".to_owned()], ..options() }), "stop", "supports no stop");
    let grammar = Some(Grammar::json_object().into());
    refused(with(GenerateOptions { grammar, ..options() }), "response_format", "supports no response_format");
    refused(conversation(1.5), "min_answer_score", "expected 0 to 1, found 1.5");
    refused(ChatRequest::user(&asked), "messages", "this model answers from a text");
    // A sampling setting has no effect.
    assert!(
        read(with(GenerateOptions { temperature: Some(0.7), seed: Some(3), ..options() })).0.span.is_some()
    );
}
