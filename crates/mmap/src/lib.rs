//! Files from outside, opened safely: regular files only, with bounded reads and read-only memory maps.
//!
//! A named pipe or a device in the place of a file would block or never end, so [`open_regular`] refuses it; every other
//! function that opens a file does it through it. [`map`] maps a file; its notes on a file that shrinks are in [`mapped`].

pub mod environment;
#[cfg(unix)]
mod faults;
pub mod mapped;
mod regular;

pub use mapped::{FileWatch, Mapped, map};
pub use regular::{open_inside, open_regular, read, read_inside};
