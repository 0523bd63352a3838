//! Benchmarks of each kernel on one core. A result is a share of the core's limit.
//!
//! The limits are measured first, in the same process: products of values in registers, and reads of memory that no
//! cache holds. Only shares and ratios from the same run can be compared.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, Throughput};
use half::f16;
use narthex_kernels::{
    Attention, Bits, CacheRows, FloatMatrix, FloatRows, FloatWeights, Granularity, Kernels, KeyValues, Mask,
    MatrixMut, MatrixRef, QuantizedRows, Queries, Scratch, WeightFormat,
};
use support::{Random, Weights};

/// Returns the CPU time of this thread, which excludes the time of other programs.
#[cfg(unix)]
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(not(unix))]
fn now() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Limits of one core, in operations or bytes per second.
struct Limits {
    /// Products with weights of eight bits.
    byte_dots: f64,
    /// Products with weights of four bits.
    nibble_dots: f64,
    mul_adds: f64,
    reads: f64,
}

impl Limits {
    fn measure(kernels: &Kernels) -> Self {
        // The buffer is larger than any cache.
        let bytes = vec![1u8; 192 << 20];
        let best = |work: &dyn Fn() -> u64| {
            let rate = || {
                let start = now();
                black_box(work()) as f64 / (now() - start).as_secs_f64()
            };
            (0..7).map(|_| rate()).fold(0.0, f64::max)
        };
        Self {
            byte_dots: best(&|| kernels.run_dots(Bits::Eight, 500_000)),
            nibble_dots: best(&|| kernels.run_dots(Bits::Four, 100_000)),
            mul_adds: best(&|| kernels.run_mul_adds(500_000)),
            reads: best(&|| kernels.run_reads(&bytes)),
        }
    }
}

/// Amount of work in one call of a kernel.
enum Work {
    /// Number of multiply-accumulates, and the limit to compare them with.
    Products(u64, f64),
    /// Number of bytes of memory, and the limit to compare them with.
    Bytes(u64, f64),
}

fn bench(criterion: &mut Criterion, name: &str, work: Work, mut call: impl FnMut()) {
    let mut best = Duration::MAX;
    let (amount, limit, unit, throughput) = match work {
        Work::Products(amount, limit) => {
            (amount, limit, "G multiply-accumulates", Throughput::Elements(amount))
        }
        Work::Bytes(amount, limit) => (amount, limit, "GB", Throughput::Bytes(amount)),
    };
    let mut group = criterion.benchmark_group("kernels");
    group.throughput(throughput).bench_function(name, |bencher| {
        bencher.iter_custom(|rounds| {
            let start = now();
            (0..rounds).for_each(|_| call());
            let taken = (now() - start).max(Duration::from_nanos(1));
            best = best.min(taken / rounds as u32);
            taken
        });
    });
    group.finish();
    if best < Duration::MAX {
        let rate = amount as f64 / best.as_secs_f64();
        println!("{name}: {:.1} {unit} a second, {:.0} % of the limit", rate / 1e9, 100.0 * rate / limit);
    }
}

/// Kind of asymmetric blocks.
#[derive(Debug, Clone, Copy)]
enum Shift {
    None,
    Zeros,
    Offsets,
}

/// Widths and kinds of blocks that are measured.
const SHIFTS: [(Bits, Shift); 5] = [
    (Bits::Four, Shift::None),
    (Bits::Four, Shift::Zeros),
    (Bits::Four, Shift::Offsets),
    (Bits::Eight, Shift::None),
    (Bits::Eight, Shift::Zeros),
];

/// Returns weights in blocks of 32 with scales in half precision.
fn shifted(random: &mut Random, (outputs, inputs): (usize, usize), bits: Bits, shift: Shift) -> Weights {
    let blocks = inputs / 32;
    Weights {
        single: None,
        zeros: matches!(shift, Shift::Zeros)
            .then(|| vec![0x77; outputs * (blocks * bits.count()).div_ceil(8)]),
        offsets: matches!(shift, Shift::Offsets).then(|| vec![f16::from_f32(0.01); outputs * blocks]),
        ..Weights::random(random, (outputs, inputs), 32, bits)
    }
}

