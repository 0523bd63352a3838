//! Noise that depends on a seed: operators that draw random numbers are replaced by operators that compute them.
//!
//! ONNX Runtime draws other numbers in each run of a graph, even if its nodes state a seed. The replacement hashes the
//! position of each element with the seed: three squares modulo the prime 2³¹ - 1 for a uniform number, and two more for the
//! angle of a normal one.

use narthex_spec::{DType, dtype::Dim};

use crate::{
    Element,
    graph::{Attribute, Graph, Node, Value},
    patch::{Patch, PatchError},
    replacement::Replacement,
};

/// Modulus of the hash, a prime.
const PRIME: i64 = (1 << 31) - 1;

/// Number of seeds. A seed is at least 0 and less.
pub const SEEDS: i64 = PRIME;

/// First version of ONNX's operators with all that the replacement uses.
const MIN_OPSET: i64 = 13;

/// First version of `Reshape` that can make tensors without elements.
const ALLOW_ZERO_OPSET: i64 = 14;

/// Multipliers of the positions, of the seed and of the number of the node.
const FACTORS: [i64; 3] = [1_103_515_245, 48_271, 69_621];

/// Numbers that are added between two squares. The square of such a sum fits into 64 bits.
const STEPS: [i64; 4] = [123_456_789, 362_436_069, 521_288_629, 88_675_123];

/// A graph whose noise cannot be replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoiseError {
    /// A node draws random numbers in a way that has no replacement.
    #[error("cannot make the noise of {node} depend on a seed: {reason}")]
    Unsupported {
        /// Path of the node.
        node: String,
        /// Reason.
        reason: String,
    },
    /// The replacement does not fit the graph.
    #[error(transparent)]
    Patch(#[from] PatchError),
}

/// Replaces the nodes that draw random numbers by nodes that compute them from the input `seed`, an `i64` of shape `[1]`,
/// which is added. Returns the number of replaced nodes; without any, the graph stays as it is.
///
/// # Errors
/// [`NoiseError`] for other random operators, and for those inside the bodies of nodes.
pub fn seed_noise(graph: &mut Graph, seed: &str) -> Result<usize, NoiseError> {
    let opset = graph.opset().unwrap_or(0);
    let inferred = graph.infer(&|_| None);
    let mut patches: Vec<Patch> = Vec::new();
    for node in &graph.nodes {
        check_bodies(node)?;
        if !is_random(node) {
            continue;
        }
        if opset < MIN_OPSET {
            let reason = format!("expected operators of ONNX {MIN_OPSET} or later, found {opset}");
            return Err(NoiseError::Unsupported { node: node.path(), reason });
        }
        // ONNX Runtime refuses the graph if the input of unknown type is not in single precision.
        let dtype = inferred.output(node).element.unwrap_or(DType::F32.into());
        let dtype = Some(dtype).filter(|dtype| *dtype != DType::F32);
        patches.extend(replacement(node, seed, patches.len() as i64, opset, dtype)?);
    }

    if patches.is_empty() {
        return Ok(0);
    }
    if graph.inputs.iter().any(|input| input.name == seed) {
        let reason = format!("the graph has an input {seed:?} already");
        return Err(NoiseError::Unsupported { node: graph.name.clone(), reason });
    }
    graph.apply(&patches)?;
    graph.inputs.push(Value { name: seed.to_owned(), dtype: DType::I64.into(), shape: vec![Dim::Fixed(1)] });
    Ok(patches.len())
}

/// Returns whether a node draws random numbers.
fn is_random(node: &Node) -> bool {
    let names = [
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    ];
    node.domain.is_empty() && names.contains(&node.op.as_str())
}

/// Refuses random operators in the bodies of a node.
fn check_bodies(node: &Node) -> Result<(), NoiseError> {
    let mut found = None;
    for (_, attribute) in &node.attributes {
        if let Attribute::Graph(body) = attribute {
            body.for_each_node(&mut |inner| found = found.or(Some(inner).filter(|inner| is_random(inner))));
        }
    }
    match found {
        Some(inner) => {
            let reason = format!("it is inside {}", node.path());
            Err(NoiseError::Unsupported { node: inner.path(), reason })
        }
        None => Ok(()),
    }
}

