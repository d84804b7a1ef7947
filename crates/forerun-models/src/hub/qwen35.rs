//! `config.json` and tensor names of the Qwen3.5 family.

use forerun_files::{Array, Value};

use super::assemble::{Becomes, Heads, Order};
use super::keys::{Writer, dims_of};
use super::names::{layer, lookup, numbered};
use super::recipe::Map;
use crate::error::Result;
use crate::ffn::{MOST_EXPERTS, MOST_FFN};
use crate::json::{Object, first, shown};
use crate::keys::{MOST_BLOCKS, MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN};

const DEFAULT_INTERVAL: usize = 4;
const DEFAULT_ROTARY: f64 = 0.25;

/// What the family's `config.json` says.
pub(super) struct Qwen35 {
    layers: usize,
    context: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f64,
    rope_base: f64,
    rope_dims: usize,
    /// Sections of the rotary dims, where the file has them.
    sections: Option<Vec<usize>>,
    ffn: Ffn,
    conv: usize,
    /// Key and value heads of the delta net, and their elements.
    delta: Heads,
    key_dim: usize,
    value_dim: usize,
    /// Per layer, whether it is a delta net.
    recurrent: Vec<bool>,
    interval: usize,
    /// Whether the head is the embedding, where the file says.
    tied: Option<bool>,
}

enum Ffn {
    Dense { ffn: usize },
    Experts { experts: usize, top_k: usize, ffn: usize, shared: usize },
}

