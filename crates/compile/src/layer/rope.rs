//! Rotary position embeddings (Su et al. 2021, arXiv:2104.09864): their tables in the weights file, and their nodes.

use narthex_graph::{
    onnx::external::ByteRange,
    typed::{Scope, Tensor},
};
use narthex_spec::{
    DType,
    arch::{DecoderArch, Rotation},
    manifest::{HostTable, TableEncoding, TableRole},
};

use crate::{
    emit::{Emitter, pieces},
    error::Result,
    rotary::{LengthRange, RotarySet, Trigonometric},
};

/// A set of angles: the names of its cosines and sines in the weights file, and their roles.
struct AngleTables {
    set: RotarySet,
    names: [&'static str; 2],
    roles: [TableRole; 2],
}

/// All sets that a decoder may have.
const TABLES: [AngleTables; 3] = [
    AngleTables {
        set: RotarySet { rotation: Rotation::Global, reach: LengthRange::Short },
        names: ["rope/cos", "rope/sin"],
        roles: [TableRole::Cos, TableRole::Sin],
    },
    AngleTables {
        set: RotarySet { rotation: Rotation::Global, reach: LengthRange::Long },
        names: ["long_rope/cos", "long_rope/sin"],
        roles: [TableRole::LongCos, TableRole::LongSin],
    },
    AngleTables {
        set: RotarySet { rotation: Rotation::Local, reach: LengthRange::Short },
        names: ["local_rope/cos", "local_rope/sin"],
        roles: [TableRole::LocalCos, TableRole::LocalSin],
    },
];

/// Cosines and sines of a graph, by kind of rotation.
#[derive(Default)]
pub(crate) struct Angles {
    known: Vec<(Rotation, [Tensor; 2])>,
}

impl Angles {
    /// Writes the sets that a decoder's layers use. Sets that do not depend on the sequence length become constants of
    /// the graph.
    pub(crate) fn write(e: &mut Emitter<'_>, arch: &DecoderArch) -> Result<Self> {
        let mut angles = Self::default();
        for AngleTables { set, names, .. } in TABLES {
            let Some(extents) = set.extents(arch) else { continue };
            let [cos, sin] = names;
            let ranges = [
                write(e, cos, arch, set, Trigonometric::Cos, extents)?,
                write(e, sin, arch, set, Trigonometric::Sin, extents)?,
            ];
            if set.rotation != Rotation::Global || arch.switch().is_none() {
                let cos = e.external(cos, DType::F32, &extents, ranges[0]);
                let sin = e.external(sin, DType::F32, &extents, ranges[1]);
                angles.insert(set.rotation, [cos, sin]);
            }
        }
        Ok(angles)
    }

    /// Adds the cosines and sines of a rotation.
    pub(crate) fn insert(&mut self, rotation: Rotation, angles: [Tensor; 2]) {
        self.known.push((rotation, angles));
    }

    /// Returns the cosines and sines of a rotation; `None` for layers without rotation.
    pub(crate) fn of(&self, rotation: Rotation) -> Option<[Tensor; 2]> {
        self.known.iter().find(|(known, _)| *known == rotation).map(|(_, angles)| *angles)
    }
}

/// Returns the host tables of the sets that [`Angles::write`] wrote.
pub(crate) fn host_tables(e: &Emitter<'_>, arch: &DecoderArch) -> Vec<HostTable> {
    let mut tables = Vec::new();
    for AngleTables { set, names, roles } in TABLES {
        let Some([rows, cols]) = set.extents(arch) else { continue };
        for (role, name) in roles.into_iter().zip(names) {
            tables.extend(e.written_range(name, DType::F32).map(|range| {
                let encoding = TableEncoding::Plain { dtype: DType::F32, data: e.file_range(range) };
                HostTable { role, rows, cols, encoding }
            }));
        }
    }
    tables
}

/// Writes cosines or sines `[positions, pairs]`, in pieces of positions.
fn write(
    e: &mut Emitter<'_>,
    name: &str,
    arch: &DecoderArch,
    set: RotarySet,
    wave: Trigonometric,
    [positions, pairs]: [usize; 2],
) -> Result<ByteRange> {
    let length = (positions as u64) * (pairs * DType::F32.size()) as u64;
    e.once(name, DType::F32, |e| {
        e.stream(length, |append| {
            pieces(0..positions, pairs)
                .try_for_each(|piece| append(bytemuck::cast_slice(&set.values(arch, wave, piece))))
        })
    })
}

/// Rotates the first elements of each head `[.., size]`, whose pairs are in halves, by cosines and sines `[.., pairs]`.
///
/// ```text
/// x ── Split ─┬─ a ─ a·cos − b·sin ─┬─ Concat
///             ├─ b ─ b·cos + a·sin ─┤
///             └─ others ────────────┘
/// ```
pub(crate) fn apply_rope(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    size: usize,
    [cos, sin]: [Tensor; 2],
) -> Result<Tensor> {
    let g = &mut e.graph;
    let pairs = g.last_extent(cos).unwrap_or(size / 2);
    let others = size.saturating_sub(2 * pairs);
    let mut parts = vec![pairs; 2];
    parts.extend((others > 0).then_some(others));
    let mut parts = g.split(scope, x, 3, &parts)?;
    let [first, second] = [parts[0], parts[1]];
    let low = scope.child("low");
    let high = scope.child("high");
    let along = g.mul(&low.child("cos"), first, cos)?;
    let across = g.mul(&low.child("sin"), second, sin)?;
    let low = g.sub(&low, along, across)?;
    let along = g.mul(&high.child("cos"), second, cos)?;
    let across = g.mul(&high.child("sin"), first, sin)?;
    let high = g.add(&high, along, across)?;
    parts[..2].copy_from_slice(&[low, high]);
    Ok(g.concat(scope, &parts, 3)?)
}
