//! Each pass preserves its graphs' outputs: on the CPU, where only the order of sums differs, and under HTP emulation,
//! where the placement of nodes must not change either.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{collections::BTreeSet, fs};

use narthex_device::{
    ep::{Device, QnnOptions},
    placement::GraphPlacement,
    static_shapes::Form,
};
use narthex_engine::{encoder::Encoder, executor::FORBIDDEN_LOGIT};
use narthex_graph::{Graph, Node};
use narthex_spec::{
    Ep, Pass, Recipe, Scheme,
    manifest::{TableEncoding, TableRole},
    recipe::FixedShapes,
    target::QnnChip,
};
use narthex_testkit::checkpoint::tiny_bert_safetensors;
use support::{
    Package,
    encoders::{self, Golden, Head},
    families::{self, FAMILIES, Format},
    fixed::{agree, logits, open, open_encoder, plugin, shapes, vectors},
    relative, runtime,
};

/// Maximum relative L2 distance after a pass: half-precision rounding in another order of sums.
const REORDERED: f32 = 2e-3;

/// Maximum relative L2 distance if weights and products are in half precision.
const HALVED: f32 = 1e-2;

/// Maximum relative L2 distance between HTP emulation and the CPU.
const EMULATED: f32 = 0.01;

fn recipe(passes: &[Pass]) -> Recipe {
    let passes = BTreeSet::from_iter(passes.iter().copied());
    Recipe { accuracy_level: 0, fixed: Some(shapes()), passes, ..Recipe::new(Scheme::W8) }
}

/// Returns a recipe with half-precision weights, whose products no compiler accepts as a whole.
fn half(passes: &[Pass]) -> Recipe {
    Recipe { scheme: Scheme::F16, ..recipe(passes) }
}

fn bert(passes: &[Pass]) -> Package {
    let checkpoint = tempfile::tempdir().unwrap();
    tiny_bert_safetensors(checkpoint.path(), 7).unwrap();
    Package::make(checkpoint.path().to_owned(), recipe(passes))
}

/// Returns a package's last graph of layers.
fn layers(package: &Package) -> Graph {
    let graph = package.manifest.graphs.iter().rfind(|graph| !graph.file.starts_with("head")).unwrap();
    Graph::decode(&fs::read(package.folder.path().join(&graph.file)).unwrap()).unwrap()
}

/// Returns the number of nodes with an operator in that graph.
fn count(package: &Package, op: &str) -> usize {
    layers(package).nodes.iter().filter(|node| node.op == op).count()
}

/// Checks that every product with a weight has become a convolution.
fn all_convolutions(plain: &Package, conv: &Package, what: &str) {
    let products = |package: &Package| -> Vec<String> {
        let graph = layers(package);
        let weight = |name: &String| graph.initializers.iter().any(|weight| weight.name == *name);
        let product = |node: &&Node| node.op == "MatMul" && node.inputs.iter().any(weight);
        graph.nodes.iter().filter(product).map(|node| node.name.clone()).collect()
    };
    assert_eq!((products(plain).len(), products(conv)), (count(conv, "Conv"), vec![]), "{what}");
    assert!(count(conv, "Conv") > 0, "{what}");
}

fn near(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    within(REORDERED, (found, expected), what);
}

fn within(bound: f32, (found, expected): (&[Vec<f32>], &[Vec<f32>]), what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let distance = relative(found, expected);
        assert!(distance <= bound, "{what}: {distance}");
    }
}

