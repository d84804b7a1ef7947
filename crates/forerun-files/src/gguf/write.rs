//! Writing GGUF files: metadata and tensor infos first, then the data in the same order.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use forerun_quant::TensorType;

use super::{DEFAULT_ALIGNMENT, MAGIC};
use crate::error::FileError;
use crate::metadata::{Array, Metadata, Value};

/// Writes a GGUF file of version 3. The file appears under its name only when it is complete.
#[derive(Debug)]
pub struct GgufWriter {
    path: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
    /// Name and size of the tensors whose data is still to come, in order.
    pending: std::collections::VecDeque<(String, usize)>,
    written: usize,
    finished: bool,
}

impl GgufWriter {
    /// Starts a file with its metadata and the names, types and dimensions (fastest first) of its tensors.
    ///
    /// # Errors
    /// When the file cannot be written, or a tensor's dimensions do not fit its type.
    pub fn create(
        path: &Path,
        metadata: &Metadata,
        tensors: &[(String, TensorType, Vec<usize>)],
    ) -> Result<Self, FileError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".part");
        let temporary = PathBuf::from(temporary);
        let file = File::create(&temporary).map_err(|source| FileError::Io { path: temporary.clone(), source })?;
        let mut writer = Self {
            path: path.to_path_buf(),
            temporary,
            out: BufWriter::new(file),
            pending: std::collections::VecDeque::new(),
            written: 0,
            finished: false,
        };
        let header = writer.header(metadata, tensors)?;
        writer.put(&header)?;
        writer.pad()?;
        Ok(writer)
    }

    fn header(
        &mut self,
        metadata: &Metadata,
        tensors: &[(String, TensorType, Vec<usize>)],
    ) -> Result<Vec<u8>, FileError> {
        let mut h = Vec::new();
        h.extend_from_slice(&MAGIC);
        h.extend_from_slice(&3u32.to_le_bytes());
        h.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        h.extend_from_slice(&(metadata.iter().count() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            put_string(&mut h, key);
            put_value(&mut h, value);
        }
        let mut offset = 0usize;
        for (name, ty, dims) in tensors {
            let size = dims
                .first()
                .and_then(|d| ty.row_bytes(*d))
                .and_then(|row| dims[1..].iter().try_fold(row, |s, d| s.checked_mul(*d)))
                .ok_or_else(|| self.broken(name, format!("dimensions {dims:?} of type {ty}"), "whole blocks"))?;
            put_string(&mut h, name);
            h.extend_from_slice(&(dims.len() as u32).to_le_bytes());
            for d in dims {
                h.extend_from_slice(&(*d as u64).to_le_bytes());
            }
            h.extend_from_slice(&ty.ggml_id().to_le_bytes());
            h.extend_from_slice(&(offset as u64).to_le_bytes());
            offset = (offset + size).next_multiple_of(DEFAULT_ALIGNMENT);
            self.pending.push_back((name.clone(), size));
        }
        Ok(h)
    }

    fn broken(&self, tensor: &str, found: impl ToString, expected: impl ToString) -> FileError {
        FileError::Broken {
            path: self.path.clone(),
            what: format!("tensor `{tensor}`"),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.written += bytes.len();
        self.out.write_all(bytes).map_err(|source| FileError::Io { path: self.temporary.clone(), source })
    }

    fn pad(&mut self) -> Result<(), FileError> {
        let padding = self.written.next_multiple_of(DEFAULT_ALIGNMENT) - self.written;
        self.put(&[0; DEFAULT_ALIGNMENT][..padding])
    }

    /// Writes the data of the next tensor, which must be `name`.
    ///
    /// # Errors
    /// When the file cannot be written, another tensor is next, or the data has another size.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<(), FileError> {
        match self.pending.pop_front() {
            Some((expected, size)) if expected == name && size == data.len() => {
                self.put(data)?;
                self.pad()
            }
            next => Err(self.broken(name, format!("{} bytes", data.len()), format!("{next:?}"))),
        }
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// When data is missing or the file cannot be written.
    pub fn finish(mut self) -> Result<(), FileError> {
        if let Some((name, _)) = self.pending.front() {
            return Err(self.broken(name, "no data", "data for every tensor"));
        }
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| FileError::Io { path, source }
        };
        self.out.flush().map_err(io(&self.temporary))?;
        self.out.get_ref().sync_all().map_err(io(&self.temporary))?;
        std::fs::rename(&self.temporary, &self.path).map_err(io(&self.path))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for GgufWriter {
    fn drop(&mut self) {
        if !self.finished {
            // Best effort: a left-over part is harmless and was never under the file's name.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

fn put_string(out: &mut Vec<u8>, s: &str) {
    out.extend_from_slice(&(s.len() as u64).to_le_bytes());
    out.extend_from_slice(s.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    macro_rules! scalar {
        ($id:literal, $v:expr) => {{
            out.extend_from_slice(&u32::to_le_bytes($id));
            out.extend_from_slice(&$v.to_le_bytes());
        }};
    }
    match value {
        Value::U8(v) => scalar!(0, v),
        Value::I8(v) => scalar!(1, v),
        Value::U16(v) => scalar!(2, v),
        Value::I16(v) => scalar!(3, v),
        Value::U32(v) => scalar!(4, v),
        Value::I32(v) => scalar!(5, v),
        Value::F32(v) => scalar!(6, v),
        Value::Bool(v) => scalar!(7, u8::from(*v)),
        Value::U64(v) => scalar!(10, v),
        Value::I64(v) => scalar!(11, v),
        Value::F64(v) => scalar!(12, v),
        Value::String(s) => {
            out.extend_from_slice(&8u32.to_le_bytes());
            put_string(out, s);
        }
        Value::Array(a) => {
            out.extend_from_slice(&9u32.to_le_bytes());
            put_array(out, a);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn head(out: &mut Vec<u8>, id: u32, len: usize) {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(len as u64).to_le_bytes());
    }
    macro_rules! scalars {
        ($id:literal, $v:expr) => {{
            head(out, $id, $v.len());
            $v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(v) => scalars!(0, v),
        Array::I8(v) => scalars!(1, v),
        Array::U16(v) => scalars!(2, v),
        Array::I16(v) => scalars!(3, v),
        Array::U32(v) => scalars!(4, v),
        Array::I32(v) => scalars!(5, v),
        Array::F32(v) => scalars!(6, v),
        Array::U64(v) => scalars!(10, v),
        Array::I64(v) => scalars!(11, v),
        Array::F64(v) => scalars!(12, v),
        Array::Bool(v) => {
            head(out, 7, v.len());
            out.extend(v.iter().map(|b| u8::from(*b)));
        }
        Array::String(v) => {
            head(out, 8, v.len());
            v.iter().for_each(|s| put_string(out, s));
        }
    }
}
