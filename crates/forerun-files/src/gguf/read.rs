//! One GGUF file: header, metadata, tensor infos, and where the data of each tensor lies.

use std::collections::HashSet;
use std::path::Path;

use forerun_quant::TensorType;

use super::cursor::Cursor;
use super::layout::{alignment, check_dims, check_name, tensor_bytes};
use super::{MAGIC, MAX_DIMS};
use crate::checkpoint::{TensorInfo, TensorKind};
use crate::error::{FileError, Named};
use crate::metadata::Metadata;

/// Bytes of the shortest key: length and one byte of name, type, one byte of value.
const LEAST_KEY: usize = 8 + 1 + 4 + 1;
/// Bytes of the shortest tensor info: length and one byte of name, number of dimensions and one of them, type, offset.
const LEAST_INFO: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// What one file says.
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// Reads and checks everything but the data itself. `part` is put into the tensor infos.
pub(crate) fn read_header(path: &Path, bytes: &[u8], part: usize) -> Result<Header, FileError> {
    let mut c = Cursor::new(path, bytes);
    read_start(&mut c)?;
    let tensor_count = c.count(&"tensor count", LEAST_INFO)?;
    let key_count = c.count(&"metadata count", LEAST_KEY)?;
    let mut metadata = Metadata::new(path);
    for i in 0..key_count {
        let what = format_args!("name of key {i}");
        let key = c.string(&what)?;
        check_name(&key).map_err(|(found, expected)| c.broken(what, found, expected))?;
        let value = c.value(&key)?;
        if !metadata.insert(&key, value) {
            return Err(c.broken(Named("key", &key), "it twice", "every key once"));
        }
    }
    let alignment = alignment(&metadata)?;
    let mut infos = Vec::new();
    let mut names = HashSet::new();
    for i in 0..tensor_count {
        let info = read_info(&mut c, i)?;
        if !names.insert(info.name.clone()) {
            return Err(c.broken(Named("tensor", &info.name), "it twice", "every tensor once"));
        }
        infos.push(info);
    }
    let data = c.position().next_multiple_of(alignment);
    let layout = Layout { c: &c, data, alignment, len: bytes.len(), part };
    let tensors = infos.into_iter().map(|info| layout.place(info)).collect::<Result<Vec<_>, _>>()?;
    layout.refuse_overlap(&tensors)?;
    Ok(Header { metadata, tensors })
}

fn read_start(c: &mut Cursor<'_>) -> Result<(), FileError> {
    let magic: [u8; 4] = c.array(&"magic")?;
    if magic != MAGIC {
        let found = format!("\"{}\"", magic.escape_ascii());
        return Err(c.broken("magic", found, "\"GGUF\""));
    }
    match c.u32(&"version")? {
        2 | 3 => Ok(()),
        v if matches!(v.swap_bytes(), 1..=3) => {
            let found = format!("version {} in big-endian order", v.swap_bytes());
            Err(c.broken("version", found, "2 or 3, little endian"))
        }
        v => Err(c.broken("version", v, "2 or 3")),
    }
}

struct RawInfo {
    name: String,
    dims: Vec<usize>,
    kind: TensorKind,
    /// From the start of the file's data.
    offset: u64,
}

fn read_info(c: &mut Cursor<'_>, i: usize) -> Result<RawInfo, FileError> {
    let what = format_args!("name of tensor {i}");
    let name = c.string(&what)?;
    check_name(&name).map_err(|(found, expected)| c.broken(what, found, expected))?;
    let what = Named("tensor", &name);
    let count = c.u32(&what)?;
    if !(1..=MAX_DIMS as u32).contains(&count) {
        return Err(c.broken(what, format_args!("{count} dimensions"), format_args!("1 to {MAX_DIMS}")));
    }
    let mut dims = Vec::with_capacity(MAX_DIMS);
    for _ in 0..count {
        // A dimension beyond usize fails the check below as any that is too large.
        dims.push(usize::try_from(c.u64(&what)?).unwrap_or(usize::MAX));
    }
    check_dims(&dims).map_err(|(found, expected)| c.broken(&what, found, expected))?;
    let id = c.u32(&what)?;
    let kind = TensorType::from_ggml_id(id).map_or(TensorKind::Unknown(id), TensorKind::Known);
    let offset = c.u64(&what)?;
    Ok(RawInfo { name, dims, kind, offset })
}

/// Where the data of a file lies.
struct Layout<'a> {
    c: &'a Cursor<'a>,
    /// Start of the data.
    data: usize,
    alignment: usize,
    /// Bytes of the whole file.
    len: usize,
    part: usize,
}

impl Layout<'_> {
    fn place(&self, info: RawInfo) -> Result<TensorInfo, FileError> {
        let RawInfo { name, dims, kind, offset } = info;
        let fault = |found: String, expected: String| self.c.broken(Named("tensor", &name), found, expected);
        if !offset.is_multiple_of(self.alignment as u64) {
            return Err(fault(format!("offset {offset}"), format!("a multiple of {}", self.alignment)));
        }
        let (size, least) = match kind {
            TensorKind::Known(ty) => tensor_bytes(ty, &dims).map(|n| (n, n)).map_err(|(f, e)| fault(f, e))?,
            TensorKind::Unknown(_) | TensorKind::Foreign(_) => (0, 1),
        };
        let start = usize::try_from(offset).ok().and_then(|o| o.checked_add(self.data));
        match start.and_then(|s| Some((s, s.checked_add(least)?))) {
            Some((start, end)) if end <= self.len => {
                Ok(TensorInfo { name, dims, kind, part: self.part, range: start..start + size })
            }
            _ => Err(fault(
                format!("at least {least} bytes of data at {} + {offset}", self.data),
                format!("an end within the file's {} bytes", self.len),
            )),
        }
    }

    fn refuse_overlap(&self, tensors: &[TensorInfo]) -> Result<(), FileError> {
        let mut order: Vec<&TensorInfo> = tensors.iter().collect();
        order.sort_by_key(|t| t.range.start);
        for (a, b) in order.iter().zip(order.iter().skip(1)) {
            // Ranges of unknown types are empty, so equal starts are looked for too.
            if b.range.start < a.range.end || b.range.start == a.range.start {
                let found =
                    format!("data at {:?} over {} at {:?}", b.range, Named("tensor", &a.name), a.range);
                return Err(self.c.broken(Named("tensor", &b.name), found, "data that do not overlap"));
            }
        }
        Ok(())
    }
}
