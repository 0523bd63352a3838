//! Bodies of requests that an upstream may answer: read for this machine, passed on, or both.

use hyper::body::Bytes;
use narthex_gateway::{Gateway, UpstreamAlternative, UpstreamRoute};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};

use crate::{
    error::ApiError,
    protocol::{body::FromBody, fields::BodyFields, ignored::IgnoredParameters},
};

/// Parameters of Narthex that other servers do not know.
const OWN_PARAMETERS: [&str; 2] = ["device_map", "min_answer_score"];

/// Endpoint of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamEndpoint {
    Chat,
    Completions,
    Embeddings,
    Responses,
}

impl UpstreamEndpoint {
    /// Returns the path after the address of the upstream's API.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
            Self::Responses => "/responses",
        }
    }

    /// Returns true if streams state token counts only on request.
    fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Returns true if answers are embeddings, without generated tokens.
    pub(crate) fn is_encoder(self) -> bool {
        self == Self::Embeddings
    }
}

/// A request that an upstream may answer.
pub(crate) trait UpstreamRequest: FromBody {
    /// Endpoint of the upstream.
    const ENDPOINT: UpstreamEndpoint;
}

/// A request, by the server that answers it.
pub(crate) enum RequestRoute<T> {
    /// This machine answers.
    Local {
        request: T,
        /// Body that a rule of the model sends to an upstream.
        alternative: Option<Box<Alternative>>,
    },
    /// An upstream answers.
    Upstream(Box<PassedBody>),
}

/// A rule with the body that its upstream would receive.
pub(crate) struct Alternative {
    pub(crate) rule: UpstreamAlternative,
    pub(crate) body: PassedBody,
}

/// The body of a request, for an upstream.
pub(crate) struct PassedBody {
    pub(crate) route: UpstreamRoute,
    pub(crate) endpoint: UpstreamEndpoint,
    /// Model that the request names.
    pub(crate) model: String,
    pub(crate) json: Bytes,
    /// Number of answers.
    pub(crate) n: usize,
    pub(crate) is_streamed: bool,
    pub(crate) has_tools: bool,
    /// True if the client did not ask for the token counts of its stream.
    pub(crate) hides_usage: bool,
}

/// Fields that decide about the route.
#[derive(Deserialize)]
struct RouteFields {
    model: String,
    n: Option<usize>,
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<Map<String, Value>>,
    tools: Option<Vec<IgnoredAny>>,
}

impl<T: UpstreamRequest> FromBody for RequestRoute<T> {
    const TOKENS: Option<&'static str> = T::TOKENS;

    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        Ok(Self::Local { request: T::read(fields, ignored)?, alternative: None })
    }

    fn read_for(
        gateway: &Gateway,
        fields: &BodyFields<'_>,
        ignored: &mut IgnoredParameters,
    ) -> Result<Self, ApiError> {
        if gateway.config().upstreams.is_empty() {
            return Self::read(fields, ignored);
        }
        // A wrong field is an error of the local endpoint, which says more about it.
        let Ok(route_fields) = fields.copy::<RouteFields>() else { return Self::read(fields, ignored) };
        if let Some(route) = gateway.upstream_route(&route_fields.model)? {
            return Ok(Self::Upstream(Box::new(PassedBody::new(T::ENDPOINT, route, fields, route_fields))));
        }
        let request = T::read(fields, ignored)?;
        let alternative = gateway.upstream_alternative(&route_fields.model).map(|rule| {
            let body = PassedBody::new(T::ENDPOINT, rule.route.clone(), fields, route_fields);
            Box::new(Alternative { rule, body })
        });
        Ok(Self::Local { request, alternative })
    }
}

impl PassedBody {
    fn new(
        endpoint: UpstreamEndpoint,
        route: UpstreamRoute,
        fields: &BodyFields<'_>,
        given: RouteFields,
    ) -> Self {
        let RouteFields { model, n, stream, stream_options, tools } = given;
        let mut options = stream_options.unwrap_or_default();
        let asks_usage = options.get("include_usage").and_then(Value::as_bool) == Some(true);
        let adds_usage = stream == Some(true) && endpoint.has_stream_options();
        let mut json = String::from("{\"model\":");
        json.push_str(&json!(route.model).to_string());
        if adds_usage {
            options.insert("include_usage".to_owned(), true.into());
            json.push_str(",\"stream_options\":");
            json.push_str(&Value::Object(options).to_string());
        }

        let replaced: &[&str] = if adds_usage { &["model", "stream_options"] } else { &["model"] };
        for field in fields.all() {
            let name = field.name.as_str();
            if replaced.contains(&name) || OWN_PARAMETERS.contains(&name) {
                continue;
            }
            json.push(',');
            json.push_str(&json!(name).to_string());
            json.push(':');
            json.push_str(field.json());
        }
        json.push('}');
        Self {
            route,
            endpoint,
            model,
            json: json.into(),
            n: n.unwrap_or(1),
            is_streamed: stream == Some(true),
            has_tools: tools.is_some_and(|tools| !tools.is_empty()),
            hides_usage: adds_usage && !asks_usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(endpoint: UpstreamEndpoint, body: &str) -> PassedBody {
        let fields = BodyFields::divide(body.as_bytes()).unwrap();
        let route =
            UpstreamRoute { upstream: "box".to_owned(), name: "big".to_owned(), model: "a\"b".to_owned() };
        let given = fields.copy().unwrap();
        PassedBody::new(endpoint, route, &fields, given)
    }

    #[test]
    fn only_the_model_and_own_parameters_change() {
        let body = r#"{"messages": [ {"a":1.50} ], "model": "big", "min_answer_score": 1, "device_map": "layers=npu", "x\n": null, "n": 2}"#;
        let body = passed(UpstreamEndpoint::Chat, body);
        assert_eq!(
            str::from_utf8(&body.json).unwrap(),
            r#"{"model":"a\"b","messages":[ {"a":1.50} ],"x\n":null,"n":2}"#
        );
        assert_eq!((body.n, body.hides_usage, body.has_tools), (2, false, false));
    }

    #[test]
    fn streams_ask_for_token_counts() {
        let check = |endpoint, body: &str, expect: &str, hides: bool| {
            let passed = passed(endpoint, body);
            assert_eq!(str::from_utf8(&passed.json).unwrap(), expect, "{body}");
            assert_eq!(passed.hides_usage, hides, "{body}");
        };
        let counts = r#"{"model":"a\"b","stream_options":{"include_usage":true},"stream":true}"#;
        check(UpstreamEndpoint::Chat, r#"{"model":"m","stream":true}"#, counts, true);
        check(
            UpstreamEndpoint::Completions,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            counts,
            false,
        );
        let with_option = r#"{"model":"m","stream":true,"stream_options":{"include_usage":false,"a":1}}"#;
        let expect = r#"{"model":"a\"b","stream_options":{"include_usage":true,"a":1},"stream":true}"#;
        check(UpstreamEndpoint::Chat, with_option, expect, true);
        check(
            UpstreamEndpoint::Responses,
            r#"{"model":"m","stream":true}"#,
            r#"{"model":"a\"b","stream":true}"#,
            false,
        );
        let tools = passed(UpstreamEndpoint::Chat, r#"{"model":"m","tools":[{}],"stream":false}"#);
        assert!(tools.has_tools && !tools.hides_usage);
    }
}
