//! The limits of this machine, with which speeds are compared: multiply-accumulates of integers and bytes of memory per
//! second.
//!
//! All threads measure at the same time. Products are computed in vector registers, so units such as AMX could do more.
//! Memory is read sequentially from buffers that no cache holds.

use std::{
    fmt,
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use narthex_kernels::{Bits, Kernels};
use serde::Serialize;

use crate::{side::Side, spread::Spread};

/// Duration of a pass.
const PASS: Duration = Duration::from_millis(80);

/// Number of passes. The fastest counts.
const PASSES: usize = 3;

/// Number of rounds of products between two looks at the clock.
const ROUNDS: usize = 100_000;

/// Size of each thread's buffer in bytes.
const BUFFER: usize = 192 << 20;

/// Limits of all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MachineLimits {
    /// Multiply-accumulates of 8-bit weights and 8-bit activations per second.
    pub(super) multiply_accumulates: f64,
    /// Multiply-accumulates of 4-bit weights and 8-bit activations per second.
    pub(super) multiply_accumulates_4_bit: f64,
    /// Bytes read from memory per second.
    pub(super) bytes: f64,
}

impl MachineLimits {
    /// Measures the limits in about a second.
    pub(super) fn measure(kernels: &Kernels, threads: usize) -> Self {
        let memory: Vec<Vec<u8>> = (0..threads).map(|_| vec![1; BUFFER]).collect();
        Self {
            multiply_accumulates: best(threads, |_| kernels.run_dots(Bits::Eight, ROUNDS)),
            multiply_accumulates_4_bit: best(threads, |_| kernels.run_dots(Bits::Four, ROUNDS)),
            bytes: best(threads, |thread| memory.get(thread).map_or(0, |bytes| kernels.run_reads(bytes))),
        }
    }
}

impl fmt::Display for MachineLimits {
    /// Formats as `433 G multiply-accumulates/s, 440 G with 4-bit weights, 45.2 GB/s`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [products, products_4_bit, bytes] =
            [self.multiply_accumulates, self.multiply_accumulates_4_bit, self.bytes].map(|limit| limit / 1e9);
        write!(
            formatter,
            "{products:.0} G multiply-accumulates/s, {products_4_bit:.0} G with 4-bit weights, {bytes:.1} GB/s"
        )
    }
}

/// Limits in several rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LimitSpreads {
    pub(super) multiply_accumulates_per_second: Spread,
    pub(super) multiply_accumulates_4_bit_per_second: Spread,
    pub(super) bytes_per_second: Spread,
}

impl LimitSpreads {
    /// Returns the limit of multiply-accumulates for the width of a side's weights.
    pub(super) fn multiply_accumulates(&self, side: Side) -> &Spread {
        if side.has_4_bits() {
            &self.multiply_accumulates_4_bit_per_second
        } else {
            &self.multiply_accumulates_per_second
        }
    }

    /// Returns the spreads of the limits of at least one round.
    pub(super) fn of(rounds: &[MachineLimits]) -> Option<Self> {
        let spread = |limit: fn(&MachineLimits) -> f64| Spread::of(rounds.iter().map(limit).collect());
        Some(Self {
            multiply_accumulates_per_second: spread(|limits| limits.multiply_accumulates)?,
            multiply_accumulates_4_bit_per_second: spread(|limits| limits.multiply_accumulates_4_bit)?,
            bytes_per_second: spread(|limits| limits.bytes)?,
        })
    }
}

/// Returns the largest rate of all threads together.
fn best(threads: usize, work: impl Fn(usize) -> u64 + Sync) -> f64 {
    (0..PASSES).map(|_| pass(threads, &work)).fold(0.0, f64::max)
}

/// Repeats the work on each thread for the duration of a pass, and returns the sum of the threads' rates.
fn pass(threads: usize, work: &(impl Fn(usize) -> u64 + Sync)) -> f64 {
    let rate = |thread| {
        let (start, mut done) = (Instant::now(), 0);
        loop {
            done += black_box(work(thread));
            let elapsed = start.elapsed();
            if elapsed >= PASS {
                return done as f64 / elapsed.as_secs_f64();
            }
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || rate(thread))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_thread_works_in_every_pass() {
        let calls = Mutex::new([0; 3]);
        let rate = best(3, |thread| {
            calls.lock().unwrap()[thread] += 1;
            // A thread that counts nothing does not add to the rate.
            if thread == 0 { 0 } else { 1_000_000 }
        });
        assert!(rate > 0.0 && calls.lock().unwrap().iter().all(|calls| *calls >= PASSES), "{calls:?}");
        assert_eq!(best(1, |_| 0), 0.0);
    }

    #[test]
    fn the_limits_of_this_machine_are_measured() {
        let limits = MachineLimits::measure(&Kernels::portable(), 1);
        let MachineLimits { multiply_accumulates, multiply_accumulates_4_bit, bytes } = limits;
        let least = multiply_accumulates.min(multiply_accumulates_4_bit).min(bytes);
        assert!(least > 0.0, "{limits:?}");
        let limits = MachineLimits {
            multiply_accumulates: 4.326e11,
            multiply_accumulates_4_bit: 4.398e11,
            bytes: 4.518e10,
        };
        let expected = "433 G multiply-accumulates/s, 440 G with 4-bit weights, 45.2 GB/s";
        assert_eq!(limits.to_string(), expected);
    }
}
