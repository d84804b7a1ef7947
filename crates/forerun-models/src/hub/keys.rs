//! Writing GGUF metadata.

use forerun_files::{Array, Metadata, Value};

use crate::error::Result;
use crate::json::Object;

/// Writes the keys `{architecture}.*`.
pub(super) struct Writer<'a> {
    pub(super) meta: &'a mut Metadata,
    pub(super) architecture: &'static str,
}

impl Writer<'_> {
    pub(super) fn put(&mut self, key: &str, value: Value) {
        self.meta.set(&format!("{}.{key}", self.architecture), value);
    }

    /// A number that was checked to be far below 2^32.
    pub(super) fn count(&mut self, key: &str, n: usize) {
        self.put(key, Value::U32(n as u32));
    }

    pub(super) fn float(&mut self, key: &str, x: f64) {
        self.put(key, Value::F32(x as f32));
    }

    /// One number where all are equal and `array` does not ask for all of them.
    pub(super) fn counts(&mut self, key: &str, all: &[usize], array: bool) {
        match all {
            [one, rest @ ..] if !array && rest.iter().all(|n| n == one) => self.count(key, *one),
            _ => self.put(key, Value::Array(Array::I32(all.iter().map(|n| *n as i32).collect()))),
        }
    }

    pub(super) fn file_type(&mut self, id: Option<u32>) {
        if let Some(id) = id {
            self.meta.set("general.file_type", Value::U32(id));
        }
    }
}

/// The part `factor` of a head of `head_dim` elements, as a whole number of pairs.
pub(super) fn dims_of(object: Object<'_>, key: &str, head_dim: usize, factor: f64) -> Result<usize> {
    let dims = (head_dim as f64 * factor) as usize;
    if factor > 1.0 || dims < 2 || !dims.is_multiple_of(2) {
        let expected =
            format!("a share of the {head_dim} elements of a head that is a whole number of pairs");
        return Err(object.wrong(key, factor, expected));
    }
    Ok(dims)
}
