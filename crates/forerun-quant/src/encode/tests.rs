//! Every instruction set writes the same bytes, rows come back near to what they were, and what cannot be encoded is refused.

use super::*;
use crate::{decode_row, random_rows};

fn floats(seed: u64, n: usize) -> Vec<f32> {
    let bytes = random_rows(TensorType::F32, 1, n, seed).expect("rows");
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn encoded(isa: Isa, ty: TensorType, row: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xa5; ty.row_bytes(row.len()).expect("whole blocks")];
    encode_on(isa, ty, row, importance, &mut bytes).expect("encode");
    bytes
}

/// Error over norm, squared, of a row that is encoded and decoded.
fn nmse(ty: TensorType, x: &[f32], importance: Option<&[f32]>) -> f64 {
    let mut back = vec![0.0; x.len()];
    decode_row(ty, &encoded(Isa::detect(), ty, x, importance), &mut back).expect("decode");
    let square = |x: f64| x * x;
    let error: f64 = x.iter().zip(&back).map(|(a, b)| square(f64::from(a - b))).sum();
    error / x.iter().map(|x| square(f64::from(*x))).sum::<f64>()
}

/// Rows of odd numbers of superblocks, of every size, shape and sign, with values that the searches stumble over.
fn rows() -> Vec<Vec<f32>> {
    let mut rows: Vec<Vec<f32>> =
        [256, 512, 1024, 2048 + 768].iter().map(|n| floats(*n as u64, *n)).collect();
    let noise = floats(9, 2560);
    let shapes: [fn(usize, f32) -> f32; 12] = [
        |_, x| x.abs(),
        |_, x| -x.abs() - 1.0,
        |_, x| x * 1e-38,
        |_, x| x * 1e-42,
        |_, x| x * 1e38,
        |i, x| if i % 37 == 0 { x * 1e6 } else { x },
        |i, x| if i % 64 < 40 { 0.0 } else { x },
        |i, x| x * 2f32.powi((i / 16 % 90) as i32 - 45),
        |i, x| if (i / 32) % 2 == 0 { 1.0 + x * 1e-7 } else { x },
        |i, _| (i % 16) as f32 - 8.0,
        |i, _| if i % 2 == 0 { 0.25 } else { -0.25 },
        |_, x| (x * 200.0).round(),
    ];
    rows.extend(shapes.iter().map(|shape| noise.iter().enumerate().map(|(i, x)| shape(i, *x)).collect()));
    let constants = [0.0, -0.0, 1.0, -1.0, 1e-30, 1e-44, 1e30, f32::MAX, f32::INFINITY, f32::NAN];
    rows.extend(constants.iter().map(|c| vec![*c; 768]));
    rows
}

fn importances(n: usize) -> Vec<Option<Vec<f32>>> {
    let mut even: Vec<f32> = floats(4, n).iter().map(|w| w * w).collect();
    let sparse = even.iter().enumerate().map(|(i, w)| if i % 48 < 40 { 0.0 } else { *w }).collect();
    even[0] = 1e20;
    vec![None, Some(even), Some(sparse)]
}

#[test]
fn instruction_sets_write_the_same_bytes() {
    for (r, row) in rows().iter().enumerate() {
        for (i, importance) in importances(row.len()).iter().enumerate() {
            for ty in ENCODED {
                let plain = encoded(Isa::Portable, ty, row, importance.as_deref());
                for isa in Isa::available() {
                    let got = encoded(isa, ty, row, importance.as_deref());
                    assert!(got == plain, "{ty} with {isa:?}: row {r}, importance {i}");
                }
            }
        }
    }
}

#[test]
fn errors_are_those_of_the_bits() {
    use TensorType as T;
    let x = floats(3, 1024);
    let importance = vec![1.0; 1024];
    // A uniform step of D errs by D²/12 on average: with bell-shaped values about these shares of their square.
    let bounds = [
        (T::Q8_0, 1e-6, 4e-5),
        (T::Q6_K, 1e-4, 4e-4),
        (T::Q5_0, 8e-4, 3e-3),
        (T::Q5_1, 5e-4, 2.5e-3),
        (T::Q5_K, 5e-4, 1.5e-3),
        (T::Q4_0, 3e-3, 1.2e-2),
        (T::Q4_1, 2e-3, 8e-3),
        (T::Q4_K, 2e-3, 6e-3),
        (T::IQ4_NL, 2e-3, 7e-3),
        (T::IQ4_XS, 2e-3, 7e-3),
        (T::Q3_K, 1e-2, 3e-2),
        (T::IQ3_S, 7e-3, 2.5e-2),
        (T::Q2_K, 3e-2, 1.2e-1),
    ];
    for (ty, least, most) in bounds {
        for importance in [None, Some(&importance[..])] {
            let e = nmse(ty, &x, importance);
            assert!((least..most).contains(&e), "{ty}: NMSE {e:.2e}");
        }
    }
}

