//! The tokenizer of a folder as GGUF metadata: `tokenizer.json`, `tokenizer_config.json` and the chat template.

use std::path::{Path, PathBuf};

use forerun_files::{Array, Checkpoint, HubFolder, Metadata, Value};
use serde_json::Value as Json;

use crate::error::{ModelError, Result};
use crate::json::shown;

const MODEL: &str = "tokenizer.ggml.model";
/// Most token ids that are accepted.
const MOST_TOKENS: usize = 1 << 24;

/// Splits before BPE that are known, and what GGUF calls them.
const PATTERNS: [(&str, &str); 2] = [
    (
        "qwen35",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "qwen2",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// Tokens of Gemma that steer the model and are still shown, so that thoughts and tool calls can be read.
const SHOWN: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// How text becomes tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// BPE over bytes, split by the pattern of this name.
    ByteLevel(&'static str),
    /// BPE over text whose spaces are `▁`, with tokens for single bytes.
    Gemma4,
}

/// Kinds of tokens as `tokenizer.ggml.token_type` numbers them.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// Puts the tokenizer's keys. A folder without one is a model without: then its vocabulary's size stands there.
///
/// # Errors
/// When a file is broken, or text is split in a way that is not known.
pub(super) fn put(
    folder: &HubFolder,
    architecture: &str,
    vocabulary: Option<usize>,
    meta: &mut Metadata,
) -> Result<()> {
    let Some(json) = folder.json("tokenizer.json")? else {
        meta.set(MODEL, Value::String("none".into()));
        if let Some(rows) = vocabulary {
            meta.set(
                &format!("{architecture}.vocab_size"),
                Value::U32(u32::try_from(rows).unwrap_or(u32::MAX)),
            );
        }
        return Ok(());
    };
    let reading = Reading { path: folder.folder().join("tokenizer.json"), json: &json };
    let scheme = reading.scheme()?;
    let added = reading.added()?;
    let (tokens, kinds) = reading.tokens(scheme, &added, vocabulary)?;
    let text = |s: &str| Value::String(s.to_owned());
    match scheme {
        Scheme::ByteLevel(pre) => {
            meta.set(MODEL, text("gpt2"));
            meta.set("tokenizer.ggml.pre", text(pre));
        }
        Scheme::Gemma4 => {
            meta.set(MODEL, text("gemma4"));
            meta.set("tokenizer.ggml.pre", text("gemma4"));
        }
    }
    let count = tokens.len();
    meta.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    if scheme == Scheme::Gemma4 {
        meta.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![-1000.0; count])));
    }
    meta.set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    meta.set("tokenizer.ggml.merges", Value::Array(Array::String(reading.merges()?)));
    special_ids(folder, &added, meta)?;
    let config = folder.json("tokenizer_config.json")?.unwrap_or(Json::Null);
    if scheme == Scheme::Gemma4 {
        meta.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
        meta.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    } else if let Some(add) = config.get("add_bos_token").and_then(Json::as_bool) {
        let add = add && meta.get("tokenizer.ggml.bos_token_id").is_some();
        meta.set("tokenizer.ggml.add_bos_token", Value::Bool(add));
    }
    if let Some(template) = template(folder, &config)? {
        meta.set("tokenizer.chat_template", Value::String(template));
    }
    Ok(())
}

/// A token that is added to those of BPE.
struct Added {
    id: usize,
    text: String,
    special: bool,
}

struct Reading<'a> {
    path: PathBuf,
    json: &'a Json,
}

/// An array under a key; an empty one where it is missing.
fn list<'a>(json: &'a Json, key: &str) -> &'a [Json] {
    json.get(key).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// The members of a sequence of processors, or the one that it is.
fn members(json: Option<&Json>) -> Vec<&Json> {
    match json.filter(|j| !j.is_null()) {
        None => Vec::new(),
        Some(j) if is_kind(j, "Sequence") => {
            ["pretokenizers", "normalizers"].iter().flat_map(|k| list(j, k)).collect()
        }
        Some(j) => vec![j],
    }
}

fn is_kind(json: &Json, kind: &str) -> bool {
    json.get("type").is_some_and(|t| *t == kind)
}

