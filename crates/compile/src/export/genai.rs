//! The dynamic variant in the form that onnxruntime-genai runs: the inputs are tokens and a mask, the outputs the
//! logits of every token.
//!
//! The cache needs no change: onnxruntime-genai also uses one buffer for past and present.

use std::collections::{BTreeSet, HashMap, HashSet};

use narthex_graph::{Attribute, Builder, Graph, Initializer, InitializerData, Value};
use narthex_spec::{
    DType,
    arch::DecoderArch,
    manifest::{FileRange, GraphEntry, HostTable, Slot, TableEncoding, TableRole},
};

use super::{
    ExportJob,
    config::{LOGITS, MASK, POSITIONS, TOKENS},
    open,
};
use crate::{error::Result, import::refused};

/// Prefix of the names of added nodes.
const SCOPE: &str = "/genai";

/// Returns the package's graph with added nodes that compute its inputs from those of onnxruntime-genai.
///
/// ```text
/// input_ids ── rows of the tables ── embeds
/// attention_mask ─┬─ ReduceSum - 1 ── seqlens_k
///                 └─ Shape[1] ── total_length
/// 0 … batch · sequence ── logits_rows;  logits ── Reshape ── [batch, sequence, vocab]
/// ```
pub(super) fn graph(job: &ExportJob<'_>, arch: &DecoderArch, entry: &GraphEntry) -> Result<Graph> {
    let mut graph = open(job, entry)?;
    let mut front = Prologue { job, g: Builder::new("", &[]), constants: Vec::new() };
    let tokens = front.g.input(TOKENS, DType::I64, &["batch".into(), "sequence".into()]);
    let mask = front.g.input(MASK, DType::I64, &["batch".into(), "total".into()]);

    let mut embeds = front.rows(TableRole::Token, &tokens)?;
    if arch.learned_positions() {
        let positions = front.g.input(POSITIONS, DType::I64, &["batch".into(), "sequence".into()]);
        let positions = front.rows(TableRole::Position, &positions)?;
        embeds = front.g.op(SCOPE, "Add", &[&embeds, &positions]);
    }

    let mut slots = front.lengths(&tokens, &mask);
    slots.insert(Slot::Embeds, embeds);
    for (slot, role) in [(Slot::CosTable, TableRole::Cos), (Slot::SinTable, TableRole::Sin)] {
        if entry.input(slot).is_some() {
            let name = format!("{SCOPE}/{role:?}");
            let table = front.whole(role, &name)?;
            slots.insert(slot, table);
        }
    }

    for (slot, value) in &slots {
        let name = entry.input(*slot).map(|binding| binding.name.clone()).unwrap_or_default();
        front.g.rename(value, &name);
        front.constants.iter_mut().filter(|constant| constant.name == *value).for_each(|constant| {
            constant.name.clone_from(&name);
        });
        graph.inputs.retain(|input| input.name != name);
    }
    close(graph, front, entry, &tokens)
}

/// Returns the names of the data files of a graph.
pub(super) fn data_files(graph: &Graph) -> BTreeSet<String> {
    graph
        .initializers
        .iter()
        .filter_map(|constant| match &constant.data {
            InitializerData::External { file, .. } => Some(file.clone()),
            InitializerData::Inline(_) => None,
        })
        .collect()
}

/// Adds the new nodes before the graph, and gives the logits the required shape.
fn close(mut graph: Graph, front: Prologue<'_>, entry: &GraphEntry, tokens: &str) -> Result<Graph> {
    let rows = entry.output(Slot::Logits).map(|binding| binding.name.clone()).unwrap_or_default();
    let flat = format!("{SCOPE}/logits");
    let shaped = LOGITS.to_owned();
    let mut back = Builder::new("", &[]);
    let sizes = back.op(&flat, "Shape", &[tokens]);
    let last = back.ints(&[1], &[-1]);
    let shape = back.op_with(&flat, "Concat", &[&sizes, &last], &[("axis", Attribute::Int(0))]);
    let made = back.op(&flat, "Reshape", &[&flat, &shape]);
    back.rename(&made, &shaped);
    for node in &mut graph.nodes {
        node.outputs.iter_mut().filter(|name| **name == rows).for_each(|name| name.clone_from(&flat));
    }
    let vocab = graph.outputs.iter().find(|output| output.name == rows);
    let vocab = vocab.and_then(|output| output.shape.last().cloned()).unwrap_or_else(|| "vocab".into());
    graph.outputs.retain(|output| output.name != rows);

    let shape = vec!["batch".into(), "sequence".into(), vocab];
    graph.outputs.insert(0, Value { name: shaped, dtype: DType::F32.into(), shape });
    let back = back.finish();
    let tables = front.constants;
    let front = front.g.finish();
    graph.inputs.splice(0..0, front.inputs);
    let mut known: HashSet<String> = graph.initializers.iter().map(|other| other.name.clone()).collect();
    let constants = front.initializers.into_iter().chain(tables).chain(back.initializers);
    // A small constant of ours is named after its value, so the graph may already have it.
    graph.initializers.extend(constants.filter(|constant| known.insert(constant.name.clone())));
    graph.nodes = front.nodes.into_iter().chain(graph.nodes).chain(back.nodes).collect();
    graph.check()?;
    Ok(graph)
}

