//! Activation functions and layer norms: the portable ones are compared with their definition in double precision. All
//! others must give the same bits as the portable ones.

mod support;

use narthex_kernels::{Activation, Kernels, LayerNorm, MatrixMut, MatrixRef};
use support::{Random, accelerated, same};

const ALL: [Activation; 5] =
    [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu, Activation::Tanh];

/// Numbers such as NaN and infinity, which kernels must process too.
const ODD: [f32; 12] = [
    0.0,
    -0.0,
    1e-45,
    -1e-39,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    16.0,
    -16.0,
];

/// Returns the probability that a normal variable is at most `x`, by a series of positive terms.
fn normal_distribution(x: f64) -> f64 {
    let (mut term, mut sum, mut index) = (x, x, 1.0);
    while sum + term != sum {
        index += 2.0;
        term *= x * x / index;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn define(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Gelu if x.abs() > 10.0 => x.max(0.0),
        Activation::Gelu => x * normal_distribution(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
    }
}

fn activate(kernels: &Kernels, activation: Activation, row: &[f32]) -> Vec<f32> {
    let mut row = row.to_vec();
    kernels.activate(activation, &mut row);
    row
}

#[test]
fn activations_agree_with_their_definition() {
    // From -20 to 20 in steps that no grid of the approximation shares.
    let row: Vec<f32> = (-20_000..=20_000).map(|step| step as f32 * 0.001_000_3).collect();
    for activation in ALL {
        let found = activate(&Kernels::portable(), activation, &row);
        for (x, found) in row.iter().zip(&found) {
            let expected = define(activation, f64::from(*x));
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= 2e-7 + 4e-7 * expected.abs(), "{activation:?} of {x}: {found}, not {expected}");
        }
        for kernels in accelerated() {
            assert!(same(&activate(&kernels, activation, &row), &found), "{} {activation:?}", kernels.name());
        }
    }
}

#[test]
fn gelu_is_as_exact_as_stated() {
    let row: Vec<f32> = (-70_000..=70_000).map(|step| step as f32 * 1e-4).collect();
    for (x, found) in row.iter().zip(activate(&Kernels::portable(), Activation::Gelu, &row)) {
        let expected = define(Activation::Gelu, f64::from(*x));
        let error = (f64::from(found) - expected).abs();
        assert!(error <= f64::max(1e-7, 2e-7 * expected.abs()), "{x}: {found}, not {expected}");
    }
}

#[test]
fn activations_of_odd_numbers_give_the_same_everywhere() {
    let mut random = Random::new(11);
    for len in [1, 12, 15, 16, 17, 40] {
        let row: Vec<f32> = (0..len).map(|_| random.pick(&ODD)).collect();
        for activation in ALL {
            let found = activate(&Kernels::portable(), activation, &row);
            for kernels in accelerated() {
                assert!(same(&activate(&kernels, activation, &row), &found), "{activation:?} {row:?}");
            }
        }
    }
    let limits =
        |activation| activate(&Kernels::portable(), activation, &[f32::INFINITY, f32::MIN, f32::NAN]);
    let [positive, negative, none] = limits(Activation::Gelu)[..] else { panic!("three numbers") };
    assert_eq!((positive, negative, none.is_nan()), (f32::INFINITY, 0.0, true));
}

/// Rows of a norm.
struct Rows {
    columns: usize,
    residual: Vec<f32>,
    branch: Vec<f32>,
    gain: Vec<f32>,
    bias: Vec<f32>,
}

impl Rows {
    fn random(random: &mut Random, rows: usize, columns: usize, scale: f32) -> Self {
        let [residual, branch] = [(); 2].map(|()| random.floats(rows * columns, scale));
        let [gain, bias] = [(); 2].map(|()| random.floats(columns, 2.0));
        Self { columns, residual, branch, gain, bias }
    }

    fn normed(&self, kernels: &Kernels) -> Vec<f32> {
        let mut out = self.branch.clone();
        let norm = LayerNorm { gain: &self.gain, bias: &self.bias, epsilon: 1e-5 };
        let residual = MatrixRef::new(&self.residual, self.columns);
        kernels.add_layer_norm(residual, norm, MatrixMut::new(&mut out, self.columns));
        out
    }

    fn define(&self, index: usize) -> f64 {
        let first = index / self.columns * self.columns;
        let sum = |at: usize| f64::from(self.residual[at] + self.branch[at]);
        let all = || (first..first + self.columns).map(sum);
        let mean = all().sum::<f64>() / self.columns as f64;
        let variance = all().map(|x| (x - mean).powi(2)).sum::<f64>() / self.columns as f64;
        let column = index - first;
        (sum(index) - mean) / (variance + 1e-5).sqrt() * f64::from(self.gain[column])
            + f64::from(self.bias[column])
    }
}

#[test]
fn layer_norms_agree() {
    let mut random = Random::new(12);
    for columns in [1, 2, 15, 16, 17, 33, 384] {
        for (rows, scale) in [(0, 1.0), (1, 1.0), (3, 1e-3), (2, 100.0)] {
            let rows = Rows::random(&mut random, rows, columns, scale);
            let found = rows.normed(&Kernels::portable());
            for (index, found) in found.iter().enumerate() {
                let expected = rows.define(index);
                let error = (f64::from(*found) - expected).abs();
                assert!(error <= 2e-5 * (1.0 + expected.abs()), "{columns}: {found}, not {expected}");
            }
            for kernels in accelerated() {
                assert!(same(&rows.normed(&kernels), &found), "{}", kernels.name());
            }
        }
    }
}

#[test]
fn layer_norms_of_odd_numbers_give_the_same_everywhere() {
    let mut random = Random::new(13);
    for _ in 0..60 {
        let columns = 1 + random.below(70);
        let mut rows = Rows::random(&mut random, 2, columns, 10.0);
        for values in [&mut rows.residual, &mut rows.branch, &mut rows.gain] {
            let at = random.below(values.len());
            values[at] = random.pick(&ODD);
        }
        let found = rows.normed(&Kernels::portable());
        for kernels in accelerated() {
            assert!(same(&rows.normed(&kernels), &found), "{}", kernels.name());
        }
    }
}
