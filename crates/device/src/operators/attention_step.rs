//! One call of `narthex.Attention`.
//!
//! New keys and values are first written after the past. The work is then divided into tasks by key and value heads and
//! by tokens. For single tokens, the keys are also divided between tasks.

use std::ops::Range;

use narthex_kernels::{Attention, AttentionPart, KeyValues, Mask, MatrixMut, MatrixRef, Queries, Scratch};

use super::{Buffers, OperatorContext, at_least, cache::CacheElement, call::Call, linear::Part};

/// Number of keys for a task that attends to some of the keys of one token.
const PART_KEYS: usize = AttentionPart::KEYS;

/// Number of queries in a task. For this many queries, the cost of converting keys and values is small.
const TASK_QUERIES: usize = 192;

/// Maximum number of new tokens of a task that writes keys or values.
const TASK_TOKENS: usize = 64;

/// Maximum number of new tokens for which one thread writes all keys and values.
const FEW_TOKENS: usize = 8;

/// Numbers of heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Number of heads of keys and values.
    pub(super) kv: usize,
    /// Number of heads of queries for each head of keys and values.
    pub(super) group: usize,
}

/// Cosines and sines, one row for each position.
#[derive(Clone, Copy)]
pub(super) struct Angles<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    /// Number of elements in a row.
    pub(super) pairs: usize,
}

impl Angles<'_> {
    pub(super) fn positions(&self) -> usize {
        self.cos.len() / self.pairs
    }
}

/// Past tokens of the sequences.
#[derive(Clone, Copy)]
pub(super) struct Pasts<'a> {
    /// Number of tokens in each sequence, including the new ones, minus one. The values have been checked.
    pub(super) lengths: &'a [i32],
    /// Number of new tokens in each sequence.
    pub(super) new: usize,
    /// No sequence has a past.
    pub(super) none: bool,
}

impl Pasts<'_> {
    /// Returns the number of past tokens in a sequence.
    fn of(&self, sequence: usize) -> usize {
        if self.none { 0 } else { self.lengths[sequence] as usize + 1 - self.new }
    }

    /// Returns the number of sequences.
    fn count(&self) -> usize {
        self.lengths.len()
    }
}

/// Keys and values `[batch, heads, capacity, size]`, and those that must first be copied to them.
pub(super) struct PresentCache<'a, T> {
    pub(super) keys: &'a mut [T],
    pub(super) values: &'a mut [T],
    /// Past keys and values, if they are in other memory.
    pub(super) past: [Option<&'a [T]>; 2],
    /// Number of tokens for which the past has room.
    pub(super) held: usize,
}

/// Queries, keys and values of new tokens and their positions. Their shapes match each other.
pub(super) struct AttentionStep<'a> {
    pub(super) shared: &'a OperatorContext,
    pub(super) attention: Attention,
    pub(super) heads: Heads,
    /// Matrix with one row for each new token of each sequence.
    pub(super) query: MatrixRef<'a>,
    pub(super) key: MatrixRef<'a>,
    pub(super) value: MatrixRef<'a>,
    /// Number of new tokens in each sequence.
    pub(super) sequence: usize,
    pub(super) angles: Option<Angles<'a>>,
    /// Sinks of all heads; empty if there are none.
    pub(super) sinks: &'a [f32],
    pub(super) pasts: Pasts<'a>,
    /// Number of tokens for which the present has room.
    pub(super) capacity: usize,
}

/// Task that writes some of the new keys or values of a head.
struct WriteTask<'a, T> {
    /// Index of the sequence and the head.
    index: usize,
    part: NewPart,
    /// Past tokens that are in other memory, and the places to which they are copied.
    past: Option<(&'a [T], &'a mut [T])>,
    /// First new token.
    first: usize,
    /// Places of the new tokens.
    places: &'a mut [T],
}

