//! Every kernel against the normative arithmetic of `forerun_quant`, bit for bit.

use forerun_quant::{QuantBlock, TensorType, decode_row, dot, random_rows};
use forerun_tensor::{SharedBytes, WeightData, WeightUse};
use proptest::prelude::*;

use super::input::{BlockMeta, QuantRows};
use super::*;
use crate::act::ActBuf;

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn pool() -> Pool {
    Pool::new(1).expect("a pool of the calling thread")
}

/// Equal bits, or both NaN (whose payload is no result).
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn noise(seed: u64, i: usize) -> u32 {
    forerun_tensor::noise::word(seed, (i >> 32) as u32, i as u32)
}

/// Rows of activations: ordinary ones, and every sixth with something that strains a quantiser.
fn inputs(rows: usize, cols: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut all: Vec<Vec<f32>> = (0..rows)
        .map(|r| (0..cols).map(|c| noise(seed, r * cols + c) as i32 as f32 * 1e-9).collect())
        .collect();
    for (r, row) in all.iter_mut().enumerate().skip(5).step_by(6) {
        let at = noise(seed + 1, r) as usize % cols;
        match r / 6 % 6 {
            0 => row[at] = f32::NAN,
            1 => row.iter_mut().for_each(|v| *v = 0.0),
            2 => row[at] = f32::NEG_INFINITY,
            3 => row.iter_mut().for_each(|v| *v *= 1e-38),
            4 => row[at] = 3e38,
            _ => row.iter_mut().for_each(|v| *v *= 1e-29),
        }
    }
    all
}

/// Random bytes: every bit pattern of a block, infinite and NaN scales among them.
fn hostile(len: usize, seed: u64) -> Vec<u8> {
    (0..len).map(|i| noise(seed, i / 4).to_le_bytes()[i % 4]).collect()
}

fn weight(ty: TensorType, [experts, rows, cols]: [usize; 3], gap: usize, bytes: Vec<u8>) -> WeightData {
    let row = ty.row_bytes(cols).expect("whole blocks");
    let stride = (rows + gap) * row;
    WeightData {
        name: "w".into(),
        ty,
        rows,
        cols,
        experts,
        expert_stride: stride,
        bytes: SharedBytes::from(bytes),
        usage: WeightUse::Matrix,
    }
}

fn activations(x: &[Vec<f32>], quantised: bool, isa: Isa) -> ActBuf {
    let cols = x[0].len();
    let act = ActBuf::new(x.len(), cols, quantised).expect("memory");
    for (r, row) in x.iter().enumerate() {
        // SAFETY: one thread.
        unsafe {
            act.row_mut(r).copy_from_slice(row);
            act.quantise(isa, r, 0, if quantised { cols } else { 0 });
        }
    }
    act
}

/// `[expert][input row][output row]` as the format's own dot product has it.
fn wanted(w: &WeightData, x: &[Vec<f32>]) -> Vec<Vec<Vec<f32>>> {
    let row = w.row_bytes().expect("whole blocks");
    let of = |e: usize, r: usize| &w.bytes[e * w.expert_stride + r * row..][..row];
    (0..w.experts)
        .map(|e| {
            x.iter().map(|x| (0..w.rows).map(|r| dot(w.ty, of(e, r), x).expect("a dot")).collect()).collect()
        })
        .collect()
}

/// Compares the products of chosen input rows: a run of them, or a list.
fn compare(m: &Matrix, isa: Isa, act: &ActBuf, wanted: &[Vec<Vec<f32>>], picked: &[u32], as_list: bool) {
    let mut space = Space::default();
    let x = if as_list { act.list(picked) } else { act.run(picked[0] as usize, picked.len()) };
    for (expert, wanted) in wanted.iter().enumerate() {
        for pair in 0..m.pairs() {
            let mut out = vec![[f32::NAN; PAIR]; picked.len()];
            m.pair(isa, (expert, pair), x, &mut space, &mut out);
            for (out, x) in out.iter().zip(picked) {
                let cols = m.columns(pair);
                for (got, want) in out.iter().zip(&wanted[*x as usize][cols.clone()]) {
                    assert!(
                        same(*got, *want),
                        "{} on {isa}: expert {expert}, input row {x} of {}, outputs {cols:?}: {got:e} for {want:e}",
                        m.ty,
                        picked.len()
                    );
                }
            }
        }
    }
}

