//! Damaged files, for readers of files from outside.

/// Header of a format, in which some damages take place.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    /// Maximum length in bytes.
    pub length: usize,
    /// Number of bytes that are filled with one value.
    pub filled: usize,
    /// Extreme numbers, as bytes in the order of the format.
    pub numbers: &'a [&'a [u8]],
}

/// Returns a damaged copy of a file: with flipped bits, with extreme numbers in its header, cut short, or with a part repeated.
///
/// # Panics
/// For a file of at most 8 bytes.
pub fn damaged(file: &[u8], header: &Header<'_>, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut bytes = file.to_vec();
    let within_header = file.len().min(header.length) - 8;
    match seed % 5 {
        0 => bytes.truncate(1 + random(file.len() - 1)),
        1 => {
            let at = random(within_header);
            let value = [0, 1, 0x7f, 0xff][random(4)];
            bytes[at..at + header.filled].fill(value);
        }
        2 => {
            let at = random(within_header);
            let number = header.numbers[random(header.numbers.len())];
            bytes[at..at + number.len()].copy_from_slice(number);
        }
        3 => {
            let start = random(file.len());
            let end = start + random(file.len() - start);
            bytes.splice(random(file.len()).., file[start..end].iter().copied());
        }
        _ => {
            for _ in 0..=random(12) {
                let at = random(file.len());
                bytes[at] ^= 1 << random(8);
            }
        }
    }
    bytes
}