impl Qwen35 {
    /// Reads the configuration of the text model.
    pub(super) fn read(text: Object<'_>, moe: bool, tied: Option<bool>) -> Result<Self> {
        let layers = text.count("num_hidden_layers", 1, MOST_BLOCKS - 1)?;
        let heads = text.count("num_attention_heads", 1, MOST_HEADS)?;
        let head_dim = text.count("head_dim", 2, MOST_HEAD_DIM)?;
        text.expect("hidden_act", "silu")?;
        if text.opt_bool("attn_output_gate")? == Some(false) {
            return Err(text.wrong("attn_output_gate", "false", "true"));
        }
        let (rope_base, rope_dims, sections) = rope(text, head_dim)?;
        let key_heads = text.count("linear_num_key_heads", 1, MOST_HEADS)?;
        let value_heads = text.count("linear_num_value_heads", 1, MOST_HEADS)?;
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of the {key_heads} of `linear_num_key_heads`");
            return Err(text.wrong("linear_num_value_heads", value_heads, expected));
        }
        let (recurrent, interval) = recurrent(text, layers)?;
        Ok(Self {
            layers,
            context: text.count("max_position_embeddings", 1, 1 << 30)?,
            hidden: text.count("hidden_size", 1, MOST_HIDDEN)?,
            heads,
            kv_heads: text.count("num_key_value_heads", 1, heads)?,
            head_dim,
            eps: text.positive("rms_norm_eps")?,
            rope_base,
            rope_dims,
            sections,
            ffn: Ffn::read(text, moe)?,
            conv: text.count("linear_conv_kernel_dim", 1, 64)?,
            delta: Heads { key_heads, per_key: value_heads / key_heads },
            key_dim: text.count("linear_key_head_dim", 1, MOST_HEAD_DIM)?,
            value_dim: text.count("linear_value_head_dim", 1, MOST_HEAD_DIM)?,
            recurrent,
            interval,
            tied,
        })
    }

    pub(super) fn experts(&self) -> usize {
        match self.ffn {
            Ffn::Dense { .. } => 0,
            Ffn::Experts { experts, .. } => experts,
        }
    }

    /// The keys of the architecture, in the order in which converters write them.
    pub(super) fn metadata(&self, keys: &mut Writer<'_>, mtp: bool, file_type: Option<u32>) {
        keys.count("block_count", self.layers + usize::from(mtp));
        keys.count("context_length", self.context);
        keys.count("embedding_length", self.hidden);
        if let Ffn::Dense { ffn } = self.ffn {
            keys.count("feed_forward_length", ffn);
        }
        keys.count("attention.head_count", self.heads);
        keys.count("attention.head_count_kv", self.kv_heads);
        if let Some(sections) = &self.sections {
            let four = sections.iter().map(|s| *s as i32).chain(std::iter::repeat(0)).take(4);
            keys.put("rope.dimension_sections", Value::Array(Array::I32(four.collect())));
        }
        keys.float("rope.freq_base", self.rope_base);
        keys.float("attention.layer_norm_rms_epsilon", self.eps);
        if let Ffn::Experts { experts, top_k, .. } = self.ffn {
            keys.count("expert_count", experts);
            keys.count("expert_used_count", top_k);
        }
        keys.count("attention.key_length", self.head_dim);
        keys.count("attention.value_length", self.head_dim);
        keys.file_type(file_type);
        if let Ffn::Experts { ffn, shared, .. } = self.ffn {
            keys.count("expert_feed_forward_length", ffn);
            keys.count("expert_shared_feed_forward_length", shared);
        }
        if mtp {
            keys.count("nextn_predict_layers", 1);
        }
        keys.count("ssm.conv_kernel", self.conv);
        keys.count("ssm.state_size", self.key_dim);
        keys.count("ssm.group_count", self.delta.key_heads);
        keys.count("ssm.time_step_rank", self.delta.count());
        keys.count("ssm.inner_size", self.delta.count() * self.value_dim);
        let blocks = self.recurrent.iter().copied().chain(mtp.then_some(false));
        keys.put("attention.recurrent_layers", Value::Array(Array::Bool(blocks.collect())));
        keys.count("full_attention_interval", self.interval);
        keys.count("rope.dimension_count", self.rope_dims);
    }

    /// What becomes of a tensor; `None` when the family has no such tensor. `one_plus`: norms are stored less 1.
    pub(super) fn place(&self, name: &str, one_plus: bool) -> Option<Becomes> {
        let gain = if one_plus { Map::OnePlus } else { Map::Same };
        Some(match name {
            "embed_tokens.weight" => Becomes::one("token_embd.weight"),
            "norm.weight" => Becomes::mapped("output_norm.weight", gain),
            // Some files keep the head beside the embedding that it shares.
            "lm_head.weight" if self.tied == Some(true) => Becomes::Nothing,
            "lm_head.weight" => Becomes::one("output.weight"),
            _ => return self.place_in_layer(name, gain),
        })
    }

    fn place_in_layer(&self, name: &str, gain: Map) -> Option<Becomes> {
        if let Some(rest) = name.strip_prefix("mtp.") {
            return self.place_mtp(rest, gain);
        }
        let (i, rest) = layer(name, "").filter(|(i, _)| *i < self.layers)?;
        self.place_in_block(i, rest, gain)
    }

    /// The block after the main layers.
    fn place_mtp(&self, name: &str, gain: Map) -> Option<Becomes> {
        const WHOLE: [(&str, &str); 3] = [
            ("fc.weight", "eh_proj"),
            ("embed_tokens.weight", "embed_tokens"),
            ("shared_head.head.weight", "shared_head_head"),
        ];
        const NORMS: [(&str, &str); 3] = [
            ("norm.weight", "shared_head_norm"),
            ("pre_fc_norm_embedding.weight", "enorm"),
            ("pre_fc_norm_hidden.weight", "hnorm"),
        ];
        let nextn = |part: &str| format!("blk.{}.nextn.{part}.weight", self.layers);
        if let Some(part) = lookup(&WHOLE, name) {
            return Some(Becomes::one(nextn(part)));
        }
        if let Some(part) = lookup(&NORMS, name) {
            return Some(Becomes::mapped(nextn(part), gain));
        }
        let (i, rest) = layer(name, "")?;
        if i == 0 { self.place_in_block(self.layers, rest, gain) } else { None }
    }

    fn place_in_block(&self, i: usize, name: &str, gain: Map) -> Option<Becomes> {
        const NORMS: [(&str, &str); 4] = [
            ("input_layernorm.weight", "attn_norm"),
            ("post_attention_layernorm.weight", "post_attention_norm"),
            ("self_attn.q_norm.weight", "attn_q_norm"),
            ("self_attn.k_norm.weight", "attn_k_norm"),
        ];
        const MATRICES: [(&str, &str); 13] = [
            ("self_attn.q_proj.weight", "attn_q"),
            ("self_attn.k_proj.weight", "attn_k"),
            ("self_attn.v_proj.weight", "attn_v"),
            ("self_attn.o_proj.weight", "attn_output"),
            ("linear_attn.norm.weight", "ssm_norm"),
            ("mlp.gate_proj.weight", "ffn_gate"),
            ("mlp.up_proj.weight", "ffn_up"),
            ("mlp.down_proj.weight", "ffn_down"),
            ("mlp.gate.weight", "ffn_gate_inp"),
            ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp"),
        ];
        let block = |part: &str| format!("blk.{i}.{part}.weight");
        if let Some(part) = lookup(&NORMS, name) {
            return Some(Becomes::mapped(block(part), gain));
        }
        if let Some(part) = lookup(&MATRICES, name) {
            return Some(Becomes::one(block(part)));
        }
        if let Some(name) = name.strip_prefix("linear_attn.") {
            return self.place_delta_net(i, name);
        }
        place_experts(i, name.strip_prefix("mlp.")?)
    }

    fn place_delta_net(&self, i: usize, name: &str) -> Option<Becomes> {
        let heads = self.delta;
        let keys = 2 * heads.key_heads * self.key_dim;
        let rows = |first, block| Order::Rows { heads, first, block };
        let block = |part: &str| format!("blk.{i}.{part}");
        Some(match name {
            "A_log" => Becomes::One { name: block("ssm_a"), order: rows(0, 1), map: Map::NegExp },
            "dt_bias" => Becomes::ordered(block("ssm_dt.bias"), rows(0, 1)),
            "conv1d.weight" => {
                Becomes::Squeezed { name: block("ssm_conv1d.weight"), order: rows(keys, self.value_dim) }
            }
            "in_proj_qkv.weight" => Becomes::ordered(block("attn_qkv.weight"), rows(keys, self.value_dim)),
            "in_proj_z.weight" => Becomes::ordered(block("attn_gate.weight"), rows(0, self.value_dim)),
            "in_proj_a.weight" => Becomes::ordered(block("ssm_alpha.weight"), rows(0, 1)),
            "in_proj_b.weight" => Becomes::ordered(block("ssm_beta.weight"), rows(0, 1)),
            "out_proj.weight" => {
                Becomes::ordered(block("ssm_out.weight"), Order::Columns { heads, block: self.value_dim })
            }
            _ => return None,
        })
    }
}

