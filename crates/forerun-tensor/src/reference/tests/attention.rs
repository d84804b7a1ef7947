//! Rotary embedding, masks, windows, rings, cache types.

use proptest::prelude::*;

use super::super::cache::rounded;
use super::*;
use crate::plan::{AttentionOp, AttentionShape, Gate, RopeKvOp, RopeSpec};

const DIM: usize = 4;
const VOCABULARY: usize = 32;

/// How a test layer attends.
#[derive(Clone, Copy)]
struct Layer {
    capacity: usize,
    ring: bool,
    causal: bool,
    window: Option<u32>,
    ty: KvType,
}

const FULL: Layer = Layer { capacity: 64, ring: false, causal: true, window: None, ty: KvType::F32 };

/// Two query heads on one KV head; q, k and v are products of random embeddings.
fn layer(l: Layer) -> (ReferenceBackend, PlanId) {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, VOCABULARY, DIM, &noise(1, VOCABULARY * DIM));
    let wq = matrix(&mut b, 2 * DIM, DIM, &noise(2, 2 * DIM * DIM));
    let wk = matrix(&mut b, DIM, DIM, &noise(3, DIM * DIM));
    let wv = matrix(&mut b, DIM, DIM, &noise(4, DIM * DIM));
    let cache = kv(&mut b, kv_spec(l.capacity, l.ring, 1, DIM, l.ty));
    let shape = AttentionShape { heads: 2, kv_heads: 1, key_dim: DIM, value_dim: DIM, q_stride: DIM };
    let p = plan(&mut b, &table, |r, x| {
        let [q, k, v] = r.mat_mul(x, [&wq, &wk, &wv])?;
        let rope = r.rope(RopeSpec { frequencies: vec![1.0], scale: 1.0 });
        let op = RopeKvOp {
            q: Some(q),
            k: Some(k),
            v: Some(v),
            q_norm: None,
            k_norm: None,
            v_norm: false,
            eps: 1e-6,
            shape,
            rope,
            kv: cache.id,
            advance: 0,
        };
        r.rope_kv(op, [None, None], &cache)?;
        let (causal, window) = (l.causal, l.window);
        let op = AttentionOp {
            q,
            gate: Gate::None,
            kv: cache.id,
            shape,
            scale: 2.0,
            causal,
            window,
            advance: 0,
            out: q,
        };
        let out = r.attention(op, &cache)?;
        r.output(out);
        Ok(())
    });
    (b, p)
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i * 7 % VOCABULARY as u32).collect()
}

/// Outputs of all rows, fed in chunks of these sizes in turn.
fn in_chunks(l: Layer, n: usize, chunks: &[usize]) -> Vec<f32> {
    let (mut b, p) = layer(l);
    let tokens = tokens(n);
    let (mut out, mut at) = (Vec::new(), 0);
    for size in chunks.iter().cycle() {
        let end = n.min(at + size);
        out.extend(run(&mut b, p, &rows(at as u32, &tokens[at..end])).taps.remove(0));
        at = end;
        if at == n {
            break;
        }
    }
    out
}

/// One head of two elements at position 1 of frequency π/2: (1, 2) turns to (−2, 1), and a third element stays.
#[test]
fn rotary_turns_pairs_and_leaves_the_rest() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 1, 5, &[1.0, 10.0, 2.0, 20.0, 7.0]);
    let cache = kv(&mut b, kv_spec(8, false, 1, 5, KvType::F32));
    let shape = AttentionShape { heads: 1, kv_heads: 1, key_dim: 5, value_dim: 5, q_stride: 5 };
    let p = plan(&mut b, &table, |r, x| {
        let rope = r.rope(RopeSpec { frequencies: vec![std::f64::consts::FRAC_PI_2, 0.0], scale: 2.0 });
        let op = RopeKvOp {
            q: Some(x),
            k: None,
            v: None,
            q_norm: None,
            k_norm: None,
            v_norm: false,
            eps: 0.0,
            shape,
            rope,
            kv: cache.id,
            advance: 1,
        };
        r.rope_kv(op, [None, None], &cache)?;
        r.output(x);
        Ok(())
    });
    close(&run(&mut b, p, &rows(0, &[0])).taps[0], &[-4.0, 20.0, 2.0, 40.0, 7.0]);
}

