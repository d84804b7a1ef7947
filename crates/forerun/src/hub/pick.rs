//! What is taken from a list of files: pure, so that the hub and the cache are read alike.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Types that are taken where none is asked for, the first that there is.
const USUAL: [&str; 3] = ["Q4_K_M", "Q4_K_S", "Q8_0"];

/// Asks for the folder of a repository that also has GGUF files.
const FOLDER: &str = "safetensors";

pub(super) const CONFIG: &str = "config.json";
pub(super) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Files of a folder beside its configuration and weights, where they are there.
const BESIDE: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
];

/// How many names a message lists.
const SHOWN: usize = 20;

/// What fits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// These files; the first is the one to open.
    Files(Vec<String>),
    /// A Hugging Face or MLX folder.
    Folder,
}

/// Why nothing was taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Nothing fits.
    Nothing,
    /// All of these do.
    Several(Vec<String>),
    /// A split file lacks this part.
    Part(String),
}

/// A GGUF file or all parts of a split one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// The weight type in its name, as it is written there.
    pub(super) label: Option<String>,
    /// Names, in order.
    pub(super) parts: Vec<String>,
    /// The first part that is not there.
    missing: Option<String>,
}

impl Model {
    fn shown(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.parts[0])
    }

    fn is(&self, label: &str) -> bool {
        self.label.as_deref().is_some_and(|l| l.eq_ignore_ascii_case(label))
    }

    fn files(&self) -> Result<Pick, Miss> {
        match &self.missing {
            Some(part) => Err(Miss::Part(part.clone())),
            None => Ok(Pick::Files(self.parts.clone())),
        }
    }
}

/// What of `names` is meant by `what`: a file's name, a weight type, `safetensors`; else the usual type, or the only
/// model.
pub(super) fn pick(names: &[String], what: Option<&str>) -> Result<Pick, Miss> {
    let models = models(names);
    let is_folder = names.iter().any(|n| n == CONFIG) && names.iter().any(|n| n == SINGLE || n == INDEX);
    let Some(what) = what else {
        return match &models[..] {
            [] if is_folder => Ok(Pick::Folder),
            [] => Err(Miss::Nothing),
            [only] => only.files(),
            several => {
                let usual = USUAL.iter().find(|usual| several.iter().any(|m| m.is(usual)));
                let usual = usual.ok_or_else(|| Miss::Several(shown(several.iter())))?;
                one(several.iter().filter(|m| m.is(usual)))
            }
        };
    };
    if names.iter().any(|n| n == what) {
        let whole = models.iter().find(|m| m.parts.iter().any(|p| p == what));
        return whole.map_or_else(|| Ok(Pick::Files(vec![what.into()])), Model::files);
    }
    if what.eq_ignore_ascii_case(FOLDER) && is_folder {
        return Ok(Pick::Folder);
    }
    match one(models.iter().filter(|m| m.is(what))) {
        Err(Miss::Nothing) => one(models.iter().filter(|m| m.is(&format!("UD-{what}")))),
        found => found,
    }
}

fn one<'a>(fitting: impl Iterator<Item = &'a Model>) -> Result<Pick, Miss> {
    let fitting: Vec<&Model> = fitting.collect();
    match &fitting[..] {
        [] => Err(Miss::Nothing),
        [only] => only.files(),
        several => Err(Miss::Several(several.iter().map(|m| m.parts[0].clone()).collect())),
    }
}

fn shown<'a>(models: impl Iterator<Item = &'a Model>) -> Vec<String> {
    models.map(|m| m.shown().to_owned()).collect()
}

/// The models among the files, by name. Projectors of images and importance matrices are none.
pub(super) fn models(names: &[String]) -> Vec<Model> {
    let there: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut models: BTreeMap<(&str, u32), Model> = BTreeMap::new();
    for &name in &there {
        let Some(stem) = stem(name) else { continue };
        let base = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
        if base.contains("mmproj") || base.contains("imatrix") {
            continue;
        }
        let (prefix, count) = split(stem).unwrap_or((stem, 0));
        models.entry((prefix, count)).or_insert_with(|| {
            let extension = &name[stem.len()..];
            let part = |i| {
                if count == 0 { name.into() } else { format!("{prefix}-{i:05}-of-{count:05}{extension}") }
            };
            let mut all = (1..=count.max(1)).map(part);
            let parts: Vec<String> = all.by_ref().take_while(|p| there.contains(p.as_str())).collect();
            let missing = (parts.len() < count.max(1) as usize).then(|| part(parts.len() as u32 + 1));
            let parts = if parts.is_empty() { vec![name.to_owned()] } else { parts };
            Model { label: label(prefix), parts, missing }
        });
    }
    models.into_values().collect()
}

