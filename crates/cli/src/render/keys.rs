//! API keys.

use narthex_gateway::keys::{ApiKey, KeyRole};

use super::table;

/// Renders keys with their rights and limits.
pub(crate) fn keys(keys: &[ApiKey]) -> String {
    let mut table = table(&["KEY", "RIGHTS", "MODELS", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT"]);
    for ApiKey { name, limits, .. } in keys {
        let role = match limits.role {
            KeyRole::User => "user",
            KeyRole::Admin => "admin",
        };
        let models: Vec<&str> = limits.models.iter().map(|model| model.as_str()).collect();
        let models = if models.is_empty() { "all".to_owned() } else { models.join(", ") };
        let [requests, tokens, concurrency] =
            [limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency]
                .map(|limit| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string()));
        table.add_row([name.as_str(), role, &models, &requests, &tokens, &concurrency]);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use narthex_gateway::keys::KeyLimits;

    use super::*;

    #[test]
    fn keys_are_listed_with_their_limits() {
        let key = ApiKey::from_secret("app", "a-secret-of-a-key", KeyRole::Admin).unwrap();
        let limits = KeyLimits {
            models: ["gpt2".parse().unwrap()].into(),
            concurrency: NonZeroU32::new(3),
            ..key.limits.clone()
        };
        let text = keys(&[key.clone(), ApiKey { name: "b".to_owned(), limits, ..key }]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["app", "admin", "all", "-", "-", "-"]);
        assert_eq!(rows[2], ["b", "admin", "gpt2", "-", "-", "3"]);
    }
}
