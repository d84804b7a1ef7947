//! What the values of a template would cost when written, paid in fuel before anything is written.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// How deep values may nest.
const DEEPEST: usize = 500;
/// Bytes of text that one fuel buys, as the engine counts them.
const BYTES_PER_FUEL: usize = 64;
/// Bytes that an item takes beside its text: a number, quotes, brackets, a comma.
const ITEM: usize = 16;

/// The extent of a value with all that it holds. What it holds twice counts twice, as it would be written twice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Size {
    bytes: usize,
    items: usize,
    depth: usize,
}

impl Size {
    /// Measures a value, for one fuel an item.
    pub(super) fn of(state: &State, value: &Value) -> Result<Self, Error> {
        let mut size = Self::default();
        size.add(state, value, 0)?;
        Ok(size)
    }

    fn add(&mut self, state: &State, value: &Value, depth: usize) -> Result<(), Error> {
        state.consume_fuel(1)?;
        self.items += 1;
        self.depth = self.depth.max(depth);
        let text = value.as_bytes().map_or(0, <[u8]>::len);
        self.bytes = self.bytes.saturating_add(text).saturating_add(ITEM);
        let map = value.kind() == ValueKind::Map;
        if !map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(());
        }
        if depth == DEEPEST {
            let message = format!("values nest deeper than {DEEPEST}");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        for item in value.try_iter()? {
            self.add(state, &item, depth + 1)?;
            if map {
                self.add(state, &value.get_item(&item)?, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Pays for writing the value `times` with so many bytes before each item and for each level that it is deep.
    pub(super) fn pay(self, state: &State, item: usize, level: usize, times: usize) -> Result<(), Error> {
        let each = self.depth.saturating_add(1).saturating_mul(level).saturating_add(item);
        let bytes = self.items.saturating_mul(each).saturating_add(self.bytes);
        pay_bytes(state, bytes.saturating_mul(times))
    }
}

/// Pays for so many bytes.
pub(super) fn pay_bytes(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
}