/// Nodes before those of the package.
struct Prologue<'a> {
    job: &'a ExportJob<'a>,
    g: Builder,
    /// Tables, which are in the package's data file.
    constants: Vec<Initializer>,
}

impl Prologue<'_> {
    /// Returns values for the slots of lengths and rows.
    fn lengths(&mut self, tokens: &str, mask: &str) -> HashMap<Slot, String> {
        let g = &mut self.g;
        let axis = g.ints(&[1], &[1]);
        let zero = g.ints(&[], &[0]);
        let one = g.ints(&[], &[1]);
        let keep = [("keepdims", Attribute::Int(0))];
        let scope = format!("{SCOPE}/lengths");
        let lengths = g.op_with(&scope, "ReduceSum", &[mask, &axis], &keep);
        let last = g.op(&scope, "Sub", &[&lengths, &axis]);
        let last = g.cast(&scope, &last, DType::I32);

        let scope = format!("{SCOPE}/total");
        let sizes = g.op(&scope, "Shape", &[mask]);
        let total = g.op(&scope, "Gather", &[&sizes, &one]);
        let total = g.cast(&scope, &total, DType::I32);

        let scope = format!("{SCOPE}/rows");
        let count = g.op(&scope, "Size", &[tokens]);
        let rows = g.op(&scope, "Range", &[&zero, &count, &one]);
        HashMap::from([(Slot::SeqlensK, last), (Slot::TotalLength, total), (Slot::LogitsRows, rows)])
    }

    fn table(&self, role: TableRole) -> Result<HostTable> {
        let manifest = self.job.manifest;
        let table = manifest.tables.iter().find(|table| table.role == role).cloned();
        table
            .ok_or_else(|| refused(format!("package {}", manifest.name), format!("a {role:?} table"), "none"))
    }

    fn constant(&mut self, name: &str, dtype: DType, shape: &[usize], range: &FileRange) -> String {
        let FileRange { file, offset, length } = range.clone();
        let data = InitializerData::External { file, offset, length };
        let shape = shape.to_vec();
        self.constants.push(Initializer { name: name.to_owned(), dtype: dtype.into(), shape, data });
        name.to_owned()
    }

    /// Returns a complete table as a constant.
    fn whole(&mut self, role: TableRole, name: &str) -> Result<String> {
        let table = self.table(role)?;
        match &table.encoding {
            TableEncoding::Plain { dtype: DType::F32, data } => {
                Ok(self.constant(name, DType::F32, &[table.rows, table.cols], data))
            }
            other => Err(refused(format!("{role:?} table"), "plain f32", format!("{other:?}"))),
        }
    }

    /// Adds a lookup of table rows: `indices [batch, sequence]` → `[batch, sequence, cols]`, f32.
    ///
    /// ```text
    /// plain:  Gather (── Cast)
    /// w8:     Gather(quants) ── Cast ── - 128 ── Mul(Gather(scales) ── Cast) ── Reshape
    /// ```
    fn rows(&mut self, role: TableRole, indices: &str) -> Result<String> {
        let HostTable { rows, cols, encoding, .. } = self.table(role)?;
        let scope = format!("{SCOPE}/{role:?}");
        match encoding {
            TableEncoding::Plain { dtype, data } => {
                let table = self.constant(&format!("{scope}/table"), dtype, &[rows, cols], &data);
                let found = self.g.op(&scope, "Gather", &[&table, indices]);
                Ok(self.g.cast(&scope, &found, DType::F32))
            }
            TableEncoding::W8 { block, quants, scales } => {
                let blocks = cols.checked_div(block).unwrap_or_default();
                let shape = [rows, blocks, block];
                let quants = self.constant(&format!("{scope}/quants"), DType::U8, &shape, &quants);
                let scales =
                    self.constant(&format!("{scope}/scales"), DType::F16, &[rows, blocks, 1], &scales);
                let g = &mut self.g;
                let values = g.op(&format!("{scope}/quants"), "Gather", &[&quants, indices]);

                let values = g.cast(&format!("{scope}/quants"), &values, DType::F32);
                let middle = g.scalar(128.0);
                let values = g.op(&scope, "Sub", &[&values, &middle]);
                let scales = g.op(&format!("{scope}/scales"), "Gather", &[&scales, indices]);
                let scales = g.cast(&format!("{scope}/scales"), &scales, DType::F32);
                let values = g.op(&scope, "Mul", &[&values, &scales]);
                let shape = g.ints(&[3], &[0, 0, cols as i64]);
                Ok(g.op(&scope, "Reshape", &[&values, &shape]))
            }
        }
    }
}
