//! Typed metadata: keys in file order, values with lossless conversions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::FileError;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

macro_rules! per_array {
    ($value:expr, $v:ident => $body:expr) => {
        match $value {
            Array::U8($v) => $body,
            Array::I8($v) => $body,
            Array::U16($v) => $body,
            Array::I16($v) => $body,
            Array::U32($v) => $body,
            Array::I32($v) => $body,
            Array::U64($v) => $body,
            Array::I64($v) => $body,
            Array::F32($v) => $body,
            Array::F64($v) => $body,
            Array::Bool($v) => $body,
            Array::String($v) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        per_array!(self, v => v.len())
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Integer elements, whatever their width; `None` for other types.
    #[must_use]
    pub fn integers(&self) -> Option<Vec<i128>> {
        fn wide<T: Copy + Into<i128>>(v: &[T]) -> Vec<i128> {
            v.iter().map(|&x| x.into()).collect()
        }
        Some(match self {
            Array::U8(v) => wide(v),
            Array::I8(v) => wide(v),
            Array::U16(v) => wide(v),
            Array::I16(v) => wide(v),
            Array::U32(v) => wide(v),
            Array::I32(v) => wide(v),
            Array::U64(v) => wide(v),
            Array::I64(v) => wide(v),
            _ => return None,
        })
    }
    fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "array of u8",
            Array::I8(_) => "array of i8",
            Array::U16(_) => "array of u16",
            Array::I16(_) => "array of i16",
            Array::U32(_) => "array of u32",
            Array::I32(_) => "array of i32",
            Array::U64(_) => "array of u64",
            Array::I64(_) => "array of i64",
            Array::F32(_) => "array of f32",
            Array::F64(_) => "array of f64",
            Array::Bool(_) => "array of bool",
            Array::String(_) => "array of string",
        }
    }
}

impl Value {
    /// The type's name, as in `u32`.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(a) => a.type_name(),
        }
    }

    /// The integer, whatever its width; `None` for other types.
    #[must_use]
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// A short form for people: long arrays and texts are cut.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Value::String(s) if s.chars().count() > 80 => {
                format!("{:?}… ({} bytes)", s.chars().take(80).collect::<String>(), s.len())
            }
            Value::String(s) => format!("{s:?}"),
            Value::Array(a) => {
                let shown = per_array!(a, v => v.iter().take(8).map(|x| format!("{x:?}")).collect::<Vec<_>>().join(", "));
                let more = if a.len() > 8 { ", …" } else { "" };
                format!("[{shown}{more}] ({} elements)", a.len())
            }
            Value::Bool(v) => v.to_string(),
            Value::F32(v) => v.to_string(),
            Value::F64(v) => v.to_string(),
            _ => self.integer().map_or_else(String::new, |v| v.to_string()),
        }
    }
}

/// Metadata of a file. Getters name the file and key when something does not fit. A clone shares the values until one
/// of them is changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    path: PathBuf,
    entries: Arc<Entries>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Entries {
    list: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $opt:ident, $get:ident -> $t:ty, $expected:literal, $convert:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// When the key has another type.
            pub fn $opt(&self, key: &str) -> Result<Option<$t>, FileError> {
                let convert: fn(&Value) -> Option<$t> = $convert;
                match self.get(key) {
                    None => Ok(None),
                    Some(v) => convert(v).map(Some).ok_or_else(|| self.wrong_type(key, v, $expected)),
                }
            }
            $(#[$doc])*
            ///
            /// # Errors
            /// When the key is missing or has another type.
            pub fn $get(&self, key: &str) -> Result<$t, FileError> {
                self.$opt(key)?.ok_or_else(|| FileError::MissingKey {
                    path: self.path.clone(),
                    key: key.to_owned(),
                    expected: $expected,
                })
            }
        )*
    };
}

impl Metadata {
    /// Empty metadata of a file.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), ..Self::default() }
    }

    /// The file that getters name in errors.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a key; false when it was there already (the old value stays).
    pub fn insert(&mut self, key: &str, value: Value) -> bool {
        if self.entries.index.contains_key(key) {
            return false;
        }
        let entries = Arc::make_mut(&mut self.entries);
        entries.index.insert(key.to_owned(), entries.list.len());
        entries.list.push((key.to_owned(), value));
        true
    }

    /// Sets a key, whether it was there or not. A key that was there keeps its place.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.entries.index.get(key) {
            Some(&i) => Arc::make_mut(&mut self.entries).list[i].1 = value,
            None => {
                self.insert(key, value);
            }
        }
    }

    /// A value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.index.get(key).map(|&i| &self.entries.list[i].1)
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.list.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.list.iter().map(|(k, v)| (k.as_str(), v))
    }

    fn wrong_type(&self, key: &str, value: &Value, expected: &'static str) -> FileError {
        let found = format!("{} ({})", value.type_name(), value.summary());
        FileError::KeyType { path: self.path.clone(), key: key.to_owned(), found, expected }
    }

    getters! {
        /// A string.
        opt_str, str -> String, "a string", |v| match v { Value::String(s) => Some(s.clone()), _ => None };
        /// An integer that fits u32.
        opt_u32, u32 -> u32, "an integer of 0 to 2^32 − 1", |v| v.integer()?.try_into().ok();
        /// An integer that fits u64.
        opt_u64, u64 -> u64, "an integer of 0 to 2^64 − 1", |v| v.integer()?.try_into().ok();
        /// A float32; integers and float64 are accepted where they convert without loss.
        opt_f32, f32 -> f32, "a number that fits f32", |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => narrow(x),
            _ => v.integer().filter(|i| i.abs() <= 1 << 24).map(|i| i as f32),
        };
        /// An integer that fits i64.
        opt_i64, i64 -> i64, "an integer of −2^63 to 2^63 − 1", |v| v.integer()?.try_into().ok();
        /// A truth value.
        opt_bool, bool -> bool, "a bool", |v| match *v { Value::Bool(b) => Some(b), _ => None };
        /// An array of strings.
        opt_strings, strings -> Vec<String>, "an array of strings",
            |v| match v { Value::Array(Array::String(s)) => Some(s.clone()), _ => None };
        /// An array of truth values.
        opt_bools, bools -> Vec<bool>, "an array of bools",
            |v| match v { Value::Array(Array::Bool(b)) => Some(b.clone()), _ => None };
        /// An array of integers that fit u32.
        opt_u32s, u32s -> Vec<u32>, "an array of integers of 0 to 2^32 − 1", |v| match v {
            Value::Array(a) => a.integers()?.into_iter().map(|i| i.try_into().ok()).collect(),
            _ => None,
        };
        /// An array of float32; float64 is accepted where it converts without loss.
        opt_f32s, f32s -> Vec<f32>, "an array of numbers that fit f32", |v| match v {
            Value::Array(Array::F32(x)) => Some(x.clone()),
            Value::Array(Array::F64(x)) => x.iter().map(|x| narrow(*x)).collect(),
            _ => None,
        };
        /// An array of integers that fit i32.
        opt_i32s, i32s -> Vec<i32>, "an array of integers of −2^31 to 2^31 − 1", |v| match v {
            Value::Array(a) => a.integers()?.into_iter().map(|i| i.try_into().ok()).collect(),
            _ => None,
        };
    }
}

/// The float32 that is the same number.
fn narrow(x: f64) -> Option<f32> {
    let narrow = x as f32;
    (x.is_nan() || f64::from(narrow) == x).then_some(narrow)
}
