//! Metadata and tensors of a `gemma4` file, checked.

use forerun_tensor::{AttentionShape, WeightUse};

use super::{Block, Experts, Gemma4, KeysValues, Params, PerLayer, PerLayerInputs, RopeFreqs};
use crate::error::Result;
use crate::ffn::{Dense, MOST_EXPERTS, MOST_FFN, gate_up_exps};
use crate::keys::{Keys, MOST_BLOCKS, MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN};
use crate::tensors::{Inventory, TensorSpec};

const MOST_WINDOW: usize = 1 << 30;

/// What the keys say of one layer.
struct Layer {
    sliding: bool,
    attention: AttentionShape,
    /// Dense feed-forward length.
    ffn: usize,
    /// The layer whose keys and values it reads, where they are not its own.
    shares: Option<usize>,
}

/// Sizes of the mixture.
#[derive(Clone, Copy)]
struct Mixture {
    experts: usize,
    top_k: usize,
    ffn: usize,
}

impl Mixture {
    /// `None` for dense models.
    fn read(keys: Keys<'_>) -> Result<Option<Self>> {
        let Some(experts @ 1..) = keys.opt_count("expert_count", 0..=MOST_EXPERTS)? else { return Ok(None) };
        let top_k = keys.count("expert_used_count", 1..=experts)?;
        Ok(Some(Self { experts, top_k, ffn: keys.count("expert_feed_forward_length", 1..=MOST_FFN)? }))
    }
}

impl Params {
    fn read(keys: Keys<'_>, layers: &[Layer], mixture: Option<Mixture>) -> Result<Self> {
        keys.refuse_rope_scaling()?;
        // Kinds that no layer is of need no keys of their own.
        let [full, sliding] = [false, true].map(|kind| layers.iter().find(|l| l.sliding == kind));
        let dims = |key, layer: Option<&Layer>| match layer {
            Some(l) => keys.rope_dims(key, l.attention.key_dim, Some(l.attention.key_dim)),
            None => Ok(2),
        };
        let base = |key, layer: Option<&Layer>| layer.map_or(Ok(1.0), |_| keys.positive(key));
        Ok(Params {
            hidden: keys.count("embedding_length", 1..=MOST_HIDDEN)?,
            eps: keys.epsilon()?,
            window: match sliding {
                Some(_) => keys.count("attention.sliding_window", 1..=MOST_WINDOW)?,
                None => MOST_WINDOW,
            },
            rope_base: base("rope.freq_base", full)?,
            rope_dims: dims("rope.dimension_count", full)?,
            rope_base_swa: base("rope.freq_base_swa", sliding)?,
            rope_dims_swa: dims("rope.dimension_count_swa", sliding)?,
            top_k: mixture.map_or(0, |m| m.top_k),
            per_layer: keys.opt_count("embedding_length_per_layer_input", 0..=MOST_HIDDEN)?.unwrap_or(0),
            final_logit_softcapping: softcap(keys)?,
        })
    }
}

/// The cap of the logits; 0 stands for none.
fn softcap(keys: Keys<'_>) -> Result<Option<f32>> {
    let key = "final_logit_softcapping";
    match keys.meta.opt_f32(&keys.name(key))? {
        None | Some(0.0) => Ok(None),
        Some(_) => keys.positive(key).map(Some),
    }
}

/// Elements of a head of full and of sliding attention.
fn head_dims(keys: Keys<'_>) -> Result<[usize; 2]> {
    let key_dim = keys.count("attention.key_length", 1..=MOST_HEAD_DIM)?;
    let key_dim_swa = keys.opt_count("attention.key_length_swa", 1..=MOST_HEAD_DIM)?;
    let dims = [key_dim, key_dim_swa.unwrap_or(key_dim)];
    for (suffix, dim) in ["", "_swa"].into_iter().zip(dims) {
        let (key, value) =
            (format!("attention.key_length{suffix}"), format!("attention.value_length{suffix}"));
        if let Some(found) = keys.opt_count(&value, 1..=MOST_HEAD_DIM)?
            && found != dim
        {
            return Err(keys.wrong(&value, found, format!("the {dim} of `{}`", keys.name(&key))));
        }
    }
    Ok(dims)
}

