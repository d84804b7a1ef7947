//! Metadata keys of one architecture, with their ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;

use forerun_files::Metadata;

use crate::error::{ModelError, Result};

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
}
