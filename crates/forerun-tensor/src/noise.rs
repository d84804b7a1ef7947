//! Position-keyed randomness: the noise of token `id` at absolute position `position` under `seed` is one fixed number.
//!
//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a pure function, so target and
//! drafter, host and device, any batch and any moment see the same noise. With u uniform in (0, 1],
//! −ln(−log1p(−u)) has the standard Gumbel distribution, and the arg max of `logit/T + noise` is a draw from
//! `softmax(logit/T)`.

use crate::math;

/// No noise is above this: −ln(−log1p(−2⁻³³)) = 22.87. A token whose scaled logit is further than this below the best
/// sum so far cannot win.
pub const NOISE_MAX: f32 = 22.9;

/// The least temperature above 0. With it a logit of up to 3.4·10³⁴ divides to a finite number, so that no two logits of
/// different size meet at infinity, where the lower id would win.
pub const LEAST_TEMPERATURE: f32 = 1e-4;

const ROUNDS: usize = 10;
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox 4x32-10: four random words for a counter under a key.
#[inline(always)]
#[must_use]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The random word of token `id` at `position`: word `id mod 4` of block `id / 4`.
#[inline(always)]
#[must_use]
pub fn word(seed: u64, position: u32, id: u32) -> u32 {
    philox([id >> 2, position, 0, 0], [seed as u32, (seed >> 32) as u32])[(id & 3) as usize]
}

/// [`philox`] of 16 counters `[first, position, 0, 0]` at once, as lanes that a compiler makes vectors of: word w of lane l.
#[inline(always)]
fn philox16(seed: u64, position: u32, firsts: [u32; 16]) -> [[u32; 16]; 4] {
    let mut c = [firsts, [position; 16], [0; 16], [0; 16]];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..ROUNDS {
        let mut next = [[0; 16]; 4];
        for l in 0..16 {
            let a = u64::from(MULTIPLIER[0]) * u64::from(c[0][l]);
            let b = u64::from(MULTIPLIER[1]) * u64::from(c[2][l]);
            next[0][l] = (b >> 32) as u32 ^ c[1][l] ^ key[0];
            next[1][l] = b as u32;
            next[2][l] = (a >> 32) as u32 ^ c[3][l] ^ key[1];
            next[3][l] = a as u32;
        }
        c = next;
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

/// [`word`] of any 16 tokens.
#[inline(always)]
#[must_use]
pub fn words16(seed: u64, position: u32, ids: &[u32; 16]) -> [u32; 16] {
    let c = philox16(seed, position, ids.map(|id| id >> 2));
    let mut out = [0; 16];
    for l in 0..16 {
        let pair = if ids[l] & 2 == 0 { [c[0][l], c[1][l]] } else { [c[2][l], c[3][l]] };
        out[l] = if ids[l] & 1 == 0 { pair[0] } else { pair[1] };
    }
    out
}

/// [`word`] of 64 tokens that follow each other from `first` on, a multiple of 4: token `first + 4 · l + w` at `[w][l]`. Four
/// tokens share a call of Philox.
#[inline(always)]
#[must_use]
pub fn words64(seed: u64, position: u32, first: u32) -> [[u32; 16]; 4] {
    philox16(seed, position, std::array::from_fn(|l| (first >> 2) + l as u32))
}

/// Gumbel noise of a random word: u = (x + ½)·2⁻³² in float32, −ln(−log1p(−u)). A word that rounds to u = 1 gives −inf
/// (it loses); the smallest u keeps its fine resolution on the winning side.
#[inline(always)]
#[must_use]
pub fn gumbel_of_word(x: u32) -> f32 {
    let u = (x as f32 + 0.5) * f32::from_bits(0x2f80_0000);
    -math::ln(-math::log1p(-u))
}

/// The noise added to the scaled logit of token `id` at `position`.
#[inline(always)]
#[must_use]
pub fn gumbel(seed: u64, position: u32, id: u32) -> f32 {
    gumbel_of_word(word(seed, position, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn extreme_words() {
        assert_eq!(gumbel_of_word(u32::MAX), f32::NEG_INFINITY);
        let top = gumbel_of_word(0);
        assert!(top > 22.8 && top < NOISE_MAX, "{top}");
    }

    #[test]
    fn lanes_have_the_words_of_their_ids() {
        let ids = std::array::from_fn(|l| (l as u32).wrapping_mul(0x9e37_79b9) >> (2 * l));
        let words = words16(0x0123_4567_89ab_cdef, 77, &ids);
        assert_eq!(words, ids.map(|id| word(0x0123_4567_89ab_cdef, 77, id)));
    }

    #[test]
    fn consecutive_lanes_have_the_words_of_their_ids() {
        let words = words64(5, 9, 4096);
        for (w, lanes) in words.iter().enumerate() {
            for (l, found) in lanes.iter().enumerate() {
                assert_eq!(*found, word(5, 9, 4096 + 4 * l as u32 + w as u32));
            }
        }
    }

    /// Blocks of four ids share one Philox call, and each id has the word of its place.
    #[test]
    fn words_of_ids() {
        for id in [0, 1, 5, 4_095, u32::MAX] {
            let block = philox([id / 4, 77, 0, 0], [0x89ab_cdef, 0x0123_4567]);
            assert_eq!(word(0x0123_4567_89ab_cdef, 77, id), block[id as usize % 4]);
        }
    }

    /// Mean and variance of the standard Gumbel distribution: Euler's constant and π²/6.
    #[test]
    fn noise_is_gumbel() {
        let n = 400_000;
        let draws: Vec<f64> = (0..n).map(|i| f64::from(gumbel(9, i / 1000, i % 1000))).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.577_215_7).abs() < 0.01, "{mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.03, "{variance}");
    }
}
