//! A row's guess is a function of its own sequence alone: equal bits in any split of the pairs over steps, in any slot and
//! beside any neighbours.

use forerun_cpu::{CpuBackend, CpuConfig};
use forerun_models::ffn::FfnShape;
use forerun_models::{Shape, WeightMix};
use forerun_quant::TensorType;
use forerun_tensor::StepOut;
use forerun_tensor::noise::word;

use crate::fake::Fake;
use crate::runner::{Rows, Runner};

/// Rows of whole blocks of 256.
const SHAPE: Shape = Shape {
    name: "tiny.gguf",
    hidden: 256,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 64,
    ffn: FfnShape::Dense { ffn: 256 },
    vocabulary: 150,
};

const MOE: Shape = Shape { ffn: FfnShape::Experts { experts: 5, top_k: 2, ffn: 256, shared: 256 }, ..SHAPE };

const SEQUENCES: usize = 3;
const LINKS: usize = 3;

/// Numbers that look random and are the same in every run.
struct Rng(u64, u32);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        word(self.0, 0, self.1) as usize % n
    }
}

/// Tokens of a sequence.
fn tokens(sequence: usize) -> Vec<u32> {
    (0..17 + 4 * sequence as u32).map(|i| word(7, sequence as u32, i) % SHAPE.vocabulary as u32).collect()
}

/// Bits of a guess: logits, token, normaliser.
type Guess = Vec<u32>;

fn guesses(out: &StepOut) -> Vec<Guess> {
    let width = SHAPE.vocabulary;
    let one = |(logits, p): (&[f32], &forerun_tensor::Picked)| {
        let mut bits: Guess = logits.iter().map(|l| l.to_bits()).collect();
        bits.extend([p.token, p.logit.to_bits(), p.log_sum.to_bits()]);
        bits
    };
    out.logits.chunks(width).zip(&out.picked).map(one).collect()
}

/// What a sequence gives by itself: the guesses of all its pairs in one step, and a chain from its last pair.
struct Alone {
    pairs: Vec<Guess>,
    chain: Vec<Guess>,
}

/// Runs the model over whole sequences, which fills the rings.
fn fill(r: &mut Runner, all: &[Vec<u32>], slots: &[u32]) {
    let rows = all.iter().zip(slots).map(|(t, slot)| Rows { slot: *slot, pos: 0, tokens: t, out: vec![] });
    for rows in rows {
        r.run(r.model, &[rows]);
    }
}

/// Chains from the last pairs of some sequences at once; `links` have the position and the token of each.
fn chains(r: &mut Runner, mut links: Vec<(u32, usize, u32)>) -> Vec<Vec<Guess>> {
    let mut all = vec![Vec::new(); links.len()];
    for _ in 0..LINKS {
        let tokens: Vec<[u32; 1]> = links.iter().map(|l| [l.2]).collect();
        let rows: Vec<Rows<'_>> = links
            .iter()
            .zip(&tokens)
            .map(|(l, t)| Rows { slot: l.0, pos: l.1, tokens: t, out: vec![0] })
            .collect();
        let out = r.run(r.guesses, &rows);
        for (i, guess) in guesses(&out).into_iter().enumerate() {
            all[i].push(guess);
            links[i] = (links[i].0, links[i].1 + 1, out.picked[i].token);
        }
    }
    all
}

fn alone(r: &mut Runner, tokens: &[u32]) -> Alone {
    fill(r, &[tokens.to_vec()], &[0]);
    let pairs = guesses(&r.run(r.guesses, &[Rows::all(0, &tokens[1..])]));
    fill(r, &[tokens.to_vec()], &[0]);
    let last = tokens.len() - 2;
    let chain = chains(r, vec![(0, last, tokens[last + 1])]).remove(0);
    Alone { pairs, chain }
}

/// All sequences side by side, in steps of random rows of which random ones are guessed from.
fn together(r: &mut Runner, all: &[Vec<u32>], want: &[Alone], seed: u64) {
    let mut rng = Rng(seed, 0);
    let turn = rng.below(SEQUENCES) as u32;
    let slots: Vec<u32> = (0..SEQUENCES as u32).map(|i| (i + turn) % SEQUENCES as u32).collect();
    let mut done = [0; SEQUENCES];
    // The last pair of each is left for the chains.
    while (0..SEQUENCES).any(|s| done[s] + 2 < all[s].len()) {
        // A guess's own hidden state stood where the model's next one was.
        fill(r, all, &slots);
        let (first, only_pairs) = (rng.below(SEQUENCES), rng.below(3) == 0);
        let mut rows = Vec::new();
        let mut at = Vec::new();
        for s in (0..SEQUENCES).map(|i| (i + first) % SEQUENCES) {
            let n = rng.below((all[s].len() - 2 - done[s]).min(9) + 1);
            if n == 0 {
                continue;
            }
            let out: Vec<usize> = (0..n).filter(|_| !only_pairs && rng.below(2) == 0).collect();
            at.extend(out.iter().map(|i| (s, done[s] + i)));
            let tokens = &all[s][done[s] + 1..][..n];
            rows.push(Rows { slot: slots[s], pos: done[s], tokens, out });
            done[s] += n;
        }
        if rows.is_empty() {
            continue;
        }
        let plan = if only_pairs { r.pairs } else { r.guesses };
        for (guess, (s, pair)) in guesses(&r.run(plan, &rows)).into_iter().zip(at) {
            assert!(guess == want[s].pairs[pair], "seed {seed}, sequence {s}, pair {pair}: other bits");
        }
    }
    fill(r, all, &slots);
    let links = (0..SEQUENCES).map(|s| (slots[s], all[s].len() - 2, all[s][all[s].len() - 1])).collect();
    for (s, chain) in chains(r, links).into_iter().enumerate() {
        assert!(chain == want[s].chain, "seed {seed}, sequence {s}: another chain");
    }
}

#[test]
fn guesses_depend_on_their_own_sequence_alone() {
    use TensorType as T;
    let sequences: Vec<Vec<u32>> = (0..SEQUENCES).map(tokens).collect();
    for (shape, mix) in [
        (&SHAPE, WeightMix::All(T::Q4_K)),
        (&SHAPE, WeightMix::All(T::Q6_K)),
        (&SHAPE, WeightMix::All(T::Q8_0)),
        (&SHAPE, WeightMix::Q4KM),
        (&MOE, WeightMix::Q4KM),
    ] {
        let file = Fake::filled(shape, mix, 3);
        let cpu = CpuBackend::new(&CpuConfig::default()).expect("backend");
        let mut r = Runner::load(Box::new(cpu), &file, None, None).unwrap_or_else(|e| panic!("{e}"));
        let want: Vec<Alone> = sequences.iter().map(|t| alone(&mut r, t)).collect();
        (0..4).for_each(|seed| together(&mut r, &sequences, &want, seed));
    }
}
