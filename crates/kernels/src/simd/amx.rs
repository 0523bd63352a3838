//! AMX: tiles of up to 16 rows of 64 bytes, and products of two tiles of bytes.
//!
//! Instructions of AMX are not stable intrinsics yet, so they are inline assembly.

use std::{
    arch::{
        asm,
        x86_64::{__cpuid_count, _xgetbv},
    },
    marker::PhantomData,
};

use super::LANES;
use crate::aligned::LINE;

/// Number of rows in a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Proof that this processor has AMX-TILE and AMX-INT8, and that the process may use tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amx(());

/// Sums of products: 16 rows of 16 columns.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TileSums(pub(crate) [[i32; LANES]; TILE_ROWS]);

/// Shapes of this thread's tiles, which are released when the value is dropped.
#[derive(Debug)]
pub(crate) struct TileShapes {
    rows: usize,
    block: usize,
    /// The shapes are a state of the thread.
    thread: PhantomData<*const ()>,
}

impl Amx {
    /// Returns the proof if the processor has the instructions and Linux permits their use.
    pub(crate) fn detect() -> Option<Self> {
        const TILE_AND_INT8: u32 = 3 << 24;
        // States of tile shapes and of tile data.
        const TILE_STATES: u64 = 3 << 17;
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("xsave") {
            return None;
        }
        let flags = __cpuid_count(7, 0).edx;
        // SAFETY: the processor has XSAVE, and the operating system uses it, or AVX-512 would not have been detected.
        let states = unsafe { _xgetbv(0) };
        let found = flags & TILE_AND_INT8 == TILE_AND_INT8 && states & TILE_STATES == TILE_STATES;
        (found && permit()).then_some(Self(()))
    }

    /// Sets the shapes for products of up to `rows` rows of activations and blocks of `block` inputs.
    ///
    /// # Panics
    /// Panics if there are no or more than 16 rows, or blocks have no kernel.
    pub(crate) fn shapes(self, rows: usize, block: usize) -> TileShapes {
        assert!((1..=TILE_ROWS).contains(&rows), "{rows} rows");
        assert!([16, 32, 64, 128].contains(&block), "blocks of {block}");
        let depth = block.min(LINE) as u8;
        let mut config = [0u8; 64];
        // Palette 1 has eight tiles of up to 16 rows of 64 bytes.
        config[0] = 1;
        let shapes = [(rows as u8, LINE as u8), (rows as u8, depth), (depth / 4, LINE as u8)];
        for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
            config[16 + 2 * tile] = bytes;
            config[48 + tile] = rows;
        }
        // SAFETY: `self` proves that tiles may be used, and `config` has the 64 bytes of a valid configuration.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &config, options(nostack, readonly, preserves_flags)) }
        TileShapes { rows, block, thread: PhantomData }
    }
}

/// Asks Linux for the permission to use tiles, which holds for all threads of the process.
fn permit() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: this call changes no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

impl TileShapes {
    /// Multiplies one block of rows by one block of 16 columns. The rows of `activations` are `stride` bytes apart. Each
    /// line of `weights` has four inputs of each column, as signed bytes. Replaces the sums of the configured rows.
    ///
    /// # Panics
    /// Panics if a slice is too short.
    #[inline(always)]
    pub(crate) fn multiply(
        &self,
        activations: &[u8],
        stride: usize,
        weights: &[[u8; LINE]],
        sums: &mut TileSums,
    ) {
        assert!(activations.len() >= (self.rows - 1) * stride + self.block, "length of the activations");
        assert!(weights.len() >= self.block / 4, "length of the weights");
        let (activations, weights, sums) = (activations.as_ptr(), weights.as_ptr(), sums.0.as_mut_ptr());
        // SAFETY: the shapes are set while `self` exists. The tiles have up to 16 rows of 64 bytes of `sums`, `rows`
        // rows of a block's bytes of `activations`, and a line of `weights` for each four inputs; both slices are long
        // enough. Rust code does not use tiles, and none is read that this code has not written.
        unsafe {
            if self.block <= LINE {
                asm!(
                    "tilezero tmm0",
                    "tileloadd tmm1, [{activations} + {stride}*1]",
                    "tileloadd tmm2, [{weights} + {line}*1]",
                    "tdpbssd tmm0, tmm1, tmm2",
                    "tilestored [{sums} + {line}*1], tmm0",
                    activations = in(reg) activations,
                    stride = in(reg) stride,
                    weights = in(reg) weights,
                    line = in(reg) LINE,
                    sums = in(reg) sums,
                    options(nostack, preserves_flags),
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tileloadd tmm1, [{activations} + {stride}*1]",
                    "tileloadd tmm2, [{weights} + {line}*1]",
                    "tdpbssd tmm0, tmm1, tmm2",
                    "tileloadd tmm1, [{activations} + {stride}*1 + 64]",
                    "tileloadd tmm2, [{weights} + {line}*1 + 1024]",
                    "tdpbssd tmm0, tmm1, tmm2",
                    "tilestored [{sums} + {line}*1], tmm0",
                    activations = in(reg) activations,
                    stride = in(reg) stride,
                    weights = in(reg) weights,
                    line = in(reg) LINE,
                    sums = in(reg) sums,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

impl Drop for TileShapes {
    fn drop(&mut self) {
        // SAFETY: `Amx` proved that tiles may be used, and nothing uses their contents after this.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }
}