fn layers(keys: Keys<'_>) -> Result<Vec<Layer>> {
    let count = keys.count("block_count", 1..=MOST_BLOCKS)?;
    let pattern = "attention.sliding_window_pattern";
    let sliding = keys.meta.bools(&keys.name(pattern))?;
    if sliding.len() != count {
        let expected = format!("{count} of them, one per block of `{}`", keys.name("block_count"));
        return Err(keys.wrong(pattern, format!("{} flags", sliding.len()), expected));
    }
    let dims = head_dims(keys)?;
    let heads = keys.counts("attention.head_count", count, 1..=MOST_HEADS)?;
    let kv_heads = keys.counts("attention.head_count_kv", count, 1..=MOST_HEADS)?;
    let ffn = keys.counts("feed_forward_length", count, 1..=MOST_FFN)?;
    let shared_key = "attention.shared_kv_layers";
    let shared = keys.opt_count(shared_key, 0..=count - 1)?.unwrap_or(0);
    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let (heads, kv_heads, dim) = (heads[i], kv_heads[i], dims[usize::from(sliding[i])]);
        if !heads.is_multiple_of(kv_heads) {
            let found = format!("{kv_heads} in block {i}");
            let expected = format!("a divisor of the {heads} of `{}`", keys.name("attention.head_count"));
            return Err(keys.wrong("attention.head_count_kv", found, expected));
        }
        let attention = AttentionShape { heads, kv_heads, key_dim: dim, value_dim: dim, q_stride: dim };
        let own = count - shared;
        let shares = if i < own {
            None
        } else {
            let same = |layer: &Layer| layer.sliding == sliding[i];
            let source = layers[..own].iter().rposition(same).ok_or_else(|| {
                let found = format!("{shared}, which leaves block {i} no block to share with");
                keys.wrong(shared_key, found, "a block of either kind with keys of its own")
            })?;
            let wanted = layers[source].attention.kv_heads;
            if wanted != kv_heads {
                let found = format!("{kv_heads} in block {i}");
                let expected = format!("the {wanted} of block {source}, whose keys it shares");
                return Err(keys.wrong("attention.head_count_kv", found, expected));
            }
            Some(source)
        };
        layers.push(Layer { sliding: sliding[i], attention, ffn: ffn[i], shares });
    }
    Ok(layers)
}

impl Gemma4<TensorSpec, ()> {
    /// Reads the keys and checks off every tensor.
    pub(crate) fn read(keys: Keys<'_>, inv: &mut Inventory<'_>) -> Result<Self> {
        let layers = layers(keys)?;
        let mixture = Mixture::read(keys)?;
        let params = Params::read(keys, &layers, mixture)?;
        let hidden = params.hidden;
        let tied = !inv.has("output.weight");
        let usage = if tied { WeightUse::TiedTable } else { WeightUse::Table };
        let token_embd = inv.table("token_embd.weight", hidden, usage)?;
        let vocabulary = token_embd.rows;
        keys.check_vocabulary(vocabulary)?;
        let per_layer = match params.per_layer {
            0 => None,
            d => Some(per_layer_inputs(inv, hidden, d, layers.len(), vocabulary)?),
        };
        let rope_freqs = if layers.iter().any(|l| !l.sliding) {
            let tensor = inv.vector("rope_freqs.weight", params.rope_dims / 2)?;
            Some(RopeFreqs { tensor, values: Vec::new() })
        } else {
            None
        };
        let blocks = layers.iter().enumerate().map(|(i, layer)| block(inv, &params, i, layer, mixture));
        let blocks = blocks.collect::<Result<_>>()?;
        let output_norm = inv.vector("output_norm.weight", hidden)?;
        let output = (!tied).then(|| inv.matrix("output.weight", hidden, vocabulary)).transpose()?;
        Ok(Gemma4 { params, token_embd, per_layer, rope_freqs, blocks, output_norm, output })
    }
}

fn per_layer_inputs(
    inv: &mut Inventory<'_>,
    hidden: usize,
    d: usize,
    layers: usize,
    vocabulary: usize,
) -> Result<PerLayerInputs<TensorSpec>> {
    let name = "per_layer_token_embd.weight";
    let per_layer_token_embd = inv.table(name, layers * d, WeightUse::Table)?;
    if per_layer_token_embd.rows != vocabulary {
        let found = format!("{} rows", per_layer_token_embd.rows);
        return Err(inv.wrong(name, found, format!("the {vocabulary} rows of tensor `token_embd.weight`")));
    }
    Ok(PerLayerInputs {
        per_layer_token_embd,
        per_layer_model_proj: inv.matrix("per_layer_model_proj.weight", hidden, layers * d)?,
        per_layer_proj_norm: inv.vector("per_layer_proj_norm.weight", d)?,
    })
}