/// Returns the nodes that compute the numbers of a node. `dtype` is their type if it is not single precision.
fn replacement(
    node: &Node,
    seed: &str,
    number: i64,
    opset: i64,
    dtype: Option<Element>,
) -> Result<Option<Patch>, NoiseError> {
    let is_normal = match node.op.as_str() {
        "RandomNormal" | "RandomNormalLike" => true,
        "RandomUniform" | "RandomUniformLike" => false,
        other => {
            let reason = format!("{other} has no replacement");
            return Err(NoiseError::Unsupported { node: node.path(), reason });
        }
    };

    let mut nodes = NoiseNodes { new: Replacement::of(node) };
    let shape = match node.ints("shape") {
        Some(extents) => nodes.new.shape("shape", extents),
        None => nodes.new.op("Shape", &[node.input(0).unwrap_or_default()], &[]),
    };
    let hashed = nodes.hashed_positions(&shape, seed, number);
    let uniform = nodes.uniform(&hashed);
    let numbers = if is_normal {
        let [mean, scale] =
            [("mean", 0.0), ("scale", 1.0)].map(|(name, usual)| node.float(name).unwrap_or(usual));
        let normal = nodes.normal(&hashed, &uniform);
        nodes.stretched(&normal, scale, mean)
    } else {
        let [low, high] =
            [("low", 0.0), ("high", 1.0)].map(|(name, usual)| node.float(name).unwrap_or(usual));
        nodes.stretched(&uniform, high - low, low)
    };

    let output = node.outputs.first().map(String::as_str).unwrap_or_default();
    let allow_zero: &[(&str, Attribute)] =
        if opset >= ALLOW_ZERO_OPSET { &[("allowzero", Attribute::Int(1))] } else { &[] };
    match dtype {
        Some(dtype) => {
            let shaped = nodes.new.op("Reshape", &[&numbers, &shape], allow_zero);
            let to = [("to", Attribute::Int(i64::from(dtype.code())))];
            nodes.new.op_to("Cast", &[&shaped], &to, &[output]);
        }
        None => nodes.new.op_to("Reshape", &[&numbers, &shape], allow_zero, &[output]),
    }
    Ok(nodes.new.patch("compute noise from a seed"))
}

/// Nodes of a replacement.
struct NoiseNodes<'a> {
    new: Replacement<'a>,
}

