//! What the fuzz targets share: a cap on memory, a rule for panics, a folder for files, and readers that use up
//! whatever a parser accepted.
//!
//! One file of `targets/` per target. Seeds, dictionaries and runs are made by `cargo xtask fuzz`; nothing here is
//! part of the product.

pub mod exhaust;
pub mod scratch;

use std::{alloc::System, panic};

use cap::Cap;

/// Bytes of heap that a target may hold at any time. libFuzzer's own `-malloc_limit_mb` needs a sanitizer, which
/// stable Rust has not; `-rss_limit_mb` sees only what lasts a second.
pub const HEAP_LIMIT: usize = 256 << 20;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, HEAP_LIMIT);

/// Prepares the process; to be called once, before the first input.
///
/// A panic in Narthex's own code ends the process, so that libFuzzer keeps the input. One in a library unwinds: where
/// Narthex contains it that is as designed, and where nothing does libFuzzer's caller ends the process.
pub fn prepare() {
    let print = panic::take_hook();
    // libFuzzer's own hook is dropped with its abort; the message of a fatal panic is worth having.
    drop(print);
    panic::set_hook(Box::new(|info| {
        let library =
            info.location().is_some_and(|place| place.file().replace('\\', "/").contains("/registry/src/"));
        if !library {
            eprintln!("{info}");
            std::process::abort();
        }
    }));
}
