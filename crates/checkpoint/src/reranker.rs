//! Rerankers that answer yes or no: Qwen3-Reranker (Zhang et al. 2025, arXiv:2506.05176).
//!
//! The score of a document is the logit of the answer yes minus that of no, so the model is compiled as a classifier whose
//! weight is the difference of two rows of the head. The sigmoid of the score is the probability of yes.

use std::path::Path;

use narthex_spec::{
    TokenId,
    arch::{
        Architecture, AttentionDirection, ClassifierLayers, DecoderArch, EmbedderArch, EncoderHead, Pooling,
    },
    manifest::{ClassifierEntry, PairTemplate, Prompts, PublishedSampling},
};

use crate::{
    checkpoint::{Checkpoint, TokenizerSource},
    error::Result,
    gguf::meta::Metadata,
    hf::{
        classifier,
        config::Config,
        folder::Folder,
        pooling::{SavedName, SentenceEmbedding},
        prompts,
    },
    limits::unsupported,
    pooling::{is_called, names},
    tensors::file_name,
    weight::{Weight, WeightSource},
};

/// Default instruction, for models whose files state none.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Start of the system message. A template with it is that of Qwen3-Reranker.
pub(crate) const JUDGE: &str = "Judge whether the Document meets the requirements";

/// File of the template.
const TEMPLATE: &str = "chat_template.jinja";

/// Tokens of the answers: first that for a relevant document.
const ANSWERS: [&str; 2] = ["yes", "no"];

/// Name of the only label.
const LABEL: &str = "yes";

/// Canonical name of the classifier's weight.
const SCORE: &str = "score.out.weight";

/// Canonical name of the rows of the head for the answers, which llama.cpp's converter stores in place of the head.
const STORED_ANSWERS: &str = "answers.weight";

/// Settings of a reranker that answers yes or no.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerReranker {
    /// Instruction; `None` for the default, web search.
    pub instruction: Option<String>,
    /// Tokens of the answers yes and no; `None` for those that are called so.
    pub tokens: Option<[TokenId; 2]>,
}

impl AnswerReranker {
    /// Returns the template of a query and a document.
    pub(crate) fn template(&self) -> PairTemplate {
        let instruction = self.instruction.as_deref().unwrap_or(INSTRUCTION);
        PairTemplate {
            start: format!(
                "<|im_start|>system\n{JUDGE} based on the Query and the Instruct provided. Note that the answer can only be \
                 \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
            ),
            first: format!("<Instruct>: {instruction}\n<Query>: "),
            second: "\n<Document>: ".to_owned(),
            end: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n".to_owned(),
        }
    }

    fn token_ids(&self, tokenizer: &TokenizerSource, vocab: usize) -> Result<[TokenId; 2]> {
        if let Some(tokens) = self.tokens {
            return Ok(tokens);
        }
        let what = "tokens of a reranker's answers";
        let tokenizer =
            tokenizer.tokenizer().map_err(|error| unsupported(what, "a tokenizer that is read", error))?;
        let found = ANSWERS.map(|answer| tokenizer.token_id(answer).filter(|&id| (id as usize) < vocab));
        match found {
            [Some(yes), Some(no)] => Ok([yes, no]),
            _ => {
                let expected = "a vocabulary with the tokens yes and no";
                Err(unsupported(what, expected, "another vocabulary"))
            }
        }
    }
}

/// Name of the published models.
const NAME: &str = "qwen3-reranker";

/// Classes of the published models, and of those whose head was converted to a classifier.
const CLASSES: [&str; 2] = ["Qwen3ForCausalLM", "Qwen3ForSequenceClassification"];

fn has_class(config: &Config) -> Result<bool> {
    let is_classifier = config.class() == Some(CLASSES[1]);
    let is_known = config.class().is_some_and(|class| CLASSES.contains(&class));
    Ok(is_known && (!is_classifier || classifier::count(config)? == Some(1)))
}

