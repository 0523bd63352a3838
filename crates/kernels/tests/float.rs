//! Float kernels: the portable ones are compared with their definition in double precision. All others must give the
//! same bits as the portable ones.

mod support;

use half::f16;
use narthex_kernels::{
    FloatMatrix, FloatRows, FloatWeights, GateClamp, KernelError, Kernels, MatrixMut, MatrixRef, ResidualSum,
};
use support::{Random, accelerated, same};

/// Numbers such as NaN and infinity, which kernels must process too.
const ODD: [f32; 9] =
    [0.0, -0.0, 1e-45, -1e-39, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

/// Compares the portable result with its definition, and the results on every instruction set with the portable one.
fn check(run: impl Fn(&Kernels) -> Vec<f32>, define: impl Fn(usize) -> f64, tolerance: f64) {
    let reference = run(&Kernels::portable());
    for (index, found) in reference.iter().enumerate() {
        let expected = define(index);
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance * (1.0 + expected.abs()), "{index}: {found} instead of {expected}");
    }
    agree(run, &reference);
}

fn agree(run: impl Fn(&Kernels) -> Vec<f32>, reference: &[f32]) {
    for kernels in accelerated() {
        assert!(same(&run(&kernels), reference), "{}", kernels.name());
    }
}

/// Returns a random vector that contains some of the [`ODD`] numbers.
fn with_odd(random: &mut Random, len: usize) -> Vec<f32> {
    let mut values = random.floats(len, 10.0);
    for _ in 0..random.below(4) {
        let at = random.below(len);
        values[at] = random.pick(&ODD);
    }
    values
}

fn multiply(kernels: &Kernels, input: &[f32], weights: &FloatMatrix) -> Vec<f32> {
    let mut rows = FloatRows::default();
    kernels.interleave(MatrixRef::new(input, weights.inputs()), &mut rows);
    let mut out = vec![f32::NAN; rows.rows() * weights.outputs()];
    let view = MatrixMut::new(&mut out, weights.outputs());
    kernels.matmul_float(&rows, weights, 0..weights.outputs(), view);
    out
}

#[test]
fn products_agree() {
    let mut random = Random::new(1);
    for round in 0..40 {
        let rows = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 30]);
        let outputs = random.pick(&[1, 3, 16, 17, 32, 33, 50]);
        let inputs = random.pick(&[1, 2, 15, 64, 100]);
        let input = random.floats(rows * inputs, 1.0);
        let single = random.floats(outputs * inputs, 1.0);
        let half: Vec<f16> = single.iter().map(|x| f16::from_f32(*x)).collect();
        let is_half = round % 2 == 0;
        let weights = if is_half { FloatWeights::F16(&half) } else { FloatWeights::F32(&single) };
        let packed = FloatMatrix::pack(outputs, inputs, weights).unwrap();
        let weight = |at: usize| if is_half { half[at].to_f64() } else { f64::from(single[at]) };
        let define = |index: usize| {
            let (row, output) = (index / outputs * inputs, index % outputs * inputs);
            (0..inputs).map(|k| f64::from(input[row + k]) * weight(output + k)).sum()
        };
        check(|kernels| multiply(kernels, &input, &packed), define, 1e-5);
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let mut random = Random::new(2);
    let packed = FloatMatrix::pack(40, 33, FloatWeights::F32(&random.floats(40 * 33, 1.0))).unwrap();
    let input = random.floats(30 * 33, 1.0);
    for kernels in Kernels::available() {
        let all = multiply(&kernels, &input, &packed);
        for rows in [1, 2, 12, 13] {
            assert!(same(&multiply(&kernels, &input[..rows * 33], &packed), &all[..rows * 40]));
        }
    }
}

#[test]
fn ranges_of_columns_make_up_the_whole() {
    let mut random = Random::new(3);
    let packed = FloatMatrix::pack(83, 20, FloatWeights::F32(&random.floats(83 * 20, 1.0))).unwrap();
    let input = random.floats(7 * 20, 1.0);
    for kernels in Kernels::available() {
        let whole = multiply(&kernels, &input, &packed);
        let (mut parts, mut rows) = (vec![f32::NAN; whole.len()], FloatRows::default());
        kernels.interleave(MatrixRef::new(&input, 20), &mut rows);
        let (left, right) = MatrixMut::new(&mut parts, 83).split_at_column(48);
        kernels.matmul_float(&rows, &packed, 48..83, right);
        kernels.matmul_float(&rows, &packed, 0..48, left);
        assert!(same(&parts, &whole));
    }
}

#[test]
fn weights_of_another_shape_are_refused() {
    let found = FloatMatrix::pack(3, 4, FloatWeights::F32(&[0.0; 11])).unwrap_err();
    assert_eq!(found, KernelError::Length { what: "weights", expected: 12, found: 11 });
}

