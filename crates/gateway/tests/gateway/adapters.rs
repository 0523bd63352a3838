//! LoRA adapters in packages.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{fs, path::Path};

use narthex_gateway::{Cancel, CompileRequest, Error, ErrorKind, Gateway, Rebuild};
use narthex_spec::{Scheme, Sha256, manifest::Manifest, progress::Quiet};
use narthex_testkit::checkpoint::{
    HfTensor, hf_tensors, safetensors_bytes, tiny_llama_safetensors, tiny_llama_weights,
};
use serde_json::json;

use crate::support::{Tiny, ask, greedy, question};

const SEED: u64 = 3;
const MODULE: &str = "model.layers.0.mlp.up_proj";

fn f32_tensor(name: String, shape: &[usize], values: &[f32]) -> HfTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    HfTensor { name, dtype: "F32", shape: shape.to_vec(), bytes }
}

/// Returns a vector with 1 in the first element.
fn first(length: usize) -> Vec<f32> {
    (0..length).map(|index| if index == 0 { 1.0 } else { 0.0 }).collect()
}

/// Writes an adapter that adds 8 to the first element of a weight. Returns its path.
fn write_adapter(folder: &Path, [rows, cols]: [usize; 2]) -> String {
    let path = folder.join("Poems_v2");
    fs::create_dir(&path).unwrap();
    let settings = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 8});
    fs::write(path.join("adapter_config.json"), settings.to_string()).unwrap();
    let name = |matrix: &str| format!("base_model.model.{MODULE}.lora_{matrix}.weight");
    let tensors =
        [f32_tensor(name("A"), &[1, cols], &first(cols)), f32_tensor(name("B"), &[rows, 1], &first(rows))];
    fs::write(path.join("adapter_model.safetensors"), safetensors_bytes(&tensors)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn compile(gateway: &Gateway, model: &str, request: CompileRequest) -> Result<Manifest, Error> {
    let request = CompileRequest { rebuild: Rebuild::Always, ..request };
    gateway.compile(model, &request, &Quiet, &Cancel::new()).map(|(_, manifest)| manifest)
}

/// Returns the digest of a package's weights.
fn weights(manifest: &Manifest) -> Sha256 {
    manifest.files["model.onnx.data"].sha256
}

#[test]
fn a_package_has_the_weights_of_the_merged_model() {
    let tiny = Tiny::new();
    let gateway = tiny.gateway();
    let folder = tempfile::tempdir().unwrap();
    let [base, merged] = ["base", "merged"].map(|name| folder.path().join(name));
    for path in [&base, &merged] {
        fs::create_dir(path).unwrap();
        tiny_llama_safetensors(path, SEED).unwrap();
    }
    let mut tensors = hf_tensors(&tiny_llama_weights(SEED));
    let changed = tensors.iter_mut().find(|tensor| tensor.name.starts_with(MODULE)).unwrap();
    assert_eq!(changed.dtype, "BF16");
    let shape = [changed.shape[0], changed.shape[1]];
    let halves = changed.bytes.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let mut values: Vec<f32> = halves.map(|bits| f32::from_bits(u32::from(bits) << 16)).collect();
    values[0] += 4.0;
    *changed = f32_tensor(changed.name.clone(), &shape, &values);
    fs::write(merged.join("model.safetensors"), safetensors_bytes(&tensors)).unwrap();

    let path = write_adapter(folder.path(), shape);
    let adapters = vec![gateway.adapter(&path, "0.5".parse().unwrap(), &Quiet, &Cancel::new()).unwrap()];
    for scheme in [Scheme::F32, Scheme::W8] {
        let request = CompileRequest { adapters: adapters.clone(), ..CompileRequest::new(scheme) };
        let adapted = compile(&gateway, base.to_str().unwrap(), request.clone()).unwrap();
        assert_eq!(adapted.name.as_str(), "local/base-lora.poems-v2.0.5");
        let entry = &adapted.recipe.adapters[0];
        let file = fs::read(Path::new(&path).join("adapter_model.safetensors")).unwrap();
        assert_eq!((entry.name.as_str(), entry.scale.get()), ("Poems_v2", 0.5));
        assert_eq!(entry.sha256, Sha256::of(&file));

        let plain = CompileRequest::new(scheme);
        let expected = compile(&gateway, merged.to_str().unwrap(), plain.clone()).unwrap();
        assert_eq!(weights(&adapted), weights(&expected), "{scheme}");
        let unchanged = compile(&gateway, base.to_str().unwrap(), plain).unwrap();
        assert_ne!(weights(&adapted), weights(&unchanged));
        assert_eq!(serde_json::to_value(&expected.recipe).unwrap().get("adapters"), None);

        // The package satisfies the request for the same adapters only.
        let again = CompileRequest { rebuild: Rebuild::IfMissing, ..request };
        let name = Some(adapted.name.clone());
        let twice = CompileRequest { adapters: [&adapters[..], &adapters].concat(), name, ..again.clone() };
        for (request, is_present) in [(again, true), (twice, false)] {
            let found = gateway.compile(base.to_str().unwrap(), &request, &Quiet, &Cancel::new()).unwrap().1;
            assert_eq!(weights(&found) == weights(&adapted), is_present);
        }
    }
    let answer = ask(&gateway, "local/base-lora.poems-v2.0.5", question("the cat", greedy(4)));
    assert_eq!(answer.summary.completion_tokens, 4);

    // The checkpoint of a package with an adapter is another model.
    let error =
        compile(&gateway, "local/base-lora.poems-v2.0.5", CompileRequest::new(Scheme::W4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadRequest);
    assert!(error.to_string().contains("is not the model of its checkpoint"), "{error}");
    assert!(compile(&gateway, "local/base", CompileRequest::new(Scheme::W4)).is_ok());
}

#[test]
fn folders_that_are_no_adapters_are_refused() {
    let gateway = Tiny::new().gateway();
    let adapter = gateway.adapter("no/such/folder", Default::default(), &Quiet, &Cancel::new());
    let error = adapter.unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("lora")));
    assert!(error.to_string().contains("no/such/folder"), "{error}");
}
