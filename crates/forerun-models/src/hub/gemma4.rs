//! `config.json` and tensor names of Gemma 4.

use forerun_files::{Array, Value};

use super::assemble::Becomes;
use super::keys::{Writer, dims_of};
use super::names::{layer, lookup, numbered};
use crate::error::Result;
use crate::ffn::{MOST_EXPERTS, MOST_FFN};
use crate::json::{Object, shown};
use crate::keys::{MOST_BLOCKS, MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN};

/// What divides the frequencies of pairs that are not rotated.
const STILL: f32 = 1e30;

/// What `config.json` says.
pub(super) struct Gemma4 {
    context: usize,
    hidden: usize,
    heads: usize,
    /// Key and value heads of every layer.
    kv_heads: Vec<usize>,
    /// Whether kinds of layers have their own.
    kv_heads_differ: bool,
    /// Elements of a head in layers of full and of sliding attention.
    head_dims: [usize; 2],
    ffn: Vec<usize>,
    eps: f64,
    experts: Option<Experts>,
    softcap: Option<f64>,
    window: usize,
    shared_kv: usize,
    per_layer: usize,
    sliding: Vec<bool>,
    /// Of full and of sliding attention.
    rope_bases: [f64; 2],
    rope_dims_swa: usize,
    /// Rotated pairs of full attention.
    rotated: usize,
    tied: bool,
    /// Whether layers of full attention take their keys for values.
    keys_are_values: bool,
}

struct Experts {
    experts: usize,
    top_k: usize,
    ffn: usize,
}

impl Gemma4 {
    /// Reads the configuration of the text model.
    pub(super) fn read(text: Object<'_>, tied: Option<bool>) -> Result<Self> {
        let layers = text.count("num_hidden_layers", 1, MOST_BLOCKS)?;
        text.expect("hidden_activation", "gelu_pytorch_tanh")?;
        let sliding = sliding(text, layers)?;
        let heads = text.count("num_attention_heads", 1, MOST_HEADS)?;
        let head_dim = text.count("head_dim", 2, MOST_HEAD_DIM)?;
        let (head_dims, kv_heads, kv_heads_differ) = per_layer(text, &sliding, head_dim, heads)?;
        let rope = text.object("rope_parameters", "rope_parameters.")?;
        let full = rope.object("full_attention", "rope_parameters.full_attention.")?;
        let swa = rope.object("sliding_attention", "rope_parameters.sliding_attention.")?;
        swa.expect("rope_type", "default")?;
        let share = swa.opt_positive("partial_rotary_factor")?.unwrap_or(1.0);
        let shared_kv = text.opt_count("num_kv_shared_layers", 0, layers - 1)?.unwrap_or(0);
        let ffn = text.count("intermediate_size", 1, MOST_FFN)?;
        let wide = text.opt_bool("use_double_wide_mlp")? == Some(true);
        let ffn_of = |i: usize| if wide && i >= layers - shared_kv { 2 * ffn } else { ffn };
        Ok(Self {
            keys_are_values: keys_are_values(text)?,
            context: text.count("max_position_embeddings", 1, 1 << 30)?,
            hidden: text.count("hidden_size", 1, MOST_HIDDEN)?,
            heads,
            kv_heads,
            kv_heads_differ,
            head_dims,
            ffn: (0..layers).map(ffn_of).collect(),
            eps: text.positive("rms_norm_eps")?,
            experts: experts(text)?,
            softcap: text.opt_positive("final_logit_softcapping")?,
            window: text.count("sliding_window", 1, 1 << 30)?,
            shared_kv,
            per_layer: text.opt_count("hidden_size_per_layer_input", 0, MOST_HIDDEN)?.unwrap_or(0),
            sliding,
            rope_bases: [full.positive("rope_theta")?, swa.positive("rope_theta")?],
            rope_dims_swa: dims_of(swa, "partial_rotary_factor", head_dims[1], share)?,
            rotated: rotated(full, head_dims[0])?,
            tied: tied.unwrap_or(true),
        })
    }

    /// The first matrix of values that is missing, as GGUF calls it: a file without one means that keys are values, which
    /// the configuration must agree to.
    pub(super) fn missing_values(&self, has: impl Fn(&str) -> bool) -> Option<String> {
        let name = |i: usize, part: &str| format!("blk.{i}.{part}.weight");
        (0..self.sliding.len())
            .filter(|i| self.sliding[*i] || !self.keys_are_values)
            .find(|i| has(&name(*i, "attn_k")) && !has(&name(*i, "attn_v")))
            .map(|i| name(i, "attn_v"))
    }

    pub(super) fn experts(&self) -> usize {
        self.experts.as_ref().map_or(0, |e| e.experts)
    }