#[test]
fn every_pass_keeps_what_decoders_compute() {
    let tokens = families::tokens();
    for family in FAMILIES {
        let compiled = |recipe: Recipe| families::package(family, Format::Safetensors, recipe, None);
        let run = |package: &Package| logits(&mut open(package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
        let expected = run(&compiled(recipe(&[])));
        for pass in [Pass::GroupedProjections, Pass::SplitHeads] {
            near(&run(&compiled(recipe(&[pass]))), &expected, &format!("{family} {pass}"));
        }
        let (plain, conv) = (compiled(half(&[])), compiled(half(&[Pass::LinearAsConv])));
        all_convolutions(&plain, &conv, family);
        within(HALVED, (&run(&conv), &run(&plain)), &format!("{family} {}", Pass::LinearAsConv));
    }
}

#[test]
fn every_pass_changes_the_form_that_it_is_for() {
    let compiled = |passes: &[Pass]| families::package("llama", Format::Safetensors, recipe(passes), None);
    let (plain, grouped) = (compiled(&[]), compiled(&[Pass::GroupedProjections]));
    assert!(count(&grouped, "MatMulNBits") < count(&plain, "MatMulNBits"));
    let split = compiled(&[Pass::SplitHeads]);
    assert!(count(&split, "Softmax") > count(&plain, "Softmax"));
    let (plain, conv) = (bert(&[]), bert(&[Pass::LinearAsConv]));
    assert_eq!((count(&plain, "Conv"), count(&conv, "Conv")), (0, 2), "the values of two layers");
}

#[test]
fn in_half_precision_every_linear_layer_becomes_a_convolution() {
    let compiled = |passes: &[Pass]| families::package("llama", Format::Safetensors, half(passes), None);
    let (plain, conv) = (compiled(&[]), compiled(&[Pass::LinearAsConv]));
    let layers = plain.manifest.graphs.iter().map(|graph| graph.kv.len()).max().unwrap();
    // Queries, keys and values are one product.
    assert_eq!((count(&plain, "Conv"), count(&conv, "Conv")), (0, 5 * layers));
    assert_eq!(count(&plain, "MatMul"), count(&conv, "MatMul") + 5 * layers);
    let tokens = families::tokens();
    let run = |package: &Package| logits(&mut open(package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
    near(&run(&conv), &run(&plain), "f16");
}

#[test]
fn a_pruned_head_gives_what_the_whole_one_does_of_its_tokens_and_never_others() {
    let tokens = families::tokens();
    for family in FAMILIES {
        // Some families share the head with the embedding, the others have a separate one.
        let plain = ["llama", "qwen2.5"].contains(&family).then_some(Scheme::F16);
        for scheme in plain.into_iter().chain([Scheme::W8]) {
            let what = format!("{family} {scheme}");
            let [pruned, whole] = families::pruned(family, &Recipe { scheme, ..recipe(&[]) });
            let kept = families::given(&[vec![0.0; 80]])[0].len();
            assert_eq!(pruned.manifest.recipe.vocabulary.map(|vocabulary| vocabulary.tokens), Some(kept));
            let fixed =
                |package: &Package| logits(&mut open(package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
            let dynamic = |package: &Package| logits(&mut package.executor(), &tokens);
            for (found, expected) in [(fixed(&pruned), fixed(&whole)), (dynamic(&pruned), dynamic(&whole))] {
                near(&families::given(&found), &families::given(&expected), &what);
                for row in &found {
                    let never = row.iter().filter(|logit| **logit == FORBIDDEN_LOGIT).count();
                    assert_eq!((row.len(), never), (80, 80 - kept), "{what}");
                }
            }
            // The token table must remain that of the whole model.
            let table = |package: &Package| {
                let table =
                    package.manifest.tables.iter().find(|table| table.role == TableRole::Token).unwrap();
                let TableEncoding::W8 { quants, .. } = &table.encoding else { return None };
                let bytes = fs::read(package.folder.path().join(&quants.file)).unwrap();
                Some(bytes[quants.offset as usize..][..quants.length as usize].to_vec())
            };
            assert_eq!(table(&pruned), table(&whole), "{what}");
        }
    }
}

#[test]
fn a_list_of_kept_tokens_is_not_believed() {
    let [mut pruned, _] = families::pruned("llama", &recipe(&[]));
    let path = pruned.folder.path().join(pruned.manifest.kept_tokens.clone().unwrap());
    let count = pruned.manifest.recipe.vocabulary.unwrap().tokens as u32;
    let refused = |package: &Package| open(package, &Device::Cpu, Form::Graph).err().unwrap().to_string();
    for list in [(0..count - 1).collect(), (30..30 + count).collect(), vec![0; count as usize]] {
        fs::write(&path, serde_json::to_vec::<Vec<u32>>(&list).unwrap()).unwrap();
        assert!(refused(&pruned).contains("tokens below 80, in ascending order"), "{}", refused(&pruned));
    }
    fs::write(&path, "[-1]").unwrap();
    assert!(refused(&pruned).contains("kept_tokens.json"));
    pruned.manifest.kept_tokens = None;
    assert!(refused(&pruned).contains("a list of the tokens that are kept"));
}

/// Operators that compute positions or their angles.
const POSITION_OPERATORS: [&str; 4] = ["Sin", "Cos", "Range", "CumSum"];

#[test]
fn no_graph_computes_positions() {
    let check = |package: &Package| {
        for entry in &package.manifest.graphs {
            let bytes = fs::read(package.folder.path().join(&entry.file)).unwrap();
            let graph = Graph::decode(&bytes).unwrap();
            let computes =
                |node: &&Node| node.domain.is_empty() && POSITION_OPERATORS.contains(&node.op.as_str());
            assert_eq!(graph.nodes.iter().find(computes).map(|node| &node.name), None, "{}", entry.file);
        }
    };
    let recipe = recipe(&[]);
    for family in FAMILIES {
        check(&families::package(family, Format::Safetensors, recipe.clone(), None));
    }
    for golden in encoders::FAMILIES.map(Golden::read) {
        check(&Package::make(golden.checkpoint(Head::Mean).path().to_owned(), recipe.clone()));
    }
}

#[test]
fn every_pass_keeps_what_encoders_compute() {
    let run = |passes: &[Pass]| vectors(&mut open_encoder(&bert(passes), &Device::Cpu));
    let expected = run(&[]);
    for pass in [Pass::SplitHeads, Pass::LinearAsConv] {
        near(&run(&[pass]), &expected, pass.as_str());
    }
}

#[test]
fn linear_layers_of_every_encoder_family_become_convolutions() {
    let fixed = FixedShapes { buckets: vec![64], ..shapes() };
    for golden in encoders::FAMILIES.map(Golden::read) {
        for head in [Head::Score, Head::Masked] {
            let what = format!("{} {head:?}", golden.family);
            let checkpoint = golden.checkpoint(head);
            let compiled = |passes: &[Pass]| {
                let recipe = Recipe { fixed: Some(fixed.clone()), ..half(passes) };
                Package::make(checkpoint.path().to_owned(), recipe)
            };
            let (inputs, _) = golden.texts(head);
            let run = |package: &Package| {
                let rows = open_encoder(package, &Device::Cpu).run(&support::texts(&inputs)).unwrap();
                encoders::served(head, rows.data)
            };
            let (plain, conv) = (compiled(&[]), compiled(&[Pass::LinearAsConv]));
            all_convolutions(&plain, &conv, &what);
            within(HALVED, (&[run(&conv)], &[run(&plain)]), &what);
        }
    }
}

#[test]
fn changed_graphs_run_whole_under_htp_emulation() {
    let library = plugin(Ep::Qnn);
    runtime().register(Ep::Qnn, &library).unwrap_or_else(|error| panic!("{error}"));
    let device = Device::Qnn(QnnOptions::new(&library, &[QnnChip::XElite]));
    let whole = |placements: &[GraphPlacement]| {
        for GraphPlacement { graph, placement } in placements {
            let places: Vec<Ep> = placement.ops_per_ep().into_keys().collect();
            assert_eq!((places, placement.subgraphs[&Ep::Qnn]), (vec![Ep::Qnn], 1), "{graph}");
        }
    };
    let tokens = families::tokens();
    for recipe in [recipe(&Pass::ALL), half(&[Pass::LinearAsConv])] {
        let package = families::package("llama", Format::Safetensors, recipe, None);
        let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
        let mut emulated = open(&package, &device, Form::Graph).unwrap();
        whole(&emulated.placements());
        agree(&logits(&mut emulated, &tokens), &expected, EMULATED);
    }
    let [package, _] = families::pruned("llama", &recipe(&[]));
    let expected = logits(&mut open(&package, &Device::Cpu, Form::Graph).unwrap(), &tokens);
    let mut emulated = open(&package, &device, Form::Graph).unwrap();
    whole(&emulated.placements());
    agree(&families::given(&logits(&mut emulated, &tokens)), &families::given(&expected), EMULATED);
    let package = bert(&Pass::ALL);
    let expected = vectors(&mut open_encoder(&package, &Device::Cpu));
    let mut emulated = open_encoder(&package, &device);
    whole(&emulated.placements());
    assert!(emulated.limits().max_length > 0);
    agree(&vectors(&mut emulated), &expected, EMULATED);
}