/// Returns whether settings are those of a published language model that answers yes or no, by the name that they state.
pub(crate) fn is_published(config: &Config) -> Result<bool> {
    let SavedName { _name_or_path: name } = config.keys()?;
    Ok(config.class() == Some(CLASSES[0]) && is_called(name.as_slice(), NAME))
}

/// Returns the settings of a reranker that answers yes or no, which is recognised by its name or its template; `None` for other
/// models.
///
/// # Errors
/// [`CheckpointError::Unsupported`](crate::CheckpointError::Unsupported) for rerankers with another template.
pub(crate) fn recognise(
    folder: &mut Folder,
    config: &Config,
    sentence: &SentenceEmbedding,
) -> Result<Option<AnswerReranker>> {
    let mut is_reranker = false;
    if has_class(config)? && !sentence.listed {
        let SavedName { _name_or_path: saved } = config.keys()?;
        let names: Vec<String> = names(folder.path()).into_iter().chain(saved).collect();
        let template = folder.text(TEMPLATE)?.unwrap_or_default();
        is_reranker = is_called(&names, NAME) || template.contains(JUDGE);
    }
    if is_reranker {
        let Prompts { mut named, default } = prompts::read(folder)?;
        let instruction = default.and_then(|name| named.remove(&name));
        return Ok(Some(AnswerReranker { instruction, tokens: sentence.answers }));
    }
    match sentence.answers {
        None => Ok(None),
        Some(_) => {
            let expected = "LogitScore with the template of Qwen3-Reranker";
            Err(unsupported("sentence-transformers module", expected, "LogitScore with another template"))
        }
    }
}

/// Pooling type of rerankers in GGUF files.
const RANK: usize = 4;

/// Returns the settings of a reranker in a GGUF file, which is recognised by its pooling type or its name; `None` for other
/// models.
///
/// # Errors
/// [`CheckpointError::Unsupported`](crate::CheckpointError::Unsupported) for rerankers with another template.
pub(crate) fn of_gguf(path: &Path, metadata: &Metadata, family: &str) -> Result<Option<AnswerReranker>> {
    if metadata.count(&format!("{family}.pooling_type"))? == Some(RANK) {
        let template = metadata.text("tokenizer.chat_template.rerank")?;
        return match template.is_some_and(|template| template.contains(JUDGE)) {
            true => Ok(Some(AnswerReranker::default())),
            false => {
                let expected = "the template of Qwen3-Reranker";
                Err(unsupported("tokenizer.chat_template.rerank of a reranker", expected, "another"))
            }
        };
    }
    let is_named = family == "qwen3" && is_called(&[file_name(path)], NAME);
    Ok(is_named.then(AnswerReranker::default))
}

/// Returns the classifier that scores a text by the logits of a decoder after its last token.
pub(crate) fn scored(arch: DecoderArch) -> Architecture {
    Architecture::Embedder(EmbedderArch {
        decoder: DecoderArch { tied_head: true, vision: None, audio: None, ..arch },
        attends: AttentionDirection::Causal,
        dense: Vec::new(),
        head: EncoderHead::Score { labels: 1, dense: None },
        classifier: Some(ClassifierLayers { pooling: Pooling::Last, hidden: None, bias: false }),
    })
}

impl Checkpoint {
    /// Returns this language model as a reranker that answers yes or no. A reranker is returned with the template of its texts.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`](crate::CheckpointError::Unsupported) for other models, and for a vocabulary without the
    /// answers.
    pub fn reranking(mut self, reranker: &AnswerReranker) -> Result<Self> {
        match &self.architecture {
            Architecture::Decoder(arch) => {
                let (head, rows) = match self.weights.has(STORED_ANSWERS) {
                    true => (STORED_ANSWERS, [0, 1]),
                    false => (arch.head_weight(), reranker.token_ids(&self.tokenizer, arch.vocab)?),
                };
                self.weights = Box::new(AnswerWeights { whole: self.weights, head, rows });
                self.architecture = scored(arch.clone());
                self.classifier = Some(ClassifierEntry { labels: vec![LABEL.to_owned()], problem: None });
                self.chat_template = None;
                self.sampling = PublishedSampling::default();
            }
            Architecture::Embedder(EmbedderArch { head: EncoderHead::Score { labels: 1, .. }, .. }) => {}
            other => {
                let expected = "a language model; leave out --rerank";
                return Err(unsupported("reranker", expected, other.describe()));
            }
        }
        self.pairs.get_or_insert_with(|| reranker.template());
        Ok(self)
    }
}

