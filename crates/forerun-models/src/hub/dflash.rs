//! `config.json` and tensor names of DFlash drafters, as GGUF has them.

use forerun_files::{Array, Value};

use super::assemble::Becomes;
use super::keys::Writer;
use super::names::layer;
use crate::dflash::config::Config;
use crate::dflash::read::OF_LAYER;
use crate::dflash::rope::Yarn;
use crate::error::Result;
use crate::json::Object;

/// A drafter's settings.
pub(super) struct Drafter {
    config: Config,
    context: usize,
    /// Whether the model that it drafts for has sections of rotary dims.
    sections: bool,
}

impl Drafter {
    /// Reads a drafter's `config.json`.
    pub(super) fn read(top: Object<'_>, sections: bool) -> Result<Self> {
        let config = Config::from_json(top.path, top.json)?;
        if let Some(yarn) = config.yarn.filter(|y| !y.truncate) {
            let expected = format!("true: GGUF has no key for it (factor {})", yarn.factor);
            return Err(top.wrong("rope_scaling.truncate", "false", expected));
        }
        Ok(Self { config, context: top.count("max_position_embeddings", 1, 1 << 30)?, sections })
    }

    /// The mask token.
    pub(super) fn mask(&self) -> Option<u32> {
        self.config.mask
    }

    /// Number of token ids, where the file says.
    pub(super) fn vocabulary(&self) -> Option<usize> {
        self.config.vocabulary
    }

    /// The keys of the architecture, in the order in which converters write them.
    pub(super) fn metadata(&self, keys: &mut Writer<'_>, file_type: Option<u32>) {
        let c = &self.config;
        keys.count("block_count", c.layers);
        keys.count("context_length", self.context);
        keys.count("embedding_length", c.hidden);
        keys.count("feed_forward_length", c.ffn);
        keys.count("attention.head_count", c.heads);
        keys.count("attention.head_count_kv", c.kv_heads);
        if let Some(causal) = c.causal {
            keys.put("attention.causal", Value::Bool(causal));
        }
        keys.float("rope.freq_base", c.rope_base);
        if let Some(yarn) = &c.yarn {
            put_yarn(keys, yarn);
        }
        keys.float("attention.layer_norm_rms_epsilon", f64::from(c.eps));
        keys.count("attention.key_length", c.head_dim);
        keys.count("attention.value_length", c.head_dim);
        keys.file_type(file_type);
        keys.count("block_size", c.block);
        if let Some(scale) = c.embedding_scale {
            keys.float("embedding_scale", f64::from(scale));
        }
        if let Some(cap) = c.softcap {
            keys.float("final_logit_softcapping", f64::from(cap));
        }
        let inputs = c.target_layers.iter().map(|id| i32::try_from(id + 1).unwrap_or(i32::MAX));
        keys.put("target_layers", Value::Array(Array::I32(inputs.collect())));
        if let Some(window) = c.window.filter(|_| c.sliding.contains(&true)) {
            keys.count("attention.sliding_window", window as usize);
            keys.put("attention.sliding_window_pattern", Value::Array(Array::Bool(c.sliding.clone())));
        }
        if self.sections {
            let sections = vec![(c.head_dim / 2) as i32, 0, 0, 0];
            keys.put("rope.dimension_sections", Value::Array(Array::I32(sections)));
        }
    }

    /// What becomes of a tensor; `None` when drafters have no such tensor.
    pub(super) fn place(&self, name: &str) -> Option<Becomes> {
        Some(Becomes::one(match name {
            "fc.weight" => "fc.weight".to_owned(),
            "hidden_norm.weight" => "enc.output_norm.weight".to_owned(),
            "norm.weight" => "output_norm.weight".to_owned(),
            "embed_tokens.weight" => "token_embd.weight".to_owned(),
            "lm_head.weight" => "output.weight".to_owned(),
            _ => {
                let (i, rest) = layer(name, "").filter(|(i, _)| *i < self.config.layers)?;
                let part = rest.strip_suffix(".weight")?;
                let (gguf, _) = OF_LAYER.iter().find(|(_, hub)| *hub == part)?;
                format!("blk.{i}.{gguf}.weight")
            }
        }))
    }
}

fn put_yarn(keys: &mut Writer<'_>, yarn: &Yarn) {
    keys.put("rope.scaling.type", Value::String("yarn".into()));
    keys.float("rope.scaling.factor", yarn.factor);
    keys.count("rope.scaling.original_context_length", yarn.original as usize);
    // In GGUF this multiplies YaRN's own factor.
    let own = Yarn::scale(yarn.factor, 1.0);
    if yarn.attention_factor != own {
        keys.float("rope.scaling.attn_factor", yarn.attention_factor / own);
    }
    keys.float("rope.scaling.yarn_beta_fast", yarn.beta_fast);
    keys.float("rope.scaling.yarn_beta_slow", yarn.beta_slow);
}
