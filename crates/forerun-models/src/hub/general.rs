//! The keys `general.*` of a model in a folder.

use forerun_files::{Checkpoint, HubFolder, Metadata, TensorKind, Value};
use forerun_quant::TensorType;

use super::recipe::Recipe;
use crate::error::Result;
use crate::json::Object;

/// `general.name`: the folder's, as words.
pub(super) fn name(folder: &HubFolder, meta: &mut Metadata) {
    let path = folder.folder();
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let Some(name) = whole.file_name().and_then(|n| n.to_str()) else { return };
    let words = name.split(['-', '_']).filter(|w| !w.is_empty()).map(|word| {
        let mut chars = word.chars();
        match chars.next() {
            Some(first) if word == word.to_lowercase() => first.to_uppercase().chain(chars).collect(),
            _ => word.to_owned(),
        }
    });
    meta.set("general.name", Value::String(words.collect::<Vec<String>>().join(" ")));
}

/// `general.sampling.*`: what `generation_config.json` says of sampling.
pub(super) fn sampling(folder: &HubFolder, meta: &mut Metadata) -> Result<()> {
    let Some(json) = folder.json("generation_config.json")? else { return Ok(()) };
    let config = Object { path: folder.path(), prefix: "generation_config.json: ", json: &json };
    if config.opt_bool("do_sample")? == Some(false) {
        return Ok(());
    }
    if let Some(k) = config.opt_count("top_k", 0, i32::MAX as usize)? {
        meta.set("general.sampling.top_k", Value::I32(k as i32));
    }
    let floats = [
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("temperature", "temp"),
        ("repetition_penalty", "penalty_repeat"),
    ];
    for (from, to) in floats {
        if let Some(x) = config.opt_positive(from)? {
            meta.set(&format!("general.sampling.{to}"), Value::F32(x as f32));
        }
    }
    Ok(())
}

/// The id of the file type that most of the weights' bytes have; `None` where that is a type that no GGUF file has.
pub(super) fn file_type(recipes: &[Recipe]) -> Option<u32> {
    const IDS: [(TensorType, u32); 3] = [(TensorType::BF16, 32), (TensorType::F16, 1), (TensorType::F32, 0)];
    let bytes = |is: &dyn Fn(TensorKind) -> bool| {
        let of_type = recipes.iter().filter(|r| is(r.header.kind));
        of_type.map(|r| r.header.bytes()).sum::<usize>()
    };
    let named = |ty: TensorType| bytes(&|kind| kind == TensorKind::Known(ty));
    let affine = bytes(&|kind| matches!(kind, TensorKind::Known(TensorType::Affine(_))));
    let (most, id) = IDS.into_iter().rev().map(|(ty, id)| (named(ty), id)).max_by_key(|(bytes, _)| *bytes)?;
    (most >= affine).then_some(id)
}

/// The number of weights, as `35B` or `256x3.5B`: of one expert, and how many there are.
pub(super) fn size_label(recipes: &[Recipe]) -> String {
    let (mut shared, mut expert, mut counts, mut stacks) = (0u64, 0u64, 0u64, 0u64);
    for header in recipes.iter().map(|r| &r.header) {
        let size = header.elements() as u64;
        match header.dims.get(2) {
            Some(count) if header.name.contains("_exps.") => {
                expert += size / *count as u64;
                counts += *count as u64;
                stacks += 1;
            }
            _ => shared += size,
        }
    }
    let rounded = rounded(shared + expert);
    match counts.checked_div(stacks) {
        Some(count) => format!("{count}x{rounded}"),
        None => rounded,
    }
}

/// A number in thousands, millions, billions or trillions, with two digits at least.
fn rounded(n: u64) -> String {
    let n = n as f64;
    let (scaled, suffix) = match n {
        n if n > 1e12 => (n * 1e-12, 'T'),
        n if n > 1e9 => (n * 1e-9, 'B'),
        n if n > 1e6 => (n * 1e-6, 'M'),
        n => (n * 1e-3, 'K'),
    };
    let digits = match scaled.round_ties_even() {
        0.0 => 2,
        whole if whole < 10.0 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn sizes() {
        let cases = [
            (315_000, "315K"),
            (27_900_000, "28M"),
            (5_800_000, "5.8M"),
            (26_000_000_000, "26B"),
            (120, "0.12K"),
        ];
        for (n, label) in cases {
            assert_eq!(rounded(n), label);
        }
    }
}
