//! Quantised products: the portable kernels are compared with the definition. All others must give the same bits as the
//! portable ones.

mod support;

use std::sync::Arc;

use half::f16;
use narthex_kernels::{
    Bits, Granularity, KernelError, Kernels, MatrixMut, MatrixRef, PackedMatrix, QuantizedRows, Scratch,
    WeightFormat,
};
use support::{Random, Weights, accelerated, same};

fn quantize(kernels: &Kernels, input: &[f32], weights: &Weights, granularity: Granularity) -> QuantizedRows {
    let mut rows = QuantizedRows::default();
    let format = WeightFormat { block: weights.block, bits: weights.bits };
    kernels.quantize(MatrixRef::new(input, weights.inputs), format, granularity, &mut rows);
    rows
}

fn multiply(kernels: &Kernels, rows: &QuantizedRows, packed: &PackedMatrix) -> Vec<f32> {
    // Elements that no kernel writes remain NaN.
    let mut out = vec![f32::NAN; rows.rows() * packed.outputs()];
    let view = MatrixMut::new(&mut out, packed.outputs());
    kernels.matmul(rows, packed, 0..packed.outputs(), &mut Scratch::default(), view);
    out
}

/// Returns the product of rounded activations by its definition, and the sum of the magnitudes of its terms. The offsets
/// of a block are multiplied by the sum of its activations.
fn define(rows: &QuantizedRows, weights: &Weights, row: usize, output: usize) -> (f64, f64) {
    let (integers, scales) = rows.row(row);
    let terms = integers.iter().enumerate().map(|(input, a)| {
        let (weight, scale) = weights.weight(output, input);
        let activation_scale = if scales.len() == 1 { scales[0] } else { scales[input / weights.block] };
        let activation = f64::from(*a) * f64::from(activation_scale);
        [f64::from(weight) * scale * activation, weights.offset(output, input) * activation]
    });
    terms.flatten().fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

fn check(input: &[f32], weights: &Weights, granularity: Granularity) {
    let packed = weights.pack();
    let portable = Kernels::portable();
    let rows = quantize(&portable, input, weights, granularity);
    let reference = multiply(&portable, &rows, &packed);
    for (index, found) in reference.iter().enumerate() {
        let (expected, size) = define(&rows, weights, index / weights.outputs, index % weights.outputs);
        let error = (f64::from(*found) - expected).abs();
        // The scales of tiny numbers are subnormal themselves, and sums of huge numbers may overflow. Offsets are multiplied
        // by sums of activations.
        let activations = &input[index / weights.outputs * weights.inputs..][..weights.inputs];
        let huge = activations.iter().map(|x| f64::from(x.abs())).sum::<f64>() > 1e38;
        let overflows = size > 1e38 || huge && weights.offsets.is_some();
        let close = error <= size * 1e-6 + 1e-38 || overflows || expected.is_nan() && found.is_nan();
        assert!(close, "{index}: {found} instead of {expected}");
    }
    for kernels in accelerated() {
        let name = kernels.name();
        let own = quantize(&kernels, input, weights, granularity);
        for row in 0..rows.rows() {
            let (found, expected) = (own.row(row), rows.row(row));
            assert!(found.0 == expected.0 && same(&found.1, &expected.1), "{name}: row {row}");
        }
        assert!(same(&multiply(&kernels, &own, &packed), &reference), "{name}");
        // The panels of one instruction set can be used on another.
        assert!(same(&multiply(&kernels, &rows, &packed), &reference), "{name}");
        // Activations that were rounded for the other number of bits give the same results.
        let bits = if weights.bits == Bits::Four { Bits::Eight } else { Bits::Four };
        let mut other = QuantizedRows::default();
        let format = WeightFormat { block: weights.block, bits };
        kernels.quantize(MatrixRef::new(input, weights.inputs), format, granularity, &mut other);
        assert!(same(&multiply(&kernels, &other, &packed), &reference), "{name}: other bits");
    }
}

#[test]
fn random_products_agree() {
    let mut random = Random::new(1);
    for round in 0..80 {
        let rows = random.pick(&[1, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14, 17, 20, 32, 33, 50]);
        let outputs = random.pick(&[1, 3, 15, 16, 17, 31, 32, 33, 48, 65]);
        let block = random.pick(&[16, 32, 64, 128]);
        let inputs = random.pick(&[1, 2, 15, 16, 17, 31, 64, 96, 130, 256, 300]);
        let bits = [Bits::Four, Bits::Eight][round % 2];
        let weights = Weights::random(&mut random, (outputs, inputs), block, bits);
        let scale = 10f32.powi(random.below(9) as i32 - 4);
        let input = random.floats(rows * inputs, scale);
        check(&input, &weights, random.pick(&[Granularity::Row, Granularity::Block]));
    }
}

#[test]
fn measured_kernels_agree() {
    let mut random = Random::new(31);
    let (measured, portable) = (Kernels::measured(), Kernels::portable());
    for rows in [1, 3, 20, 48] {
        let weights = Weights::random(&mut random, (50, 96), 32, Bits::Four);
        let input = random.floats(rows * 96, 1.0);
        let results = [measured, portable].map(|kernels| {
            let rows = quantize(&kernels, &input, &weights, Granularity::Row);
            multiply(&kernels, &rows, &weights.pack())
        });
        assert!(same(&results[0], &results[1]));
    }
}

#[test]
fn extremes_are_exact() {
    for bits in [Bits::Four, Bits::Eight] {
        for block in [16, 32, 64, 128] {
            for (quants, zeros) in
                [(0xff, Some(0)), (0, Some(0xff)), (0x80, Some(0x7f)), (0xff, None), (0, None)]
            {
                let mut weights = Weights::random(&mut Random::new(7), (33, 260), block, bits);
                weights.quants.fill(quants);
                weights.zeros =
                    zeros.map(|zero| vec![zero; 33 * (260usize.div_ceil(block) * bits.count()).div_ceil(8)]);
                for signs in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
                    for rows in [15, 35] {
                        let input: Vec<f32> = (0..rows * 260).map(|i| signs[i % 2]).collect();
                        check(&input, &weights, Granularity::Row);
                    }
                }
            }
        }
    }
}

