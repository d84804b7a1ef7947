//! The delta net by hand, and the tape.

use super::*;
use crate::builder::State;
use crate::plan::{DeltaNetOp, DeltaShape};
use crate::{StateId, StateSpec};

const TAPE: usize = 4;
const VOCABULARY: usize = 16;

/// A layer that mixes random embeddings of the shape's own width; taps are its outputs.
fn layer(shape: DeltaShape, table: &[f32], conv: &[f32], vectors: [&[f32]; 3]) -> (ReferenceBackend, PlanId) {
    let mut b = ReferenceBackend::new();
    let widths = [shape.conv_cols(), shape.value_cols(), shape.value_heads, shape.value_heads];
    let width = widths.iter().sum();
    let table = matrix(&mut b, table.len() / width, width, table);
    // Each operand is a range of the embedding's columns.
    let mut first = 0;
    let parts = widths.map(|n| {
        let mut pick = vec![0.0; n * width];
        (0..n).for_each(|i| pick[i * width + first + i] = 1.0);
        first += n;
        matrix(&mut b, n, width, &pick)
    });
    let conv = matrix(&mut b, shape.conv_cols(), shape.conv, conv);
    let [dt, a, norm] = vectors.map(|v| vector(&mut b, v));
    let spec = StateSpec { slots: 3, shape, tape: TAPE };
    let state = State { id: b.new_state(&spec).unwrap(), spec };
    let p = plan(&mut b, &table, |r, x| {
        let [qkv, z, alpha, beta] = r.mat_mul(x, parts.each_ref())?;
        let (conv_id, dt_bias, a_id, norm_id) = (conv.id, dt.id, a.id, norm.id);
        let op = DeltaNetOp {
            qkv,
            z,
            alpha,
            beta,
            conv: conv_id,
            dt_bias,
            a: a_id,
            norm: norm_id,
            state: StateId(0),
            shape,
            eps: 1e-6,
            out: x,
        };
        let out = r.delta_net(op, [&conv, &dt, &a, &norm], &state)?;
        r.output(out);
        Ok(())
    });
    (b, p)
}

fn random_layer(interleaved: bool) -> (ReferenceBackend, PlanId, usize) {
    let shape = DeltaShape { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 2, conv: 4, interleaved };
    let width = shape.conv_cols() + shape.value_cols() + 2 * shape.value_heads;
    let table = noise(11, VOCABULARY * width);
    let conv = noise(12, shape.conv_cols() * shape.conv);
    let decay = [-0.3, -0.6, -0.9, -1.2];
    let (b, p) = layer(shape, &table, &conv, [&noise(13, 4), &decay, &[1.0, 0.5]]);
    (b, p, shape.value_cols())
}

/// One head of one element, a convolution that only passes the newest input, no norm to speak of:
/// q and k are signs, so S, o and the gates can be followed by hand.
#[test]
fn recurrence_by_hand() {
    let shape =
        DeltaShape { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1, conv: 2, interleaved: true };
    // Columns: q, k, v, z, alpha, beta. SiLU comes after the convolution.
    let table = [5.0, 5.0, 2.0, 1.0, 0.3, 0.0, 5.0, 5.0, -8.0, 1.0, 0.3, 1.0];
    let conv = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0];
    let (mut b, p) = layer(shape, &table, &conv, [&[0.2], &[-0.5], &[1.0]]);
    let got = run(&mut b, p, &rows(0, &[0, 1])).taps.remove(0);

    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let silu = |x: f64| x * sigmoid(x);
    let unit = silu(5.0) / (silu(5.0).powi(2) + 1e-6).sqrt();
    let decay = (-0.5 * (0.5_f64.exp() + 1.0).ln()).exp();
    let mut s = 0.0;
    let want: Vec<f64> = [(2.0, 0.0), (-8.0, 1.0)]
        .iter()
        .map(|(v, beta)| {
            s *= decay;
            s += unit * sigmoid(*beta) * (silu(*v) - s * unit);
            let o = s * unit;
            o / (o * o + 1e-6).sqrt() * silu(1.0)
        })
        .collect();
    close(&got, &want);
}

/// Both taps count, the older input first, and the history crosses a step.
#[test]
fn convolution_history_crosses_steps() {
    let (mut b, p, _) = random_layer(true);
    let whole = run(&mut b, p, &rows(0, &[1, 2, 3, 4, 5])).taps.remove(0);
    let first = run(&mut b, p, &rows(0, &[1, 2])).taps.remove(0);
    let second = run(&mut b, p, &rows(2, &[3, 4, 5])).taps.remove(0);
    assert_eq!(whole, [first, second].concat());
    let other = run(&mut b, p, &rows(0, &[9, 2, 3])).taps.remove(0);
    assert_ne!(other[16..24], whole[16..24], "row 2 depends on the input of row 0");
}