/// Keys of ±1 without rotary give scores of ±1; values and gates are chosen so that the sum is short.
#[test]
fn attention_norms_and_gates_by_hand() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 2, 1, &[2.0, -3.0]);
    let cache = kv(&mut b, kv_spec(8, false, 1, 1, KvType::F32));
    let (wq, unit) = (matrix(&mut b, 2, 1, &[1.0, 1.0]), vector(&mut b, &[1.0]));
    let shape = AttentionShape { heads: 1, kv_heads: 1, key_dim: 1, value_dim: 1, q_stride: 2 };
    let p = plan(&mut b, &table, |r, x| {
        let [q] = r.mat_mul(x, [&wq])?;
        let rope = r.rope(RopeSpec { frequencies: vec![], scale: 1.0 });
        let (q_norm, k_norm) = (Some(&unit), Some(&unit));
        let op = RopeKvOp {
            q: Some(q),
            k: Some(x),
            v: Some(x),
            q_norm: None,
            k_norm: None,
            v_norm: false,
            eps: 0.0,
            shape,
            rope,
            kv: cache.id,
            advance: 0,
        };
        r.rope_kv(op, [q_norm, k_norm], &cache)?;
        let (gate, window) = (Gate::Interleaved, None);
        let op = AttentionOp {
            q,
            gate,
            kv: cache.id,
            shape,
            scale: 0.5,
            causal: true,
            window,
            advance: 0,
            out: q,
        };
        let out = r.attention(op, &cache)?;
        r.output(out);
        Ok(())
    });
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // Row 1 has query −1: scores −½ with key 1 and ½ with key −1.
    let w = sigmoid(-1.0);
    let second = (w * 2.0 + (1.0 - w) * -3.0) * sigmoid(-3.0);
    close(&run(&mut b, p, &rows(0, &[0, 1])).taps[0], &[2.0 * sigmoid(2.0), second]);
}

#[test]
fn a_block_sees_itself_only_when_it_is_not_causal() {
    let causal = in_chunks(FULL, 6, &[6]);
    let both = in_chunks(Layer { causal: false, ..FULL }, 6, &[6]);
    let last = causal.len() - 2 * DIM;
    assert_ne!(causal[..last], both[..last]);
    assert_eq!(causal[last..], both[last..]);
    // One row at a time there is nothing ahead to see.
    assert_eq!(in_chunks(Layer { causal: false, ..FULL }, 6, &[1]), causal);
}

#[test]
fn a_window_is_a_short_context() {
    let l = Layer { window: Some(3), ..FULL };
    let windowed = in_chunks(l, 12, &[12]);
    let full = in_chunks(FULL, 12, &[12]);
    assert_eq!(windowed[..3 * 2 * DIM], full[..3 * 2 * DIM]);
    assert_ne!(windowed[3 * 2 * DIM..4 * 2 * DIM], full[3 * 2 * DIM..4 * 2 * DIM]);
    assert_eq!(in_chunks(Layer { window: Some(12), ..FULL }, 12, &[12]), full);
}

/// A rejection goes back, and the ring still has every key of the window.
#[test]
fn a_ring_survives_rejected_rows() {
    let l = Layer { capacity: 12, ring: true, window: Some(5), ..FULL };
    let (mut b, p) = layer(l);
    let want = in_chunks(Layer { capacity: 64, ring: false, ..l }, 30, &[1]);
    let tokens = tokens(30);
    for at in 0..30 {
        // Up to seven wrong rows after the right one: 1 + 7 + 5 − 1 = 12.
        let mut step = rows(at as u32, &[tokens[at]]);
        step.tokens.extend([31; 7]);
        step.seqs[0].rows = 8;
        let out = run(&mut b, p, &step).taps.remove(0);
        assert_eq!(out[..2 * DIM], want[at * 2 * DIM..][..2 * DIM], "row {at}");
    }
}