/// All runs of 1 to 33 input rows, and lists of rows, on every instruction set.
fn check_products(w: &WeightData) {
    let x = inputs(36, w.cols, 11);
    let wanted = wanted(w, &x);
    for isa in isas() {
        let m = Matrix::load(w, isa, &mut pool()).expect("a matrix");
        assert_eq!(m.held(), Matrix::held_bytes(w.ty, w.rows, w.cols, w.experts, w.usage), "{}", w.ty);
        let act = activations(&x, m.is_packed(), isa);
        for rows in 1..=33 {
            let first = rows % 4;
            compare(&m, isa, &act, &wanted, &(first..first + rows).collect::<Vec<u32>>(), false);
        }
        for rows in [1, 2, 5, 9, 16] {
            let list: Vec<u32> = (0..rows).map(|i| i * 23 % 36).collect();
            compare(&m, isa, &act, &wanted, &list, true);
        }
    }
}

fn integer_types() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|t| t.is_integer_dot())
}

#[test]
fn integer_products_equal_the_normative_dot() {
    for ty in integer_types() {
        let e = ty.block_elements();
        for (i, shape) in [[1, 1, e], [1, 37, 2 * e], [1, 16, 5 * e], [3, 17, 3 * e]].into_iter().enumerate()
        {
            let gap = if shape[0] > 1 { 5 } else { 0 };
            let rows = shape[0] * (shape[1] + gap);
            check_products(&weight(ty, shape, gap, random_rows(ty, rows, shape[2], i as u64).expect("rows")));
            let len = rows * ty.row_bytes(shape[2]).expect("whole blocks");
            check_products(&weight(ty, shape, gap, hostile(len, 31 + i as u64)));
        }
    }
}

/// Long sums: the accumulator and the blocked kernels of wide rows (more blocks than any inner buffer holds).
#[test]
fn wide_rows() {
    for ty in integer_types() {
        let cols = 4864;
        let x = inputs(16, cols, 5);
        let w = weight(ty, [1, 18, cols], 0, random_rows(ty, 18, cols, 8).expect("rows"));
        let wanted = wanted(&w, &x);
        for isa in isas() {
            let m = Matrix::load(&w, isa, &mut pool()).expect("a matrix");
            let act = activations(&x, true, isa);
            for rows in [1, 3, 8, 13, 16] {
                compare(&m, isa, &act, &wanted, &(0..rows).collect::<Vec<u32>>(), false);
            }
        }
    }
}

#[test]
fn float_products_equal_the_normative_dot() {
    for ty in TensorType::ALL.iter().copied().filter(|t| t.is_weight() && !t.is_integer_dot()) {
        let e = ty.block_elements();
        let cols = if e == 1 { vec![1, 15, 16, 47, 130] } else { vec![e, 2 * e] };
        for (i, cols) in cols.into_iter().enumerate() {
            for shape in [[1, 1, cols], [1, 21, cols], [2, 6, cols]] {
                let rows = shape[0] * (shape[1] + 1);
                check_products(&weight(ty, shape, 1, random_rows(ty, rows, cols, i as u64).expect("rows")));
                if e > 1 || ty == TensorType::F16 {
                    let len = rows * ty.row_bytes(cols).expect("whole blocks");
                    check_products(&weight(ty, shape, 1, hostile(len, i as u64)));
                }
            }
        }
    }
}

/// A file may put float32 rows on any byte.
#[test]
fn misaligned_float_rows() {
    let mut bytes = vec![0];
    bytes.extend(random_rows(TensorType::F32, 5, 33, 3).expect("rows"));
    let all = SharedBytes::from(bytes);
    for at in 0..2 {
        let mut w = weight(TensorType::F32, [1, 5, 33], 0, Vec::new());
        w.bytes = all.slice(at..at + 5 * 33 * 4).expect("in range");
        // A shift by one byte makes other floats, NaN among them; both readings must agree on them.
        check_products(&w);
    }
}