    /// The keys of the architecture, in the order in which converters write them.
    pub(super) fn metadata(&self, keys: &mut Writer<'_>, file_type: Option<u32>) {
        keys.count("block_count", self.sliding.len());
        keys.count("context_length", self.context);
        keys.count("embedding_length", self.hidden);
        keys.counts("feed_forward_length", &self.ffn, false);
        keys.count("attention.head_count", self.heads);
        keys.counts("attention.head_count_kv", &self.kv_heads, self.kv_heads_differ);
        keys.float("rope.freq_base", self.rope_bases[0]);
        keys.float("rope.freq_base_swa", self.rope_bases[1]);
        keys.float("attention.layer_norm_rms_epsilon", self.eps);
        if let Some(e) = &self.experts {
            keys.count("expert_count", e.experts);
            keys.count("expert_used_count", e.top_k);
        }
        keys.count("attention.key_length", self.head_dims[0]);
        keys.count("attention.value_length", self.head_dims[0]);
        keys.file_type(file_type);
        if let Some(cap) = self.softcap {
            keys.float("final_logit_softcapping", cap);
        }
        keys.count("attention.sliding_window", self.window);
        keys.count("attention.shared_kv_layers", self.shared_kv);
        keys.count("embedding_length_per_layer_input", self.per_layer);
        keys.put("attention.sliding_window_pattern", Value::Array(Array::Bool(self.sliding.clone())));
        keys.count("attention.key_length_swa", self.head_dims[1]);
        keys.count("attention.value_length_swa", self.head_dims[1]);
        if let Some(e) = &self.experts {
            keys.count("expert_feed_forward_length", e.ffn);
        }
        keys.count("rope.dimension_count", self.head_dims[0]);
        keys.count("rope.dimension_count_swa", self.rope_dims_swa);
    }

    /// Divisors of the rotary frequencies of full attention.
    pub(super) fn rope_freqs(&self) -> Vec<f32> {
        (0..self.head_dims[0] / 2).map(|pair| if pair < self.rotated { 1.0 } else { STILL }).collect()
    }

    /// What becomes of a tensor; `None` when the architecture has no such tensor.
    pub(super) fn place(&self, name: &str) -> Option<Becomes> {
        const WHOLE: [(&str, &str); 5] = [
            ("embed_tokens.weight", "token_embd"),
            ("norm.weight", "output_norm"),
            ("embed_tokens_per_layer.weight", "per_layer_token_embd"),
            ("per_layer_model_projection.weight", "per_layer_model_proj"),
            ("per_layer_projection_norm.weight", "per_layer_proj_norm"),
        ];
        if let Some(part) = lookup(&WHOLE, name) {
            return Some(Becomes::one(format!("{part}.weight")));
        }
        if name == "lm_head.weight" {
            return Some(if self.tied { Becomes::Nothing } else { Becomes::one("output.weight") });
        }
        let (i, rest) = layer(name, "").filter(|(i, _)| *i < self.sliding.len())?;
        place_in_block(i, rest)
    }
}

