//! The objects of a `config.json`, read with the ranges of their values.

use std::fmt::Display;
use std::path::Path;

use serde_json::Value as Json;

use crate::error::{ModelError, Result};

/// `found` for people: JSON as it stands, shortened where it is long.
pub(crate) fn shown(found: &Json) -> String {
    found.to_string().chars().take(120).collect()
}

/// An object of a `config.json`.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    pub(crate) path: &'a Path,
    /// Name of the object, with a dot behind it, in messages.
    pub(crate) prefix: &'static str,
    pub(crate) json: &'a Json,
}

impl<'a> Object<'a> {
    pub(crate) fn wrong(&self, key: &str, found: impl Display, expected: impl Display) -> ModelError {
        ModelError::Key {
            path: self.path.to_path_buf(),
            key: format!("{}{key}", self.prefix),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// A value that is there and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Json> {
        self.json.get(key).filter(|v| !v.is_null())
    }

    /// An object in this one; an empty one where it is missing.
    pub(crate) fn object(&self, key: &str, prefix: &'static str) -> Result<Object<'a>> {
        let json = self.get(key).unwrap_or(&Json::Null);
        if !json.is_null() && !json.is_object() {
            return Err(self.wrong(key, shown(json), "an object"));
        }
        Ok(Object { json, prefix, ..*self })
    }

    /// Refuses a text other than `wanted`; a missing one is that.
    pub(crate) fn expect(&self, key: &str, wanted: &str) -> Result<()> {
        match self.get(key) {
            Some(found) if *found != wanted => Err(self.wrong(key, shown(found), format!("`{wanted}`"))),
            _ => Ok(()),
        }
    }

    pub(crate) fn opt_count(&self, key: &str, least: usize, most: usize) -> Result<Option<usize>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let n = found.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (least..=most).contains(n));
        n.map(Some).ok_or_else(|| self.wrong(key, shown(found), format!("a number from {least} to {most}")))
    }

    pub(crate) fn count(&self, key: &str, least: usize, most: usize) -> Result<usize> {
        self.opt_count(key, least, most)?
            .ok_or_else(|| self.wrong(key, "nothing", format!("a number from {least} to {most}")))
    }

    pub(crate) fn opt_positive(&self, key: &str) -> Result<Option<f64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let x = found.as_f64().filter(|x| x.is_finite() && *x > 0.0 && *x <= f64::from(f32::MAX));
        x.map(Some).ok_or_else(|| self.wrong(key, shown(found), "a finite number above 0"))
    }

    pub(crate) fn positive(&self, key: &str) -> Result<f64> {
        self.opt_positive(key)?.ok_or_else(|| self.wrong(key, "nothing", "a finite number above 0"))
    }

    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        found.as_bool().map(Some).ok_or_else(|| self.wrong(key, shown(found), "true or false"))
    }

    pub(crate) fn opt_list<T>(
        &self,
        key: &str,
        expected: &str,
        of: impl Fn(&Json) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let list = found.as_array().and_then(|list| list.iter().map(of).collect());
        list.map(Some).ok_or_else(|| self.wrong(key, shown(found), expected))
    }
}

/// The first of several places that has a value.
pub(crate) fn first<T>(places: impl IntoIterator<Item = Result<Option<T>>>) -> Result<Option<T>> {
    places.into_iter().find_map(Result::transpose).transpose()
}
