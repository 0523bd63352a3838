//! `POST /api/create`: custom models, which are existing models with another name, system prompt and sampling.

use axum::{
    Json,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use narthex_gateway::AnswerSettings;
use narthex_spec::manifest::PublishedSampling;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{models::NamedModel, options, pull::PullLine};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        fields::BodyFields,
        ignored::IgnoredParameters,
        settings,
    },
    settings_editor::SettingsChange,
};

/// Fields that describe a model and change nothing.
const DESCRIPTIONS: &[&str] = &["license", "requires", "info"];

/// Parameters of a custom model.
const PARAMETERS: &[&str] =
    &["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repetition_penalty", "stop"];

/// Body of the request.
#[derive(Debug, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["model"]}, {"required": ["name"]}]))]
pub(crate) struct CreateBody {
    /// The new name.
    #[schemars(flatten)]
    model: NamedModel,
    #[schemars(flatten)]
    custom: CustomModel,
    #[schemars(skip)]
    answers: AnswerSettings,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct CustomModel {
    /// Model that answers.
    from: String,
    /// System prompt of conversations without one.
    system: Option<String>,
    /// Sampling of requests that state none: `temperature`, `top_p`, `top_k`, `min_p`, `repeat_penalty`, `stop`.
    parameters: Option<Map<String, Value>>,
    stream: Option<bool>,
}

impl FromBody for CreateBody {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let model: NamedModel = fields.read()?;
        model.check()?;
        let mut custom: CustomModel = fields.read()?;
        fields.skip(DESCRIPTIONS);
        if let Some(field) = fields.unread().next() {
            return Err(unsupported(&field.name));
        }

        let parameters = custom.parameters.take().unwrap_or_default();
        let mut answers = sampling(parameters, ignored)?;
        answers.system = custom.system.take();
        Ok(Self { model, custom, answers })
    }
}

/// Refuses a field, with the command that does such work.
fn unsupported(field: &str) -> ApiError {
    let command = match field {
        "files" | "adapters" => "`narthex import` takes files of this machine",
        "modelfile" | "path" => "`narthex create NAME --file Modelfile` reads Modelfiles",
        "quantize" | "quantization" => "`narthex compile MODEL --scheme SCHEME` quantises models",
        "template" | "messages" => "every custom model has the template of the model in `from`",
        _ => return ApiError::unsupported(field),
    };
    ApiError::bad_request(field.to_owned(), format!("{field} is not supported; {command}"))
}

/// Returns the settings that parameters state.
fn sampling(
    parameters: Map<String, Value>,
    ignored: &mut IgnoredParameters,
) -> Result<AnswerSettings, ApiError> {
    let other = parameters.iter().find(|(name, value)| {
        !value.is_null()
            && options::Sampling::FIELDS.contains(&name.as_str())
            && !PARAMETERS.contains(&name.as_str())
    });
    if let Some((name, _)) = other {
        let message = format!(
            "parameters.{name}: expected one of {}, found {name}, which only requests state",
            PARAMETERS.join(", ")
        );
        return Err(ApiError::bad_request(format!("parameters.{name}"), message));
    }

    let options = options::read("parameters", Some(parameters), ignored)?.options()?;
    let sampling = PublishedSampling {
        temperature: options.temperature,
        top_p: options.top_p,
        top_k: options.top_k,
        min_p: options.min_p,
        repetition_penalty: options.repetition_penalty,
    };
    if let Some((name, value)) = sampling.outside_range() {
        let message = format!("parameters.{name}: expected a value in its range, found {value}");
        return Err(ApiError::bad_request(format!("parameters.{name}"), message));
    }
    Ok(AnswerSettings { system: None, sampling, stop: options.stop })
}

/// Adds the custom model to the settings. A custom model of this name is replaced.
pub(crate) async fn create(app: App, body: Body<CreateBody>) -> Result<Response, ApiError> {
    let Body { request: CreateBody { model, custom, answers }, reservation: _reservation, .. } = body;
    app.check_admin("/api/create")?;
    let is_streamed = custom.stream != Some(false);
    let jobs = app.shared.jobs.clone();
    let created = jobs.run(move || {
        let name = model.into_name();
        app.gateway.model(&custom.from)?;
        settings::check_name("model", &name, &app.gateway)?;
        let change = SettingsChange::AddModel { name, from: custom.from, answers };
        settings::apply(&app, &[change]).map(drop)
    });
    created.await?;

    let success = PullLine::status("success");
    if is_streamed {
        Ok(([(CONTENT_TYPE, "application/x-ndjson")], success.bytes()).into_response())
    } else {
        Ok(Json(success).into_response())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_become_settings_or_are_refused_by_name() {
        let read = |parameters: Value| {
            let mut ignored = IgnoredParameters::default();
            let body = json!({"model": "pirate", "from": "m", "parameters": parameters}).to_string();
            let fields = BodyFields::divide(body.as_bytes()).unwrap();
            CreateBody::read(&fields, &mut ignored).map(|body| (body.answers, ignored))
        };
        let parameters = json!({"temperature": 0.5, "top_k": 40.0, "repeat_penalty": 1.1, "stop": ["a", "b"], "num_ctx": 4096});
        let (answers, ignored) = read(parameters).unwrap();
        let sampling = PublishedSampling {
            temperature: Some(0.5),
            top_k: Some(40),
            repetition_penalty: Some(1.1),
            ..PublishedSampling::default()
        };
        assert_eq!((answers.sampling, answers.stop), (sampling, vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(ignored.names(), ["num_ctx"]);
        for (parameters, expect) in [
            (json!({"temperature": 9}), "parameters.temperature: expected a value in its range, found 9"),
            (json!({"temperature": "hot"}), "parameters.temperature: expected a number"),
            (json!({"seed": 1}), "parameters.seed: expected one of temperature"),
            (json!({"warmth": 1}), "parameters.warmth"),
        ] {
            let message = read(parameters).unwrap_err().message();
            assert!(message.contains(expect), "{message}");
        }
    }

    #[test]
    fn fields_that_would_change_the_model_are_refused_with_a_command() {
        for (field, value, expect) in [
            ("files", json!({"a.gguf": "sha256:0"}), "narthex import"),
            ("modelfile", json!("FROM a"), "narthex create NAME --file"),
            ("quantize", json!("q4_K_M"), "narthex compile"),
            ("template", json!("{{ .Prompt }}"), "template of the model"),
        ] {
            let body = json!({"model": "pirate", "from": "m", "license": "MIT", field: value}).to_string();
            let fields = BodyFields::divide(body.as_bytes()).unwrap();
            let error = CreateBody::read(&fields, &mut IgnoredParameters::default()).unwrap_err();
            assert!(error.message().contains(expect), "{}", error.message());
        }
    }
}
