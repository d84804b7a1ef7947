//! What a request may ask of the sampler, and its defaults.

use std::collections::BTreeMap;

use forerun_files::{FileError, Metadata};
use forerun_tensor::noise::LEAST_TEMPERATURE;
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, Result};

/// Sampling parameters of a request. Filters apply in this order: bias, penalties, top-k, typical, top-p, min-p,
/// temperature. Bias and penalties take no logit beyond ±10³⁰, but for a bias of `-inf`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Temperature: at least 0.0001, or 0, which takes the most likely token.
    pub temperature: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling: keep the tokens whose surprise is closest to the entropy, up to this mass; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the penalty window; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the penalty window.
    pub frequency_penalty: f32,
    /// Subtracted once when the token occurs in the penalty window.
    pub presence_penalty: f32,
    /// How many of the newest tokens (prompt included) the penalties look at.
    pub penalty_window: u32,
    /// Added to the logit of single tokens. `-inf` bans one.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the position-keyed noise.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// The most likely token at every position, no filters.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::plain(0.0, 0) }
    }

    /// Temperature alone, without filters.
    #[must_use]
    pub fn plain(temperature: f32, seed: u64) -> Self {
        Self { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..Self::default() }
    }

    /// The defaults, overridden by a file's `general.sampling.*` keys.
    ///
    /// # Errors
    /// When such a key has the wrong type or a value out of range; names the file and the key.
    pub fn from_metadata(meta: &Metadata) -> Result<Self> {
        type Field<T> = fn(&mut SamplingParams) -> &mut T;
        let floats: [(&str, Field<f32>); 4] = [
            ("general.sampling.temp", |p| &mut p.temperature),
            ("general.sampling.top_p", |p| &mut p.top_p),
            ("general.sampling.min_p", |p| &mut p.min_p),
            ("general.sampling.penalty_repeat", |p| &mut p.repetition_penalty),
        ];
        let integers: [(&str, Field<u32>); 2] = [
            ("general.sampling.top_k", |p| &mut p.top_k),
            ("general.sampling.penalty_last_n", |p| &mut p.penalty_window),
        ];
        let mut p = Self::default();
        for (key, field) in floats {
            if let Some(value) = meta.opt_f32(key)? {
                *field(&mut p) = value;
                p.validate(u32::MAX).map_err(|error| blame(meta, key, error))?;
            }
        }
        for (key, field) in integers {
            if let Some(value) = meta.opt_u32(key)? {
                *field(&mut p) = value;
            }
        }
        Ok(p)
    }

    /// Checks ranges; token ids of biases must be below `vocabulary`.
    ///
    /// # Errors
    /// Names the parameter, its value and its range.
    pub fn validate(&self, vocabulary: u32) -> Result<()> {
        let bad = |option: &'static str, found: String, expected: &'static str| {
            Err(EngineError::Option { option, found, expected })
        };
        let unit = |v: f32| (0.0..=1.0).contains(&v);
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return bad("temperature", self.temperature.to_string(), "a finite number of at least 0");
        }
        if self.temperature > 0.0 && self.temperature < LEAST_TEMPERATURE {
            return bad("temperature", self.temperature.to_string(), "0, or at least 0.0001");
        }
        if !(unit(self.top_p) && self.top_p > 0.0) {
            return bad("top_p", self.top_p.to_string(), "above 0, at most 1");
        }
        if !(unit(self.typical_p) && self.typical_p > 0.0) {
            return bad("typical_p", self.typical_p.to_string(), "above 0, at most 1");
        }
        if !unit(self.min_p) {
            return bad("min_p", self.min_p.to_string(), "0 to 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return bad("repetition_penalty", self.repetition_penalty.to_string(), "a finite number above 0");
        }
        if !self.frequency_penalty.is_finite() {
            return bad("frequency_penalty", self.frequency_penalty.to_string(), "a finite number");
        }
        if !self.presence_penalty.is_finite() {
            return bad("presence_penalty", self.presence_penalty.to_string(), "a finite number");
        }
        if let Some((id, bias)) =
            self.logit_bias.iter().find(|(id, b)| **id >= vocabulary || b.is_nan() || **b == f32::INFINITY)
        {
            return bad(
                "logit_bias",
                format!("{id}={bias}"),
                "ids of the vocabulary, numbers below infinity",
            );
        }
        Ok(())
    }

    /// Whether the choice is the arg max of the raw logits, with noise or without, so that a device can make it.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        // The likeliest token passes every filter but the typical one.
        let unfiltered = self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0;
        (unfiltered || self.is_greedy())
            && self.typical_p >= 1.0
            && self.logit_bias.is_empty()
            && !self.has_penalties()
    }

    /// Whether the likeliest token that the filters leave is taken, without noise.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Whether any penalty is on.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.frequency_penalty != 0.0
                || self.presence_penalty != 0.0)
    }
}

/// An error of a value that came from a file.
fn blame(meta: &Metadata, key: &str, error: EngineError) -> EngineError {
    match error {
        EngineError::Option { found, expected, .. } => EngineError::File(FileError::Broken {
            path: meta.path().to_path_buf(),
            what: format!("key `{key}`"),
            found,
            expected: expected.to_owned(),
        }),
        other => other,
    }
}
