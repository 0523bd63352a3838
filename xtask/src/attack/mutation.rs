//! Seeded mutations of valid files: flipped bytes, cuts, splices and huge lengths.

/// A pseudo-random generator (SplitMix64, Steele et al. 2014), the same on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound.max(1) as u64)) as usize
    }
}

/// Words that are extreme as lengths, counts and offsets.
const EXTREME: [u64; 6] = [u64::MAX, 1 << 63, 1 << 40, u32::MAX as u64, 1 << 31, 0];

/// Texts that are extreme in JSON and templates.
const TEXTS: [&str; 8] =
    ["99999999999999999999", "-1", "1e999", "null", "\"../../../etc/passwd\"", "[[[[[[[[", "{{", "\u{0}"];

/// Returns a file that differs from a valid one.
pub(super) fn mutate(valid: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..=random.below(3) {
        // Most formats have their structure at the start, so half of the positions are there.
        let reach = if random.below(2) == 0 { bytes.len().min(512) } else { bytes.len() };
        let at = random.below(reach);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let (from, length) = (random.below(bytes.len()), random.below(64));
                let piece = bytes[from..bytes.len().min(from + length)].to_vec();
                bytes.splice(at..at, piece);
            }
            2 => {
                let word = EXTREME[random.below(EXTREME.len())].to_le_bytes();
                let width = if random.below(2) == 0 { 4 } else { 8 };
                overwrite(&mut bytes, at, &word[..width]);
            }
            3 => overwrite(&mut bytes, at, TEXTS[random.below(TEXTS.len())].as_bytes()),
            4 => {
                let end = bytes.len().min(at + random.below(32));
                bytes.drain(at.min(end)..end);
            }
            _ => {
                let bit = 1 << random.below(8);
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
            }
        }
    }
    bytes
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    bytes.iter_mut().skip(at).zip(with).for_each(|(byte, new)| *byte = *new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_differ_and_repeat() {
        let valid: Vec<u8> = (0..=255).collect();
        let all = |seed| -> Vec<Vec<u8>> {
            let mut random = Random::new(seed);
            (0..200).map(|_| mutate(&valid, &mut random)).collect()
        };
        assert_eq!(all(1), all(1));
        let mut distinct = all(1);
        distinct.sort();
        distinct.dedup();
        assert!(distinct.len() > 150, "{}", distinct.len());
        assert!(distinct.iter().any(|bytes| bytes.len() < valid.len()));
        assert!(distinct.iter().any(|bytes| bytes.len() > valid.len()));
        mutate(&[], &mut Random::new(1));
    }
}
