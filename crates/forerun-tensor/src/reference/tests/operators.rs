//! Embedding, norm, products, activations, experts, selection, softcap.

use super::*;
use crate::plan::{Activation, ExpertSums, ExpertsOp, RouterKind, SharedExpert};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn embed_scales_rows() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 3, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut builder = PlanBuilder::new(4, 0);
    let x = builder.embed(&table, crate::plan::Ids::Step, 0.5).unwrap();
    builder.output(x);
    let p = b.prepare(builder.finish()).unwrap();
    assert_eq!(run(&mut b, p, &rows(0, &[2, 0])).taps, [[2.5, 3.0, 0.5, 1.0]]);
}

#[test]
fn rms_norm_with_gain_residual_and_scale() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 1, 2, &[3.0, 4.0]);
    let (gain, factor) = (vector(&mut b, &[2.0, 10.0]), vector(&mut b, &[3.0]));
    let p = plan(&mut b, &table, |r, x| {
        let y = r.rms_norm(x, None, 0.5)?;
        r.output(y);
        r.rms_norm_into(x, Some(&gain), 0.5, Some(x), Some(Scale::Weight(&factor)), y)?;
        r.output(y);
        Ok(())
    });
    let out = run(&mut b, p, &rows(0, &[0]));
    let root = 13.0_f64.sqrt();
    close(&out.taps[0], &[3.0 / root, 4.0 / root]);
    close(&out.taps[1], &[3.0 * (3.0 + 6.0 / root), 3.0 * (4.0 + 40.0 / root)]);
}

#[test]
fn rms_norm_of_groups() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 1, 4, &[3.0, 4.0, 6.0, 8.0]);
    let gain = vector(&mut b, &[2.0, 10.0]);
    let p = plan(&mut b, &table, |r, x| {
        let y = r.rms_norm_groups(x, &gain, 0.5, None, None)?;
        r.output(y);
        let y = r.rms_norm_groups(x, &gain, 0.5, Some(y), Some(Scale::Constant(0.5)))?;
        r.output(y);
        Ok(())
    });
    let out = run(&mut b, p, &rows(0, &[0]));
    let (small, large) = (13.0_f64.sqrt(), 50.5_f64.sqrt());
    let normed = [6.0 / small, 40.0 / small, 12.0 / large, 80.0 / large];
    close(&out.taps[0], &normed);
    close(&out.taps[1], &normed);
}

#[test]
fn a_part_of_a_buffer_as_a_factor() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 2, 3, &[1.0, -2.0, 5.0, 0.5, 3.0, -1.0]);
    let w = matrix(&mut b, 2, 3, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let p = plan(&mut b, &table, |r, x| {
        let [y] = r.mat_mul(x, [&w])?;
        r.multiply(y, Activation::Silu, x, 1)?;
        r.output(y);
        Ok(())
    });
    let out = run(&mut b, p, &rows(0, &[0, 1]));
    let silu = |x: f64| x * sigmoid(x);
    close(&out.taps[0], &[silu(1.0) * -2.0, silu(-2.0) * 5.0, silu(0.5) * 3.0, -silu(3.0)]);
}

#[test]
fn products_and_residual() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 2, 2, &[1.0, 2.0, -1.0, 0.5]);
    let (w, v) = (matrix(&mut b, 2, 2, &[1.0, 2.0, 3.0, 4.0]), matrix(&mut b, 1, 2, &[5.0, -1.0]));
    let p = plan(&mut b, &table, |r, x| {
        for y in r.mat_mul(x, [&w, &v])? {
            r.output(y);
        }
        let n = r.rms_norm(x, None, 0.0)?;
        let [y] = r.mat_mul(x, [&w])?;
        r.mat_mul_add(y, &w, n)?;
        r.mat_mul_add(x, &w, y)?;
        r.output(y);
        Ok(())
    });
    let out = run(&mut b, p, &rows(0, &[0, 1]));
    assert_eq!(out.taps[0], [5.0, 11.0, 0.0, -1.0]);
    assert_eq!(out.taps[1], [3.0, -5.5]);
    assert_eq!(out.taps[2], [10.0, 22.0, 0.0, -2.0]);
}