proptest! {
    #[test]
    fn any_chunking_is_row_by_row(
        n in 1..40_usize, chunks in prop::collection::vec(1..20_usize, 1..6), window in prop::option::of(1..12_u32),
    ) {
        for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let l = Layer { window, ty, ..FULL };
            prop_assert_eq!(in_chunks(l, n, &chunks), in_chunks(l, n, &[1]));
        }
    }

    #[test]
    fn a_ring_is_a_full_cache_with_a_window(
        n in 1..60_usize, chunk in 1..9_usize, window in 1..12_u32, spare in 0..4_usize,
    ) {
        let full = Layer { window: Some(window), ..FULL };
        let ring = Layer { capacity: window as usize + chunk - 1 + spare, ring: true, ..full };
        prop_assert_eq!(in_chunks(ring, n, &[chunk]), in_chunks(full, n, &[1]));
    }
}

/// The links of a draft chain run on output rows, each one position further than the last.
#[test]
fn output_rows_stand_at_their_own_positions() {
    let mut b = ReferenceBackend::new();
    // Values 1, 2, 4 and scores of 0: a row's output is the mean of what it sees.
    let table = matrix(&mut b, 3, 1, &[1.0, 2.0, 4.0]);
    let zero = matrix(&mut b, 1, 1, &[0.0]);
    let cache = kv(&mut b, kv_spec(8, false, 1, 1, KvType::F32));
    let shape = AttentionShape { heads: 1, kv_heads: 1, key_dim: 1, value_dim: 1, q_stride: 1 };
    let p = plan(&mut b, &table, |r, x| {
        let rope = r.rope(RopeSpec { frequencies: vec![], scale: 1.0 });
        let out = r.select(x)?;
        for (x, advance) in [(x, 0), (out, 1)] {
            let [q] = r.mat_mul(x, [&zero])?;
            let op = RopeKvOp {
                q: Some(q),
                k: Some(x),
                v: Some(x),
                q_norm: None,
                k_norm: None,
                v_norm: false,
                eps: 0.0,
                shape,
                rope,
                kv: cache.id,
                advance,
            };
            r.rope_kv(op, [None, None], &cache)?;
            let op = AttentionOp {
                q,
                gate: Gate::None,
                kv: cache.id,
                shape,
                scale: 1.0,
                causal: true,
                window: None,
                advance,
                out: q,
            };
            let y = r.attention(op, &cache)?;
            r.output(y);
        }
        Ok(())
    });
    // Row 1 of slot 0 and row 2, the only one of slot 1, have output; each is seen again one position later.
    let step = StepRows {
        seqs: vec![seq(0, 0, 2, 0, true), seq(1, 0, 1, 0, true)],
        tokens: vec![0, 1, 2],
        out: vec![],
    };
    let out = run(&mut b, p, &with_out(with_out(step, 1, Pick::None), 2, Pick::None));
    close(&out.taps[0], &[1.0, 1.5, 4.0]);
    close(&out.taps[1], &[5.0 / 3.0, 4.0]);
    let error = try_run(&mut b, p, &with_out(rows(0, &[0; 8]), 7, Pick::None)).unwrap_err().to_string();
    assert!(error.contains("position 8, expected one below the capacity of 8"), "{error}");
}

