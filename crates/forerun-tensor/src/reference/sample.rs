//! Token choice.

use crate::noise::gumbel;
use crate::step::{OutRow, Pick, Picked, StepOut};

/// Picks for every output row; results and requested logits go to `out` when this is the plan's result.
pub(super) fn sample(logits: &[Vec<f64>], rows: &[OutRow], result: bool, out: &mut StepOut) -> Vec<Picked> {
    let picked: Vec<Picked> = logits.iter().zip(rows).map(|(l, row)| pick(l, row.pick)).collect();
    if result {
        out.picked.clone_from(&picked);
        for (l, _) in logits.iter().zip(rows).filter(|(_, row)| row.logits) {
            out.logits.extend(l.iter().map(|v| *v as f32));
        }
    }
    picked
}

fn pick(logits: &[f64], how: Pick) -> Picked {
    let best = |value: &dyn Fn(usize) -> f32| {
        (0..logits.len()).reduce(|a, b| if value(b) > value(a) { b } else { a }).unwrap_or(0) as u32
    };
    let token = match how {
        Pick::None => u32::MAX,
        Pick::Given(token) => token,
        Pick::Greedy => best(&|i| logits[i] as f32),
        Pick::Noise { temperature, seed, position } => {
            best(&|i| logits[i] as f32 / temperature + gumbel(seed, position, i as u32))
        }
    };
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
    Picked {
        token,
        logit: logits.get(token as usize).map_or(f32::NAN, |l| *l as f32),
        log_sum: log_sum as f32,
        nan: logits.iter().any(|l| l.is_nan()),
    }
}
