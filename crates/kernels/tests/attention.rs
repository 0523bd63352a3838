//! Attention: the portable kernels are compared with the definition in double precision. All others must give the same
//! bits as the portable ones.

mod support;

use half::f16;
use narthex_kernels::{
    Attention, AttentionPart, CacheRows, Kernels, KeyValues, Mask, MatrixMut, MatrixRef, Queries, Scratch,
};
use support::{Random, accelerated, same};

/// Owned rows of a cache.
#[derive(Clone)]
enum Rows {
    F32(Vec<f32>),
    F16(Vec<f16>),
    I8(Vec<i8>),
}

impl Rows {
    fn random(random: &mut Random, (rows, size): (usize, usize)) -> Self {
        let values = random.floats(rows * size, 2.0);
        match random.below(3) {
            0 => Self::F32(values),
            1 => Self::F16(values.iter().map(|x| f16::from_f32(*x)).collect()),
            _ => {
                let width = size + CacheRows::SCALE_BYTES;
                let mut integers = vec![0; rows * width];
                let parts = values.chunks(size).zip(integers.chunks_mut(width));
                parts.for_each(|(row, out)| Kernels::portable().quantize_cache_row(row, out));
                Self::I8(integers)
            }
        }
    }

    fn view(&self) -> CacheRows<'_> {
        match self {
            Self::F32(rows) => CacheRows::F32(rows),
            Self::F16(rows) => CacheRows::F16(rows),
            Self::I8(rows) => CacheRows::I8(rows),
        }
    }

    fn at(&self, row: usize, column: usize, size: usize) -> f64 {
        let index = row * size + column;
        match self {
            Self::F32(rows) => f64::from(rows[index]),
            Self::F16(rows) => rows[index].to_f64(),
            Self::I8(rows) => {
                let row = &rows[row * (size + CacheRows::SCALE_BYTES)..][..size + CacheRows::SCALE_BYTES];
                let scale =
                    f32::from_ne_bytes(row.last_chunk().copied().unwrap_or_default().map(i8::cast_unsigned));
                f64::from(row[column]) * f64::from(scale)
            }
        }
    }
}

struct Case {
    attention: Attention,
    group: usize,
    first_position: usize,
    queries: Vec<f32>,
    /// Sinks of the heads; empty if there are none.
    sinks: Vec<f32>,
    keys: Rows,
    values: Rows,
}

impl Case {
    fn columns(&self) -> usize {
        self.group * self.attention.head_size
    }

    fn run(&self, kernels: &Kernels) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.queries.len()];
        let rows = MatrixRef::new(&self.queries, self.columns());
        let queries = Queries { rows, first_position: self.first_position, sinks: &self.sinks };
        let cache = KeyValues { keys: self.keys.view(), values: self.values.view() };
        let view = MatrixMut::new(&mut out, self.columns());
        kernels.attend(&self.attention, queries, cache, &mut Scratch::default(), view);
        out
    }

    /// Returns the result of joining the parts of the keys.
    fn run_in_parts(&self, kernels: &Kernels, keys: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.queries.len()];
        let rows = MatrixRef::new(&self.queries, self.columns());
        let queries = Queries { rows, first_position: self.first_position, sinks: &self.sinks };
        let cache = KeyValues { keys: self.keys.view(), values: self.values.view() };
        let mut scratch = Scratch::default();
        let mut part = |start: usize| {
            let keys = start..keys.min(start + AttentionPart::KEYS);
            // Earlier contents of a part do not matter.
            let mut part = AttentionPart::of(keys);
            for _ in 0..2 {
                kernels.attend_part(&self.attention, queries, cache, &mut scratch, &mut part);
            }
            part
        };
        let mut parts: Vec<_> = (0..keys.max(1)).step_by(AttentionPart::KEYS).map(&mut part).collect();
        kernels.join_attention(&mut parts, &self.sinks, MatrixMut::new(&mut out, self.columns()));
        out
    }

    /// Returns the results of single tokens, computed one after another.
    fn run_by_token(&self, kernels: &Kernels) -> Vec<f32> {
        let (columns, mut scratch) = (self.columns(), Scratch::default());
        let mut out = vec![f32::NAN; self.queries.len()];
        let cache = KeyValues { keys: self.keys.view(), values: self.values.view() };
        let tokens = self.queries.chunks(columns).zip(out.chunks_mut(columns)).enumerate();
        for (token, (query, out)) in tokens {
            let rows = MatrixRef::new(query, columns);
            let queries = Queries { rows, first_position: self.first_position + token, sinks: &self.sinks };
            kernels.attend(&self.attention, queries, cache, &mut scratch, MatrixMut::new(out, columns));
        }
        out
    }

    /// Returns the result for one head of a token by the definition.
    fn define(&self, token: usize, head: usize, keys: usize) -> Vec<f64> {
        let size = self.attention.head_size;
        let query = &self.queries[token * self.columns() + head * size..][..size];
        let own = self.first_position + token;
        let sees = |key: usize| match self.attention.mask {
            Mask::Full => true,
            Mask::Causal => key <= own,
            Mask::Window(width) => key <= own && key + width > own,
            Mask::WindowAndLater(width) => key + width > own,
        };
        let score = |key: usize| {
            let product: f64 = (0..size).map(|i| f64::from(query[i]) * self.keys.at(key, i, size)).sum();
            let score = product * f64::from(self.attention.scale);
            self.attention.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let powers: Vec<f64> = (0..keys).map(|key| if sees(key) { score(key).exp() } else { 0.0 }).collect();
        let sink = self.sinks.get(head).map_or(0.0, |sink| f64::from(*sink).exp());
        let total = powers.iter().sum::<f64>() + sink;
        let sum = |i: usize| (0..keys).map(|key| powers[key] * self.values.at(key, i, size)).sum::<f64>();
        (0..size).map(|i| if total > 0.0 { sum(i) / total } else { 0.0 }).collect()
    }

    fn check(&self, keys: usize) {
        let size = self.attention.head_size;
        // Queries are rounded to sixteen bits for keys of eight bits.
        let rounded = matches!(self.keys, Rows::I8(_));
        let tolerance = if rounded { 3e-4 } else { 2e-5 };
        let reference = self.run(&Kernels::portable());
        for (index, found) in reference.chunks(size).enumerate() {
            let expected = self.define(index / self.group, index % self.group, keys);
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < tolerance,
                    "{index}: {found} instead of {expected}"
                );
            }
        }
        for kernels in Kernels::available() {
            let name = kernels.name();
            assert!(same(&self.run(&kernels), &reference), "{name}");
            assert!(same(&self.run_in_parts(&kernels, keys), &reference), "{name}, in parts");
            assert!(same(&self.run_by_token(&kernels), &reference), "{name}, by token");
        }
    }
}

