//! State, devices and counters of a model in the report at `/health`.

use narthex_gateway::{
    FallbackNode, FallbackNodes, PhaseShares, PlacementLine, PlacementReport, TowerReport,
    models::{
        CertifiedLoss, DeviceRefusal, DraftModelStatus, EngineCounters, KvCacheStatus, ModelState,
        ModelStatus, NumericsCheck,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::public_text;

/// State of a model. Fields about its devices are null until it is loaded.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ModelHealth {
    /// Name of the model.
    id: String,
    /// Weight scheme.
    scheme: String,
    state: ModelState,
    /// Device, or both as `prefill=qnn,decode=cpu`.
    device: Option<String>,
    /// Reason for the choice of devices, if measurements or a device map decided it.
    why: Option<String>,
    /// Share of the multiply-accumulates that run on an NPU, 0 to 1.
    npu_share: Option<f64>,
    /// That share in each phase, if the phases differ.
    npu_phases: Option<PhaseShares>,
    /// An entry for each graph and provider.
    placement: Option<Vec<PlacementLine>>,
    /// Towers that read images or audio in conversations. They are not part of the other figures.
    towers: Option<Vec<TowerReport>>,
    /// Nodes on another device than intended.
    #[serde(rename = "fallen")]
    fallback: Option<FallbackNodes>,
    /// Events of the load that a user should know of.
    notes: Option<Vec<String>>,
    /// Preferred devices that refused the model.
    passed_over: Vec<DeviceRefusal>,
    /// Maximum number of tokens of a conversation or text: that of the model, or fewer if the KV budget or `--context`
    /// allow fewer.
    max_length: Option<usize>,
    /// Element type of the KV cache on the CPU, with the measured loss.
    kv_cache: Option<KvCacheStatus>,
    /// Loss of the weights, if the compile measured it.
    certificate: Option<CertifiedLoss>,
    /// Comparisons of the devices with the CPU, which the model passed.
    numerics: Vec<NumericsCheck>,
    /// Bytes of the packages of the model and of its draft model.
    package_bytes: Option<u64>,
    draft_model: Option<DraftModelStatus>,
    engine: Option<EngineCounters>,
}

impl From<&ModelStatus> for ModelHealth {
    fn from(model: &ModelStatus) -> Self {
        let placement = model.placement.as_ref();
        Self {
            id: model.name.to_string(),
            scheme: model.scheme.to_string(),
            state: public_state(&model.state),
            device: placement.map(PlacementReport::name),
            why: placement.and_then(|report| report.why.clone()),
            npu_share: placement.map(|report| report.npu_share),
            npu_phases: placement.and_then(|report| report.phases),
            placement: placement.map(|report| report.lines.clone()),
            towers: placement.map(|report| report.towers.clone()),
            fallback: placement.map(|report| public_nodes(&report.fallback)),
            notes: placement.map(|report| report.notes.iter().map(|note| public_text(note)).collect()),
            passed_over: model.passed_over.iter().map(public_refusal).collect(),
            max_length: model.max_length,
            kv_cache: model.kv_cache,
            certificate: model.certificate.clone(),
            numerics: model.numerics.clone(),
            package_bytes: model.package_bytes,
            draft_model: model.draft_model.clone(),
            engine: model.engine,
        }
    }
}

/// Returns a state whose texts are short and have no credentials. A reason may quote a package's file.
fn public_state(state: &ModelState) -> ModelState {
    match state {
        ModelState::Failed { reason, hint } => {
            ModelState::Failed { reason: public_text(reason), hint: hint.as_deref().map(public_text) }
        }
        state => state.clone(),
    }
}

/// Returns a refusal with such texts.
fn public_refusal(refusal: &DeviceRefusal) -> DeviceRefusal {
    DeviceRefusal {
        reason: public_text(&refusal.reason),
        fix: refusal.fix.as_deref().map(public_text),
        fallback: public_nodes(&refusal.fallback),
        ..refusal.clone()
    }
}

/// Returns nodes with such texts.
fn public_nodes(found: &FallbackNodes) -> FallbackNodes {
    let nodes = found.nodes.iter().map(|node| FallbackNode {
        graph: public_text(&node.graph),
        path: public_text(&node.path),
        op: public_text(&node.op),
        why: public_text(&node.why),
        fix: node.fix.as_deref().map(public_text),
    });
    FallbackNodes { nodes: nodes.collect(), ..found.clone() }
}

#[cfg(test)]
pub(super) mod samples {
    use narthex_gateway::models::ModelKind;
    use narthex_spec::Scheme;

    use super::*;

    /// Returns the status of a model in this state and with this placement.
    pub(in crate::reports) fn status(state: ModelState, placement: Option<PlacementReport>) -> ModelStatus {
        ModelStatus {
            name: "tiny".parse().unwrap(),
            kind: Some(ModelKind::Chat),
            scheme: Scheme::W8,
            state,
            placement,
            passed_over: Vec::new(),
            engine: None,
            max_length: None,
            kv_cache: None,
            certificate: None,
            numerics: Vec::new(),
            package_bytes: None,
            draft_model: None,
            expires_in: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use narthex_gateway::models::{LossFigures, NumericsFigures};
    use narthex_spec::{DeviceName, Ep, MediaKind};
    use serde_json::{Value, json};

    use super::*;

    /// Validates a value against the schema of its type, as `/openapi.json` states it.
    fn check_schema(value: &Value) {
        let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
        let schema = settings.into_generator().into_root_schema_for::<ModelHealth>();
        let validator = jsonschema::validator_for(schema.as_value()).unwrap();
        let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?} in {value}");
    }

    #[test]
    fn the_chosen_devices_are_reported_with_reasons_and_notes() {
        let node = FallbackNode {
            graph: "decode.onnx".to_owned(),
            path: "/layers.0".to_owned(),
            op: "Gather".to_owned(),
            why: "dynamic".to_owned(),
            fix: None,
        };
        let fallback = FallbackNodes { count: 2, nodes: vec![node] };
        let line = PlacementLine {
            graph: "prefill.onnx".to_owned(),
            ep: Ep::Qnn,
            subgraphs: 1,
            nodes: 3,
            ops: BTreeMap::from([("MatMul".to_owned(), 3)]),
            weight_bytes: 7,
            compute_share: 0.5,
        };
        let placement = PlacementReport {
            device: DeviceName::Qnn,
            decode: Some(DeviceName::Cpu),
            head: None,
            multiply_accumulates: 8,
            npu_share: 0.5,
            phases: Some(PhaseShares { prefill: 1.0, decode: 0.5 }),
            lines: vec![line.clone()],
            towers: vec![TowerReport {
                reads: MediaKind::Image,
                device: DeviceName::Cpu,
                weight_bytes: 7,
                multiply_accumulates: 8,
                lines: vec![PlacementLine { ep: Ep::Cpu, ..line }],
            }],
            fallback: fallback.clone(),
            why: Some("measured on this machine".to_owned()),
            notes: vec!["the kept contexts were refused".to_owned()],
        };
        let mut status = samples::status(ModelState::Ready, Some(placement));
        let passed = |fallback| DeviceRefusal {
            device: DeviceName::Qnn,
            reason: "refused".to_owned(),
            fix: None,
            announced: true,
            fallback,
        };
        status.passed_over = vec![passed(fallback), passed(FallbackNodes::default())];
        status.engine = Some(EngineCounters { cached_tokens: 5, ..EngineCounters::default() });
        status.draft_model =
            Some(DraftModelStatus { name: "small".parse().unwrap(), scheme: status.scheme, bytes: 9 });
        let figures = NumericsFigures::Decoder { positions: 12, divergence: 0.002, agreement: 1.0 };
        status.numerics = vec![NumericsCheck { device: DeviceName::Qnn, figures }];
        let figures = LossFigures::Encoder { texts: 2, mean_cosine: 0.999, lowest_cosine: 0.998 };
        status.certificate =
            Some(CertifiedLoss { figures, date: "2026-11-29".to_owned(), accepted_loss: false });
        let found = json!(ModelHealth::from(&status));
        check_schema(&found);
        assert_eq!(found["numerics"][0]["positions"], 12);
        assert_eq!(found["certificate"]["lowest_cosine"], 0.998);
        assert_eq!((&found["id"], &found["scheme"]), (&json!("tiny"), &json!("w8")));
        assert_eq!(found["device"], "prefill=qnn,decode=cpu");
        assert_eq!(found["why"], "measured on this machine");
        assert_eq!(found["notes"], json!(["the kept contexts were refused"]));
        assert_eq!(found["npu_phases"], json!({"prefill": 1.0, "decode": 0.5}));
        let node = json!({
            "graph": "decode.onnx", "path": "/layers.0", "op": "Gather", "why": "dynamic", "fix": null,
        });
        assert_eq!(found["fallen"], json!({"count": 2, "nodes": [node]}));
        assert_eq!(found["passed_over"][0]["fallen"], found["fallen"]);
        assert_eq!(found["passed_over"][1].get("fallen"), None);
        assert_eq!(found["placement"][0]["ep"], "qnn");
        let tower = &found["towers"][0];
        assert_eq!((&tower["reads"], &tower["lines"][0]["ep"]), (&json!("image"), &json!("cpu")));
        assert_eq!(found["engine"]["cached_tokens"], 5);
        assert_eq!(found["draft_model"], json!({"name": "small", "scheme": "w8", "bytes": 9}));

        let loading = json!(ModelHealth::from(&samples::status(ModelState::Loading, None)));
        check_schema(&loading);
        assert_eq!((&loading["state"], &loading["fallen"]), (&json!({"state": "loading"}), &Value::Null));
        assert_eq!((&loading["placement"], &loading["notes"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn the_texts_of_a_failure_are_short_and_without_credentials() {
        let long = format!("cannot reach https://u:secret@h, {}", "é".repeat(2 << 20));
        let failed = ModelState::Failed { reason: long.clone(), hint: Some(long.clone()) };
        let [graph, path, op, why] = [(); 4].map(|()| long.clone());
        let node = FallbackNode { graph, path, op, why, fix: None };
        let mut status = samples::status(failed, None);
        status.passed_over = vec![DeviceRefusal {
            device: DeviceName::Qnn,
            reason: long.clone(),
            fix: Some(long.clone()),
            announced: true,
            fallback: FallbackNodes { count: 1, nodes: vec![node] },
        }];
        let found = json!(ModelHealth::from(&status));
        let refusal = &found["passed_over"][0];
        let state = &found["state"];
        let node = &refusal["fallen"]["nodes"][0];
        let nodes = ["graph", "path", "op", "why"].map(|field| &node[field]);
        for text in
            [&state["reason"], &state["hint"], &refusal["reason"], &refusal["fix"]].into_iter().chain(nodes)
        {
            let text = text.as_str().unwrap();
            assert!(text.len() <= 1024 && text.starts_with("cannot reach https://***@h, é"), "{text}");
        }
    }
}