fn bench_matmul(criterion: &mut Criterion, kernels: &Kernels, limits: &Limits) {
    let mut random = Random::new(1);
    for (bits, shift) in SHIFTS {
        for (inputs, outputs) in [(576, 1536), (2048, 2048)] {
            let weights = shifted(&mut random, (outputs, inputs), bits, shift);
            let packed = weights.pack();
            for (rows, granularity) in [
                (256, Granularity::Row),
                (256, Granularity::Block),
                (16, Granularity::Block),
                (4, Granularity::Block),
                (1, Granularity::Block),
            ] {
                let mut input = QuantizedRows::default();
                let floats = random.floats(rows * inputs, 1.0);
                kernels.quantize(MatrixRef::new(&floats, inputs), packed.format(), granularity, &mut input);
                let (mut out, mut scratch) = (vec![0.0; rows * outputs], Scratch::default());
                let name =
                    format!("w{} {shift:?} {inputs}x{outputs} rows {rows} {granularity:?}", bits.count());
                let limit = if bits == Bits::Four { limits.nibble_dots } else { limits.byte_dots };
                let work = Work::Products((rows * inputs * outputs) as u64, limit);
                bench(criterion, &name, work, || {
                    let out = MatrixMut::new(&mut out, outputs);
                    kernels.matmul(&input, &packed, 0..outputs, &mut scratch, out);
                });
            }
        }
    }
}

/// Measures products of one row with more weights than any cache holds.
fn bench_decode(criterion: &mut Criterion, kernels: &Kernels, limits: &Limits) {
    let mut random = Random::new(2);
    for (bits, shift) in SHIFTS {
        let (inputs, outputs) = (576, 16384);
        let weights = shifted(&mut random, (outputs, inputs), bits, shift);
        let packed: Vec<_> = (0..16).map(|_| weights.pack()).collect();
        let mut input = QuantizedRows::default();
        kernels.quantize(
            MatrixRef::new(&random.floats(inputs, 1.0), inputs),
            packed[0].format(),
            Granularity::Block,
            &mut input,
        );
        let (mut out, mut scratch) = (vec![0.0; outputs], Scratch::default());
        let bytes = packed.iter().map(|packed| packed.as_bytes().len() as u64).sum();
        let name = format!("w{} {shift:?} {inputs}x{outputs} one row, from memory", bits.count());
        bench(criterion, &name, Work::Bytes(bytes, limits.reads), || {
            for packed in &packed {
                kernels.matmul(&input, packed, 0..outputs, &mut scratch, MatrixMut::new(&mut out, outputs));
            }
        });
    }
}

fn bench_quantize(criterion: &mut Criterion, kernels: &Kernels, limits: &Limits) {
    let mut random = Random::new(3);
    for (rows, granularity) in
        [(256, Granularity::Row), (256, Granularity::Block), (4, Granularity::Block), (1, Granularity::Block)]
    {
        let floats = random.floats(rows * 576, 1.0);
        let mut out = QuantizedRows::default();
        let name = format!("quantize {rows}x576 {granularity:?}");
        bench(criterion, &name, Work::Bytes(floats.len() as u64 * 4, limits.reads), || {
            let weights = WeightFormat { block: 32, bits: Bits::Four };
            kernels.quantize(MatrixRef::new(&floats, 576), weights, granularity, &mut out);
        });
    }
}