impl AttentionStep<'_> {
    /// Writes the present keys and values, and the results.
    pub(super) fn run<T: CacheElement>(
        &self,
        call: &Call<'_>,
        present: PresentCache<'_, T>,
        out: &mut [f32],
    ) -> ort::Result<()> {
        let PresentCache { keys, values, past, held } = present;
        let row = self.capacity * self.row_elements::<T>();
        if out.is_empty() {
            return Ok(());
        }

        let heads = keys.chunks_exact_mut(row).zip(values.chunks_exact_mut(row)).enumerate();
        let few = self.pasts.count() * self.sequence <= FEW_TOKENS && past.iter().all(Option::is_none);
        let step = if few { self.sequence } else { TASK_TOKENS };
        let tasks = heads.flat_map(|(index, (keys, values))| {
            let parts = [(keys, NewPart::Key, past[0]), (values, NewPart::Value, past[1])];
            parts.into_iter().flat_map(move |(present, part, past)| {
                let past = past.map(|past| self.past_of(past, held, index));
                self.write_tasks(index, part, present, past, step)
            })
        });

        if few {
            tasks.for_each(|task| self.write(task));
        } else {
            let tasks: Vec<_> = tasks.map(Part::new).collect();
            call.parallel(tasks.len(), |at| {
                if let Some(task) = tasks.get(at).and_then(Part::take) {
                    self.write(task);
                }
            })?;
        }

        let cache = Cache { keys, values, row };
        if self.sequence == 1 {
            self.attend_single_tokens(call, &cache, out)
        } else {
            self.attend_tokens(call, &cache, out)
        }
    }

    fn row_elements<T: CacheElement>(&self) -> usize {
        self.attention.head_size + T::AFTER_ROW
    }

    /// Returns the past tokens of one head.
    fn past_of<'p, T: CacheElement>(&self, past: &'p [T], held: usize, index: usize) -> &'p [T] {
        let row = self.row_elements::<T>();
        let tokens = self.pasts.of(index / self.heads.kv);
        &past[index * held * row..][..tokens * row]
    }

    /// Divides the writing of a head's keys or values into tasks of up to `step` new tokens.
    fn write_tasks<'t, T: CacheElement>(
        &self,
        index: usize,
        part: NewPart,
        present: &'t mut [T],
        past: Option<&'t [T]>,
        step: usize,
    ) -> impl Iterator<Item = WriteTask<'t, T>> + use<'t, T> {
        let row = self.row_elements::<T>();
        let (before, new) = present.split_at_mut(self.pasts.of(index / self.heads.kv) * row);
        let mut past = past.map(|past| (past, before));
        let chunks = new[..self.sequence * row].chunks_mut(step * row);
        chunks.enumerate().map(move |(at, places)| WriteTask {
            index,
            part,
            past: past.take(),
            first: at * step,
            places,
        })
    }

    /// Writes the keys or values of a task.
    fn write<T: CacheElement>(&self, task: WriteTask<'_, T>) {
        let WriteTask { index, part, past, first, places } = task;
        if let Some((past, before)) = past {
            before.copy_from_slice(past);
        }
        let size = self.attention.head_size;
        let (sequence, head) = self.place_of(index);
        let new = if part == NewPart::Key { self.key } else { self.value };
        let past = self.pasts.of(sequence);
        self.shared.with_buffers(|Buffers { new_row, .. }| {
            let row = at_least(new_row, size);
            for (token, place) in (first..).zip(places.chunks_exact_mut(self.row_elements::<T>())) {
                row.copy_from_slice(&new.row(sequence * self.sequence + token)[head * size..][..size]);
                if let (NewPart::Key, Some(angles)) = (part, &self.angles) {
                    self.rotate(angles, row, past + token);
                }
                T::store(&self.shared.kernels, row, place);
            }
        });
    }

    /// Returns the sequence and the head of an index.
    fn place_of(&self, index: usize) -> (usize, usize) {
        (index / self.heads.kv, index % self.heads.kv)
    }

    /// Returns the sinks of the queries that share a head of keys and values; empty if there are none.
    fn sinks_of(&self, head: usize) -> &[f32] {
        self.sinks.get(head * self.heads.group..(head + 1) * self.heads.group).unwrap_or(&[])
    }

    fn rotate(&self, angles: &Angles<'_>, heads: &mut [f32], position: usize) {
        let [cos, sin] = [angles.cos, angles.sin].map(|all| &all[position * angles.pairs..][..angles.pairs]);
        self.shared.kernels.rotate(heads, self.attention.head_size, cos, sin);
    }

    /// Calls `attend` with the rotated queries of some of a sequence's new tokens, for one head of keys and values.
    fn with_queries<T>(
        &self,
        index: usize,
        tokens: Range<usize>,
        attend: impl FnOnce(Queries<'_>, &mut Scratch) -> T,
    ) -> T {
        let (sequence, head) = self.place_of(index);
        let width = self.heads.group * self.attention.head_size;
        let first_position = self.pasts.of(sequence) + tokens.start;
        let first = sequence * self.sequence;
        let rows = self.query.rows_in(first + tokens.start..first + tokens.end);
        let rows = rows.columns_in(head * width..(head + 1) * width);
        let sinks = self.sinks_of(head);
        self.shared.with_buffers(|Buffers { scratch, queries, .. }| {
            let Some(angles) = &self.angles else {
                return attend(Queries { rows, first_position, sinks }, scratch);
            };
            let rotated = at_least(queries, rows.rows() * width);
            for (token, row) in rotated.chunks_exact_mut(width).enumerate() {
                row.copy_from_slice(rows.row(token));
                self.rotate(angles, row, first_position + token);
            }
            attend(Queries { rows: MatrixRef::new(rotated, width), first_position, sinks }, scratch)
        })
    }

    /// Returns the keys that one head of a new token sees, in parts.
    fn key_parts(&self, index: usize) -> impl Iterator<Item = Range<usize>> + Clone + use<> {
        let end = self.pasts.of(index / self.heads.kv) + 1;
        let start = match self.attention.mask {
            Mask::Window(width) | Mask::WindowAndLater(width) => {
                end.saturating_sub(width) / PART_KEYS * PART_KEYS
            }
            Mask::Causal | Mask::Full => 0,
        };
        (start..end).step_by(PART_KEYS).map(move |start| start..end.min(start + PART_KEYS))
    }

    /// Computes the attention of one new token of each sequence.
    fn attend_single_tokens<T: CacheElement>(
        &self,
        call: &Call<'_>,
        cache: &Cache<'_, T>,
        out: &mut [f32],
    ) -> ort::Result<()> {
        let width = self.heads.group * self.attention.head_size;
        let heads = self.pasts.count() * self.heads.kv;
        if (0..self.pasts.count()).all(|sequence| self.pasts.of(sequence) < PART_KEYS) {
            return self.attend_whole_heads(call, cache, out);
        }

        let all_keys = (0..heads).flat_map(|index| self.key_parts(index).map(move |keys| (index, keys)));
        self.shared.with_buffers(|Buffers { parts, .. }| {
            let count = all_keys.clone().count();
            parts.resize_with(count.max(parts.len()), AttentionPart::default);
            let tasks = all_keys.zip(&mut *parts).map(|((index, keys), part)| {
                part.keys = keys;
                Part::new((index, part))
            });
            let tasks: Vec<_> = tasks.collect();
            call.parallel(count, |at| {
                let Some((index, part)) = tasks.get(at).and_then(Part::take) else { return };
                self.with_queries(index, 0..1, |queries, scratch| {
                    let cache = cache.head(index, queries.first_position + 1, self);
                    self.shared.kernels.attend_part(&self.attention, queries, cache, scratch, part);
                });
            })?;
            let mut rest = &mut parts[..];
            for (index, out) in out.chunks_exact_mut(width).enumerate() {
                let (parts, others) = rest.split_at_mut(self.key_parts(index).count());
                let (_, head) = self.place_of(index);
                self.shared.kernels.join_attention(parts, self.sinks_of(head), MatrixMut::new(out, width));
                rest = others;
            }
            Ok(())
        })
    }

    /// Computes the attention of one new token of each sequence over few keys. A single thread does not allocate
    /// memory.
    fn attend_whole_heads<T: CacheElement>(
        &self,
        call: &Call<'_>,
        cache: &Cache<'_, T>,
        out: &mut [f32],
    ) -> ort::Result<()> {
        let heads = out.chunks_exact_mut(self.heads.group * self.attention.head_size);
        if self.shared.threads == 1 {
            heads.enumerate().for_each(|(index, out)| self.attend_head(cache, index, out));
            return Ok(());
        }
        let heads: Vec<_> = heads.map(Part::new).collect();
        call.parallel(heads.len(), |index| {
            if let Some(out) = heads.get(index).and_then(Part::take) {
                self.attend_head(cache, index, out);
            }
        })
    }

    /// Computes the attention of one new token for one head of keys and values.
    fn attend_head<T: CacheElement>(&self, cache: &Cache<'_, T>, index: usize, out: &mut [f32]) {
        self.with_queries(index, 0..1, |queries, scratch| {
            let cache = cache.head(index, queries.first_position + 1, self);
            let width = out.len();
            let out = MatrixMut::new(out, width);
            self.shared.kernels.attend(&self.attention, queries, cache, scratch, out);
        });
    }

    /// Computes the attention of several new tokens of each sequence.
    fn attend_tokens<T: CacheElement>(
        &self,
        call: &Call<'_>,
        cache: &Cache<'_, T>,
        out: &mut [f32],
    ) -> ort::Result<()> {
        let width = self.heads.group * self.attention.head_size;
        let tokens = (TASK_QUERIES / self.heads.group).max(1);
        let mut tasks = Vec::new();
        let row = self.heads.kv * width;
        for (sequence, out) in out.chunks_exact_mut(self.sequence * row).enumerate() {
            for (tile, out) in out.chunks_mut(tokens * row).enumerate() {
                let mut rest = MatrixMut::new(out, row);
                for head in 0..self.heads.kv {
                    let (part, others) = rest.split_at_column(width);
                    let index = sequence * self.heads.kv + head;
                    tasks.push(Part::new((index, tile * tokens, part)));
                    rest = others;
                }
            }
        }

        call.parallel(tasks.len(), |at| {
            // The last tokens see the most keys, so their tasks are started first.
            let task = tasks.get(tasks.len() - 1 - at).and_then(Part::take);
            let Some((index, first, out)) = task else { return };
            self.with_queries(index, first..first + out.rows(), |queries, scratch| {
                let known = match self.attention.mask {
                    Mask::Causal | Mask::Window(_) => queries.first_position + out.rows(),
                    Mask::Full | Mask::WindowAndLater(_) => {
                        self.pasts.of(index / self.heads.kv) + self.sequence
                    }
                };
                let cache = cache.head(index, known, self);
                self.shared.kernels.attend(&self.attention, queries, cache, scratch, out);
            });
        })
    }
}

/// One of the two parts of a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NewPart {
    Key,
    Value,
}

/// Keys and values of all heads, for reading.
struct Cache<'a, T> {
    keys: &'a [T],
    values: &'a [T],
    /// Number of elements in a head.
    row: usize,
}

impl<T: CacheElement> Cache<'_, T> {
    /// Returns the first `tokens` keys and values of a head.
    fn head(&self, index: usize, tokens: usize, step: &AttentionStep<'_>) -> KeyValues<'_> {
        let [keys, values] = [self.keys, self.values]
            .map(|all| T::rows(&all[index * self.row..][..tokens * step.row_elements::<T>()]));
        KeyValues { keys, values }
    }
}
