//! Requests to a model in memory. Requests of a [`Gateway`](super::Gateway), which name a model, are passed on to
//! these.

use crate::{
    cancel::Cancel,
    error::Error,
    load::residency::ReadyModel,
    serve::{
        answer, chat, date, embed, fill,
        generation::Generation,
        mask_predict,
        request::{
            AnswerRequest, Answers, ChatPrompt, ChatRequest, CompletionRequest, EmbedRequest, Embeddings,
            Fillings, GenerationSink, MaskPredictOutput, MaskRequest, Ranking, RefineRequest, RerankRequest,
        },
        rerank,
    },
};

/// Requests, with the same names as those of a [`Gateway`](super::Gateway).
impl ReadyModel {
    /// Starts a chat answer. Returns once it is queued.
    pub fn chat(&self, request: ChatRequest, sink: Box<dyn GenerationSink>) -> Result<Generation, Error> {
        chat::chat(&self.0, request, date::today(), sink)
    }

    /// Returns the prompt of a conversation with its tools. The generation options are ignored. Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    pub fn chat_prompt(&self, request: ChatRequest, cancel: &Cancel) -> Result<ChatPrompt, Error> {
        chat::whole_prompt(&self.0, request, date::today(), cancel)
    }

    /// Returns the tokens of a text of at most 1 MiB, in which special tokens are recognised. Ends with
    /// [`Error::Cancelled`] if `cancel` is set before it begins.
    pub fn tokenize(&self, text: &str, cancel: &Cancel) -> Result<Vec<u32>, Error> {
        chat::text_tokens(&self.0, text, cancel)
    }

    /// Returns the text of tokens, without special tokens.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String, Error> {
        chat::token_text(&self.0, tokens)
    }

    /// Starts a text completion. Returns once it is queued.
    pub fn complete(
        &self,
        request: CompletionRequest,
        sink: Box<dyn GenerationSink>,
    ) -> Result<Generation, Error> {
        chat::complete(&self.0, request, sink)
    }

    /// Embeds texts. Ends with [`Error::Cancelled`] once `cancel` is set, as the following methods do.
    pub fn embed(&self, request: &EmbedRequest, cancel: &Cancel) -> Result<Embeddings, Error> {
        embed::embed(&self.0, request, cancel)
    }

    /// Sorts documents by relevance to a query.
    pub fn rerank(&self, request: &RerankRequest, cancel: &Cancel) -> Result<Ranking, Error> {
        rerank::rerank(&self.0, request, cancel)
    }

    /// Finds the spans of a text that answer a question.
    pub fn answer(&self, request: &AnswerRequest, cancel: &Cancel) -> Result<Answers, Error> {
        answer::answer(&self.0, request, cancel)
    }

    /// Predicts the masked tokens of a text.
    pub fn fill(&self, request: &MaskRequest, cancel: &Cancel) -> Result<Fillings, Error> {
        fill::fill(&self.0, request, cancel)
    }

    /// Generates tokens with a masked language model by mask-predict (arXiv:1904.09324).
    pub fn refine(&self, request: &RefineRequest, cancel: &Cancel) -> Result<MaskPredictOutput, Error> {
        mask_predict::refine(&self.0, request, cancel)
    }
}