fn bench_float(criterion: &mut Criterion, kernels: &Kernels, limits: &Limits) {
    let mut random = Random::new(4);
    let (inputs, outputs, rows) = (576, 1536, 256);
    let weights = random.floats(inputs * outputs, 1.0);
    let Ok(packed) = FloatMatrix::pack(outputs, inputs, FloatWeights::F32(&weights)) else { return };
    let (floats, mut input) = (random.floats(rows * inputs, 1.0), FloatRows::default());
    let mut out = vec![0.0; rows * outputs];
    let work = Work::Products((rows * inputs * outputs) as u64, limits.mul_adds);
    bench(criterion, &format!("f32 {inputs}x{outputs} rows {rows}"), work, || {
        kernels.interleave(MatrixRef::new(&floats, inputs), &mut input);
        kernels.matmul_float(&input, &packed, 0..outputs, MatrixMut::new(&mut out, outputs));
    });
    let gain = random.floats(inputs, 1.0);
    let mut norm = vec![0.0; rows * inputs];
    let bytes = norm.len() as u64 * 4;
    bench(criterion, "RMSNorm 256x576", Work::Bytes(2 * bytes, limits.reads), || {
        kernels.rms_norm(MatrixRef::new(&floats, inputs), &gain, 1e-5, MatrixMut::new(&mut norm, inputs));
    });
    bench(criterion, "SwiGLU 256x576", Work::Bytes(3 * bytes, limits.reads), || {
        kernels.swiglu(&floats, &floats, &mut norm);
    });
}

/// Measures the part of SmolLM2-135M's attention that belongs to one key and value head.
fn bench_attention(criterion: &mut Criterion, kernels: &Kernels, limits: &Limits) {
    let mut random = Random::new(5);
    let (head_size, group) = (64, 3);
    let attention = Attention { head_size, scale: 0.125, soft_cap: None, mask: Mask::Causal };
    for (past, tokens) in [(0, 256), (3840, 256), (127, 1), (4095, 1)] {
        let keys = past + tokens;
        let floats = random.floats(keys * head_size, 1.0);
        let half: Vec<f16> = floats.iter().map(|x| f16::from_f32(*x)).collect();
        let width = head_size + CacheRows::SCALE_BYTES;
        let mut integers = vec![0; keys * width];
        let rows = floats.chunks(head_size).zip(integers.chunks_mut(width));
        rows.for_each(|(row, out)| kernels.quantize_cache_row(row, out));
        let caches = [
            ("f32", 4 * head_size, CacheRows::F32(&floats)),
            ("f16", 2 * head_size, CacheRows::F16(&half)),
            ("i8", width, CacheRows::I8(&integers)),
        ];
        let queries = random.floats(tokens * group * head_size, 1.0);
        let (mut out, mut scratch) = (vec![0.0; queries.len()], Scratch::default());
        for (name, row, cache) in caches {
            let work = if tokens == 1 {
                Work::Bytes((keys * 2 * row) as u64, limits.reads)
            } else {
                let pairs = tokens * past + tokens * (tokens + 1) / 2;
                Work::Products((pairs * group * head_size * 2) as u64, limits.mul_adds)
            };
            bench(criterion, &format!("attention {tokens} at {past}, {name} cache"), work, || {
                let rows = MatrixRef::new(&queries, group * head_size);
                let queries = Queries { rows, first_position: past, sinks: &[] };
                let cache = KeyValues { keys: cache, values: cache };
                let out = MatrixMut::new(&mut out, group * head_size);
                kernels.attend(&attention, queries, cache, &mut scratch, out);
            });
        }
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .without_plots()
        .configure_from_args();
    for kernels in Kernels::available() {
        if kernels.name() == "portable" && std::env::var_os("NARTHEX_BENCH_PORTABLE").is_none() {
            continue;
        }
        let limits = Limits::measure(&kernels);
        let Limits { byte_dots, nibble_dots, mul_adds, reads } = limits;
        println!(
            "{}, one core at most: {:.0} G products with bytes, {:.0} G with nibbles, {:.0} G with floats, {:.1} GB a \
             second",
            kernels.name(),
            byte_dots / 1e9,
            nibble_dots / 1e9,
            mul_adds / 1e9,
            reads / 1e9
        );
        bench_matmul(&mut criterion, &kernels, &limits);
        bench_decode(&mut criterion, &kernels, &limits);
        bench_quantize(&mut criterion, &kernels, &limits);
        bench_float(&mut criterion, &kernels, &limits);
        bench_attention(&mut criterion, &kernels, &limits);
    }
    criterion.final_summary();
}
