//! What a model file says about its tokenizer.

use std::path::Path;

use forerun_files::Metadata;

use crate::TextError;

/// The kinds of token of GGUF's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// Steers the model, such as `<|im_end|>`; no part of the text.
    Control,
    /// Text that is one token wherever it occurs.
    UserDefined,
    /// Never used.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

impl TokenKind {
    fn from_gguf(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// A tokenizer's description, as GGUF metadata has it.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSpec {
    /// What errors name: usually the file's path.
    pub origin: String,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `gemma4`.
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before BPE; `qwen35` or `qwen2` for `gpt2`.
    pub pre: String,
    /// Each token's text in the model's own alphabet; the index is the token id.
    pub tokens: Vec<String>,
    /// Each token's kind; empty when the file has none: then `bos` to `pad` below are control tokens.
    pub kinds: Vec<TokenKind>,
    /// Merges in order of rank, two tokens with a space between.
    pub merges: Vec<String>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message.
    pub eom: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<u32>,
    /// Fills batches.
    pub pad: Option<u32>,
    /// Further ids that end a generation, such as those of `generation_config.json`.
    pub end_ids: Vec<u32>,
    /// Whether a prompt starts with `bos`.
    pub add_bos: bool,
    /// The chat template, Jinja.
    pub chat_template: Option<String>,
}

impl TokenizerSpec {
    /// Reads the `tokenizer.*` keys of GGUF metadata.
    ///
    /// # Errors
    /// When a key is missing, has another type, or a token kind is unknown.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TextError> {
        let model = metadata.str("tokenizer.ggml.model")?;
        if model == "none" {
            return Err(TextError::Spec {
                origin: metadata.path().display().to_string(),
                key: "tokenizer.ggml.model",
                found: "none: a model without a tokenizer".into(),
                expected: "`tokenizer.json` in its folder, or a GGUF file with a tokenizer".into(),
            });
        }
        let kinds =
            kinds(metadata.path(), metadata.opt_u32s("tokenizer.ggml.token_type")?.unwrap_or_default())?;
        let add_bos = metadata.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(model == "gemma4");
        Ok(Self {
            origin: metadata.path().display().to_string(),
            pre: metadata.opt_str("tokenizer.ggml.pre")?.unwrap_or_default(),
            tokens: metadata.strings("tokenizer.ggml.tokens")?,
            kinds,
            merges: metadata.strings("tokenizer.ggml.merges")?,
            bos: metadata.opt_u32("tokenizer.ggml.bos_token_id")?,
            eos: metadata.opt_u32("tokenizer.ggml.eos_token_id")?,
            eot: metadata.opt_u32("tokenizer.ggml.eot_token_id")?,
            eom: metadata.opt_u32("tokenizer.ggml.eom_token_id")?,
            unk: metadata.opt_u32("tokenizer.ggml.unknown_token_id")?,
            pad: metadata.opt_u32("tokenizer.ggml.padding_token_id")?,
            end_ids: metadata.opt_u32s("tokenizer.ggml.eos_token_ids")?.unwrap_or_default(),
            add_bos,
            chat_template: metadata.opt_str("tokenizer.chat_template")?,
            model,
        })
    }

    /// The ids with a role of their own, by metadata key.
    pub(crate) fn named_ids(&self) -> [(&'static str, Option<u32>); 6] {
        [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.eom_token_id", self.eom),
            ("tokenizer.ggml.unknown_token_id", self.unk),
            ("tokenizer.ggml.padding_token_id", self.pad),
        ]
    }

    pub(crate) fn error(&self, key: &'static str, found: String, expected: impl Into<String>) -> TextError {
        TextError::Spec { origin: self.origin.clone(), key, found, expected: expected.into() }
    }

    /// Checks what the rest of the crate relies on, and fills in missing kinds.
    pub(crate) fn normalized(mut self) -> Result<Self, TextError> {
        let count = self.tokens.len();
        if count == 0 || u32::try_from(count).is_err() {
            return Err(self.error("tokenizer.ggml.tokens", format!("{count} tokens"), "1 to 2^32 − 1"));
        }
        for (key, id) in self.named_ids() {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return Err(self.error(key, id.to_string(), format!("an id below {count}")));
            }
        }
        if let Some(id) = self.end_ids.iter().find(|&&id| id as usize >= count) {
            return Err(self.error(
                "tokenizer.ggml.eos_token_ids",
                id.to_string(),
                format!("an id below {count}"),
            ));
        }
        if self.add_bos && self.bos.is_none() {
            let expected = "`tokenizer.ggml.bos_token_id` beside it";
            return Err(self.error("tokenizer.ggml.add_bos_token", "true".into(), expected));
        }
        if self.kinds.is_empty() {
            self.kinds = vec![TokenKind::Normal; count];
            for id in self.named_ids().into_iter().filter_map(|(_, id)| id) {
                self.kinds[id as usize] = TokenKind::Control;
            }
        }
        if self.kinds.len() != count {
            let found = format!("{} entries", self.kinds.len());
            return Err(self.error("tokenizer.ggml.token_type", found, format!("{count}, one a token")));
        }
        Ok(self)
    }
}

fn kinds(path: &Path, values: Vec<u32>) -> Result<Vec<TokenKind>, TextError> {
    let kind = |(id, value)| {
        TokenKind::from_gguf(value).ok_or_else(|| TextError::Spec {
            origin: path.display().to_string(),
            key: "tokenizer.ggml.token_type",
            found: format!("{value} for token {id}"),
            expected: "1 to 6".into(),
        })
    };
    values.into_iter().enumerate().map(kind).collect()
}
