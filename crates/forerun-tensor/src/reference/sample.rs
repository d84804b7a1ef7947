//! Token choice.

use crate::noise::gumbel;
use crate::step::{OutRow, Pick, Picked, StepOut};

/// Picks for every output row; results and requested logits go to `out` when this is the plan's result. `map` has the
/// token id of each column.
pub(super) fn sample(
    logits: &[Vec<f64>],
    map: Option<&[u32]>,
    rows: &[OutRow],
    result: bool,
    out: &mut StepOut,
) -> Vec<Picked> {
    let logits: Vec<Vec<f32>> = logits.iter().map(|row| row.iter().map(|l| *l as f32).collect()).collect();
    let picked: Vec<Picked> = logits.iter().zip(rows).map(|(l, row)| pick(l, map, row.pick)).collect();
    if result {
        out.picked.clone_from(&picked);
        out.logits =
            logits.iter().zip(rows).filter(|(_, row)| row.logits).flat_map(|(l, _)| l.clone()).collect();
    }
    picked
}

/// Column of the largest value, the first of equals.
fn arg_max(values: impl Iterator<Item = f32>) -> Option<usize> {
    let best = values.zip(0..).reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, column)| column)
}

fn pick(logits: &[f32], map: Option<&[u32]>, how: Pick) -> Picked {
    let id = |column: usize| map.map_or(column as u32, |m| m[column]);
    let column = match how {
        Pick::None => None,
        Pick::Given(token) => (0..logits.len()).find(|c| id(*c) == token),
        Pick::Greedy => arg_max(logits.iter().copied()),
        Pick::Noise { temperature, seed, position } => {
            arg_max(logits.iter().zip(0..).map(|(l, c)| l / temperature + gumbel(seed, position, id(c))))
        }
    };
    let token = match how {
        Pick::Given(token) => token,
        _ => column.map_or(u32::MAX, id),
    };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| (f64::from(*l) - f64::from(max)).exp()).sum();
    Picked {
        token,
        logit: column.map_or(f32::NAN, |c| logits[c]),
        log_sum: (f64::from(max) + sum.ln()) as f32,
        nan: logits.iter().any(|l| l.is_nan()),
    }
}