#[test]
fn norms_agree() {
    let mut random = Random::new(4);
    for columns in [1, 2, 15, 16, 17, 64, 100] {
        for scale in [1e-6, 1.0, 1e6] {
            let input = random.floats(3 * columns, scale);
            let stream = random.floats(3 * columns, scale);
            let gain = random.floats(columns, 2.0);
            let define = |values: &dyn Fn(usize) -> f64, index: usize| {
                let row = index / columns * columns;
                let squares: f64 = (row..row + columns).map(|i| values(i).powi(2)).sum();
                let mean = squares / columns as f64 + f64::from(1e-5f32);
                values(index) / mean.sqrt() * f64::from(gain[index % columns])
            };
            let plain = |kernels: &Kernels| {
                let mut out = vec![f32::NAN; input.len()];
                kernels.rms_norm(
                    MatrixRef::new(&input, columns),
                    &gain,
                    1e-5,
                    MatrixMut::new(&mut out, columns),
                );
                out
            };
            check(plain, |index| define(&|i| f64::from(input[i]), index), 1e-5);
            let fused = |kernels: &Kernels| {
                let [mut sum, mut out] = [(), ()].map(|()| vec![f32::NAN; input.len()]);
                let residual = ResidualSum {
                    stream: MatrixRef::new(&stream, columns),
                    branch: MatrixRef::new(&input, columns),
                    sum: MatrixMut::new(&mut sum, columns),
                };
                kernels.add_rms_norm(residual, &gain, 1e-5, MatrixMut::new(&mut out, columns));
                out.extend(sum);
                out
            };
            let sum = |i: usize| f64::from(input[i] + stream[i]);
            let both = |index: usize| match index.checked_sub(input.len()) {
                Some(index) => sum(index),
                None => define(&sum, index),
            };
            check(fused, both, 1e-5);
        }
    }
}

#[test]
fn swiglu_agrees() {
    let mut random = Random::new(5);
    for len in [0, 1, 15, 16, 33, 200] {
        for scale in [1e-3, 1.0, 30.0, 200.0] {
            let (gate, up) = (random.floats(len, scale), random.floats(len, 1.0));
            let run = |kernels: &Kernels| {
                let mut out = vec![f32::NAN; len];
                kernels.swiglu(&gate, &up, &mut out);
                out
            };
            let define =
                |i: usize| f64::from(gate[i]) / (1.0 + (-f64::from(gate[i])).exp()) * f64::from(up[i]);
            check(run, define, 1e-6);

            let clamp = GateClamp { limit: 7.0, slope: 1.702 };
            let run = |kernels: &Kernels| {
                let mut out = vec![f32::NAN; len];
                kernels.clamped_swiglu(&gate, &up, clamp, &mut out);
                out
            };
            let define = |i: usize| {
                let (gate, up) = (f64::from(gate[i].min(7.0)), f64::from(up[i].clamp(-7.0, 7.0)));
                gate / (1.0 + (-f64::from(clamp.slope) * gate).exp()) * (up + 1.0)
            };
            check(run, define, 1e-5);
        }
    }
}

#[test]
fn rotation_agrees() {
    let mut random = Random::new(6);
    for (head_size, angles) in [(2, 1), (8, 3), (64, 32), (66, 33), (128, 32), (5, 0)] {
        let heads = random.floats(3 * head_size, 2.0);
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            random.floats(angles, 3.0).iter().map(|x| (x.cos(), x.sin())).unzip();
        let run = |kernels: &Kernels| {
            let mut heads = heads.clone();
            kernels.rotate(&mut heads, head_size, &cos, &sin);
            heads
        };
        let define = |index: usize| {
            let (head, i) = (index / head_size * head_size, index % head_size);
            let at = |i: usize| f64::from(heads[head + i]);
            let angle = |i: usize| (f64::from(cos[i]), f64::from(sin[i]));
            if i < angles {
                at(i) * angle(i).0 - at(i + angles) * angle(i).1
            } else if i < 2 * angles {
                at(i) * angle(i - angles).0 + at(i - angles) * angle(i - angles).1
            } else {
                at(i)
            }
        };
        check(run, define, 1e-6);
    }
}

#[test]
fn softmax_agrees() {
    let mut random = Random::new(7);
    for len in [0, 1, 2, 15, 16, 17, 64, 1000] {
        for scale in [0.0, 1.0, 50.0, 1e4, 1e30] {
            let mut row = random.floats(len, scale);
            if len > 2 {
                row[1] = f32::NEG_INFINITY;
            }
            let run = |kernels: &Kernels| {
                let mut row = row.clone();
                kernels.softmax(&mut row);
                row
            };
            let peak = row.iter().fold(f64::NEG_INFINITY, |peak, x| peak.max(f64::from(*x)));
            let power = |i: usize| (f64::from(row[i]) - peak).exp();
            let sum: f64 = (0..len).map(power).sum();
            check(run, |i| power(i) / sum, 1e-6);
        }
    }
}

#[test]
fn softmax_of_nothing_visible_is_zero() {
    for kernels in Kernels::available() {
        let mut row = [f32::NEG_INFINITY; 19];
        kernels.softmax(&mut row);
        assert_eq!(row, [0.0; 19]);
    }
}

#[test]
fn odd_numbers_give_the_same_everywhere() {
    let mut random = Random::new(8);
    for _ in 0..60 {
        let columns = 1 + random.below(70);
        let (input, other) = (with_odd(&mut random, 2 * columns), with_odd(&mut random, 2 * columns));
        let gain = with_odd(&mut random, columns);
        let packed = FloatMatrix::pack(2, columns, FloatWeights::F32(&other)).unwrap();
        let run = |kernels: &Kernels| {
            let (mut norm, mut swiglu) = (vec![0.0; 2 * columns], vec![0.0; 2 * columns]);
            let (mut rotation, mut softmax) = (input.clone(), input.clone());
            kernels.rms_norm(
                MatrixRef::new(&input, columns),
                &gain,
                1e-6,
                MatrixMut::new(&mut norm, columns),
            );
            kernels.swiglu(&input, &other, &mut swiglu);
            kernels.rotate(&mut rotation, 2 * columns, &gain, &gain);
            kernels.softmax(&mut softmax);
            let product = multiply(kernels, &input, &packed);
            [norm, swiglu, rotation, softmax, product].concat()
        };
        agree(run, &run(&Kernels::portable()));
    }
}
