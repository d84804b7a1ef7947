//! Metadata keys of one architecture, with their ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;

use forerun_files::{Metadata, Value};

use crate::error::{ModelError, Result};

/// Most layers that are accepted.
pub(crate) const MOST_BLOCKS: usize = 1024;
/// Largest hidden size that is accepted.
pub(crate) const MOST_HIDDEN: usize = 1 << 17;
/// Most heads that are accepted.
pub(crate) const MOST_HEADS: usize = 1 << 10;
/// Longest head that is accepted.
pub(crate) const MOST_HEAD_DIM: usize = 1 << 12;

/// Getters for the keys `{architecture}.*`.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) meta: &'a Metadata,
    pub(crate) architecture: &'static str,
}

impl Keys<'_> {
    /// The full name of a key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The error that a key's value is not what it should be.
    pub(crate) fn wrong(&self, key: &str, found: impl Display, expected: impl Display) -> ModelError {
        ModelError::Key {
            path: self.meta.path().to_path_buf(),
            key: self.name(key),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    pub(crate) fn opt_count(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(n) = self.meta.opt_u64(&self.name(key))? else { return Ok(None) };
        match usize::try_from(n) {
            Ok(n) if range.contains(&n) => Ok(Some(n)),
            _ => Err(self.wrong(key, n, format!("{} to {}", range.start(), range.end()))),
        }
    }

    pub(crate) fn count(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        match self.opt_count(key, range)? {
            Some(n) => Ok(n),
            None => Ok(self.meta.u64(&self.name(key))? as usize),
        }
    }

    /// A finite number above 0.
    pub(crate) fn positive(&self, key: &str) -> Result<f32> {
        let x = self.meta.f32(&self.name(key))?;
        if x.is_finite() && x > 0.0 { Ok(x) } else { Err(self.wrong(key, x, "a finite number above 0")) }
    }

    /// A number for each of `layers` layers: one for all of them, or an array.
    pub(crate) fn counts(
        &self,
        key: &str,
        layers: usize,
        range: RangeInclusive<usize>,
    ) -> Result<Vec<usize>> {
        let name = self.name(key);
        if !matches!(self.meta.get(&name), Some(Value::Array(_))) {
            return Ok(vec![self.count(key, range)?; layers]);
        }
        let all: Vec<usize> = self.meta.u32s(&name)?.into_iter().map(|n| n as usize).collect();
        if all.len() != layers {
            let expected = format!("one number, or one for each of the {layers} layers");
            return Err(self.wrong(key, format!("{} numbers", all.len()), expected));
        }
        if let Some(i) = all.iter().position(|n| !range.contains(n)) {
            let expected = format!("{} to {}", range.start(), range.end());
            return Err(self.wrong(key, format!("{} for layer {i}", all[i]), expected));
        }
        Ok(all)
    }

    /// Epsilon of the norms.
    pub(crate) fn epsilon(&self) -> Result<f32> {
        let key = "attention.layer_norm_rms_epsilon";
        let eps = self.positive(key)?;
        if eps < 1.0 { Ok(eps) } else { Err(self.wrong(key, eps, "a number below 1")) }
    }

    /// Rotated dims of a head of `head_dim` elements; `default` where the file does not say.
    pub(crate) fn rope_dims(&self, key: &str, head_dim: usize, default: Option<usize>) -> Result<usize> {
        let dims = match (self.opt_count(key, 2..=head_dim)?, default) {
            (Some(dims), _) | (None, Some(dims)) => dims,
            (None, None) => self.count(key, 2..=head_dim)?,
        };
        if dims.is_multiple_of(2) { Ok(dims) } else { Err(self.wrong(key, dims, "an even number")) }
    }

    /// Refuses a way of stretching rotary embeddings.
    pub(crate) fn refuse_rope_scaling(&self) -> Result<()> {
        let key = "rope.scaling.type";
        match self.meta.opt_str(&self.name(key))? {
            Some(kind) if kind != "none" => Err(self.wrong(key, format!("`{kind}`"), "`none`")),
            _ => Ok(()),
        }
    }

    /// Checks what else the file says of its vocabulary against the rows of the embedding.
    pub(crate) fn check_vocabulary(&self, rows: usize) -> Result<()> {
        let expected = || format!("the {rows} rows of tensor `token_embd.weight`");
        if let Some(n) = self.opt_count("vocab_size", 0..=usize::MAX)?
            && n != rows
        {
            return Err(self.wrong("vocab_size", n, expected()));
        }
        let key = "tokenizer.ggml.tokens";
        match self.meta.get(key) {
            Some(Value::Array(tokens)) if tokens.len() > rows => Err(ModelError::Key {
                path: self.meta.path().to_path_buf(),
                key: key.into(),
                found: format!("{} tokens", tokens.len()),
                expected: format!("at most {}", expected()),
            }),
            _ => Ok(()),
        }
    }
}
