//! Token choice.

use crate::noise::gumbel;
use crate::step::{OutRow, Pick, Picked, StepOut};

/// Picks for every output row; results and requested logits go to `out` when this is the plan's result.
pub(super) fn sample(logits: &[Vec<f64>], rows: &[OutRow], result: bool, out: &mut StepOut) -> Vec<Picked> {
    let logits: Vec<Vec<f32>> = logits.iter().map(|row| row.iter().map(|l| *l as f32).collect()).collect();
    let picked: Vec<Picked> = logits.iter().zip(rows).map(|(l, row)| pick(l, row.pick)).collect();
    if result {
        out.picked.clone_from(&picked);
        out.logits =
            logits.iter().zip(rows).filter(|(_, row)| row.logits).flat_map(|(l, _)| l.clone()).collect();
    }
    picked
}

/// Id of the largest value, the lower of equals.
fn arg_max(values: impl Iterator<Item = f32>) -> u32 {
    let best = values.zip(0..).reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map_or(u32::MAX, |(_, id)| id)
}

fn pick(logits: &[f32], how: Pick) -> Picked {
    let token = match how {
        Pick::None => u32::MAX,
        Pick::Given(token) => token,
        Pick::Greedy => arg_max(logits.iter().copied()),
        Pick::Noise { temperature, seed, position } => {
            arg_max(logits.iter().zip(0..).map(|(l, id)| l / temperature + gumbel(seed, position, id)))
        }
    };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| (f64::from(*l) - f64::from(max)).exp()).sum();
    Picked {
        token,
        logit: logits.get(token as usize).copied().unwrap_or(f32::NAN),
        log_sum: (f64::from(max) + sum.ln()) as f32,
        nan: logits.iter().any(|l| l.is_nan()),
    }
}