/// Keys and values of every row, queries of output rows only: a sequence may have none, or some that are not its last.
#[test]
fn output_rows_attend_to_the_rows_of_the_whole_step() {
    let mut b = ReferenceBackend::new();
    // Values 1, 2, 4, 8 and scores of 0: a row's output is the mean of what it sees, or half of it behind a gate of 0.
    let table = matrix(&mut b, 4, 1, &[1.0, 2.0, 4.0, 8.0]);
    let zeros = matrix(&mut b, 2, 1, &[0.0, 0.0]);
    let cache = kv(&mut b, KvSpec { slots: 3, ..kv_spec(8, false, 1, 1, KvType::F32) });
    let p = plan(&mut b, &table, |r, x| {
        let rope = r.rope(RopeSpec { frequencies: vec![], scale: 1.0 });
        let out = r.select(x)?;
        let [both] = r.mat_mul(out, [&zeros])?;
        let wide = AttentionShape { heads: 1, kv_heads: 1, key_dim: 1, value_dim: 1, q_stride: 2 };
        let op = |q, kv: Option<crate::Act>, shape| RopeKvOp {
            q,
            k: kv,
            v: kv,
            q_norm: None,
            k_norm: None,
            v_norm: false,
            eps: 0.0,
            shape,
            rope,
            kv: cache.id,
            advance: 0,
        };
        r.rope_kv(op(None, Some(x), wide), [None, None], &cache)?;
        r.rope_kv(op(Some(both), None, wide), [None, None], &cache)?;
        let narrow = AttentionShape { heads: 2, q_stride: 1, ..wide };
        for (shape, gate, window) in [
            (wide, Gate::Interleaved, None),
            (narrow, Gate::Separate(both), None),
            (narrow, Gate::None, Some(2)),
        ] {
            let op = AttentionOp {
                q: both,
                gate,
                kv: cache.id,
                shape,
                scale: 1.0,
                causal: true,
                window,
                advance: 0,
                out: both,
            };
            let y = r.attention(op, &cache)?;
            r.output(y);
        }
        Ok(())
    });
    let step = StepRows {
        seqs: vec![seq(2, 0, 3, 0, true), seq(0, 0, 2, 0, true), seq(1, 0, 1, 0, true)],
        tokens: vec![0, 1, 2, 3, 0, 2],
        out: vec![],
    };
    // Rows 1 and 2 of slot 2, none of slot 0, the only one of slot 1.
    let step = [1, 2, 5].into_iter().fold(step, |step, row| with_out(step, row, Pick::None));
    let out = run(&mut b, p, &step);
    close(&out.taps[0], &[0.75, 7.0 / 6.0, 2.0]);
    close(&out.taps[1], &[0.75, 0.75, 7.0 / 6.0, 7.0 / 6.0, 2.0, 2.0]);
    close(&out.taps[2], &[1.5, 1.5, 3.0, 3.0, 4.0, 4.0]);
    // The rows without output are in the cache as the others are.
    let next = with_out(rows(2, &[1]), 0, Pick::None);
    close(&run(&mut b, p, &next).taps[0], &[11.0 / 6.0]);
}

#[test]
fn cache_types_round() {
    let x = [0.1, -127.0, 1.0, 63.4];
    assert_eq!(rounded(KvType::F32, &x), [f64::from(0.1_f32), -127.0, 1.0, f64::from(63.4_f32)]);
    assert_eq!(rounded(KvType::F16, &x)[0], half::f16::from_f32(0.1).to_f64());
    assert_eq!(rounded(KvType::Q8_0, &x), [0.0, -127.0, 1.0, 63.0]);
    // Halves go to the even level, and each 32 elements have a scale of their own, the last block being shorter.
    let mut long = vec![0.0; 34];
    (long[0], long[1], long[2], long[32], long[33]) = (127.0, 2.5, 3.5, 254.0, 3.0);
    let got = rounded(KvType::Q8_0, &long);
    assert_eq!((got[0], got[1], got[2], got[32], got[33]), (127.0, 2.0, 4.0, 254.0, 4.0));
    assert_eq!(rounded(KvType::Q8_0, &[0.0; 3]), [0.0; 3]);
    // A scale that rounds down in 16 bits would need level 128.
    let tiny = 127.0 * 2.0_f64.powi(-24) * 1.4;
    assert_eq!(rounded(KvType::Q8_0, &[tiny]), [127.0 * 2.0_f64.powi(-24)]);
}

#[test]
fn copied_kv_continues_like_the_original() {
    let (mut b, p) = layer(FULL);
    run(&mut b, p, &rows(0, &tokens(9)));
    b.copy_kv(0, 1, 5).unwrap();
    let mut step = rows(5, &[3]);
    let want = run(&mut b, p, &step);
    step.seqs[0].slot = 1;
    assert_eq!(run(&mut b, p, &step), want);
    step.seqs[0].pos = 8;
    assert!(try_run(&mut b, p, &step).is_err(), "position 6 was not copied");
}
