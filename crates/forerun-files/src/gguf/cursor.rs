//! Reading little-endian fields from bytes that nobody vouches for.

use std::path::Path;

use crate::error::FileError;
use crate::metadata::{Array, Value};

/// A position in a file's bytes. Every read checks what is left and names what it was reading.
pub(crate) struct Cursor<'a> {
    pub(crate) path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

macro_rules! scalar {
    ($($name:ident: $t:ty),*) => {
        $(pub(crate) fn $name(&mut self, what: &str) -> Result<$t, FileError> {
            let bytes = self.take(size_of::<$t>(), what)?;
            let mut array = [0; size_of::<$t>()];
            array.copy_from_slice(bytes);
            Ok(<$t>::from_le_bytes(array))
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

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn broken(&self, what: &str, found: impl ToString, expected: impl ToString) -> FileError {
        FileError::Broken {
            path: self.path.to_path_buf(),
            what: what.to_owned(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    pub(crate) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], FileError> {
        if len > self.left() {
            let found = format!("the end of the file after {} bytes", self.left());
            return Err(self.broken(what, found, format!("{len} bytes at offset {}", self.at)));
        }
        let bytes = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    scalar!(u8: u8, i8: i8, u16: u16, i16: i16, u32: u32, i32: i32, u64: u64, i64: i64, f32: f32, f64: f64);

    /// A count of things of at least `least` bytes each: more than the file has room for is refused before anything is
    /// allocated.
    pub(crate) fn count(&mut self, what: &str, least: usize) -> Result<usize, FileError> {
        let n = self.u64(what)?;
        let room = self.left() / least.max(1);
        match usize::try_from(n) {
            Ok(count) if count <= room => Ok(count),
            _ => Err(self.broken(what, n, format!("at most {room}, which is all that the file has room for"))),
        }
    }

    pub(crate) fn string(&mut self, what: &str) -> Result<String, FileError> {
        let len = self.count(&format!("length of {what}"), 1)?;
        let bytes = self.take(len, what)?;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s.to_owned()),
            Err(e) => Err(self.broken(what, format!("bytes that are no UTF-8 after {}", e.valid_up_to()), "UTF-8 text")),
        }
    }

    pub(crate) fn bool(&mut self, what: &str) -> Result<bool, FileError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            b => Err(self.broken(what, b, "0 or 1 for a bool")),
        }
    }

    pub(crate) fn value(&mut self, key: &str) -> Result<Value, FileError> {
        let what = format!("key `{key}`");
        let w = what.as_str();
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
            9 => Value::Array(self.array(w)?),
            10 => Value::U64(self.u64(w)?),
            11 => Value::I64(self.i64(w)?),
            12 => Value::F64(self.f64(w)?),
            t => return Err(self.broken(w, format!("value type {t}"), "a type of 0 to 12")),
        })
    }

    fn elements<T>(
        &mut self,
        what: &str,
        least: usize,
        read: impl Fn(&mut Self, &str) -> Result<T, FileError>,
    ) -> Result<Vec<T>, FileError> {
        let n = self.count(&format!("length of {what}"), least)?;
        (0..n).map(|_| read(self, what)).collect()
    }

    fn array(&mut self, w: &str) -> Result<Array, FileError> {
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
            t => return Err(self.broken(w, format!("element type {t}"), "a type of 0 to 12")),
        })
    }
}