fn random_case(random: &mut Random) -> (Case, usize) {
    let head_size = random.pick(&[1, 8, 16, 24, 32, 64, 80, 128]);
    let group = random.pick(&[1, 2, 3, 4, 8]);
    let tokens = random.pick(&[0, 1, 1, 1, 2, 5, 17, 40]);
    let past = random.pick(&[0, 1, 15, 63, 64, 65, 130, 250, 256, 700]);
    let mask = random.pick(&[
        Mask::Full,
        Mask::Causal,
        Mask::Causal,
        Mask::Window(1),
        Mask::Window(70),
        Mask::WindowAndLater(1),
        Mask::WindowAndLater(70),
    ]);
    let sees_later = matches!(mask, Mask::Full | Mask::WindowAndLater(_));
    let keys = past + tokens + if sees_later { random.below(9) } else { 0 };
    let attention = Attention {
        head_size,
        scale: 1.0 / (head_size as f32).sqrt(),
        soft_cap: random.pick(&[None, None, Some(2.0), Some(50.0)]),
        mask,
    };
    let queries = random.floats(tokens * group * head_size, 2.0);
    let (keys_rows, values) =
        (Rows::random(random, (keys, head_size)), Rows::random(random, (keys, head_size)));
    let sinks = random.pick(&[0, group]);
    let sinks = random.floats(sinks, 4.0);
    (Case { attention, group, first_position: past, queries, sinks, keys: keys_rows, values }, keys)
}

#[test]
fn random_layers_agree() {
    let mut random = Random::new(1);
    for _ in 0..80 {
        let (case, keys) = random_case(&mut random);
        case.check(keys);
    }
}

