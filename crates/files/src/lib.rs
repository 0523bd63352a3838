//! Safe opening of files from outside: regular files only, with bounded reads and read-only memory maps.
//!
//! A named pipe or a device in the place of a file would block or never end, so [`open_regular`] refuses it; every
//! other function here opens its file with [`open_regular`]. [`map`] maps a file; the documentation of [`mapped`]
//! describes files that shrink. [`check_own`] refuses what another user can change. [`PartName`] parses the names of
//! divided files. [`user_text`] decodes what a user wrote.

pub mod environment;
#[cfg(unix)]
mod faults;
pub mod mapped;
mod owner;
mod parts;
mod regular;
mod text;

#[cfg(target_os = "linux")]
pub use mapped::map_in_large_pages;
pub use mapped::{FileWatch, MappedFile, map};
pub use owner::{check_own, create_private_folder, read_own};
pub use parts::PartName;
pub use regular::{canonicalize, open_inside, open_regular, own_path, read, read_bounded, read_inside};
pub use text::{user_text, utf8};
