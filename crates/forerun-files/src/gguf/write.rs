//! Writing GGUF files: metadata and tensor infos first, then the data in the same order.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use forerun_quant::TensorType;
use tempfile::NamedTempFile;

use super::MAGIC;
use super::layout::{Fault, alignment, check_dims, check_name, tensor_bytes};
use crate::error::{FileError, Named};
use crate::metadata::{Array, Metadata, Value};

const VERSION: u32 = 3;

/// Writes a GGUF file of version 3, little endian. The data is written beside the file's name, which it gets only when
/// it is complete; until then an old file of that name stays as it was.
#[derive(Debug)]
pub struct GgufWriter {
    path: PathBuf,
    out: BufWriter<NamedTempFile<File>>,
    alignment: usize,
    /// The tensors whose data is not complete, in order.
    pending: VecDeque<Pending>,
    written: usize,
}

#[derive(Debug)]
struct Pending {
    name: String,
    /// Bytes still to come.
    left: usize,
}

impl GgufWriter {
    /// Starts a file with its metadata and the names, types and dimensions (fastest first) of its tensors. Data is
    /// aligned to `general.alignment` where the metadata has it.
    ///
    /// # Errors
    /// When the file cannot be written, a name or the alignment is not allowed, a tensor comes twice, or its dimensions
    /// do not fit its type.
    pub fn create(
        path: &Path,
        metadata: &Metadata,
        tensors: &[(String, TensorType, Vec<usize>)],
    ) -> Result<Self, FileError> {
        let alignment = alignment(metadata)?;
        let (header, pending) = header(path, metadata, tensors, alignment)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".part");
        #[cfg(unix)]
        {
            // As any new file; the process's mask applies.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = builder.tempfile_in(folder).map_err(FileError::io(path, "create the file"))?;
        let out = BufWriter::with_capacity(1 << 20, file);
        let mut writer = Self { path: path.to_path_buf(), out, alignment, pending, written: 0 };
        writer.put(&header)?;
        writer.pad()?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.written += bytes.len();
        self.out.write_all(bytes).map_err(FileError::io(&self.path, "write"))
    }

    fn pad(&mut self) -> Result<(), FileError> {
        let padding = self.written.next_multiple_of(self.alignment) - self.written;
        self.put(&vec![0; padding])
    }

    /// Writes data of the next tensor, which must be `name`: all of it, or a piece whose rest follows in further calls.
    ///
    /// # Errors
    /// When the file cannot be written, another tensor is next, or the data is longer than the tensor.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<(), FileError> {
        let fault = |found: String, expected: String| {
            Err(FileError::broken(&self.path, Named("tensor", name), found, expected))
        };
        let Some(next) = self.pending.front_mut() else {
            return fault("its data".to_owned(), "none: every tensor is complete".to_owned());
        };
        if next.name != name {
            return fault("its data".to_owned(), format!("data of {}", Named("tensor", &next.name)));
        }
        let Some(left) = next.left.checked_sub(data.len()) else {
            return fault(format!("{} bytes", data.len()), format!("at most {}", next.left));
        };
        next.left = left;
        self.put(data)?;
        if left == 0 {
            self.pending.pop_front();
            self.pad()?;
        }
        Ok(())
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// When data is missing or the file cannot be written.
    pub fn finish(mut self) -> Result<(), FileError> {
        if let Some(next) = self.pending.front() {
            let expected = format!("{} bytes more", next.left);
            return Err(FileError::broken(
                &self.path,
                Named("tensor", &next.name),
                "the end of its data",
                expected,
            ));
        }
        let io = FileError::io(&self.path, "write");
        self.out.flush().map_err(&io)?;
        let file = self.out.into_inner().map_err(|e| io(e.into_error()))?;
        file.as_file().sync_all().map_err(&io)?;
        file.persist(&self.path).map_err(|e| io(e.error))?;
        Ok(())
    }
}

/// Everything before the data, and what data must follow.
fn header(
    path: &Path,
    metadata: &Metadata,
    tensors: &[(String, TensorType, Vec<usize>)],
    alignment: usize,
) -> Result<(Vec<u8>, VecDeque<Pending>), FileError> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        check_name(key)
            .map_err(|(found, expected)| FileError::broken(path, Named("key", key), found, expected))?;
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let mut pending = VecDeque::with_capacity(tensors.len());
    let mut names = HashSet::new();
    let mut offset = 0usize;
    for (name, ty, dims) in tensors {
        let fault =
            |(found, expected): Fault| FileError::broken(path, Named("tensor", name), found, expected);
        check_name(name).map_err(fault)?;
        check_dims(dims).map_err(fault)?;
        let id =
            ty.ggml_id().ok_or_else(|| fault((format!("type {ty}"), "a type of GGUF files".to_owned())))?;
        let left = tensor_bytes(*ty, dims).map_err(fault)?;
        if !names.insert(name) {
            return Err(fault(("it twice".to_owned(), "every tensor once".to_owned())));
        }
        put_string(&mut out, name);
        out.extend_from_slice(&(dims.len() as u32).to_le_bytes());
        for d in dims {
            out.extend_from_slice(&(*d as u64).to_le_bytes());
        }
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(offset as u64).to_le_bytes());
        offset = offset.checked_add(left).and_then(|o| o.checked_next_multiple_of(alignment)).ok_or_else(
            || fault((format!("{left} bytes at offset {offset}"), "fewer than 2^64 bytes".to_owned())),
        )?;
        pending.push_back(Pending { name: name.clone(), left });
    }
    Ok((out, pending))
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