impl Ffn {
    fn read(text: Object<'_>, moe: bool) -> Result<Self> {
        if !moe {
            return Ok(Ffn::Dense { ffn: text.count("intermediate_size", 1, MOST_FFN)? });
        }
        let experts = text.count("num_experts", 1, MOST_EXPERTS)?;
        Ok(Ffn::Experts {
            experts,
            top_k: text.count("num_experts_per_tok", 1, experts)?,
            ffn: text.count("moe_intermediate_size", 1, MOST_FFN)?,
            shared: text.count("shared_expert_intermediate_size", 1, MOST_FFN)?,
        })
    }
}

/// Routed experts: each alone, all stacked, or stacked with gates and ups in one.
fn place_experts(i: usize, name: &str) -> Option<Becomes> {
    const STACKED: [(&str, &str); 4] = [
        ("switch_mlp.gate_proj.weight", "ffn_gate_exps"),
        ("switch_mlp.up_proj.weight", "ffn_up_exps"),
        ("switch_mlp.down_proj.weight", "ffn_down_exps"),
        ("experts.down_proj", "ffn_down_exps"),
    ];
    const ALONE: [(&str, &str); 3] = [
        ("gate_proj.weight", "ffn_gate_exps"),
        ("up_proj.weight", "ffn_up_exps"),
        ("down_proj.weight", "ffn_down_exps"),
    ];
    let block = |part: &str| format!("blk.{i}.{part}.weight");
    if let Some(part) = lookup(&STACKED, name) {
        return Some(Becomes::one(block(part)));
    }
    if name == "experts.gate_up_proj" {
        return Some(Becomes::Halves { names: ["ffn_gate_exps", "ffn_up_exps"].map(block) });
    }
    let (expert, rest) = numbered(name.strip_prefix("experts.")?)?;
    Some(Becomes::Expert { name: block(lookup(&ALONE, rest)?), expert })
}