#[test]
fn unusual_numbers_are_harmless() {
    let mut random = Random::new(3);
    let odd = [
        0.0,
        -0.0,
        1e-40,
        f32::MIN_POSITIVE,
        1e-36,
        3e38,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    for value in odd {
        for granularity in [Granularity::Row, Granularity::Block] {
            for (rows, at) in [(1, 0), (3, 100), (7, 133), (32, 3001)] {
                let bits = random.pick(&[Bits::Four, Bits::Eight]);
                let weights = Weights::random(&mut random, (20, 100), 32, bits);
                let mut input = random.floats(rows * 100, 1.0);
                input[at.min(rows * 100 - 1)] = value;
                check(&input, &weights, granularity);
                check(&vec![value; rows * 100], &weights, granularity);
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_stay_in_their_row() {
    let mut random = Random::new(5);
    let weights = Weights::random(&mut random, (40, 64), 32, Bits::Four);
    let packed = weights.pack();
    for kernels in Kernels::available() {
        let mut input = random.floats(4 * 64, 1.0);
        input[64 + 9] = f32::INFINITY;
        let out = multiply(&kernels, &quantize(&kernels, &input, &weights, Granularity::Row), &packed);
        let nan: Vec<bool> = out.chunks(40).map(|row| row.iter().all(|x| x.is_nan())).collect();
        assert_eq!(nan, [false, true, false, false]);
        assert!(out.iter().filter(|x| x.is_nan()).count() == 40);
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let mut random = Random::new(11);
    for bits in [Bits::Four, Bits::Eight] {
        let weights = Weights::random(&mut random, (70, 160), 32, bits);
        let packed = weights.pack();
        let input = random.floats(40 * 160, 2.0);
        for kernels in Kernels::available() {
            let all = multiply(&kernels, &quantize(&kernels, &input, &weights, Granularity::Block), &packed);
            for rows in [1, 2, 5, 13, 33] {
                let some = quantize(&kernels, &input[..rows * 160], &weights, Granularity::Block);
                assert!(same(&multiply(&kernels, &some, &packed), &all[..rows * 70]));
            }
        }
    }
}

#[test]
fn ranges_of_columns_make_up_the_whole() {
    let mut random = Random::new(13);
    for bits in [Bits::Four, Bits::Eight] {
        let weights = Weights::random(&mut random, (83, 96), 32, bits);
        let packed = weights.pack();
        for kernels in Kernels::available() {
            for rows in [1, 15, 37] {
                let rows = quantize(&kernels, &random.floats(rows * 96, 1.0), &weights, Granularity::Row);
                let whole = multiply(&kernels, &rows, &packed);
                let mut parts = vec![f32::NAN; whole.len()];
                let mut rest = MatrixMut::new(&mut parts, 83);
                let mut scratch = Scratch::default();
                for (start, end) in [(0, 16), (16, 16), (16, 64), (64, 83)] {
                    let (part, others) = rest.split_at_column(end - start);
                    kernels.matmul(&rows, &packed, start..end, &mut scratch, part);
                    rest = others;
                }
                assert!(same(&parts, &whole));
            }
        }
    }
}

#[test]
fn nothing_times_anything_is_nothing() {
    let weights = Weights::random(&mut Random::new(17), (32, 32), 32, Bits::Eight);
    let packed = weights.pack();
    for kernels in Kernels::available() {
        let rows = quantize(&kernels, &[], &weights, Granularity::Row);
        assert_eq!(multiply(&kernels, &rows, &packed), []);
    }
}

#[test]
fn packed_bytes_come_back() {
    let mut random = Random::new(19);
    for bits in [Bits::Four, Bits::Eight] {
        let weights = Weights::random(&mut random, (35, 100), 32, bits);
        let packed = weights.pack();
        let mut place = vec![0; weights.view().packed_bytes().unwrap()];
        PackedMatrix::pack_into(&weights.view(), &mut place).unwrap();
        assert_eq!(place, packed.as_bytes());
        let short = place.split_last_mut().map(|(_, short)| PackedMatrix::pack_into(&weights.view(), short));
        assert!(matches!(short, Some(Err(KernelError::Length { what: "packed bytes", .. }))));
        // Shared bytes may have any alignment.
        let mut bytes = vec![7; 3];
        bytes.extend_from_slice(packed.as_bytes());
        let range = 3..bytes.len();
        let mapped = PackedMatrix::from_bytes(Arc::new(bytes), range).unwrap();
        assert_eq!((mapped.outputs(), mapped.inputs(), mapped.block(), mapped.bits()), (35, 100, 32, bits));
        for kernels in Kernels::available() {
            let rows = quantize(&kernels, &random.floats(300, 1.0), &weights, Granularity::Row);
            assert!(same(&multiply(&kernels, &rows, &mapped), &multiply(&kernels, &rows, &packed)));
        }
    }
}

#[test]
fn bytes_of_anything_else_are_refused() {
    let weights = Weights::random(&mut Random::new(23), (35, 100), 32, Bits::Four);
    let good = weights.pack().as_bytes().to_vec();
    let check = |bytes: Vec<u8>| {
        let range = 0..bytes.len();
        let found = PackedMatrix::from_bytes(Arc::new(bytes), range);
        assert!(matches!(
            found,
            Err(KernelError::Format { .. } | KernelError::Block { .. } | KernelError::Size { .. })
        ));
    };
    for len in [0, 63, 64, good.len() - 1] {
        check(good[..len].to_vec());
    }
    for at in 0..64 {
        for value in [0x01, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= value;
            // A shape that is padded to the same tiles and blocks is valid too.
            if ![8, 16].contains(&at) || bytes[at] == 0xff {
                check(bytes);
            }
        }
    }
    assert!(PackedMatrix::from_bytes(Arc::new(good), 5..4_000_000).is_err());
}

#[test]
fn weights_of_another_shape_are_refused() {
    let check = |change: fn(&mut Weights), expect: KernelError| {
        let mut weights = Weights::random(&mut Random::new(29), (35, 100), 32, Bits::Four);
        weights.zeros = Some(vec![0; 35 * 2]);
        weights.offsets = Some(vec![f16::ZERO; 35 * 4]);
        weights.single = None;
        change(&mut weights);
        assert_eq!(PackedMatrix::pack(&weights.view()).unwrap_err(), expect);
    };
    let length = |what, expected, found| KernelError::Length { what, expected, found };
    check(|w| w.block = 24, KernelError::Block { found: 24 });
    check(|w| w.quants.truncate(9), length("quants", 35 * 64, 9));
    check(|w| w.half.truncate(9), length("scales", 35 * 4, 9));
    check(|w| w.zeros = Some(Vec::new()), length("zero points", 70, 0));
    check(|w| w.offsets = Some(Vec::new()), length("offsets", 140, 0));
    check(|w| w.outputs = usize::MAX, KernelError::Size { outputs: usize::MAX, inputs: 100 });
}
