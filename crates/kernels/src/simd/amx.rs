//! AMX: tiles of up to 16 rows of 64 bytes, and products of two tiles of bytes.

use std::marker::PhantomData;

use super::TileSums;
use crate::aligned::LINE;

/// Proof that this processor has AMX-TILE and AMX-INT8, and that the process may use tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amx(());

/// Shapes of this thread's tiles, which are released when the value is dropped.
#[derive(Debug)]
pub(crate) struct TileShapes {
    rows: usize,
    block: usize,
    /// The shapes are a state of the thread.
    thread: PhantomData<*const ()>,
}

impl Amx {
    /// Returns the proof if the processor has the instructions and the operating system permits their use.
    pub(crate) fn detect() -> Option<Self> {
        instructions::permitted().then_some(Self(()))
    }

    /// Sets the shapes for products of up to `rows` rows of activations and blocks of `block` inputs.
    /// There are 1 to 16 rows, and blocks of 16, 32, 64 or 128.
    pub(super) fn shapes(self, rows: usize, block: usize) -> TileShapes {
        let depth = block.min(LINE) as u8;
        let mut config = [0; 64];
        // Palette 1 has eight tiles of up to 16 rows of 64 bytes.
        config[0] = 1;
        let shapes = [(rows as u8, LINE as u8), (rows as u8, depth), (depth / 4, LINE as u8)];
        for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
            config[16 + 2 * tile] = bytes;
            config[48 + tile] = rows;
        }
        // SAFETY: `self` proves that tiles may be used, and the configuration is valid.
        unsafe { instructions::configure(&config) }
        TileShapes { rows, block, thread: PhantomData }
    }
}

impl TileShapes {
    /// Multiplies as [`TileProduct::multiply`](super::tiles::TileProduct::multiply) does.
    #[inline(always)]
    pub(super) fn multiply(
        &self,
        activations: &[u8],
        stride: usize,
        weights: &[[u8; LINE]],
        sums: &mut TileSums,
    ) {
        assert!(activations.len() >= (self.rows - 1) * stride + self.block, "length of the activations");
        assert!(weights.len() >= self.block / 4, "length of the weights");
        let activations = activations.as_ptr();
        let weights = weights.as_ptr();
        // SAFETY: the shapes are set while `self` exists. Tile 0 has up to 16 rows of 64 bytes, as `sums`; tile 1 has
        // `rows` rows of up to 64 bytes of a block; tile 2 has a line for each four inputs. Both slices are long enough.
        unsafe {
            if self.block <= LINE {
                instructions::multiply_tile(activations, stride, weights, sums);
            } else {
                instructions::multiply_two_tiles(activations, stride, weights, sums);
            }
        }
    }
}

impl Drop for TileShapes {
    fn drop(&mut self) {
        // SAFETY: `Amx` proved that tiles may be used, and nothing uses their contents after this.
        unsafe { instructions::release() }
    }
}

/// The instructions. They are not stable intrinsics yet, so they are inline assembly. Rust code does not use tiles, so
/// nothing else changes them.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod instructions {
    use std::arch::{
        asm,
        x86_64::{__cpuid_count, _xgetbv},
    };

    use super::{LINE, TileSums};

    /// Returns whether the processor has the instructions, and asks Linux for the permission to use them, which holds
    /// for all threads of the process.
    pub(super) fn permitted() -> bool {
        const TILE_AND_INT8: u32 = 3 << 24;
        // States of tile shapes and of tile data.
        const TILE_STATES: u64 = 3 << 17;
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("xsave") {
            return false;
        }
        let flags = __cpuid_count(7, 0).edx;
        // SAFETY: the processor has XSAVE, and the operating system uses it, or AVX-512 would not have been detected.
        let states = unsafe { _xgetbv(0) };
        if flags & TILE_AND_INT8 != TILE_AND_INT8 || states & TILE_STATES != TILE_STATES {
            return false;
        }
        // SAFETY: this call changes no memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }

    /// # Safety
    /// Tiles may be used, and the configuration is valid.
    pub(super) unsafe fn configure(config: &[u8; 64]) {
        // SAFETY: the caller guarantees it.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) config, options(nostack, readonly, preserves_flags)) }
    }

    /// Multiplies tiles 1 and 2 into tile 0.
    ///
    /// # Safety
    /// The tiles have shapes. The rows of tiles 1 and 2 at `activations` and `weights` are readable.
    #[inline(always)]
    pub(super) unsafe fn multiply_tile(
        activations: *const u8,
        stride: usize,
        weights: *const [u8; LINE],
        sums: &mut TileSums,
    ) {
        // SAFETY: the caller guarantees it.
        unsafe {
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
        }
    }

    /// Multiplies two pairs of tiles, whose activations are 64 bytes and whose weights are 16 lines apart.
    ///
    /// # Safety
    /// The tiles have shapes, of 64 inputs. The rows of both pairs are readable.
    #[inline(always)]
    pub(super) unsafe fn multiply_two_tiles(
        activations: *const u8,
        stride: usize,
        weights: *const [u8; LINE],
        sums: &mut TileSums,
    ) {
        // SAFETY: the caller guarantees it.
        unsafe {
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

    /// # Safety
    /// Tiles may be used.
    pub(super) unsafe fn release() {
        // SAFETY: the caller guarantees it.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }
}

/// The instructions where there are none. Nothing calls the others, as [`permitted`](instructions::permitted) is false.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod instructions {
    use super::{LINE, TileSums};

    pub(super) fn permitted() -> bool {
        false
    }

    /// # Safety
    /// It must not be called.
    pub(super) unsafe fn configure(_config: &[u8; 64]) {
        unreachable!("there is no AMX")
    }

    /// # Safety
    /// It must not be called.
    pub(super) unsafe fn multiply_tile(
        _activations: *const u8,
        _stride: usize,
        _weights: *const [u8; LINE],
        _sums: &mut TileSums,
    ) {
        unreachable!("there is no AMX")
    }

    /// # Safety
    /// It must not be called.
    pub(super) unsafe fn multiply_two_tiles(
        _activations: *const u8,
        _stride: usize,
        _weights: *const [u8; LINE],
        _sums: &mut TileSums,
    ) {
        unreachable!("there is no AMX")
    }

    /// # Safety
    /// It must not be called.
    pub(super) unsafe fn release() {
        unreachable!("there is no AMX")
    }
}