/// Weights of a decoder, with a classifier in place of the head.
struct AnswerWeights {
    whole: Box<dyn WeightSource>,
    /// Name of the head's weight in the checkpoint.
    head: &'static str,
    /// Rows of the answers yes and no.
    rows: [TokenId; 2],
}

impl WeightSource for AnswerWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>> {
        if name != SCORE {
            return self.whole.weight(name);
        }
        let head = self.whole.weight(self.head)?;
        let row = |token: TokenId| {
            let row = token as usize..token as usize + 1;
            Ok(head.clone().with_row_ranges(&[row])?.to_f32())
        };
        let [yes, no] = self.rows;
        let difference: Vec<f32> = row(yes)?.iter().zip(row(no)?).map(|(yes, no)| yes - no).collect();
        Weight::of_values(name, vec![1, head.cols()], &difference)
    }

    fn has(&self, name: &str) -> bool {
        name == SCORE || self.whole.has(name)
    }

    fn file(&self, name: &str) -> Option<&Path> {
        self.whole.file(if name == SCORE { self.head } else { name })
    }

    fn called(&self, name: &str) -> String {
        self.whole.called(if name == SCORE { self.head } else { name })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use narthex_testkit::checkpoint::{
        GgufTensor, GgufType, Meta, tiny_bert_safetensors, tiny_llama, tiny_llama_gguf,
    };
    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::*;
    use crate::{architecture, open};

    /// A tiny language model with the tokens yes and no, in a folder of this name, with these files.
    fn model(name: &str, files: &[(&str, &str)]) -> (TempDir, PathBuf) {
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/goldens/scorers/qwen3_answers");
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join(name);
        fs::create_dir(&folder).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(golden.join(file), folder.join(file)).unwrap();
        }
        for (name, text) in files {
            fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            fs::write(folder.join(name), text).unwrap();
        }
        (parent, folder)
    }

    /// Returns the text of `config.json` with these keys replaced.
    fn config(folder: &Path, changes: &Value) -> String {
        let text = fs::read(folder.join("config.json")).unwrap();
        let mut keys: Value = serde_json::from_slice(&text).unwrap();
        keys.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        keys.to_string()
    }

    fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
        checkpoint.weights.weight(name).unwrap().to_f32()
    }

    #[test]
    fn rerankers_are_recognised_by_their_name_or_template() {
        let opened = |name: &str, files: &[(&str, &str)]| {
            let (_parent, folder) = model(name, files);
            let found = open(&folder).unwrap();
            assert_eq!(architecture(&folder).unwrap(), found.architecture, "{name}");
            found
        };
        let plain = opened("assistant", &[]);
        assert!(matches!(plain.architecture, Architecture::Decoder(_)) && plain.pairs.is_none());

        let named = opened("Qwen3-Reranker-0.6B", &[]);
        let Architecture::Embedder(arch) = &named.architecture else { panic!("{:?}", named.architecture) };
        assert_eq!((arch.head.labels(), arch.attends), (Some(1), AttentionDirection::Causal));
        assert_eq!(named.pairs, Some(AnswerReranker::default().template()));
        assert_eq!(named.classifier.unwrap().labels, ["yes"]);

        let template =
            (TEMPLATE, "<|im_start|>system\nJudge whether the Document meets the requirements based on");
        assert!(opened("mine", &[template]).pairs.is_some());
        let task = json!({"prompts": {"law": "Find cases"}, "default_prompt_name": "law"}).to_string();
        let found = opened("mine", &[template, ("config_sentence_transformers.json", &task)]);
        assert_eq!(found.pairs.unwrap().first, "<Instruct>: Find cases\n<Query>: ");
        let (_parent, folder) = model("mine", &[]);
        let keys = config(&folder, &json!({"_name_or_path": "Qwen/Qwen3-Reranker-0.6B"}));
        assert!(opened("mine", &[("config.json", &keys)]).pairs.is_some());
    }

    #[test]
    fn the_weight_of_the_score_is_the_difference_of_the_answers() {
        for is_tied in [false, true] {
            let (_parent, folder) = model("assistant", &[]);
            let keys = config(&folder, &json!({"tie_word_embeddings": is_tied}));
            fs::write(folder.join("config.json"), keys).unwrap();
            let whole = open(&folder).unwrap();
            let head = values(&whole, if is_tied { "embed.weight" } else { "head.weight" });
            let tokenizer = whole.tokenizer.tokenizer().unwrap();
            let [yes, no] = ANSWERS.map(|answer| tokenizer.token_id(answer).unwrap() as usize * 32);
            let found = whole.reranking(&AnswerReranker::default()).unwrap();
            let expected: Vec<f32> = (0..32).map(|at| head[yes + at] - head[no + at]).collect();
            assert_eq!(values(&found, SCORE), expected);
            assert!(found.pairs.is_some() && found.chat_template.is_none());
            for weight in found.architecture.weights() {
                assert!(found.weights.has(&weight.name.to_string()), "{}", weight.name);
            }
        }
    }

    #[test]
    fn files_of_llama_cpp_have_the_rows_of_the_answers() {
        let mut gguf = tiny_llama(7);
        gguf.set("llama.pooling_type", Meta::U32(4));
        let hidden = 64;
        let rows: Vec<f32> = (0..2 * hidden).map(|element| (element * element % 17) as f32).collect();
        gguf.tensors.push(GgufTensor {
            name: "cls.output.weight".to_owned(),
            shape: vec![2, hidden],
            kind: GgufType::F32 as u32,
            bytes: GgufType::F32.encode(&rows),
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiny.gguf");
        fs::write(&file, gguf.to_bytes()).unwrap();
        let error = open(&file).err().unwrap().to_string();
        assert!(error.contains("the template of Qwen3-Reranker"), "{error}");

        gguf.set("tokenizer.chat_template.rerank", Meta::Text(format!("{JUDGE} based on {{query}}")));
        fs::write(&file, gguf.to_bytes()).unwrap();
        let found = open(&file).unwrap();
        assert!(found.pairs.is_some() && matches!(found.architecture, Architecture::Embedder(_)));
        let expected: Vec<f32> = (0..hidden).map(|at| rows[at] - rows[hidden + at]).collect();
        assert_eq!(values(&found, SCORE), expected);
    }

    #[test]
    fn other_models_are_no_rerankers() {
        let folder = tempfile::tempdir().unwrap();
        tiny_bert_safetensors(folder.path(), 7).unwrap();
        let refused = |checkpoint: Result<Checkpoint>, expect: &str| {
            let error = checkpoint.err().unwrap().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        let reranking = |path: &Path| open(path).unwrap().reranking(&AnswerReranker::default());
        refused(reranking(folder.path()), "a language model; leave out --rerank");
        let file = folder.path().join("tiny.gguf");
        fs::write(&file, tiny_llama_gguf(7)).unwrap();
        refused(reranking(&file), "a vocabulary with the tokens yes and no");
        let modules =
            json!([{"type": "a.Transformer", "path": ""}, {"type": "a.LogitScore", "path": "1_LogitScore"}]);
        let tokens = json!({"true_token_id": 7, "false_token_id": 9}).to_string();
        let files = [("modules.json", modules.to_string()), ("1_LogitScore/config.json", tokens)];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        refused(open(&model("mine", &files).1), "LogitScore with the template of Qwen3-Reranker");
        assert_eq!(
            open(&model("qwen3-reranker", &files).1).unwrap().pairs,
            Some(AnswerReranker::default().template())
        );
    }
}