#[test]
fn key_heads_of_both_orders_differ() {
    let [a, c] = [true, false].map(|interleaved| {
        let (mut b, p, _) = random_layer(interleaved);
        run(&mut b, p, &rows(0, &[1, 2])).taps.remove(0)
    });
    // Value heads 0 and 3 read key heads 0 and 1 in both orders; heads 1 and 2 change places.
    assert_eq!((&a[..2], &a[6..8]), (&c[..2], &c[6..8]));
    assert_ne!(a[2..6], c[2..6]);
}

/// The outputs of `text`, one committed row a step.
fn plain(text: &[u32]) -> Vec<Vec<f32>> {
    let (mut b, p, _) = random_layer(true);
    (0..text.len()).map(|i| run(&mut b, p, &rows(i as u32, &text[i..=i])).taps.remove(0)).collect()
}

/// A round: `drafted` rows at the position the text has reached, of which the first `good` are the text's own.
fn round(
    b: &mut ReferenceBackend,
    p: PlanId,
    text: &[u32],
    at: usize,
    good: usize,
    replay: usize,
) -> Vec<f32> {
    let mut tokens = text[at..at + good].to_vec();
    tokens.resize(TAPE, 15);
    let step =
        StepRows { seqs: vec![seq(0, at as u32, TAPE as u32, replay as u32, false)], tokens, out: vec![] };
    run(b, p, &step).taps.remove(0)
}

/// Every accept count after every other after every other, started by a committed prompt or by a draft.
#[test]
fn every_accept_count_after_every_other() {
    let text: Vec<u32> = (0..20).map(|i| i * 5 % 14).collect();
    let want = plain(&text);
    for prompt in [1, 3] {
        for counts in 0..TAPE.pow(3) {
            let counts = [counts, counts / TAPE, counts / TAPE / TAPE].map(|c| c % TAPE + 1);
            let (mut b, p, width) = random_layer(true);
            run(&mut b, p, &rows(0, &text[..prompt]));
            let (mut at, mut replay) = (prompt, 0);
            for accepted in counts {
                let out = round(&mut b, p, &text, at, accepted, replay);
                for (i, row) in out.chunks_exact(width).take(accepted).enumerate() {
                    assert_eq!(row, want[at + i], "{counts:?}: row {i} at {at}");
                }
                (at, replay) = (at + accepted, accepted);
            }
            let mut last = rows(at as u32, &text[at..=at]);
            last.seqs[0].replay = replay as u32;
            assert_eq!(run(&mut b, p, &last).taps[0], want[at], "{counts:?}: committed row");
            let next = run(&mut b, p, &rows(at as u32 + 1, &text[at + 1..at + 2]));
            assert_eq!(next.taps[0], want[at + 1], "{counts:?}: after the commit");
        }
    }
}

/// Nothing of a round counts when none of its rows does.
#[test]
fn a_round_without_accepted_rows_leaves_no_trace() {
    let text = [1, 2, 3, 4];
    let want = plain(&text);
    let (mut b, p, width) = random_layer(true);
    run(&mut b, p, &rows(0, &text[..2]));
    round(&mut b, p, &text, 2, 0, 0);
    let out = round(&mut b, p, &text, 2, 2, 0);
    assert_eq!(out[..2 * width], want[2..4].concat());
    // At position 0 a draft that fails completely is a new start.
    round(&mut b, p, &text, 0, 0, 0);
    assert_eq!(round(&mut b, p, &text, 0, 1, 0)[..width], want[0]);
}

#[test]
fn sequences_of_a_step_do_not_see_each_other() {
    let text = [1, 2, 3, 4];
    let want = plain(&text);
    let (mut b, p, width) = random_layer(true);
    run(&mut b, p, &rows(0, &[9, 9, 9]));
    let step = StepRows {
        seqs: vec![seq(0, 3, 1, 0, true), seq(2, 0, 4, 0, false)],
        tokens: [&[7][..], &text].concat(),
        out: vec![],
    };
    assert_eq!(run(&mut b, p, &step).taps[0][width..], want.concat());
}

#[test]
fn a_copied_state_continues_like_the_original() {
    let text = [1, 2, 3, 4];
    let want = plain(&text);
    let (mut b, p, _) = random_layer(true);
    run(&mut b, p, &rows(0, &text[..3]));
    b.copy_state(0, 2).unwrap();
    run(&mut b, p, &rows(0, &[8, 8]));
    let mut step = rows(3, &text[3..]);
    step.seqs[0].slot = 2;
    assert_eq!(run(&mut b, p, &step).taps[0], want[3]);
    b.copy_state(2, 0).unwrap();
    step.seqs[0] = seq(0, 4, 1, 0, false);
    run(&mut b, p, &step);
    assert!(b.copy_state(0, 1).unwrap_err().to_string().contains("1 undecided rows"));
    assert!(b.copy_state(2, 3).is_err());
}