impl NoiseNodes<'_> {
    fn integer(&mut self, name: &str, value: i64) -> String {
        self.new.constant(name, DType::I64.into(), &[], value.to_le_bytes().to_vec())
    }

    fn float(&mut self, name: &str, value: f32) -> String {
        self.new.constant(name, DType::F32.into(), &[], value.to_le_bytes().to_vec())
    }

    /// Returns a number below the prime for each element, from its position, the seed and the number of the node.
    fn hashed_positions(&mut self, shape: &str, seed: &str, number: i64) -> String {
        let [position_factor, seed_factor, node_factor] = FACTORS;
        let prime = self.integer("prime", PRIME);
        let zero = self.integer("zero", 0);
        let one = self.integer("one", 1);
        let count = self.new.op("ReduceProd", &[shape], &[("keepdims", Attribute::Int(0))]);
        let positions = self.new.op("Range", &[&zero, &count, &one], &[]);
        let factor = self.integer("position_factor", position_factor);
        let spread = self.new.op("Mul", &[&positions, &factor], &[]);

        let factor = self.integer("seed_factor", seed_factor);
        let start = self.new.op("Mul", &[seed, &factor], &[]);
        let node = self.integer("node", (number + 1) * node_factor);
        let start = self.new.op("Add", &[&start, &node], &[]);
        let sum = self.new.op("Add", &[&spread, &start], &[]);
        let mut hashed = self.new.op("Mod", &[&sum, &prime], &[]);
        hashed = self.squared(&hashed);
        for step in [0, 1] {
            hashed = self.next(&hashed, step);
        }
        hashed
    }

    /// Returns the squares of numbers below the prime, below it again.
    fn squared(&mut self, numbers: &str) -> String {
        let prime = self.integer("prime", PRIME);
        let squares = self.new.op("Mul", &[numbers, numbers], &[]);
        self.new.op("Mod", &[&squares, &prime], &[])
    }

    /// Returns further numbers below the prime.
    fn next(&mut self, numbers: &str, step: usize) -> String {
        let constant = self.integer(&format!("step{step}"), STEPS[step]);
        let sum = self.new.op("Add", &[numbers, &constant], &[]);
        self.squared(&sum)
    }

    /// Returns numbers above 0 and up to 1.
    fn uniform(&mut self, hashed: &str) -> String {
        let to = [("to", Attribute::Int(i64::from(Element::from(DType::F32).code())))];
        let numbers = self.new.op("Cast", &[hashed], &to);
        let half = self.float("half", 0.5);
        let numbers = self.new.op("Add", &[&numbers, &half], &[]);
        let factor = self.float("one_by_prime", 1.0 / PRIME as f32);
        self.new.op("Mul", &[&numbers, &factor], &[])
    }

    /// Returns normal numbers by the method of Box and Muller.
    fn normal(&mut self, hashed: &str, uniform: &str) -> String {
        let logarithm = self.new.op("Log", &[uniform], &[]);
        let factor = self.float("minus_two", -2.0);
        let squares = self.new.op("Mul", &[&logarithm, &factor], &[]);
        let radius = self.new.op("Sqrt", &[&squares], &[]);

        let mut other = hashed.to_owned();
        for step in [2, 3] {
            other = self.next(&other, step);
        }
        let turns = self.uniform(&other);
        let circle = self.float("circle", std::f32::consts::TAU);
        let angle = self.new.op("Mul", &[&turns, &circle], &[]);
        let cosine = self.new.op("Cos", &[&angle], &[]);
        self.new.op("Mul", &[&radius, &cosine], &[])
    }

    /// Returns numbers times a factor plus a summand.
    fn stretched(&mut self, numbers: &str, factor: f32, summand: f32) -> String {
        let factor = self.float("factor", factor);
        let scaled = self.new.op("Mul", &[numbers, &factor], &[]);
        let summand = self.float("summand", summand);
        self.new.op("Add", &[&scaled, &summand], &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, build::NodeSpec};

    fn random(op: &str, opset: i64) -> Graph {
        let mut graph = Builder::new("noise", &[("", opset)]);
        let x = graph.input("x", DType::F32, &["n".into()]);
        let noise = graph.op("noise", op, &[&x]);
        graph.output(&noise, DType::F32, &["n".into()]);
        graph.finish()
    }

    #[test]
    fn random_operators_read_the_seed() {
        for op in ["RandomNormalLike", "RandomUniformLike"] {
            let mut graph = random(op, 15);
            assert_eq!(seed_noise(&mut graph, "seed"), Ok(1));
            assert!(!graph.nodes.iter().any(is_random));
            assert_eq!(
                graph.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(),
                ["x", "seed"]
            );
            graph.check().unwrap();
        }
    }

    #[test]
    fn numbers_have_the_type_of_the_node() {
        let check = |op: &str, input: DType, stated: Option<DType>, expect: DType| {
            let mut builder = Builder::new("noise", &[("", 15)]);
            let x = builder.input("x", input, &["n".into()]);
            let dtype = stated.map(|dtype| ("dtype", Attribute::Int(Element::from(dtype).code().into())));
            let spec =
                NodeSpec { name: "/noise", op, domain: "", inputs: &[&x], attributes: dtype.as_slice() };
            let noise = builder.node(spec);
            builder.output(&noise, expect, &["n".into()]);
            let mut graph = builder.finish();
            seed_noise(&mut graph, "seed").unwrap();
            let found = graph.infer(&|_| None).get(&noise).element;
            assert_eq!(found, Some(expect.into()), "{op} of {input:?} with {stated:?}");
        };
        for op in ["RandomNormalLike", "RandomUniformLike"] {
            check(op, DType::F16, None, DType::F16);
            check(op, DType::F32, None, DType::F32);
            check(op, DType::F16, Some(DType::F32), DType::F32);
            check(op, DType::F32, Some(DType::F16), DType::F16);
        }
    }

    #[test]
    fn a_graph_without_noise_stays_as_it_is() {
        let mut graph = random("Identity", 15);
        let before = graph.clone();
        assert_eq!(seed_noise(&mut graph, "seed"), Ok(0));
        assert_eq!(graph, before);
    }

    #[test]
    fn noise_without_a_replacement_is_named() {
        let check = |mut graph: Graph, expect: &str| {
            let message = seed_noise(&mut graph, "seed").unwrap_err().to_string();
            assert!(message.contains(expect), "{message}");
        };
        check(random("Bernoulli", 15), "Bernoulli has no replacement");
        check(random("RandomNormalLike", 12), "expected operators of ONNX 13 or later, found 12");
        let mut body = random("Identity", 15);
        body.nodes[0].attributes =
            vec![("body".to_owned(), Attribute::Graph(Box::new(random("RandomNormalLike", 15))))];
        check(body, "it is inside noise/Identity");
    }

    #[test]
    fn sums_between_squares_fit_into_64_bits() {
        for step in STEPS {
            assert!((PRIME - 1 + step).checked_mul(PRIME - 1 + step).is_some());
        }
        let [position_factor, seed_factor, _] = FACTORS;
        assert!(PRIME.checked_mul(seed_factor).is_some());
        assert!((1i64 << 32).checked_mul(position_factor).is_some());
    }
}
