//! The program for Windows on arm64: nothing here runs it, so its file is inspected.

use std::{fs, path::Path};

use anyhow::{Context, ensure};

use super::{target::ForeignTarget, tools::Zig};
use xtask_tools::session::{Session, built_narthex};

/// Machine field of the file header for AArch64 (PE format, `IMAGE_FILE_MACHINE_ARM64`).
const ARM64: u16 = 0xaa64;

/// A library that every program of Windows imports.
const KERNEL: &str = "kernel32.dll";

/// Libraries of the system and of Zig's runtime that the program may import; their names begin so, in lower case.
const EXPECTED: [&str; 18] = [
    "advapi32",
    "api-ms-win-",
    "bcrypt",
    "bcryptprimitives",
    "combase",
    "crypt32",
    "dbghelp",
    "dxgi",
    "iphlpapi",
    "kernel32",
    "ntdll",
    "ole32",
    "oleaut32",
    "psapi",
    "secur32",
    "shell32",
    "user32",
    "ws2_32",
];

/// Builds the program and checks that its file is for arm64 and imports libraries of the system alone.
pub(super) fn build(session: &Session<'_>, folder: &Path) -> anyhow::Result<String> {
    let target = ForeignTarget::WindowsArm64;
    target.add(session)?;
    let zig = Zig::prepare(session)?;
    let mut build = zig.cargo(session, "build");
    build.args(["--package", "narthex", "--target", target.triple(), "--target-dir"]).arg(folder);
    let path = built_narthex(&mut build)?;
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    let image = Image::parse(&bytes)?;
    ensure!(image.machine == ARM64, "expected a program for arm64, found the machine {:#x}", image.machine);
    check_imports(&image.imports)?;
    Ok(format!("{} MB; imports {}", bytes.len() / 1_000_000, image.imports.join(", ")))
}

fn check_imports(imports: &[String]) -> anyhow::Result<()> {
    ensure!(imports.iter().any(|name| name == KERNEL), "expected {KERNEL} among the imports {imports:?}");
    let is_expected = |name: &String| EXPECTED.iter().any(|expected| name.starts_with(expected));
    let others: Vec<&String> = imports.iter().filter(|name| !is_expected(name)).collect();
    ensure!(others.is_empty(), "expected libraries of the system alone, found {others:?}");
    Ok(())
}

/// The header of a Windows program, as the PE format specifies.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    machine: u16,
    /// Imported libraries in lower case.
    imports: Vec<String>,
}

/// Position of a section in memory and in the file.
struct Section {
    address: usize,
    size: usize,
    offset: usize,
}

impl Image {
    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        ensure!(bytes.starts_with(b"MZ"), "expected a program of Windows");
        let header = number(bytes, 0x3c, 4)?;
        ensure!(bytes.get(header..header + 4) == Some(b"PE\0\0"), "expected a PE header");
        let machine = u16::try_from(number(bytes, header + 4, 2)?)?;
        let count = number(bytes, header + 6, 2)?;
        let optional = header + 24;
        ensure!(number(bytes, optional, 2)? == 0x20b, "expected a program of 64 bits");
        let import_table = number(bytes, optional + 120, 4)?;
        let first = optional + number(bytes, header + 20, 2)?;
        let sections = (0..count).map(|index| {
            let section = first + index * 40;
            Ok(Section {
                size: number(bytes, section + 8, 4)?,
                address: number(bytes, section + 12, 4)?,
                offset: number(bytes, section + 20, 4)?,
            })
        });
        let sections: Vec<Section> = sections.collect::<anyhow::Result<_>>()?;
        let position = |address: usize| {
            let section = sections
                .iter()
                .find(|section| (section.address..section.address + section.size).contains(&address));
            section
                .map(|section| address - section.address + section.offset)
                .context("an address has no section")
        };

        let mut imports = Vec::new();
        let mut descriptor = position(import_table)?;
        loop {
            let name = number(bytes, descriptor + 12, 4)?;
            if name == 0 {
                imports.sort_unstable();
                return Ok(Self { machine, imports });
            }
            let text = bytes.get(position(name)?..).unwrap_or_default();
            let end = text.iter().position(|byte| *byte == 0).context("a name has no end")?;
            imports.push(String::from_utf8_lossy(&text[..end]).to_ascii_lowercase());
            descriptor += 20;
        }
    }
}

/// Reads a little-endian number of `size` bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> anyhow::Result<usize> {
    let bytes = bytes.get(at..at + size).context("the file ends in its header")?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a program with one section, which imports a library.
    fn program(library: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, b"MZ");
        put(0x3c, &0x80u32.to_le_bytes());
        put(0x80, b"PE\0\0");
        put(0x84, &ARM64.to_le_bytes());
        put(0x86, &1u16.to_le_bytes());
        put(0x94, &240u16.to_le_bytes());
        put(0x98, &0x20bu16.to_le_bytes());
        put(0x98 + 120, &0x1000u32.to_le_bytes());
        let section = 0x98 + 240;
        put(section + 8, &0x200u32.to_le_bytes());
        put(section + 12, &0x1000u32.to_le_bytes());
        put(section + 20, &0x200u32.to_le_bytes());
        put(0x200 + 12, &0x1080u32.to_le_bytes());
        put(0x280, library);
        bytes
    }

    #[test]
    fn imports_are_read_from_the_file() {
        let image = Image::parse(&program(b"KERNEL32.dll\0")).unwrap();
        assert_eq!(image, Image { machine: ARM64, imports: vec!["kernel32.dll".to_owned()] });
        assert!(Image::parse(b"\x7fELF").is_err());
        assert!(Image::parse(&program(b"KERNEL32.dll\0")[..0x100]).is_err());
    }

    #[test]
    fn only_the_system_s_libraries_may_be_imported() {
        let check = |names: &[&str], expect: bool| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(check_imports(&names).is_ok(), expect, "{names:?}");
        };
        check(&["kernel32.dll", "api-ms-win-crt-math-l1-1-0.dll"], true);
        check(&["kernel32.dll", "libunwind.dll"], false);
        check(&["ntdll.dll"], false);
    }
}
