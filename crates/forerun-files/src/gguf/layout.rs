//! Rules of tensor data that reader and writer share.

use forerun_quant::TensorType;

use super::{DEFAULT_ALIGNMENT, MAX_DIMS, MAX_NAME};
use crate::error::{FileError, Named};
use crate::metadata::Metadata;

const ALIGNMENT_KEY: &str = "general.alignment";
const MAX_ALIGNMENT: u32 = 1 << 20;

/// The file's alignment of tensor data, in bytes.
pub(crate) fn alignment(metadata: &Metadata) -> Result<usize, FileError> {
    match metadata.opt_u32(ALIGNMENT_KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(a) if a.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&a) => Ok(a as usize),
        Some(a) => Err(FileError::broken(
            metadata.path(),
            Named("key", ALIGNMENT_KEY),
            a,
            format_args!("a power of two from 8 to {MAX_ALIGNMENT}"),
        )),
    }
}

/// What is wrong: found and expected.
pub(crate) type Fault = (String, String);

/// Checks the length of a key's or tensor's name.
pub(crate) fn check_name(name: &str) -> Result<(), Fault> {
    if (1..=MAX_NAME).contains(&name.len()) {
        Ok(())
    } else {
        Err((format!("{} bytes", name.len()), format!("1 to {MAX_NAME} bytes")))
    }
}

/// Checks dimensions, whatever the type.
pub(crate) fn check_dims(dims: &[usize]) -> Result<(), Fault> {
    if !(1..=MAX_DIMS).contains(&dims.len()) {
        return Err((format!("{} dimensions", dims.len()), format!("1 to {MAX_DIMS}")));
    }
    let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    match elements {
        Some(n) if n > 0 && n <= isize::MAX as usize => Ok(()),
        _ => {
            Err((format!("dimensions {dims:?}"), "at least 1 each, and fewer than 2^63 elements".to_owned()))
        }
    }
}

/// Bytes of a tensor whose dimensions passed [`check_dims`].
pub(crate) fn tensor_bytes(ty: TensorType, dims: &[usize]) -> Result<usize, Fault> {
    let (cols, rest) = dims.split_first().map_or((0, dims), |(c, rest)| (*c, rest));
    let found = || format!("dimensions {dims:?} of type {ty}");
    if !cols.is_multiple_of(ty.block_elements()) {
        return Err((found(), format!("rows of whole blocks of {} elements", ty.block_elements())));
    }
    ty.row_bytes(cols)
        .and_then(|row| rest.iter().try_fold(row, |size, d| size.checked_mul(*d)))
        .filter(|size| *size <= isize::MAX as usize)
        .ok_or_else(|| (found(), "fewer than 2^63 bytes".to_owned()))
}
