//! The tensors of a drafter, checked, and whether it fits its model.

use forerun_tensor::{AttentionShape, WeightUse};

use super::config::{ARCHITECTURE, Config};
use super::rope::rope;
use super::{Block, DFlash, Layer, Mask, Params};
use crate::error::{ModelError, Result};
use crate::ffn::Dense;
use crate::source::Source;
use crate::tensors::{Inventory, TensorSpec};

/// What a drafter must fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// The model's own factor on embeddings.
    pub(crate) embedding_scale: f32,
}

/// How a file calls its tensors.
#[derive(Clone, Copy)]
enum Names {
    Gguf,
    Hub,
}

/// Names in GGUF and in Hugging Face folders.
pub(crate) const OF_LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Parts of tensor names that only other kinds of drafters have.
const OTHER_KINDS: [(&str, &str); 6] = [
    ("selector_", "a DFlash2 drafter"),
    ("markov_", "a DSpark drafter"),
    ("attn_sinks", "a drafter with attention sinks"),
    ("self_attn.sinks", "a drafter with attention sinks"),
    ("d2t", "a drafter with a vocabulary of its own"),
    ("mask_embedding", "a drafter with a mask embedding of its own"),
];

impl Names {
    fn whole(self, gguf: &str, hub: &str) -> String {
        format!("{}.weight", if matches!(self, Names::Gguf) { gguf } else { hub })
    }

    fn layer(self, i: usize, gguf: &str) -> String {
        let hub = OF_LAYER.iter().find(|(g, _)| *g == gguf).map_or(gguf, |(_, hub)| *hub);
        match self {
            Names::Gguf => format!("blk.{i}.{gguf}.weight"),
            Names::Hub => format!("layers.{i}.{hub}.weight"),
        }
    }
}

impl DFlash<TensorSpec, ()> {
    /// Reads a drafter for a model. No weight's bytes are touched.
    pub(crate) fn read(source: &dyn Source, target: &Target) -> Result<Self> {
        let (config, names) = match source.config() {
            Some(json) => (Config::from_json(source.metadata().path(), json)?, Names::Hub),
            None => {
                let found = source.metadata().str("general.architecture")?;
                if found != ARCHITECTURE {
                    let path = source.metadata().path().to_path_buf();
                    return Err(ModelError::Architecture { path, found, expected: "dflash, a drafter" });
                }
                (Config::from_gguf(source.metadata())?, Names::Gguf)
            }
        };
        let mut inv = Inventory::new(source);
        for (part, kind) in OTHER_KINDS {
            if let Some(t) = inv.headers().map(|t| t.name.as_str()).filter(|n| n.contains(part)).min() {
                return Err(inv.wrong(t, format!("{kind}, which is not supported"), "a DFlash drafter"));
            }
        }
        fits(source, &config, target)?;
        let drafter = tensors(&mut inv, &config, names, target)?;
        inv.finish(ARCHITECTURE)?;
        Ok(drafter)
    }
}

/// Refuses a drafter that was made for another model.
fn fits(source: &dyn Source, config: &Config, target: &Target) -> Result<()> {
    let wrong = |what: &'static str, found: String, expected: String| {
        let path = source.metadata().path().to_path_buf();
        Err(ModelError::Drafter { path, what, found, expected })
    };
    if config.hidden != target.hidden {
        return wrong("hidden size", config.hidden.to_string(), format!("the model's {}", target.hidden));
    }
    if let Some(n) = config.vocabulary.filter(|n| *n != target.vocabulary) {
        return wrong("vocabulary", format!("{n} tokens"), format!("the model's {}", target.vocabulary));
    }
    if let Some(n) = config.layers_of_target.filter(|n| *n != target.layers) {
        return wrong("layers of its model", n.to_string(), format!("the model's {}", target.layers));
    }
    if let Some(mask) = config.mask.filter(|m| *m as usize >= target.vocabulary) {
        let expected = format!("a token below the model's {}", target.vocabulary);
        return wrong("mask token", mask.to_string(), expected);
    }
    let ids = &config.target_layers;
    if ids.is_empty() || !ids.is_sorted_by(|a, b| a < b) || ids.iter().any(|id| *id >= target.layers) {
        let expected = format!("ascending ids below the model's {} layers", target.layers);
        return wrong("layers that give its features", format!("{ids:?}"), expected);
    }
    if !config.heads.is_multiple_of(config.kv_heads) {
        let expected = format!("a divisor of its {} query heads", config.heads);
        return wrong("key and value heads", config.kv_heads.to_string(), expected);
    }
    if config.head_dim < 2 || !config.head_dim.is_multiple_of(2) {
        return wrong("elements of a head", config.head_dim.to_string(), "an even number".into());
    }
    Ok(())
}