#[test]
fn values_on_the_grid_come_back() {
    let grid: Vec<f32> = (0..256).map(|i| (i % 16) as f32 - 8.0).collect();
    assert_eq!(nmse(TensorType::Q4_0, &grid, None), 0.0);
    assert!(nmse(TensorType::Q4_K, &[0.0; 256], None).is_nan(), "0 of 0");
}

#[test]
fn importance_moves_errors_to_what_counts_less() {
    use TensorType as T;
    let x = floats(5, 2048);
    let importance: Vec<f32> = (0..2048).map(|i| if i % 4 == 0 { 1.0 } else { 1e-3 }).collect();
    let error = |ty: TensorType, importance: Option<&[f32]>| {
        let mut back = vec![0.0; x.len()];
        decode_row(ty, &encoded(Isa::detect(), ty, &x, importance), &mut back).expect("decode");
        x.iter().zip(back).step_by(4).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    for ty in ENCODED.iter().filter(|ty| ty.block_elements() > 1 && **ty != T::Q8_0) {
        let (plain, weighed) = (error(*ty, None), error(*ty, Some(&importance)));
        assert!(weighed < 0.95 * plain, "{ty}: {weighed:.3e} for {plain:.3e}");
    }
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    use TensorType as T;
    let encode = |ty, row: &[f32], w: Option<&[f32]>, n| encode_row(ty, row, w, &mut vec![0; n]);
    let x = [1.0; 256];
    assert_eq!(encode(T::IQ1_S, &x, None, 50), Err(QuantError::NoEncoder(T::IQ1_S)));
    assert_eq!(
        encode(T::Q8_0, &x[..31], None, 34),
        Err(QuantError::Columns { ty: T::Q8_0, cols: 31, block: 32 })
    );
    assert!(matches!(encode(T::Q8_0, &x[..32], None, 33), Err(QuantError::Length { .. })));
    let refused = |w: &[f32]| encode(T::Q4_K, &x, Some(w), 144).expect_err("importance").to_string();
    assert!(refused(&x[..255]).contains("255"), "{}", refused(&x[..255]));
    assert!(refused(&[0.0; 256]).contains("all 256 columns is 0"));
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let mut w = x;
        w[7] = bad;
        assert!(refused(&w).contains(&format!("column 7 is {bad}")), "{}", refused(&w));
    }
    assert_eq!(encode(T::Q4_K, &[], None, 0), Ok(()));
    assert_eq!(encode(T::Q4_0, &[], Some(&[]), 0), Ok(()));
}

#[test]
fn sixteen_levels_are_told_apart_by_distance() {
    // The comparison of both distances in float32, against which the middles must hold.
    let nearer = |x: f32| {
        let values = crate::IQ4_VALUES.map(f32::from);
        let above = values.iter().position(|v| x < *v).unwrap_or(15);
        if above == 0 || x >= values[15] {
            return above;
        }
        if x - values[above - 1] < values[above] - x { above - 1 } else { above }
    };
    let mut odd = floats(11, 4096).iter().map(|x| x * 4000.0).collect::<Vec<_>>();
    for pair in crate::IQ4_VALUES.windows(2) {
        for around in
            [(f32::from(pair[0]) + f32::from(pair[1])) / 2.0, f32::from(pair[0]), f32::from(pair[1])]
        {
            odd.extend(
                (-40..=40).map(|ulps: i32| f32::from_bits(around.to_bits().wrapping_add_signed(ulps))),
            );
        }
    }
    odd.extend([0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY]);
    for x in odd {
        let (index, value) = iq4::nearest_level(x);
        assert_eq!(index, nearer(x), "{x}");
        assert_eq!(value, f32::from(crate::IQ4_VALUES[index]), "{x}");
    }
}

/// FNV-1a (Fowler, Noll, Vo) of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn odd_rows_have_the_bytes_of_ggml() {
    // Type, importance, and the hash of what `ggml_quantize_chunk` wrote for the finite rows.
    let ggml = include_str!("../../tests/data/encode-ggml.txt");
    let rows: Vec<_> = rows().into_iter().filter(|row| row.iter().all(|x| x.is_finite())).collect();
    let mut seen = 0;
    for line in ggml.lines() {
        let [ty, importance, hash] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let ty = TensorType::from_name(ty).expect("a type");
        let importance: usize = importance.parse().expect("which importance");
        // Of IQ3_S, errors beyond float32 leave ggml no grid point, and it aborts; after 32 zeros it writes to the wrong place.
        let sound = |row: &[f32]| {
            row.iter().all(|x| x.abs() < 1e18) && row.chunks(32).all(|x| x.iter().any(|x| *x != 0.0))
        };
        let rows = rows.iter().filter(|row| ty != TensorType::IQ3_S || sound(row));
        let bytes = rows
            .flat_map(|row| encoded(Isa::detect(), ty, row, importances(row.len())[importance].as_deref()));
        assert_eq!(
            format!("{:016x}", fnv(&bytes.collect::<Vec<_>>())),
            hash,
            "{ty} with importance {importance}"
        );
        seen += 1;
    }
    assert_eq!(seen, 39, "thirteen types with three importances");
}
