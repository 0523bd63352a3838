//! Common parts of the fuzz targets: a limit on memory, the treatment of panics, a folder for files, functions that use
//! everything that a parser has accepted, the parsers of answers, another validator of numbers, and the choice among the
//! parsers of settings.
//!
//! Each target is a file in `targets/`. `cargo xtask fuzz` generates seeds and dictionaries and runs the targets. This
//! crate is not part of the product.

pub mod answers;
pub mod exhaust;
pub mod numbers;
pub mod scratch;
pub mod settings;

use std::{alloc::System, panic};

use cap::Cap;

/// Maximum size of a target's heap in bytes. libFuzzer's own `-malloc_limit_mb` needs a sanitizer, which stable Rust
/// does not have. `-rss_limit_mb` notices only memory that is in use for about a second.
pub const HEAP_LIMIT: usize = 256 << 20;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, HEAP_LIMIT);

/// Prepares the process. Must be called once, before the first input.
///
/// A panic in Narthex's own code ends the process, so that libFuzzer stores the input. A panic in a library unwinds. If
/// Narthex catches it, the target continues as the product would; otherwise libFuzzer's caller ends the process.
pub fn prepare() {
    let print = panic::take_hook();
    // libFuzzer's own hook is dropped, because it aborts at every panic. The message of a fatal panic is printed below.
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
