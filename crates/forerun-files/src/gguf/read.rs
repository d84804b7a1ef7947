//! One GGUF file: header, metadata, tensor infos, and where the data of each tensor lies.

use std::collections::HashSet;
use std::path::Path;

use forerun_quant::TensorType;

use super::cursor::Cursor;
use super::{DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_NAME};
use crate::checkpoint::{TensorInfo, TensorKind};
use crate::error::FileError;
use crate::metadata::Metadata;

/// What one file says.
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// Reads and checks everything but the data itself. `part` is put into the tensor infos.
pub(crate) fn read_header(path: &Path, bytes: &[u8], part: usize) -> Result<Header, FileError> {
    let mut c = Cursor::new(path, bytes);
    let magic = c.take(4, "magic")?;
    if magic != MAGIC {
        return Err(c.broken("magic", format!("bytes {magic:02x?}"), "\"GGUF\""));
    }
    let version = c.u32("version")?;
    if !matches!(version, 2 | 3) {
        let found = if matches!(version.swap_bytes(), 1..=3) {
            format!("version {} in big-endian order", version.swap_bytes())
        } else {
            version.to_string()
        };
        return Err(c.broken("version", found, "2 or 3, little endian"));
    }
    let tensor_count = c.count("tensor count", 24)?;
    let key_count = c.count("metadata count", 13)?;
    let mut metadata = Metadata::new(path);
    for i in 0..key_count {
        let key = c.string(&format!("name of key {i}"))?;
        if key.is_empty() || key.len() > MAX_NAME {
            return Err(c.broken(&format!("name of key {i}"), format!("{} bytes", key.len()), "1 to 65535 bytes"));
        }
        let value = c.value(&key)?;
        if !metadata.insert(&key, value) {
            return Err(c.broken(&format!("key `{key}`"), "it twice", "every key once"));
        }
    }
    let alignment = alignment(&c, &metadata)?;
    let infos = (0..tensor_count).map(|i| read_info(&mut c, i)).collect::<Result<Vec<_>, _>>()?;
    let data = c.position().next_multiple_of(alignment);
    let tensors = place(&c, infos, data, alignment, bytes.len(), part)?;
    Ok(Header { metadata, tensors })
}

fn alignment(c: &Cursor<'_>, metadata: &Metadata) -> Result<usize, FileError> {
    let Some(a) = metadata.opt_u32("general.alignment")? else { return Ok(DEFAULT_ALIGNMENT) };
    if a >= 1 && a.is_power_of_two() && a <= 1 << 20 {
        Ok(a as usize)
    } else {
        Err(c.broken("key `general.alignment`", a, "a power of two up to 2^20"))
    }
}

struct RawInfo {
    name: String,
    dims: Vec<usize>,
    kind: TensorKind,
    offset: u64,
}

fn read_info(c: &mut Cursor<'_>, i: usize) -> Result<RawInfo, FileError> {
    let name = c.string(&format!("name of tensor {i}"))?;
    let what = format!("tensor `{name}`");
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(c.broken(&format!("name of tensor {i}"), format!("{} bytes", name.len()), "1 to 65535 bytes"));
    }
    let count = c.u32(&what)? as usize;
    if count == 0 || count > MAX_DIMS {
        return Err(c.broken(&what, format!("{count} dimensions"), "1 to 4"));
    }
    let mut dims = Vec::with_capacity(count);
    for _ in 0..count {
        let dim = c.u64(&what)?;
        match usize::try_from(dim) {
            Ok(d) if d > 0 && d <= isize::MAX as usize => dims.push(d),
            _ => return Err(c.broken(&what, format!("a dimension of {dim}"), "1 to 2^63 − 1")),
        }
    }
    let id = c.u32(&what)?;
    let kind = TensorType::from_ggml_id(id).map_or(TensorKind::Unknown(id), TensorKind::Known);
    Ok(RawInfo { name, dims, kind, offset: c.u64(&what)? })
}

/// Bytes of a tensor; `None` when the size overflows or rows do not fit the block.
fn tensor_bytes(ty: TensorType, dims: &[usize]) -> Option<usize> {
    let row = ty.row_bytes(*dims.first()?)?;
    dims[1..].iter().try_fold(row, |size, d| size.checked_mul(*d))
}

fn place(
    c: &Cursor<'_>,
    infos: Vec<RawInfo>,
    data: usize,
    alignment: usize,
    len: usize,
    part: usize,
) -> Result<Vec<TensorInfo>, FileError> {
    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(infos.len());
    for info in &infos {
        let what = format!("tensor `{}`", info.name);
        if !names.insert(info.name.as_str()) {
            return Err(c.broken(&what, "it twice", "every tensor once"));
        }
        if !info.offset.is_multiple_of(alignment as u64) {
            return Err(c.broken(&what, format!("offset {}", info.offset), format!("a multiple of {alignment}")));
        }
        let range = match info.kind {
            TensorKind::Unknown(_) => 0..0,
            TensorKind::Known(ty) => {
                let size = tensor_bytes(ty, &info.dims).ok_or_else(|| {
                    let blocks = format!("rows of whole blocks of {}, and a size below 2^64", ty.block_elements());
                    c.broken(&what, format!("dimensions {:?} of type {ty}", info.dims), blocks)
                })?;
                let start = usize::try_from(info.offset).ok().and_then(|o| o.checked_add(data));
                let end = start.and_then(|s| s.checked_add(size)).filter(|e| *e <= len);
                match (start, end) {
                    (Some(start), Some(end)) => start..end,
                    _ => {
                        let found = format!("{size} bytes at offset {} of the data", info.offset);
                        return Err(c.broken(&what, found, format!("an end within the file's {len} bytes")));
                    }
                }
            }
        };
        tensors.push(TensorInfo { name: info.name.clone(), dims: info.dims.clone(), kind: info.kind, part, range });
    }
    no_overlap(c, &tensors)?;
    Ok(tensors)
}

fn no_overlap(c: &Cursor<'_>, tensors: &[TensorInfo]) -> Result<(), FileError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| !t.range.is_empty()).collect();
    order.sort_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            let what = format!("tensor `{}`", pair[1].name);
            let found = format!("data at {:?} inside `{}` at {:?}", pair[1].range, pair[0].name, pair[0].range);
            return Err(c.broken(&what, found, "tensors that do not overlap"));
        }
    }
    Ok(())
}
