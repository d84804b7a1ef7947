//! Reading little-endian fields from bytes that nobody vouches for.

use std::fmt::Display;
use std::path::Path;

use crate::error::{FileError, Named};
use crate::metadata::{Array, Value};

/// A position in a file's bytes. Every read checks what is left and names what it was reading.
pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

/// What is being read, for error messages; it becomes text only when there is an error.
type What<'w> = &'w dyn Display;

macro_rules! scalar {
    ($($name:ident: $t:ty),*) => {
        $(pub(crate) fn $name(&mut self, what: What<'_>) -> Result<$t, FileError> {
            self.array(what).map(<$t>::from_le_bytes)
        })*
    };
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn broken(
        &self,
        what: impl Display,
        found: impl Display,
        expected: impl Display,
    ) -> FileError {
        FileError::broken(self.path, what, found, expected)
    }

    fn truncated(&self, what: What<'_>, len: usize) -> FileError {
        let found = format!("the end of the file at byte {}", self.bytes.len());
        self.broken(what, found, format!("{len} bytes from byte {}", self.at))
    }

    fn take(&mut self, len: usize, what: What<'_>) -> Result<&'a [u8], FileError> {
        let bytes = self.left().get(..len).ok_or_else(|| self.truncated(what, len))?;
        self.at += len;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: What<'_>) -> Result<[u8; N], FileError> {
        let bytes = *self.left().first_chunk().ok_or_else(|| self.truncated(what, N))?;
        self.at += N;
        Ok(bytes)
    }

    scalar!(u8: u8, i8: i8, u16: u16, i16: i16, u32: u32, i32: i32, u64: u64, i64: i64, f32: f32, f64: f64);

    /// A count of things of at least `least` bytes each: more than the file has room for is refused before anything is
    /// allocated.
    pub(crate) fn count(&mut self, what: What<'_>, least: usize) -> Result<usize, FileError> {
        let n = self.u64(what)?;
        let room = self.left().len() / least.max(1);
        match usize::try_from(n) {
            Ok(count) if count <= room => Ok(count),
            _ => Err(self.broken(what, n, format_args!("at most {room}, for which the file has room"))),
        }
    }

    pub(crate) fn string(&mut self, what: What<'_>) -> Result<String, FileError> {
        let len = self.count(&format_args!("length of {what}"), 1)?;
        let bytes = self.take(len, what)?;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s.to_owned()),
            Err(e) => {
                let found = format!("bytes that are no UTF-8 after byte {} of {len}", e.valid_up_to());
                Err(self.broken(what, found, "UTF-8 text"))
            }
        }
    }

    fn bool(&mut self, what: What<'_>) -> Result<bool, FileError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            b => Err(self.broken(what, format_args!("byte {b} for a bool"), "0 or 1")),
        }
    }

    /// The value of a key: a type id and what it says.
    pub(crate) fn value(&mut self, key: &str) -> Result<Value, FileError> {
        let w: What<'_> = &Named("key", key);
        Ok(match self.u32(w)? {
            0 => Value::U8(self.u8(w)?),
            1 => Value::I8(self.i8(w)?),
            2 => Value::U16(self.u16(w)?),
            3 => Value::I16(self.i16(w)?),
            4 => Value::U32(self.u32(w)?),
            5 => Value::I32(self.i32(w)?),
            6 => Value::F32(self.f32(w)?),
            7 => Value::Bool(self.bool(w)?),
            8 => Value::String(self.string(w)?),
            9 => Value::Array(self.value_array(w)?),
            10 => Value::U64(self.u64(w)?),
            11 => Value::I64(self.i64(w)?),
            12 => Value::F64(self.f64(w)?),
            t => return Err(self.broken(w, format_args!("value type {t}"), "a type of 0 to 12")),
        })
    }

    fn elements<T>(
        &mut self,
        what: What<'_>,
        least: usize,
        read: impl Fn(&mut Self, What<'_>) -> Result<T, FileError>,
    ) -> Result<Vec<T>, FileError> {
        let n = self.count(&format_args!("length of {what}"), least)?;
        // Grown while elements are really there: a string takes more room in memory than its length field in the file.
        let mut elements = Vec::with_capacity(n.min(1 << 16));
        for i in 0..n {
            elements.push(read(self, &format_args!("{what}, element {i}"))?);
        }
        Ok(elements)
    }

    fn value_array(&mut self, w: What<'_>) -> Result<Array, FileError> {
        Ok(match self.u32(w)? {
            0 => Array::U8(self.elements(w, 1, Self::u8)?),
            1 => Array::I8(self.elements(w, 1, Self::i8)?),
            2 => Array::U16(self.elements(w, 2, Self::u16)?),
            3 => Array::I16(self.elements(w, 2, Self::i16)?),
            4 => Array::U32(self.elements(w, 4, Self::u32)?),
            5 => Array::I32(self.elements(w, 4, Self::i32)?),
            6 => Array::F32(self.elements(w, 4, Self::f32)?),
            7 => Array::Bool(self.elements(w, 1, Self::bool)?),
            8 => Array::String(self.elements(w, 8, Self::string)?),
            9 => return Err(self.broken(w, "an array of arrays", "an array of scalars or strings")),
            10 => Array::U64(self.elements(w, 8, Self::u64)?),
            11 => Array::I64(self.elements(w, 8, Self::i64)?),
            12 => Array::F64(self.elements(w, 8, Self::f64)?),
            t => return Err(self.broken(w, format_args!("element type {t}"), "a type of 0 to 12")),
        })
    }
}