/// Every weight type multiplies what it decodes to.
#[test]
fn every_weight_type_multiplies_its_decoded_values() {
    let cols = 256;
    for &ty in TensorType::ALL.iter().filter(|t| t.is_weight()) {
        let mut b = ReferenceBackend::new();
        let x = noise(1, cols);
        let table = matrix(&mut b, 1, cols, &x);
        let bytes = forerun_quant::random_rows(ty, 3, cols, 7).unwrap();
        let row_bytes = ty.row_bytes(cols).unwrap();
        let want: Vec<f64> = bytes
            .chunks_exact(row_bytes)
            .map(|row| {
                let mut w = vec![0.0; cols];
                forerun_quant::decode_row(ty, row, &mut w).unwrap();
                w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            })
            .collect();
        let data = WeightData {
            name: "w".into(),
            ty,
            rows: 3,
            cols,
            experts: 1,
            expert_stride: 3 * row_bytes,
            bytes: bytes.into(),
            usage: WeightUse::Matrix,
        };
        let w = Weight { id: b.load(&data).unwrap().id, rows: 3, cols, experts: 1 };
        let p = plan(&mut b, &table, |r, x| {
            let [y] = r.mat_mul(x, [&w])?;
            r.output(y);
            Ok(())
        });
        let got = run(&mut b, p, &rows(0, &[0])).taps.remove(0);
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        assert_eq!(got, want, "{ty}");
    }
}

#[test]
fn gated_products() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 1, 1, &[1.0]);
    let (gate, up) = (matrix(&mut b, 2, 1, &[2.0, -1.0]), matrix(&mut b, 2, 1, &[3.0, 5.0]));
    let p = plan(&mut b, &table, |r, x| {
        for kind in [Activation::Silu, Activation::GeluTanh] {
            let y = r.gated_mat_mul(x, &gate, &up, kind)?;
            r.output(y);
        }
        Ok(())
    });
    let out = run(&mut b, p, &rows(0, &[0]));
    close(&out.taps[0], &[6.0 * sigmoid(2.0), -5.0 * sigmoid(-1.0)]);
    // Published values of the approximation: 1.954598 and −0.158808.
    close(&out.taps[1], &[3.0 * 1.954_597_694, 5.0 * -0.158_808_009]);
}

#[test]
fn softcap_and_select() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 3, 1, &[1.0, -60.0, 0.0]);
    let p = plan(&mut b, &table, |r, x| {
        let y = r.select(x)?;
        r.softcap(y, 30.0)?;
        r.output(y);
        Ok(())
    });
    let step = with_out(with_out(rows(0, &[2, 1, 0]), 1, Pick::None), 2, Pick::None);
    close(&run(&mut b, p, &step).taps[0], &[30.0 * (-2.0_f64).tanh(), 30.0 * (1.0_f64 / 30.0).tanh()]);
}

/// Experts of one input and one hidden element, so that expert e gives `down[e] · silu(gate[e]) · up[e]`.
fn experts(logits: &[f32], top_k: usize, scale: Option<&[f32]>, shared: bool) -> Vec<f32> {
    let mut b = ReferenceBackend::new();
    let n = logits.len();
    let table = matrix(&mut b, 1, 1, &[1.0]);
    let router = matrix(&mut b, n, 1, logits);
    let ones = vec![1.0; n];
    let downs: Vec<f32> = (0..n).map(|e| 10.0_f32.powi(e as i32)).collect();
    let [gate, up, down] = [&ones, &ones, &downs].map(|v| stack(&mut b, n, 1, 1, v));
    let scale = scale.map(|s| vector(&mut b, s));
    let p = plan(&mut b, &table, |r, x| {
        let [logits] = r.mat_mul(x, [&router])?;
        let kind =
            scale.map_or(RouterKind::SoftmaxRenormalised, |s| RouterKind::SoftmaxRenormalisedScaled(s.id));
        let routes = r.route(logits, kind, top_k)?;
        let out = r.rms_norm(x, None, 0.0)?;
        let shared = shared.then_some(SharedExpert { out: x, gate: x });
        let op = ExpertsOp {
            x,
            routes,
            gate: gate.id,
            up: up.id,
            down: down.id,
            activation: Activation::Silu,
            shared,
            residual: shared.map(|_| out),
            sums: ExpertSums::default(),
            out,
        };
        r.experts(op, [&gate, &up, &down])?;
        r.output(out);
        Ok(())
    });
    run(&mut b, p, &rows(0, &[0])).taps.remove(0)
}

#[test]
fn experts_are_renormalised_and_ties_go_to_the_lower_id() {
    let one = sigmoid(1.0);
    // Experts 1 and 3 tie for the second place.
    let (a, c) = (1.0_f64.exp() / (1.0_f64.exp() + 1.0), 1.0 / (1.0_f64.exp() + 1.0));
    close(&experts(&[-1.0, 0.0, 1.0, 0.0], 2, None, false), &[one * (100.0 * a + 10.0 * c)]);
    let scaled = one * (100.0 * a * 0.5 + 10.0 * c * 3.0);
    close(&experts(&[-1.0, 0.0, 1.0, 0.0], 2, Some(&[9.0, 3.0, 0.5, 9.0]), false), &[scaled]);
    // The shared expert gives 1 behind a gate of logit 1; the residual is the normed input, 1.
    close(&experts(&[0.0, 0.0], 1, None, true), &[one + one + 1.0]);
}