fn block(
    inv: &mut Inventory<'_>,
    p: &Params,
    i: usize,
    layer: &Layer,
    mixture: Option<Mixture>,
) -> Result<Block<TensorSpec, ()>> {
    let prefix = format!("blk.{i}.");
    let name = |suffix: &str| format!("{prefix}{suffix}.weight");
    let (hidden, s) = (p.hidden, layer.attention);
    let queries = s.heads * s.key_dim;
    let scale = name("layer_output_scale");
    Ok(Block {
        sliding: layer.sliding,
        attention: s,
        attn_norm: inv.vector(&name("attn_norm"), hidden)?,
        attn_q: inv.matrix(&name("attn_q"), hidden, queries)?,
        attn_q_norm: inv.vector(&name("attn_q_norm"), s.key_dim)?,
        keys_values: keys_values(inv, &prefix, hidden, layer)?,
        attn_output: inv.matrix(&name("attn_output"), queries, hidden)?,
        post_attention_norm: inv.vector(&name("post_attention_norm"), hidden)?,
        ffn_norm: inv.vector(&name("ffn_norm"), hidden)?,
        ffn: Dense::read(inv, &prefix, hidden, layer.ffn)?,
        experts: mixture.map(|m| experts(inv, &prefix, hidden, m).map(Box::new)).transpose()?,
        post_ffw_norm: inv.vector(&name("post_ffw_norm"), hidden)?,
        per_layer: match p.per_layer {
            0 => None,
            d => Some(PerLayer {
                inp_gate: inv.matrix(&name("inp_gate"), hidden, d)?,
                proj: inv.matrix(&name("proj"), d, hidden)?,
                post_norm: inv.vector(&name("post_norm"), hidden)?,
            }),
        },
        layer_output_scale: inv.has(&scale).then(|| inv.vector(&scale, 1)).transpose()?,
    })
}

fn keys_values(
    inv: &mut Inventory<'_>,
    block: &str,
    hidden: usize,
    layer: &Layer,
) -> Result<KeysValues<TensorSpec, ()>> {
    let name = |suffix: &str| format!("{block}{suffix}.weight");
    if let Some(source) = layer.shares {
        // Some files keep the tensors that training left behind.
        ["attn_k", "attn_v", "attn_k_norm"].into_iter().for_each(|n| inv.leave_out(&name(n)));
        return Ok(KeysValues::Of(source));
    }
    let rows = layer.attention.kv_heads * layer.attention.key_dim;
    let value = name("attn_v");
    // Only full attention may take its values from the keys.
    let has_values = layer.sliding || inv.has(&value);
    Ok(KeysValues::Own {
        attn_k: inv.matrix(&name("attn_k"), hidden, rows)?,
        attn_v: has_values.then(|| inv.matrix(&value, hidden, rows)).transpose()?,
        attn_k_norm: inv.vector(&name("attn_k_norm"), layer.attention.key_dim)?,
        kv: (),
    })
}

fn experts(inv: &mut Inventory<'_>, block: &str, hidden: usize, m: Mixture) -> Result<Experts<TensorSpec>> {
    let name = |suffix: &str| format!("{block}{suffix}.weight");
    let (ffn_gate_exps, ffn_up_exps) = gate_up_exps(inv, block, hidden, m.ffn, m.experts)?;
    Ok(Experts {
        ffn_gate_inp_scale: inv.vector(&format!("{block}ffn_gate_inp.scale"), hidden)?,
        ffn_gate_inp: inv.matrix(&name("ffn_gate_inp"), hidden, m.experts)?,
        pre_ffw_norm_2: inv.vector(&name("pre_ffw_norm_2"), hidden)?,
        ffn_gate_exps,
        ffn_up_exps,
        ffn_down_exps: inv.experts(&name("ffn_down_exps"), m.ffn, hidden, m.experts)?,
        ffn_down_exps_scale: inv.vector(&format!("{block}ffn_down_exps.scale"), m.experts)?,
        post_ffw_norm_1: inv.vector(&name("post_ffw_norm_1"), hidden)?,
        post_ffw_norm_2: inv.vector(&name("post_ffw_norm_2"), hidden)?,
    })
}