fn place_in_block(i: usize, name: &str) -> Option<Becomes> {
    const PARTS: [(&str, &str); 25] = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("self_attn.q_proj.weight", "attn_q.weight"),
        ("self_attn.k_proj.weight", "attn_k.weight"),
        ("self_attn.v_proj.weight", "attn_v.weight"),
        ("self_attn.q_norm.weight", "attn_q_norm.weight"),
        ("self_attn.k_norm.weight", "attn_k_norm.weight"),
        ("self_attn.o_proj.weight", "attn_output.weight"),
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        ("mlp.gate_proj.weight", "ffn_gate.weight"),
        ("mlp.up_proj.weight", "ffn_up.weight"),
        ("mlp.down_proj.weight", "ffn_down.weight"),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
        ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
        ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
        ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
        ("router.proj.weight", "ffn_gate_inp.weight"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("layer_scalar", "layer_output_scale.weight"),
        ("per_layer_input_gate.weight", "inp_gate.weight"),
        ("per_layer_projection.weight", "proj.weight"),
        ("post_per_layer_input_norm.weight", "post_norm.weight"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
    ];
    const ALONE: [(&str, &str); 3] = [
        ("gate_proj.weight", "ffn_gate_exps.weight"),
        ("up_proj.weight", "ffn_up_exps.weight"),
        ("down_proj.weight", "ffn_down_exps.weight"),
    ];
    let block = |part: &str| format!("blk.{i}.{part}");
    if let Some(part) = lookup(&PARTS, name) {
        return Some(Becomes::one(block(part)));
    }
    let experts = name.strip_prefix("experts.")?;
    if let Some(stacked) = experts.strip_prefix("switch_glu.") {
        return Some(Becomes::one(block(lookup(&ALONE, stacked)?)));
    }
    let (expert, rest) = numbered(experts)?;
    Some(Becomes::Expert { name: block(lookup(&ALONE, rest)?), expert })
}

fn sliding(text: Object<'_>, layers: usize) -> Result<Vec<bool>> {
    let expected = "`sliding_attention` or `full_attention` for every layer";
    let kind = |k: &serde_json::Value| match k.as_str()? {
        "sliding_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    };
    let kinds = text.opt_list("layer_types", expected, kind)?;
    let kinds = kinds.ok_or_else(|| text.wrong("layer_types", "nothing", expected))?;
    if kinds.len() != layers {
        let expected = format!("the {layers} of `num_hidden_layers`");
        return Err(text.wrong("layer_types", format!("{} layers", kinds.len()), expected));
    }
    Ok(kinds)
}

/// Elements of a head by kind of layer, key and value heads of every layer, and whether those differ by kind. Newer files
/// have what differs under `per_layer_config`.
fn per_layer(
    text: Object<'_>,
    sliding: &[bool],
    head_dim: usize,
    heads: usize,
) -> Result<([usize; 2], Vec<usize>, bool)> {
    let kv = text.count("num_key_value_heads", 1, heads)?;
    let own = text.object("per_layer_config", "per_layer_config.")?;
    let newer = text.get("per_layer_config").is_some();
    let global_dim = text.opt_count("global_head_dim", 2, MOST_HEAD_DIM)?;
    let equal = keys_are_values(text)?;
    let global_kv = text.opt_count("num_global_key_value_heads", 1, heads)?.filter(|_| equal);
    let mut differ = global_kv.is_some();
    let mut dims = [None, None];
    let mut kv_heads = Vec::with_capacity(sliding.len());
    for (i, slides) in sliding.iter().enumerate() {
        let layer = own.object(&i.to_string(), "per_layer_config[].")?;
        let own_kv = layer.opt_count("num_key_value_heads", 1, heads)?;
        differ |= own_kv.is_some();
        let default = if *slides || newer { head_dim } else { global_dim.unwrap_or(head_dim) };
        let dim = layer.opt_count("head_dim", 2, MOST_HEAD_DIM)?.unwrap_or(default);
        kv_heads.push(own_kv.or(global_kv.filter(|_| !slides)).unwrap_or(kv));
        let kind = &mut dims[usize::from(*slides)];
        if let Some(other) = kind.replace(dim).filter(|other| *other != dim) {
            let expected = format!("the {other} of the layers of its kind before it");
            return Err(layer.wrong("head_dim", format!("{dim} in layer {i}"), expected));
        }
    }
    let full = dims[0].unwrap_or(head_dim);
    Ok(([full, dims[1].unwrap_or(head_dim)], kv_heads, differ))
}

fn keys_are_values(text: Object<'_>) -> Result<bool> {
    Ok(text.opt_bool("attention_k_eq_v")? == Some(true))
}

fn experts(text: Object<'_>) -> Result<Option<Experts>> {
    if text.opt_bool("enable_moe_block")? != Some(true) {
        return Ok(None);
    }
    let experts = text.count("num_experts", 1, MOST_EXPERTS)?;
    let top_k = text.count("top_k_experts", 1, experts)?;
    Ok(Some(Experts { experts, top_k, ffn: text.count("moe_intermediate_size", 1, MOST_FFN)? }))
}

/// Rotated pairs of a head of full attention.
fn rotated(full: Object<'_>, head_dim: usize) -> Result<usize> {
    let key = "partial_rotary_factor";
    if let Some(factor) = full.opt_positive("factor")?.filter(|f| *f != 1.0) {
        return Err(full.wrong("factor", factor, "1"));
    }
    let share = full.opt_positive(key)?;
    match full.get("rope_type").map(|k| k.as_str().unwrap_or_default()) {
        Some("proportional") => {
            let share = share.unwrap_or(1.0);
            if share > 1.0 {
                return Err(full.wrong(key, share, "at most 1"));
            }
            Ok((head_dim as f64 * share / 2.0) as usize)
        }
        None | Some("default") if share.is_none_or(|s| s == 1.0) => Ok(head_dim / 2),
        None | Some("default") => {
            Err(full.wrong(key, share.unwrap_or(1.0), "1 unless `rope_type` is `proportional`"))
        }
        Some(_) => {
            let found = full.get("rope_type").map(shown).unwrap_or_default();
            Err(full.wrong("rope_type", found, "`proportional` or `default`"))
        }
    }
}