/// The name without `.gguf`.
fn stem(name: &str) -> Option<&str> {
    let at = name.len().checked_sub(5)?;
    name.get(at..)?.eq_ignore_ascii_case(".gguf").then(|| &name[..at])
}

/// The name and the number of parts in `NAME-00001-of-00003`.
fn split(stem: &str) -> Option<(&str, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((prefix, count))
}

/// The weight type that a name ends with, or has in it: `Q4_K_M`, `UD-Q4_K_XL`, `bf16`.
fn label(stem: &str) -> Option<String> {
    let words: Vec<&str> = stem.split(['-', '.', '/']).collect();
    let at = words.iter().rposition(|w| is_type(w))?;
    let dynamic = at.checked_sub(1).map(|before| words[before]).filter(|w| w.eq_ignore_ascii_case("UD"));
    Some(dynamic.map_or_else(|| words[at].to_owned(), |ud| format!("{ud}-{}", words[at])))
}

fn is_type(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    let numbered = |prefix: &str| {
        let rest = word.strip_prefix(prefix).map(str::as_bytes);
        rest.is_some_and(|r| matches!(r, [b'1'..=b'9', b'_', ..]))
    };
    matches!(word.as_str(), "F32" | "F16" | "BF16" | "FP16" | "FP32")
        || word.starts_with("MXFP4")
        || word.starts_with("NVFP4")
        || ["Q", "IQ", "TQ"].into_iter().any(numbered)
}

/// The files of a folder, small ones first, by what its index says; or what is wrong with the folder.
pub(super) fn folder(names: &[String], index: Option<&Value>) -> Result<Vec<String>, String> {
    let there: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut files: Vec<String> = vec![CONFIG.into()];
    files.extend(BESIDE.iter().filter(|f| there.contains(**f)).map(ToString::to_string));
    let side =
        |n: &&str| !n.contains('/') && n.ends_with(".safetensors") && n.to_ascii_lowercase().contains("mtp");
    let mut shards: BTreeSet<&str> = there.iter().copied().filter(side).collect();
    match index {
        None => shards.insert(SINGLE),
        Some(index) => {
            files.push(INDEX.into());
            let map = index.get("weight_map").and_then(Value::as_object);
            let map = map.filter(|m| !m.is_empty()).ok_or("no `weight_map` of tensors and files")?;
            for (tensor, file) in map {
                let file = file.as_str().ok_or_else(|| format!("no name of a file for `{tensor}`"))?;
                shards.insert(file);
            }
            true
        }
    };
    files.extend(shards.into_iter().map(ToString::to_string));
    match files.iter().find(|f| !there.contains(f.as_str())) {
        Some(missing) => Err(format!("`{missing}`, which is not in the repository")),
        None => Ok(files),
    }
}

/// What a list has, for messages.
pub(super) fn there(names: &[String]) -> String {
    let mut found = shown(models(names).iter());
    if names.iter().any(|n| n == CONFIG) && names.iter().any(|n| n.ends_with(".safetensors")) {
        found.push(FOLDER.into());
    }
    if found.is_empty() {
        found = names.to_vec();
    }
    list(&found)
}