impl Reading<'_> {
    fn wrong(
        &self,
        key: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ModelError {
        let path = self.path.clone();
        ModelError::Key { path, key: key.into(), found: found.into(), expected: expected.into() }
    }

    fn model(&self) -> &Json {
        self.json.get("model").unwrap_or(&Json::Null)
    }

    /// How text becomes tokens: what is not exactly a known way is refused.
    fn scheme(&self) -> Result<Scheme> {
        if let Some(kind) = self.model().get("type").filter(|k| **k != "BPE") {
            return Err(self.wrong("model.type", shown(kind), "`BPE`"));
        }
        let normalizers = members(self.json.get("normalizer"));
        let splits = members(self.json.get("pre_tokenizer"));
        if self.model().get("byte_fallback").and_then(Json::as_bool) == Some(true) {
            self.gemma4(&normalizers, &splits)
        } else {
            self.byte_level(&normalizers, &splits)
        }
    }

    fn gemma4(&self, normalizers: &[&Json], splits: &[&Json]) -> Result<Scheme> {
        let spaces = |n: &Json| {
            is_kind(n, "Replace")
                && n.pointer("/pattern/String").is_some_and(|p| *p == " ")
                && n.get("content").is_some_and(|c| *c == "▁")
        };
        if normalizers.len() != 1 || !spaces(normalizers[0]) {
            let found = self.json.get("normalizer").map(shown).unwrap_or_default();
            return Err(self.wrong("normalizer", found, "spaces replaced by `▁` (gemma4)"));
        }
        // No space is left to split at.
        let at_spaces =
            |s: &&Json| is_kind(s, "Split") && s.pointer("/pattern/String").is_some_and(|p| *p == " ");
        match splits.iter().find(|s| !at_spaces(s)) {
            Some(other) => {
                Err(self.wrong("pre_tokenizer", shown(other), "a split at spaces, or none (gemma4)"))
            }
            None => Ok(Scheme::Gemma4),
        }
    }

    fn byte_level(&self, normalizers: &[&Json], splits: &[&Json]) -> Result<Scheme> {
        // GGUF has no word for NFC, which the ecosystem leaves to those who make prompts.
        if let Some(other) = normalizers.iter().find(|n| !is_kind(n, "NFC")) {
            return Err(self.wrong("normalizer", shown(other), "none, or NFC"));
        }
        let names = PATTERNS.map(|(name, _)| name).join("` or `");
        let wrong = |found: &Json| {
            Err(self.wrong(
                "pre_tokenizer",
                shown(found),
                format!("the pattern of `{names}`, then `ByteLevel`"),
            ))
        };
        let &[split, bytes] = splits else {
            return wrong(self.json.get("pre_tokenizer").unwrap_or(&Json::Null));
        };
        let off = |key: &str| bytes.get(key).and_then(Json::as_bool) != Some(true);
        let plain = is_kind(bytes, "ByteLevel")
            && off("add_prefix_space")
            && bytes.get("use_regex") == Some(&false.into());
        if !plain {
            return wrong(bytes);
        }
        let isolated = is_kind(split, "Split")
            && split.get("behavior").is_some_and(|b| *b == "Isolated")
            && split.get("invert").and_then(Json::as_bool) != Some(true);
        let regex = split.pointer("/pattern/Regex").and_then(Json::as_str).filter(|_| isolated);
        match PATTERNS.iter().find(|(_, pattern)| Some(*pattern) == regex) {
            Some((name, _)) => Ok(Scheme::ByteLevel(name)),
            None => wrong(split),
        }
    }

    fn id(&self, of: &str, found: &Json) -> Result<usize> {
        let id = found.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < MOST_TOKENS);
        id.ok_or_else(|| self.wrong(of, shown(found), format!("a token id below {MOST_TOKENS}")))
    }

    fn added(&self) -> Result<Vec<Added>> {
        let read = |token: &Json| {
            let text = token.get("content").and_then(Json::as_str);
            let text = text.ok_or_else(|| self.wrong("added_tokens", shown(token), "`id` and `content`"))?;
            Ok(Added {
                id: self.id("added_tokens", token.get("id").unwrap_or(&Json::Null))?,
                text: text.to_owned(),
                special: token.get("special").and_then(Json::as_bool) == Some(true),
            })
        };
        list(self.json, "added_tokens").iter().map(read).collect()
    }

    /// Texts and kinds by id. Ids up to the embedding's rows that no token has are filled.
    fn tokens(
        &self,
        scheme: Scheme,
        added: &[Added],
        vocabulary: Option<usize>,
    ) -> Result<(Vec<String>, Vec<i32>)> {
        let vocab = self.model().get("vocab").and_then(Json::as_object);
        let vocab = vocab.ok_or_else(|| self.wrong("model.vocab", "nothing", "ids by token"))?;
        let mut all: Vec<Option<(String, i32)>> = vec![None; vocabulary.unwrap_or(0).min(MOST_TOKENS)];
        for (text, id) in vocab {
            let id = self.id("model.vocab", id)?;
            all.resize(all.len().max(id + 1), None);
            let is_byte = scheme == Scheme::Gemma4 && is_byte(text);
            let kind = if is_byte { kind::BYTE } else { kind::NORMAL };
            if let Some((other, _)) = all[id].replace((text.clone(), kind)) {
                let (found, expected) = (format!("id {id} for {text:?} and {other:?}"), "every id once");
                return Err(self.wrong("model.vocab", found, expected));
            }
        }
        for token in added {
            all.resize(all.len().max(token.id + 1), None);
            let other = all[token.id].replace((token.text.clone(), kind_of(scheme, token)));
            if let Some((other, _)) = other.filter(|(other, _)| *other != token.text) {
                let found = format!("id {} for {:?} and {other:?}", token.id, token.text);
                return Err(self.wrong("added_tokens", found, "every id once"));
            }
        }
        let filled =
            |(id, token): (usize, Option<_>)| token.unwrap_or_else(|| (format!("[PAD{id}]"), kind::UNUSED));
        Ok(all.into_iter().enumerate().map(filled).unzip())
    }

    /// Merges in order of rank. Older files have two tokens in one text, newer ones have them apart.
    fn merges(&self) -> Result<Vec<String>> {
        let merge = |found: &Json| match found {
            Json::String(text) => Some(text.clone()),
            Json::Array(pair) => {
                let [left, right] = pair.as_slice() else { return None };
                // A space within a token would be taken for the one between the two.
                let part = |p: &Json| p.as_str().map(|s| s.replace(' ', "\u{120}"));
                Some(format!("{} {}", part(left)?, part(right)?))
            }
            _ => None,
        };
        let read =
            |found: &Json| merge(found).ok_or_else(|| self.wrong("model.merges", shown(found), "two tokens"));
        list(self.model(), "merges").iter().map(read).collect()
    }
}

