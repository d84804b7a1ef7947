//! Token choice.

use super::*;
use crate::noise::gumbel;
use crate::plan::Ids;

/// A plan whose logits are the rows of a table.
fn sampler(table: &[f32], vocabulary: usize) -> (ReferenceBackend, PlanId) {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, table.len() / vocabulary, vocabulary, table);
    let p = plan(&mut b, &table, |r, x| {
        let logits = r.select(x)?;
        r.sample(logits, None, true)?;
        Ok(())
    });
    (b, p)
}

#[test]
fn picks_of_every_kind() {
    let logits = [0.5, 2.0, -1.0, 2.0];
    let (mut b, p) = sampler(&logits, 4);
    let log_sum = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
    let noisy = Pick::Noise { temperature: 0.5, seed: 3, position: 9 };
    let best = (0..4).max_by(|a, c| {
        let value = |i: &usize| logits[*i] / 0.5 + gumbel(3, 9, *i as u32);
        value(a).total_cmp(&value(c))
    });
    let table =
        [(Pick::Greedy, 1), (Pick::Given(2), 2), (noisy, best.unwrap() as u32), (Pick::None, u32::MAX)];
    for (pick, token) in table {
        let out = run(&mut b, p, &with_out(rows(0, &[0]), 0, pick));
        let picked = out.picked[0];
        assert_eq!((picked.token, picked.nan), (token, false), "{pick:?}");
        close(&[picked.log_sum], &[log_sum]);
        match logits.get(token as usize) {
            Some(logit) => assert_eq!(picked.logit, *logit),
            None => assert!(picked.logit.is_nan()),
        }
        assert_eq!(out.logits, logits);
    }
}

#[test]
fn logits_come_only_when_asked_for() {
    let (mut b, p) = sampler(&[1.0, 2.0, 3.0, 4.0], 2);
    let mut step = with_out(with_out(rows(0, &[0, 1]), 0, Pick::Greedy), 1, Pick::Greedy);
    step.out[0].logits = false;
    let out = run(&mut b, p, &step);
    assert_eq!((out.picked.len(), out.logits), (2, vec![3.0, 4.0]));
}

#[test]
fn a_nan_is_told() {
    let (mut b, p) = sampler(&[0.0, f32::NAN, 1.0], 3);
    assert!(run(&mut b, p, &with_out(rows(0, &[0]), 0, Pick::Greedy)).picked[0].nan);
}

/// Chi-square of 20,000 draws against the softmax, 4 degrees of freedom: 18.5 is passed by one in a thousand.
#[test]
fn noise_draws_from_the_softmax() {
    let logits = [0.0_f32, 1.0, -1.5, 0.3, 2.0];
    let temperature = 0.8;
    let (mut b, p) = sampler(&logits, 5);
    let draws = 20_000;
    let mut counts = [0.0_f64; 5];
    for position in 0..draws {
        let pick = Pick::Noise { temperature, seed: 42, position };
        counts[run(&mut b, p, &with_out(rows(0, &[0]), 0, pick)).picked[0].token as usize] += 1.0;
    }
    let weights = logits.map(|l| f64::from(l / temperature).exp());
    let sum: f64 = weights.iter().sum();
    let expected = weights.map(|w| w / sum * f64::from(draws));
    let chi: f64 = counts.iter().zip(expected).map(|(n, e)| (n - e).powi(2) / e).sum();
    assert!(chi < 18.5, "{chi}: {counts:?}, expected {expected:?}");
}

/// A token that the plan chose is embedded again, for output rows only.
#[test]
fn picked_tokens_can_be_embedded() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 2, 2, &[0.0, 1.0, 5.0, 4.0]);
    let p = plan(&mut b, &table, |r, x| {
        let logits = r.select(x)?;
        let picks = r.sample(logits, None, false)?;
        let next = r.embed(&table, Ids::Picked(picks), 1.0)?;
        r.output(next);
        r.sample(next, None, true)?;
        Ok(())
    });
    let out = run(&mut b, p, &with_out(rows(0, &[1, 0]), 1, Pick::Greedy));
    assert_eq!((&out.taps[0], out.picked[0].token), (&vec![5.0, 4.0], 0));
    let error = try_run(&mut b, p, &with_out(rows(0, &[1, 0]), 1, Pick::None)).unwrap_err();
    assert!(error.to_string().contains("without a pick"), "{error}");
}

/// Columns that stand for tokens 2, 7 and 11.
#[test]
fn mapped_columns_are_their_tokens() {
    let (logits, ids) = ([1.0_f32, 1.5, 1.5], [2_u32, 7, 11]);
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 1, 3, &logits);
    let p = plan(&mut b, &table, |r, x| {
        let logits = r.select(x)?;
        let map = r.token_map(ids.into())?;
        r.sample(logits, Some(map), true)?;
        Ok(())
    });
    let log_sum = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
    let mut pick = |pick| {
        let out = run(&mut b, p, &with_out(rows(0, &[0]), 0, pick));
        assert_eq!(out.logits, logits);
        close(&[out.picked[0].log_sum], &[log_sum]);
        (out.picked[0].token, out.picked[0].logit)
    };
    assert_eq!(pick(Pick::Greedy), (7, 1.5));
    assert_eq!(pick(Pick::Given(2)), (2, 1.0));
    // A token without a column has no logit.
    for outside in [0, 8, u32::MAX] {
        let (token, logit) = pick(Pick::Given(outside));
        assert!(token == outside && logit.is_nan(), "{token}: {logit}");
    }
    let (token, logit) = pick(Pick::None);
    assert!(token == u32::MAX && logit.is_nan());
    // The noise is the token's own, whatever its column.
    let mut seen = [0; 3];
    for position in 0..200 {
        let value = |i: usize| logits[i] / 0.7 + gumbel(5, position, ids[i]);
        let best = (0..3).max_by(|a, b| value(*a).total_cmp(&value(*b))).unwrap();
        let noisy = Pick::Noise { temperature: 0.7, seed: 5, position };
        assert_eq!(pick(noisy), (ids[best], logits[best]), "position {position}");
        seen[best] += 1;
    }
    assert!(seen.iter().all(|n| *n > 20), "{seen:?}");
}