fn tensors(
    inv: &mut Inventory<'_>,
    config: &Config,
    names: Names,
    target: &Target,
) -> Result<DFlash<TensorSpec, ()>> {
    let (hidden, head_dim) = (config.hidden, config.head_dim);
    let shape = AttentionShape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        key_dim: head_dim,
        value_dim: head_dim,
        q_stride: head_dim,
    };
    let blocks = (0..config.layers).map(|i| block(inv, config, names, i)).collect::<Result<Vec<_>>>()?;
    let optional = |inv: &mut Inventory<'_>, name: &str, usage| {
        if !inv.has(name) {
            return Ok(None);
        }
        let table = inv.table(name, hidden, usage)?;
        if table.rows != target.vocabulary {
            let expected = format!("the {} rows of the model's vocabulary", target.vocabulary);
            return Err(inv.wrong(name, format!("{} rows", table.rows), expected));
        }
        Ok(Some(table))
    };
    Ok(DFlash {
        params: Params {
            hidden,
            eps: config.eps,
            attention: shape,
            rope: rope(config.rope_base, head_dim, config.yarn),
            target_layers: config.target_layers.clone(),
            block: config.block,
            mask: config.mask,
            embedding_scale: config.embedding_scale.unwrap_or(target.embedding_scale),
            softcap: config.softcap,
        },
        fc: inv.matrix(&names.whole("fc", "fc"), config.target_layers.len() * hidden, hidden)?,
        hidden_norm: inv.vector(&names.whole("enc.output_norm", "hidden_norm"), hidden)?,
        blocks,
        output_norm: inv.vector(&names.whole("output_norm", "norm"), hidden)?,
        token_embd: optional(inv, &names.whole("token_embd", "embed_tokens"), WeightUse::Table)?,
        output: optional(inv, &names.whole("output", "lm_head"), WeightUse::Matrix)?,
    })
}

fn block(inv: &mut Inventory<'_>, config: &Config, names: Names, i: usize) -> Result<Block<TensorSpec, ()>> {
    let name = |stem: &str| names.layer(i, stem);
    let (hidden, head_dim, ffn) = (config.hidden, config.head_dim, config.ffn);
    let (q, kv) = (config.heads * head_dim, config.kv_heads * head_dim);
    let sliding = config.sliding[i];
    Ok(Block {
        layer: Layer {
            attn_norm: inv.vector(&name("attn_norm"), hidden)?,
            attn_q: inv.matrix(&name("attn_q"), hidden, q)?,
            attn_k: inv.matrix(&name("attn_k"), hidden, kv)?,
            attn_v: inv.matrix(&name("attn_v"), hidden, kv)?,
            attn_q_norm: inv.vector(&name("attn_q_norm"), head_dim)?,
            attn_k_norm: inv.vector(&name("attn_k_norm"), head_dim)?,
            attn_output: inv.matrix(&name("attn_output"), q, hidden)?,
            ffn_norm: inv.vector(&name("ffn_norm"), hidden)?,
        },
        ffn: Dense {
            ffn_gate: inv.matrix(&name("ffn_gate"), hidden, ffn)?,
            ffn_up: inv.matrix(&name("ffn_up"), hidden, ffn)?,
            ffn_down: inv.matrix(&name("ffn_down"), ffn, hidden)?,
        },
        mask: Mask { causal: config.causal.unwrap_or(sliding), window: config.window.filter(|_| sliding) },
        kv: (),
    })
}
