//! `narthex rerank`: documents in the order of their relevance to a query.

use narthex_gateway::{
    Gateway,
    models::ModelKind,
    request::{InputOverflow, RerankRequest},
};
use serde::Serialize;

use crate::{args::RerankArgs, bars::Bars, interrupt, output, standard_input};

#[derive(Serialize)]
struct RerankOutput<'a> {
    model: &'a str,
    query: &'a str,
    results: Vec<RankedDocument<'a>>,
    prompt_tokens: usize,
}

#[derive(Serialize)]
struct RankedDocument<'a> {
    index: usize,
    score: f32,
    document: &'a str,
}

/// Ranks the given documents, or the lines of standard input.
pub(crate) fn run(gateway: &Gateway, args: &RerankArgs) -> anyhow::Result<()> {
    super::check_texts("query", &[&args.query], "pass it as the first argument")?;
    let documents = if args.documents.is_empty() {
        standard_input::lines("Type the documents, one per line")?
    } else {
        args.documents.clone()
    };
    super::check_texts("documents", &documents, "pass them as arguments, or one per line on standard input")?;

    let status = super::load(gateway, &args.model, &[ModelKind::Rerank], &Bars::new())?;
    let request = RerankRequest {
        query: args.query.clone(),
        documents,
        top_n: args.top_n,
        overlong: if args.truncate { InputOverflow::Truncate } else { InputOverflow::Refuse },
    };
    let ranking = gateway.rerank(&status.id(), &request, interrupt::cancel())?;
    let lines = ranking.results.iter().map(|ranked| RankedDocument {
        index: ranked.index,
        score: ranked.score,
        document: request.documents.get(ranked.index).map(String::as_str).unwrap_or_default(),
    });
    if args.json {
        return output::json(&RerankOutput {
            model: &args.model,
            query: &args.query,
            results: lines.collect(),
            prompt_tokens: ranking.prompt_tokens,
        });
    }
    lines.map(|line| format!("{:.4}\t{}", line.score, line.document)).try_for_each(output::line)
}
