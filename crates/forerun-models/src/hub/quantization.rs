//! What a folder's `config.json` says of quantised weights.

use super::names::canonical;
use crate::error::Result;
use crate::json::{Object, shown};

const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [usize; 3] = [32, 64, 128];

const KEY: &str = "quantization";
/// The key of other tools. MLX's write the same object under both.
const OTHER_KEY: &str = "quantization_config";

/// MLX's `quantization`: bits and group size of all modules, and of some by name.
#[derive(Clone, Copy)]
pub(super) struct Quantization<'a> {
    top: Object<'a>,
    /// Empty where weights are floats.
    config: Object<'a>,
}

impl<'a> Quantization<'a> {
    /// Reads it. What was quantised by other tools or in other modes is refused.
    pub(super) fn read(top: Object<'a>) -> Result<Self> {
        let config = match top.get(KEY) {
            Some(_) => top.object(KEY, "quantization.")?,
            None => top.object(OTHER_KEY, "quantization_config.")?,
        };
        if let Some(found) = config.get("quant_method") {
            let expected = "weights in F32, F16 or BF16, or MLX's affine weights";
            return Err(config.wrong("quant_method", shown(found), expected));
        }
        refuse_other_modes(config)?;
        Ok(Self { top, config })
    }

    /// Bits and group size of a module: its own, or else the folder's.
    pub(super) fn of(&self, module: &str) -> Result<[usize; 2]> {
        let own = self.own(module)?;
        if let Some(own) = own {
            refuse_other_modes(own)?;
        }
        let one = |key: &str, all: &[usize]| {
            let place = own.filter(|own| own.get(key).is_some()).unwrap_or(self.config);
            let n = place.opt_count(key, 1, 128)?;
            n.filter(|n| all.contains(n)).ok_or_else(|| {
                let found = place.get(key).map_or("nothing".into(), shown);
                let expected = format!("one of {all:?}, for the affine weights of `{module}`");
                let place = if self.config.json.is_null() {
                    Object { prefix: "quantization.", ..self.top }
                } else {
                    place
                };
                place.wrong(key, found, expected)
            })
        };
        Ok([one("bits", &BITS)?, one("group_size", &GROUPS)?])
    }

    /// What stands under a module's own name, with whatever prefix the tool gave it.
    fn own(&self, module: &str) -> Result<Option<Object<'a>>> {
        let all = self.config.json.as_object();
        let same = |key: &str| canonical(key).is_some_and(|key| canonical(module) == Some(key));
        let mut entries = all.into_iter().flatten();
        let exact = all.and_then(|all| all.get_key_value(module));
        match exact.or_else(|| entries.find(|(key, _)| same(key))) {
            None | Some((_, serde_json::Value::Bool(true))) => Ok(None),
            Some((_, json)) if json.is_object() => {
                Ok(Some(Object { json, prefix: "quantization[module].", ..self.config }))
            }
            Some((key, json)) => {
                let expected = "an object, since the folder has scales for this module";
                Err(self.config.wrong(key, shown(json), expected))
            }
        }
    }
}

fn refuse_other_modes(config: Object<'_>) -> Result<()> {
    config.expect("mode", "affine")
}