/// `<0x0A>` and the like.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn kind_of(scheme: Scheme, token: &Added) -> i32 {
    let looks_special = token.text.starts_with("<|") && token.text.ends_with("|>");
    match scheme {
        Scheme::Gemma4 if SHOWN.contains(&token.text.as_str()) => kind::USER_DEFINED,
        Scheme::Gemma4 if token.special => kind::CONTROL,
        Scheme::ByteLevel(_) if token.special || looks_special => kind::CONTROL,
        _ => kind::USER_DEFINED,
    }
}

/// Ids with a role of their own: named by `tokenizer_config.json`, else by `config.json`; and those that end a text.
fn special_ids(folder: &HubFolder, added: &[Added], meta: &mut Metadata) -> Result<()> {
    const ROLES: [(&str, &str); 5] =
        [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"), ("mask", "mask")];
    let tokenizer = folder.json("tokenizer_config.json")?.unwrap_or(Json::Null);
    let top = folder.config().unwrap_or(&Json::Null);
    for (role, key) in ROLES {
        let token = tokenizer.get(format!("{role}_token"));
        let text = token.and_then(|t| t.as_str().or_else(|| t.get("content")?.as_str()));
        let named = text.and_then(|text| added.iter().find(|a| a.text == text)).map(|a| a.id as u64);
        let id_key = format!("{role}_token_id");
        let stated = [top.get(&id_key), top.pointer(&format!("/text_config/{id_key}"))];
        let stated = stated.into_iter().flatten().find_map(|id| ids(id).first().copied());
        if let Some(id) = named.or(stated) {
            put_id(
                &folder.folder().join("config.json"),
                &format!("tokenizer.ggml.{key}_token_id"),
                id,
                meta,
            )?;
        }
    }
    let generation = folder.json("generation_config.json")?.unwrap_or(Json::Null);
    let ends: Vec<u64> = generation.get("eos_token_id").map(ids).unwrap_or_default();
    if !ends.is_empty() {
        let ends = ends.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect();
        meta.set("tokenizer.ggml.eos_token_ids", Value::Array(Array::U32(ends)));
    }
    Ok(())
}

/// One id, or several.
fn ids(json: &Json) -> Vec<u64> {
    match json {
        Json::Array(all) => all.iter().filter_map(Json::as_u64).collect(),
        one => one.as_u64().into_iter().collect(),
    }
}

fn put_id(path: &Path, key: &str, id: u64, meta: &mut Metadata) -> Result<()> {
    let Ok(id) = u32::try_from(id) else {
        let expected = format!("an id below {MOST_TOKENS}");
        return Err(ModelError::Key {
            path: path.to_path_buf(),
            key: key.into(),
            found: id.to_string(),
            expected,
        });
    };
    meta.set(key, Value::U32(id));
    Ok(())
}

/// The chat template: of `tokenizer_config.json`, or in a file of its own.
fn template(folder: &HubFolder, config: &Json) -> Result<Option<String>> {
    let within = match config.get("chat_template") {
        Some(Json::String(text)) => Some(text.clone()),
        // Several, by name.
        Some(Json::Array(all)) => {
            let default = all.iter().find(|t| t.get("name").is_some_and(|n| *n == "default"));
            default.and_then(|t| t.get("template")).and_then(Json::as_str).map(str::to_owned)
        }
        _ => None,
    };
    if within.is_some() {
        return Ok(within);
    }
    if let Some(text) = folder.text("chat_template.jinja")? {
        return Ok(Some(text));
    }
    let json = folder.json("chat_template.json")?;
    Ok(json.and_then(|j| j.get("chat_template").and_then(Json::as_str).map(str::to_owned)))
}