/// Names, not too many of them.
pub(super) fn list(names: &[String]) -> String {
    let more = names.len().saturating_sub(SHOWN);
    let first = names.iter().take(SHOWN).map(|n| forerun_files::printable(n)).collect::<Vec<_>>().join(", ");
    match (first.as_str(), more) {
        ("", _) => "no files".into(),
        (_, 0) => first,
        _ => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn taken(list: &[&str], what: Option<&str>) -> Vec<String> {
        match pick(&names(list), what) {
            Ok(Pick::Files(files)) => files,
            other => panic!("{list:?} {what:?}: {other:?}"),
        }
    }

    #[test]
    fn without_a_type_the_usual_one_is_taken() {
        let all = [
            "a-BF16.gguf",
            "a-Q4_K_M.gguf",
            "a-Q4_K_S.gguf",
            "a-Q8_0.gguf",
            "mmproj-a-F16.gguf",
            "README.md",
        ];
        assert_eq!(taken(&all, None), ["a-Q4_K_M.gguf"]);
        assert_eq!(taken(&["a-BF16.gguf", "a-Q4_K_S.gguf", "a-Q8_0.gguf"], None), ["a-Q4_K_S.gguf"]);
        assert_eq!(taken(&["a-BF16.gguf", "a-q8_0.gguf"], None), ["a-q8_0.gguf"]);
        assert_eq!(taken(&["a.gguf", "mmproj-Q8_0.gguf", "x.imatrix.gguf"], None), ["a.gguf"]);
        let several = pick(&names(&["a-BF16.gguf", "a-Q6_K.gguf", "b.gguf"]), None);
        assert_eq!(several, Err(Miss::Several(names(&["BF16", "Q6_K", "b.gguf"]))));
        assert_eq!(pick(&names(&["README.md"]), None), Err(Miss::Nothing));
    }

    #[test]
    fn a_type_is_found_wherever_names_have_it() {
        for (file, what) in [
            ("a.q4_k_m.gguf", "Q4_K_M"),
            ("a-UD-Q4_K_XL.gguf", "q4_k_xl"),
            ("a-UD-Q4_K_XL.gguf", "ud-q4_k_xl"),
            ("a-IQ4_XS-imat.GGUF", "iq4_xs"),
            ("BF16/a-00001-of-00001.gguf", "bf16"),
            ("a-MXFP4_MOE.gguf", "mxfp4_moe"),
            ("a-Q8_0.gguf", "a-Q8_0.gguf"),
        ] {
            assert_eq!(taken(&[file, "b-Q2_K.gguf"], Some(what)), [file], "{what}");
        }
        // The plain one is meant where there are both.
        assert_eq!(taken(&["a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf"], Some("q4_k_m")), ["a-Q4_K_M.gguf"]);
        assert_eq!(pick(&names(&["a-Q8_0.gguf"]), Some("q4_0")), Err(Miss::Nothing));
        let both = ["a-Q8_0.gguf", "b-Q8_0.gguf"];
        assert_eq!(pick(&names(&both), Some("q8_0")), Err(Miss::Several(names(&both))));
    }

    #[test]
    fn all_parts_of_a_split_file_or_none() {
        let parts =
            ["q/a-Q8_0-00001-of-00003.gguf", "q/a-Q8_0-00002-of-00003.gguf", "q/a-Q8_0-00003-of-00003.gguf"];
        assert_eq!(taken(&parts, Some("q8_0")), parts);
        assert_eq!(taken(&parts, Some(parts[1])), parts);
        assert_eq!(pick(&names(&parts[..2]), None), Err(Miss::Part(parts[2].into())));
        assert_eq!(pick(&names(&parts[1..]), Some("q8_0")), Err(Miss::Part(parts[0].into())));
        let lonely = "a-00002-of-99999.gguf";
        assert_eq!(pick(&names(&[lonely]), None), Err(Miss::Part("a-00001-of-99999.gguf".into())));
    }

    #[test]
    fn a_folder_is_what_its_index_names() {
        let list =
            ["config.json", INDEX, "m-1.safetensors", "m-2.safetensors", "tokenizer.json", "old.safetensors"];
        assert_eq!(pick(&names(&list), None), Ok(Pick::Folder));
        let index = |files: &[&str]| {
            let map: serde_json::Map<String, Value> =
                files.iter().map(|f| (format!("t{f}"), Value::from(*f))).collect();
            serde_json::json!({ "weight_map": map })
        };
        let files = folder(&names(&list), Some(&index(&["m-2.safetensors", "m-1.safetensors"])));
        let expected = ["config.json", "tokenizer.json", INDEX, "m-1.safetensors", "m-2.safetensors"];
        assert_eq!(files, Ok(names(&expected)));
        assert!(folder(&names(&list), Some(&index(&["m-3.safetensors"]))).is_err());
        assert!(folder(&names(&list), Some(&index(&["../m-1.safetensors"]))).is_err());
        assert!(folder(&names(&list), Some(&index(&[]))).is_err());
        assert!(folder(&names(&list), None).is_err(), "no single file");
        let both = ["config.json", SINGLE, "a-Q8_0.gguf"];
        assert_eq!(taken(&both, None), ["a-Q8_0.gguf"]);
        assert_eq!(pick(&names(&both), Some("safetensors")), Ok(Pick::Folder));
    }
}
