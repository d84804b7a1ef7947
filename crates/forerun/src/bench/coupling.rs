//! How often a drafter could be right at best: couplings of the model's distribution p with the drafter's q.
//!
//! Whatever joint choice of two tokens one invents, they are equal with a chance of at most 1 − TV(p, q) = Σₓ min(pₓ, qₓ). A
//! drafter that adds the model's own Gumbel noise to its logits, as Forerun's does, reaches
//! Σₓ 1 / Σᵧ max(pᵧ/pₓ, qᵧ/qₓ) without knowing p (Daliri, Musco, Suresh: arXiv 2408.07978).
//!
//! Rounds are run here on the low-level runner as the engine runs them, with the logits of every row.

use forerun_engine::{EngineError, Runner, SamplingParams};
use forerun_tensor::{OutRow, Pick, SeqRows, StepOut, StepRows};
use serde::Serialize;

type Result<T> = std::result::Result<T, EngineError>;

/// A figure under the best coupling of all and under shared Gumbel noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Couplings {
    /// The best there is: 1 − total variation.
    pub(super) best: f64,
    /// Shared Gumbel noise.
    pub(super) gumbel: f64,
}

impl Couplings {
    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { best: f(self.best), gumbel: f(self.gumbel) }
    }

    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self { best: f(self.best, other.best), gumbel: f(self.gumbel, other.gumbel) }
    }
}

/// A draft, the model's distribution in its place, and the one it was chosen from.
type Verified = (u32, Vec<f64>, Vec<f64>);

/// Sums over the drafted rows of rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    drafted: u64,
    accepted: u64,
    /// Chances of each row by itself.
    rows: Couplings,
    /// Chances of each row times those that the drafts before it were accepted.
    chains: Couplings,
}

/// What coupling could reach on drafted rows, as shares of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Reach {
    /// Drafted rows.
    pub(super) drafted: u64,
    /// Share of them that was accepted in these rounds.
    pub(super) acceptance: f64,
    /// Mean chance that model and drafter agree on a row, given the drafts before it.
    pub(super) rows: Couplings,
    /// Expected acceptance: a row counts only if every draft before it was accepted too.
    pub(super) rounds: Couplings,
}

impl Sums {
    /// Adds other rounds.
    pub(super) fn merge(&mut self, other: &Self) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.rows = self.rows.zip(other.rows, |a, b| a + b);
        self.chains = self.chains.zip(other.chains, |a, b| a + b);
    }

    /// As shares; `None` without rows.
    pub(super) fn reach(&self) -> Option<Reach> {
        let share = |sum: f64| sum / self.drafted as f64;
        (self.drafted > 0).then(|| Reach {
            drafted: self.drafted,
            acceptance: share(self.accepted as f64),
            rows: self.rows.map(share),
            rounds: self.chains.map(share),
        })
    }

    /// Adds a round: per draft its token and the two distributions it was chosen from.
    ///
    /// Drafts come from q whatever the coupling, so a row's chance weighted with the chances that the drafts before it are
    /// accepted, each given its token, is an unbiased estimate of its acceptance.
    fn add_round(&mut self, rows: &[Verified], accepted: usize) {
        let mut reached = Couplings { best: 1.0, gumbel: 1.0 };
        for (token, p, q) in rows {
            let gumbel = gumbel_agreement(p, q, *token);
            let chance = Couplings { best: overlap(p, q), gumbel: gumbel.total };
            self.rows = self.rows.zip(chance, |a, b| a + b);
            self.chains = self.chains.zip(chance.zip(reached, |a, b| a * b), |a, b| a + b);
            let (p, q) = (p[*token as usize], q[*token as usize]);
            let given = Couplings { best: p.min(q), gumbel: gumbel.of_token };
            // A token that q never gives cannot have been drafted but by rounding.
            reached = reached.zip(given, |a, b| if q > 0.0 { a * (b / q).min(1.0) } else { 0.0 });
        }
        self.drafted += rows.len() as u64;
        self.accepted += accepted as u64;
    }
}

/// Σₓ min(pₓ, qₓ) = 1 − TV(p, q).
fn overlap(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.min(*q)).sum()
}

/// Chances that two arg maxes under the same Gumbel noise are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Agreement {
    /// Whatever the token.
    total: f64,
    /// And both are the token asked for.
    of_token: f64,
}

