//! Constants of the nodes that operators of Narthex replace.

use std::collections::{HashMap, HashSet};

use narthex_graph::{Element, Graph, Initializer, Node, graph::MICROSOFT};
use narthex_kernels::Bits;
use narthex_spec::DType;

use super::{
    constants::SINGLE_PRECISION,
    offsets::OFFSETS,
    weights::{LinearSource, SourceRows},
};

/// Value of `accuracy_level` of a node that permits rounding activations to eight bits.
pub(super) const EIGHT_BIT_ACTIVATIONS: i64 = 4;

/// Numbers of inputs with a common scale for which there are kernels.
pub(super) const BLOCKS: [usize; 4] = [16, 32, 64, 128];

/// Returns a positive attribute of a node.
pub(super) fn size(node: &Node, attribute: &str) -> Option<usize> {
    usize::try_from(node.int(attribute)?).ok().filter(|&size| size > 0)
}

/// The constants of a graph.
pub(super) struct Constants<'a> {
    initializers: HashMap<&'a str, &'a Initializer>,
    /// Constants in half precision, by the name of the single-precision value to which a node casts them.
    casts: HashMap<&'a str, &'a str>,
}

impl<'a> Constants<'a> {
    pub(super) fn of(graph: &'a Graph) -> Self {
        let inputs: HashSet<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
        // A constant that is also an input can have another value at run time.
        let fixed = graph.initializers.iter().filter(|constant| !inputs.contains(constant.name.as_str()));
        let casts = graph
            .nodes
            .iter()
            .filter(|node| node.is_onnx("Cast") && node.int("to") == Some(SINGLE_PRECISION));
        Self {
            initializers: fixed.map(|constant| (constant.name.as_str(), constant)).collect(),
            casts: casts.filter_map(|node| Some((node.outputs.first()?.as_str(), node.input(0)?))).collect(),
        }
    }

    /// Returns the shape of a constant.
    pub(super) fn shape(&self, name: &str) -> Option<&'a [usize]> {
        self.initializers.get(name).map(|constant| constant.shape.as_slice())
    }

    /// Returns a constant, if it has this type and number of elements.
    pub(super) fn get(&self, name: &str, dtype: DType, count: usize) -> Option<Initializer> {
        let constant = self.initializers.get(name)?;
        let found = constant.shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
        let fits = constant.dtype == Element::from(dtype) && found == count;
        (fits && constant.expected_bytes() == Some(constant.bytes())).then(|| (*constant).clone())
    }

    /// Returns the scales with this name in single precision, in the precision in which they are stored.
    pub(super) fn scales(&self, name: &str, count: usize) -> Option<Initializer> {
        match self.casts.get(name) {
            Some(half) => self.get(half, DType::F16, count),
            None => self.get(name, DType::F32, count),
        }
    }

    /// Returns the constants of a node that a kernel can replace.
    pub(super) fn linear(&self, node: &Node) -> Option<LinearSource> {
        let is_product = node.op == "MatMulNBits" && node.domain == MICROSOFT;
        if !is_product || node.int("accuracy_level") != Some(EIGHT_BIT_ACTIVATIONS) {
            return None;
        }

        let outputs = size(node, "N")?;
        let inputs = size(node, "K")?;
        let block = size(node, "block_size")?;
        let bits = match node.int("bits").unwrap_or(4) {
            4 => Bits::Four,
            8 => Bits::Eight,
            _ => return None,
        };
        let blocks = inputs.div_ceil(block);
        let row = blocks.checked_mul(block)?.checked_mul(bits.count())? / 8;
        let scales = self.scales(node.input(2)?, outputs.checked_mul(blocks)?)?;
        let zeros_row = (blocks * bits.count()).div_ceil(8);
        let zeros = match node.input(3) {
            Some(zeros) => Some(self.get(zeros, DType::U8, outputs.checked_mul(zeros_row)?)?),
            None => None,
        };
        let bias = match node.input(5) {
            Some(bias) => Some(self.get(bias, DType::F32, outputs)?),
            None => None,
        };

        // Kernels do not support a permutation of the inputs.
        if node.input(4).is_some() || !BLOCKS.contains(&block) {
            return None;
        }

        let quants = self.get(node.input(1)?, DType::U8, outputs.checked_mul(row)?)?;
        let rows = SourceRows::ALL;
        let source =
            LinearSource { outputs, inputs, block, bits, rows, quants, scales, zeros, offsets: None, bias };
        match node.input(OFFSETS) {
            Some(offsets) => Some(LinearSource { offsets: Some(self.offsets(offsets, &source)?), ..source }),
            None => Some(source),
        }
    }

    /// Returns the offsets of a product, if this constant has its shape.
    pub(super) fn offsets(&self, name: &str, source: &LinearSource) -> Option<Initializer> {
        let blocks = source.inputs.div_ceil(source.block);
        let offsets = self.get(name, DType::F16, blocks.checked_mul(source.outputs)?)?;
        (offsets.shape == [blocks, source.outputs]).then_some(offsets)
    }
}