/// Base of the rotary frequencies, rotated dims of a head, and their sections.
fn rope(text: Object<'_>, head_dim: usize) -> Result<(f64, usize, Option<Vec<usize>>)> {
    let newer = text.object("rope_parameters", "rope_parameters.")?;
    let older = text.object("rope_scaling", "rope_scaling.")?;
    let places = [newer, older, text];
    for scaling in [newer, older] {
        for key in ["rope_type", "type"] {
            if let Some(kind) = scaling.get(key).filter(|k| !["default", "mrope"].iter().any(|n| *k == n)) {
                return Err(scaling.wrong(key, shown(kind), "`default`"));
            }
        }
    }
    let base = first(places.map(|p| p.opt_positive("rope_theta")))?;
    let base = base.ok_or_else(|| newer.wrong("rope_theta", "nothing", "a finite number above 0"))?;
    let factor = first(places.map(|p| p.opt_positive("partial_rotary_factor")))?.unwrap_or(DEFAULT_ROTARY);
    let dims = dims_of(newer, "partial_rotary_factor", head_dim, factor)?;
    let number =
        |v: &serde_json::Value| v.as_u64().filter(|n| *n <= MOST_HEAD_DIM as u64).map(|n| n as usize);
    let list = |p: Object<'_>| p.opt_list("mrope_section", "numbers of pairs", number);
    let sections = first(places.map(list))?;
    if let Some(found) = sections.as_ref().filter(|s| s.len() > 4) {
        return Err(newer.wrong("mrope_section", format!("{} numbers", found.len()), "at most 4"));
    }
    Ok((base, dims, sections))
}

/// Per layer whether it is a delta net, and after how many layers comes one of full attention.
fn recurrent(text: Object<'_>, layers: usize) -> Result<(Vec<bool>, usize)> {
    let interval = text.opt_count("full_attention_interval", 1, MOST_BLOCKS)?.unwrap_or(DEFAULT_INTERVAL);
    let kind = |k: &serde_json::Value| match k.as_str()? {
        "linear_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    };
    let kinds =
        text.opt_list("layer_types", "`linear_attention` or `full_attention` for every layer", kind)?;
    let Some(kinds) = kinds else {
        return Ok(((1..=layers).map(|i| !i.is_multiple_of(interval)).collect(), interval));
    };
    if kinds.len() != layers {
        let expected = format!("the {layers} of `num_hidden_layers`");
        return Err(text.wrong("layer_types", format!("{} layers", kinds.len()), expected));
    }
    Ok((kinds, interval))
}

/// Whether a folder's tensors were converted for MLX, which bakes the 1 into norms: by the convolution's shape, columns first.
pub(super) fn is_mlx_conv(dims: &[usize]) -> Option<bool> {
    match dims {
        [1, taps, _] if *taps > 1 => Some(true),
        [_, 1, _] => Some(false),
        _ => None,
    }
}

/// The name of the tensor that [`is_mlx_conv`] judges.
pub(super) fn is_conv(name: &str) -> bool {
    name.ends_with("linear_attn.conv1d.weight")
}