/// Σₓ 1 / Σᵧ max(pᵧ/pₓ, qᵧ/qₓ). Sorted by pᵧ/qᵧ, the first of the two is the larger exactly from x on, so that two running
/// sums give every term.
fn gumbel_agreement(p: &[f64], q: &[f64], token: u32) -> Agreement {
    let mut order: Vec<(f64, usize)> =
        (0..p.len().min(q.len())).filter(|&x| p[x] > 0.0 || q[x] > 0.0).map(|x| (p[x] / q[x], x)).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut p_from: f64 = order.iter().map(|&(_, x)| p[x]).sum();
    let mut q_before = 0.0;
    let mut agreement = Agreement { total: 0.0, of_token: 0.0 };
    for (_, x) in order {
        if p[x] > 0.0 && q[x] > 0.0 {
            let term = 1.0 / (p_from / p[x] + q_before / q[x]);
            agreement.total += term;
            if x == token as usize {
                agreement.of_token = term;
            }
        }
        p_from = (p_from - p[x]).max(0.0);
        q_before += q[x];
    }
    agreement
}

/// softmax(logit / T) over the vocabulary; at T = 0 all mass on the largest, ties to the lower id. `ids` names the tokens of
/// the logits when these are not the whole vocabulary.
fn distribution(logits: &[f32], ids: Option<&[u32]>, vocabulary: usize, temperature: f32) -> Vec<f64> {
    let mut mass = vec![0.0; vocabulary];
    let id = |i: usize| ids.map_or(i, |ids| ids[i] as usize);
    let Some((top, largest)) =
        logits.iter().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best })
    else {
        return mass;
    };
    if temperature == 0.0 {
        mass[id(top)] = 1.0;
        return mass;
    }
    let mut sum = 0.0;
    for (i, logit) in logits.iter().enumerate() {
        let weight = ((f64::from(*logit) - f64::from(*largest)) / f64::from(temperature)).exp();
        mass[id(i)] = weight;
        sum += weight;
    }
    mass.iter_mut().for_each(|m| *m /= sum);
    mass
}

/// Runs the rounds of a request whose text is known, drafting `depth` tokens with the MTP block in each, and adds up what
/// couplings could reach. `tokens` are the prompt's `prompt` tokens and those that plain decoding gave. Slot 0 is used and
/// left in no state to go on from.
///
/// # Errors
/// When a step fails, or a logit is no number.
pub(super) fn measure(
    runner: &mut Runner,
    tokens: &[u32],
    prompt: usize,
    sampling: &SamplingParams,
    depth: usize,
    confidence: f32,
) -> Result<Sums> {
    let mut walk = Walk {
        runner,
        tokens,
        sampling,
        confidence,
        known: prompt + 1,
        pairs: 0,
        replay: 0,
        rows: StepRows::default(),
        out: StepOut::default(),
    };
    let mut sums = Sums::default();
    walk.prompt(prompt)?;
    // The last token needs no draft: the model's own is always there.
    while walk.known + 1 < tokens.len() {
        let drafts = walk.draft(depth.min(tokens.len() - walk.known - 1))?;
        let (rows, accepted) = walk.verify(&drafts)?;
        sums.add_round(&rows, accepted);
    }
    Ok(sums)
}

/// A draft and the distribution it was chosen from.
type Draft = (u32, Vec<f64>);

struct Walk<'a> {
    runner: &'a mut Runner,
    tokens: &'a [u32],
    sampling: &'a SamplingParams,
    confidence: f32,
    /// Tokens of the text so far; the model has run all but the last.
    known: usize,
    /// Pairs of the MTP block that have keys and values.
    pairs: usize,
    /// Rows of the newest step that count.
    replay: usize,
    rows: StepRows,
    out: StepOut,
}