/// Rows come back from the packed form, and from the file's, as they went in.
#[test]
fn decoded_rows_are_the_files() {
    for ty in TensorType::ALL.iter().copied().filter(|t| t.is_weight()) {
        let (rows, cols) = (35, 3 * ty.block_elements());
        let row = ty.row_bytes(cols).expect("whole blocks");
        for usage in [WeightUse::Matrix, WeightUse::Table, WeightUse::TiedTable] {
            let mut w = weight(ty, [1, rows, cols], 0, hostile(rows * row, 4));
            w.usage = usage;
            for isa in isas() {
                let m = Matrix::load(&w, isa, &mut pool()).expect("a matrix");
                assert_eq!(m.is_packed(), ty.is_integer_dot() && usage != WeightUse::Table);
                let (mut got, mut want) = (vec![0.0; cols], vec![0.0; cols]);
                for r in 0..rows {
                    m.decode_row(isa, r, &mut got);
                    decode_row(ty, &w.bytes[r * row..][..row], &mut want).expect("a row");
                    assert!(
                        got.iter().zip(&want).all(|(a, b)| same(*a, *b)),
                        "{ty} on {isa}, {usage:?}, row {r}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_half_float_widens_exactly() {
    for bits in 0..=u16::MAX {
        let want = half::f16::from_bits(bits).to_f32();
        assert!(same(f16_to_f32(bits), want), "{bits:#06x}: {} for {want}", f16_to_f32(bits));
    }
}

fn check_quantised(x: &[f32]) {
    let rows = QuantRows::new(1, x.len()).expect("memory");
    for isa in isas() {
        // SAFETY: one thread.
        unsafe { rows.write(isa, 0, 0, x) };
        let row = rows.row(0);
        for (b, x) in x.as_chunks::<32>().0.iter().enumerate() {
            let want = QuantBlock::new(x);
            // SAFETY: the row has a block for every 32 of `x`.
            let (q, meta): (&[i8], &BlockMeta) =
                unsafe { (std::slice::from_raw_parts(row.q.add(32 * b), 32), &*row.meta.add(b)) };
            assert_eq!(q, want.q, "{isa}: {x:?}");
            assert!(same(meta.d, want.d) && same(meta.sx, want.sx), "{isa}: {x:?}");
            let halves = [meta.pair as i16, (meta.pair >> 16) as i16].map(i32::from);
            assert_eq!(halves, want.half_sums, "{isa}: {x:?}");
        }
    }
}

#[test]
fn special_activations_quantise_as_defined() {
    let below = f32::from_bits(1e-30_f32.to_bits() - 1);
    let negative_nan = f32::from_bits(0xff80_0001);
    let values = [0.0, -0.0, 1e-45, 1e-38, below, 1e-30, 1.0, 3.4e38, f32::MAX, f32::INFINITY, f32::NAN];
    for special in values.into_iter().flat_map(|v| [v, -v]).chain([negative_nan]) {
        for at in [0, 15, 16, 31] {
            for others in [0.0, 1e-31, -1.0, 2.5e38] {
                let mut x = [others; 32];
                x[at] = special;
                check_quantised(&x);
            }
        }
    }
    // Halfway between two levels of a scale of exactly 1.
    let halves: Vec<f32> = (0..128).map(|i| if i % 32 == 0 { 127.0 } else { i as f32 - 63.5 }).collect();
    check_quantised(&halves);
}

proptest! {
    #[test]
    fn any_activations_quantise_as_defined(x in prop::collection::vec(any::<f32>(), 32)) {
        check_quantised(&x);
    }

    #[test]
    fn ordinary_activations_quantise_as_defined(x in prop::collection::vec(-4.0_f32..4.0, 96)) {
        check_quantised(&x);
    }
}