#[test]
fn groups_of_one_token_agree() {
    let mut random = Random::new(5);
    for group in 1..=9 {
        let (mut case, keys) = random_case(&mut random);
        let (size, keys_seen) = (case.attention.head_size, keys.min(case.first_position + 1));
        if keys_seen > case.first_position {
            case.group = group;
            case.queries = random.floats(group * size, 2.0);
            case.sinks.resize(if case.sinks.is_empty() { 0 } else { group }, 0.7);
            case.check(keys);
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let mut random = Random::new(2);
    for tokens in [1, 9] {
        let case = Case {
            attention: Attention { head_size: 16, scale: 30.0, soft_cap: None, mask: Mask::Causal },
            group: 2,
            first_position: 100,
            queries: random.floats(tokens * 32, 3.0),
            sinks: vec![80.0, -80.0],
            keys: Rows::F32(random.floats((100 + tokens) * 16, 3.0)),
            values: Rows::F32(random.floats((100 + tokens) * 16, 1.0)),
        };
        for kernels in Kernels::available() {
            assert!(case.run(&kernels).iter().all(|x| x.abs() <= 1.001));
        }
    }
}

#[test]
fn queries_without_keys_give_zeros() {
    let attention = Attention { head_size: 16, scale: 1.0, soft_cap: None, mask: Mask::Full };
    for tokens in [1, 30] {
        let case = Case {
            attention,
            group: 1,
            first_position: 0,
            queries: vec![1.0; tokens * 16],
            sinks: vec![0.5],
            keys: Rows::F32(Vec::new()),
            values: Rows::F16(Vec::new()),
        };
        for kernels in Kernels::available() {
            assert_eq!(case.run(&kernels), vec![0.0; tokens * 16]);
        }
    }
}

#[test]
fn odd_numbers_are_harmless() {
    let mut random = Random::new(3);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 5e-36, 1e-45] {
        for _ in 0..12 {
            let (mut case, keys) = random_case(&mut random);
            for rows in [&mut case.keys, &mut case.values] {
                if let (Rows::F32(rows), true) = (rows, keys > 0) {
                    let at = random.below(rows.len());
                    rows[at] = odd;
                }
            }
            if let Some(x) = case.queries.last_mut() {
                *x = odd;
            }
            let run = |kernels: &Kernels| [case.run(kernels), case.run_in_parts(kernels, keys)].concat();
            let reference = run(&Kernels::portable());
            for kernels in accelerated() {
                assert!(same(&run(&kernels), &reference), "{}", kernels.name());
            }
        }
    }
}

/// Puts the number `odd` into a key and its value.
fn spoil(rows: &mut Rows, row: usize, size: usize, odd: f32) {
    match rows {
        Rows::F32(rows) => rows[row * size..][..size].fill(odd),
        Rows::F16(rows) => rows[row * size..][..size].fill(f16::from_f32(odd)),
        Rows::I8(rows) => {
            let scale = &mut rows[row * (size + CacheRows::SCALE_BYTES) + size..][..CacheRows::SCALE_BYTES];
            scale.copy_from_slice(&odd.to_ne_bytes().map(u8::cast_signed));
        }
    }
}

#[test]
fn what_a_query_does_not_see_does_not_matter() {
    let mut random = Random::new(6);
    for _ in 0..200 {
        let (mut case, keys) = random_case(&mut random);
        let (columns, size) = (case.columns(), case.attention.head_size);
        let tokens = case.queries.len() / columns.max(1);
        if tokens == 0 || case.attention.mask == Mask::Full {
            continue;
        }
        let own = |token: usize| case.first_position + token;
        let spoilt = random.below(keys);
        let sees = |token: usize| match case.attention.mask {
            Mask::Window(width) => spoilt <= own(token) && spoilt + width > own(token),
            Mask::WindowAndLater(width) => spoilt + width > own(token),
            Mask::Full | Mask::Causal => spoilt <= own(token),
        };
        let seen: Vec<bool> = (0..tokens).map(sees).collect();
        for kernels in Kernels::available() {
            let run = |case: &Case| [case.run(&kernels), case.run_in_parts(&kernels, keys)];
            let before = run(&case);
            for odd in [f32::NAN, f32::INFINITY] {
                let (keys, values) = (case.keys.clone(), case.values.clone());
                spoil(&mut case.keys, spoilt, size, odd);
                spoil(&mut case.values, spoilt, size, odd);
                for (before, after) in before.iter().zip(run(&case)) {
                    let rows = before.chunks(columns).zip(after.chunks(columns)).zip(&seen);
                    for ((before, after), seen) in rows {
                        let (name, row) = (kernels.name(), [before, after]);
                        assert!(*seen || same(before, after), "{name}, {:?}: {row:?}", case.attention);
                        let nan = odd.is_nan() && *seen;
                        assert!(!nan || after.iter().all(|x| x.is_nan()), "{name}: {after:?}");
                    }
                }
                (case.keys, case.values) = (keys, values);
            }
        }
    }
}

#[test]
fn chunks_of_a_prompt_agree_with_the_whole() {
    let mut random = Random::new(4);
    let (size, tokens) = (32, 150);
    let case = Case {
        attention: Attention { head_size: size, scale: 0.2, soft_cap: None, mask: Mask::Window(90) },
        group: 3,
        first_position: 0,
        queries: random.floats(tokens * 3 * size, 2.0),
        sinks: random.floats(3, 2.0),
        keys: Rows::F16(random.floats(tokens * size, 2.0).iter().map(|x| f16::from_f32(*x)).collect()),
        values: Rows::F16(random.floats(tokens * size, 2.0).iter().map(|x| f16::from_f32(*x)).collect()),
    };
    let (Rows::F16(keys), Rows::F16(values)) = (&case.keys, &case.values) else { unreachable!() };
    for kernels in Kernels::available() {
        let whole = case.run(&kernels);
        let (mut scratch, mut parts) = (Scratch::default(), vec![0.0; whole.len()]);
        for (start, end) in [(0, 70), (70, 77), (77, 150)] {
            let rows = start * case.columns()..end * case.columns();
            let queries = MatrixRef::new(&case.queries[rows.clone()], case.columns());
            let cache = KeyValues {
                keys: CacheRows::F16(&keys[..end * size]),
                values: CacheRows::F16(&values[..end * size]),
            };
            let out = MatrixMut::new(&mut parts[rows], case.columns());
            let queries = Queries { rows: queries, first_position: start, sinks: &case.sinks };
            kernels.attend(&case.attention, queries, cache, &mut scratch, out);
        }
        assert!(same(&parts, &whole), "{}", kernels.name());
    }
}