impl Walk<'_> {
    fn start(&mut self, pos: usize, rows: usize, replay: usize, commit: bool) {
        self.rows.clear();
        let (pos, rows, replay) = (pos as u32, rows as u32, replay as u32);
        self.rows.seqs.push(SeqRows { slot: 0, pos, rows, replay, commit });
    }

    fn prompt(&mut self, prompt: usize) -> Result<()> {
        let mut run = 0;
        while run < prompt {
            let end = prompt.min(run + self.runner.chunk());
            self.start(run, end - run, 0, true);
            self.rows.tokens.extend_from_slice(&self.tokens[run..end]);
            self.runner.step(&self.rows, &mut self.out)?;
            run = end;
            // Pairs of positions that lie further back than the ring of hidden states could not be made later.
            let end = run.min(prompt - 1);
            if end > self.pairs {
                self.add_pairs(end);
                self.runner.mtp_step(&self.rows, &mut self.out)?;
            }
        }
        Ok(())
    }

    /// A step of the pairs before `end` that are missing.
    fn add_pairs(&mut self, end: usize) {
        let first = self.pairs.min(end - 1);
        self.start(first, end - first, 0, true);
        self.rows.tokens.extend_from_slice(&self.tokens[first + 1..=end]);
        self.pairs = end;
    }

    fn draft(&mut self, depth: usize) -> Result<Vec<Draft>> {
        let vocabulary = self.runner.model().spec().vocabulary();
        let mut drafts: Vec<Draft> = Vec::with_capacity(depth);
        while drafts.len() < depth {
            let position = self.known + drafts.len();
            match drafts.last().map(|d| d.0) {
                None => self.add_pairs(self.known - 1),
                Some(token) => {
                    self.start(position - 2, 1, 0, true);
                    self.rows.tokens.push(token);
                }
            }
            let temperature = self.sampling.temperature;
            let pick = if temperature == 0.0 {
                Pick::Greedy
            } else {
                Pick::Noise { temperature, seed: self.sampling.seed, position: position as u32 }
            };
            self.rows.out.push(OutRow { row: self.rows.tokens.len() as u32 - 1, pick, logits: true });
            self.runner.mtp_step(&self.rows, &mut self.out)?;
            let Some(picked) = self.out.picked.first().copied() else { break };
            if picked.nan {
                return Err(self.runner.not_a_number(position as u32 - 1));
            }
            if self.confidence > 0.0 && picked.logprob().exp() < self.confidence {
                break;
            }
            let ids = self.runner.model().mtp_head_ids().map(|ids| &ids[..]);
            drafts.push((picked.token, distribution(&self.out.logits, ids, vocabulary, temperature)));
        }
        Ok(drafts)
    }

    /// Has the model run the drafts; returns both distributions of each, and how many were accepted.
    fn verify(&mut self, drafts: &[Draft]) -> Result<(Vec<Verified>, usize)> {
        let vocabulary = self.runner.model().spec().vocabulary();
        self.start(self.known - 1, drafts.len() + 1, self.replay, false);
        self.rows.tokens.push(self.tokens[self.known - 1]);
        self.rows.tokens.extend(drafts.iter().map(|d| d.0));
        let all = 0..self.rows.tokens.len() as u32;
        self.rows.out.extend(all.map(|row| OutRow { row, pick: Pick::None, logits: true }));
        self.runner.step(&self.rows, &mut self.out)?;
        if self.out.picked.iter().any(|p| p.nan) {
            return Err(self.runner.not_a_number(self.known as u32 - 1));
        }
        let logits = self.out.logits.chunks_exact(vocabulary);
        let rows = drafts.iter().zip(logits).map(|((token, q), logits)| {
            (*token, distribution(logits, None, vocabulary, self.sampling.temperature), q.clone())
        });
        let rows = rows.collect();
        let text = &self.tokens[self.known..];
        let accepted = drafts.iter().zip(text).take_while(|(draft, token)| draft.0 == **token).count();
        self.known += accepted + 1;
        self.replay = accepted + 1;
        Ok((rows, accepted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "found {found}, expected {expected}");
    }

    #[test]
    fn small_distributions_by_hand() {
        type Case<'a> = (&'a [f64], &'a [f64], f64, f64);
        let third = 1.0 / 3.0;
        let cases: &[Case] = &[
            (&[0.5, 0.5], &[0.5, 0.5], 1.0, 1.0),
            (&[1.0, 0.0], &[0.0, 1.0], 0.0, 0.0),
            (&[1.0, 0.0], &[1.0, 0.0], 1.0, 1.0),
            // Of two tokens, Gumbel noise is the best coupling: 1/(1 + 3) + 1/(1 + 1).
            (&[0.5, 0.5], &[0.25, 0.75], 0.75, 0.75),
            // 1/(1 + 1.5 + 2.5) twice and 1/(5/3 + 1 + 5/3).
            (&[0.5, 0.3, 0.2], &[0.2, 0.3, 0.5], 0.7, 0.4 + 3.0 / 13.0),
            // Only the second token is in both: 1/(1 + 1 + 1).
            (&[0.5, 0.5, 0.0], &[0.0, 0.5, 0.5], 0.5, third),
        ];
        for (p, q, best, gumbel) in cases {
            near(overlap(p, q), *best);
            near(gumbel_agreement(p, q, 0).total, *gumbel);
            near(gumbel_agreement(q, p, 0).total, *gumbel);
        }
        near(gumbel_agreement(&[0.5, 0.3, 0.2], &[0.2, 0.3, 0.5], 1).of_token, 3.0 / 13.0);
    }

    #[test]
    fn distributions_of_logits() {
        let ln = |x: f64| x.ln() as f32;
        let logits = [ln(1.0), ln(3.0), ln(2.0)];
        for (temperature, expected) in [
            (0.0, [0.0, 1.0, 0.0]),
            (1.0, [1.0 / 6.0, 0.5, 1.0 / 3.0]),
            (0.5, [1.0 / 14.0, 9.0 / 14.0, 4.0 / 14.0]),
        ] {
            let found = distribution(&logits, None, 3, temperature);
            assert!(
                found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-6),
                "{temperature}: {found:?}"
            );
        }
        assert_eq!(
            distribution(&[1.0, 1.0], Some(&[3, 1]), 4, 0.0),
            [0.0, 0.0, 0.0, 1.0],
            "ties to the first"
        );
        assert_eq!(distribution(&[1.0, 1.0], Some(&[1, 3]), 4, 1.0), [0.0, 0.5, 0.0, 0.5]);
    }

    #[test]
    fn rounds_weigh_rows_with_the_chance_to_reach_them() {
        let (p, q) = (vec![0.5, 0.5], vec![0.25, 0.75]);
        let mut sums = Sums::default();
        assert_eq!(sums.reach(), None);
        sums.add_round(&[(1, p.clone(), q.clone()), (0, p.clone(), q.clone()), (0, p, q)], 1);
        let reach = sums.reach().expect("rows");
        assert_eq!((reach.drafted, reach.acceptance), (3, 1.0 / 3.0));
        near(reach.rows.best, 0.75);
        // Token 1 is accepted with 2/3, token 0 always.
        near(reach.rounds.best, (0.75 + 0.75 * 2.0 / 3.0 * 2.0) / 3.0);
        near(reach.rounds.gumbel, reach.rounds.best);
    }

    fn two_distributions() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        let weight = prop_oneof![1 => Just(0.0), 3 => 0.0..1.0f64];
        let normal = |pairs: Vec<(f64, f64)>| {
            let (p, q): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let scale = |v: Vec<f64>| {
                let sum: f64 = v.iter().sum();
                v.into_iter().map(|x| x / sum).collect::<Vec<f64>>()
            };
            (scale(p), scale(q))
        };
        prop::collection::vec((weight.clone(), weight), 1..12)
            .prop_filter("mass", |v| v.iter().any(|x| x.0 > 0.0) && v.iter().any(|x| x.1 > 0.0))
            .prop_map(normal)
    }

    proptest! {
        #[test]
        fn running_sums_give_the_double_sum((p, q) in two_distributions()) {
            let mut slow = 0.0;
            for x in (0..p.len()).filter(|&x| p[x] > 0.0 && q[x] > 0.0) {
                slow += 1.0 / (0..p.len()).map(|y| (p[y] / p[x]).max(q[y] / q[x])).sum::<f64>();
            }
            let fast = gumbel_agreement(&p, &q, 0).total;
            prop_assert!((fast - slow).abs() < 1e-9, "{} {}", fast, slow);
            prop_assert!(fast <= overlap(&p, &q) + 1e-9);
            // Daliri, Musco, Suresh: at least (1 − TV) / (1 + TV).
            let tv = 1.0 - overlap(&p, &q);
            prop_assert!(fast >= (1.0 - tv) / (1.0 + tv) - 1e-9);
        }
    }
}
