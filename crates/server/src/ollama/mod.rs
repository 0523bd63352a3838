//! Ollama's protocol: `/api/chat`, `/api/tags` and `/api/version`.

pub(crate) mod chat;
pub(crate) mod models;

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::request::{FinishReason, Summary};
use serde_json::{Value, json};

use crate::error::ApiError;

/// An error in Ollama's form, `{"error": message}`.
pub(crate) struct OllamaError(ApiError);

impl From<ApiError> for OllamaError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        let message = self.0.body()["error"]["message"].take();
        let status = self.0.into_response().status();
        (status, Json(json!({"error": message}))).into_response()
    }
}

/// Returns the name without the tag `latest`, which Ollama's clients add.
fn plain_name(model: &str) -> String {
    model.strip_suffix(":latest").unwrap_or(model).to_owned()
}

/// Returns a time in seconds since 1970, as in RFC 3339. The date follows Howard Hinnant's `civil_from_days`.
fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (month, day) =
        (if shifted < 10 { shifted + 3 } else { shifted - 9 }, day_of_year - (153 * shifted + 2) / 5 + 1);
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Value of `done_reason`.
fn done_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::ToolCalls => "stop",
        FinishReason::Length | FinishReason::Cancelled => "length",
    }
}

/// Adds counts and times, in nanoseconds, to the last object of an answer.
fn add_counts(answer: &mut Value, summary: &Summary) {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    answer["prompt_eval_count"] = json!(summary.prompt_tokens);
    answer["eval_count"] = json!(summary.completion_tokens);
    if let Some(times) = &summary.times {
        answer["total_duration"] = json!(nanoseconds(times.total));
        answer["prompt_eval_duration"] = json!(nanoseconds(times.first_token));
        answer["eval_duration"] = json!(nanoseconds(times.total.saturating_sub(times.first_token)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_868_799), "2000-02-29T23:59:59Z");
    }

    #[test]
    fn the_tag_latest_is_no_part_of_a_name() {
        assert_eq!(
            (plain_name("smollm2:latest"), plain_name("smollm2:135m")),
            ("smollm2".to_owned(), "smollm2:135m".to_owned())
        );
    }
}
