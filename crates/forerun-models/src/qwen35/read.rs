//! Metadata and tensors of a `qwen35` or `qwen35moe` file, checked.

use forerun_tensor::{AttentionShape, DeltaShape, WeightUse};

use super::{Attention, Block, DeltaNet, Mixer, Params, Qwen35};
use crate::error::Result;
use crate::ffn::{Ffn, FfnShape};
use crate::keys::{Keys, MOST_BLOCKS, MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN};
use crate::mtp::{Mtp, Surroundings};
use crate::spec::NextN;
use crate::tensors::{Inventory, TensorSpec};

/// The convolution's taps: the carried history is the three rows before.
const CONV_TAPS: usize = 4;
const DEFAULT_INTERVAL: usize = 4;

impl Params {
    fn read(keys: Keys<'_>) -> Result<Self> {
        let attention = attention_shape(keys)?;
        keys.refuse_rope_scaling()?;
        let moe = keys.architecture == "qwen35moe";
        Ok(Params {
            hidden: keys.count("embedding_length", 1..=MOST_HIDDEN)?,
            eps: keys.epsilon()?,
            attention,
            delta: delta_shape(keys)?,
            rope_base: keys.positive("rope.freq_base")?,
            rope_dims: rope_dims(keys, attention.key_dim)?,
            ffn: if moe { FfnShape::read_experts(keys)? } else { FfnShape::read_dense(keys)? },
        })
    }
}

impl Params {
    fn around_mtp(&self, vocabulary: usize) -> Surroundings {
        Surroundings {
            hidden: self.hidden,
            eps: self.eps,
            attention: self.attention,
            rope_base: self.rope_base,
            rope_dims: self.rope_dims,
            ffn: self.ffn,
            vocabulary,
        }
    }
}

fn attention_shape(keys: Keys<'_>) -> Result<AttentionShape> {
    let heads = keys.count("attention.head_count", 1..=MOST_HEADS)?;
    let kv_heads = keys.count("attention.head_count_kv", 1..=heads)?;
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of the {heads} of `{}`", keys.name("attention.head_count"));
        return Err(keys.wrong("attention.head_count_kv", kv_heads, expected));
    }
    let key_dim = keys.count("attention.key_length", 1..=MOST_HEAD_DIM)?;
    let value_dim = keys.count("attention.value_length", 1..=MOST_HEAD_DIM)?;
    if value_dim != key_dim {
        let expected = format!("the {key_dim} of `{}`", keys.name("attention.key_length"));
        return Err(keys.wrong("attention.value_length", value_dim, expected));
    }
    Ok(AttentionShape { heads, kv_heads, key_dim, value_dim, q_stride: 2 * key_dim })
}

fn delta_shape(keys: Keys<'_>) -> Result<DeltaShape> {
    let key_heads = keys.count("ssm.group_count", 1..=MOST_HEADS)?;
    let value_heads = keys.count("ssm.time_step_rank", 1..=MOST_HEADS)?;
    if !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a multiple of the {key_heads} of `{}`", keys.name("ssm.group_count"));
        return Err(keys.wrong("ssm.time_step_rank", value_heads, expected));
    }
    let dim = keys.count("ssm.state_size", 1..=MOST_HEAD_DIM)?;
    let inner = keys.count("ssm.inner_size", 1..=MOST_HEADS * MOST_HEAD_DIM)?;
    if inner != value_heads * dim {
        let expected = format!(
            "{}, `{}` times `{}`",
            value_heads * dim,
            keys.name("ssm.time_step_rank"),
            keys.name("ssm.state_size")
        );
        return Err(keys.wrong("ssm.inner_size", inner, expected));
    }
    let conv = keys.count("ssm.conv_kernel", CONV_TAPS..=CONV_TAPS)?;
    Ok(DeltaShape { key_heads, value_heads, key_dim: dim, value_dim: dim, conv, interleaved: true })
}

fn rope_dims(keys: Keys<'_>, head_dim: usize) -> Result<usize> {
    let dims = keys.rope_dims("rope.dimension_count", head_dim, None)?;
    let key = "rope.dimension_sections";
    if let Some(sections) = keys.meta.opt_u32s(&keys.name(key))? {
        let pairs: u64 = sections.iter().map(|s| u64::from(*s)).sum();
        if sections.len() > 4 || pairs > dims as u64 / 2 {
            let expected = format!("at most 4 sections of together {} pairs", dims / 2);
            return Err(keys.wrong(key, format!("{sections:?}"), expected));
        }
    }
    Ok(dims)
}

/// Per main layer: whether it is a delta net.
fn recurrent_layers(keys: Keys<'_>, next: NextN) -> Result<Vec<bool>> {
    let interval = keys.opt_count("full_attention_interval", 1..=MOST_BLOCKS)?.unwrap_or(DEFAULT_INTERVAL);
    let key = "attention.recurrent_layers";
    let Some(flags) = keys.meta.opt_bools(&keys.name(key))? else {
        return Ok((0..next.layers).map(|i| !(i + 1).is_multiple_of(interval)).collect());
    };
    if flags.len() != next.block_count {
        let expected =
            format!("{} of them, one per block of `{}`", next.block_count, keys.name("block_count"));
        return Err(keys.wrong(key, format!("{} flags", flags.len()), expected));
    }
    if let Some(i) = (next.layers..flags.len()).find(|&i| flags[i]) {
        return Err(keys.wrong(
            key,
            format!("true for block {i}"),
            "false: the MTP block is never recurrent",
        ));
    }
    Ok(flags[..next.layers].to_vec())
}

impl Qwen35<TensorSpec, (), ()> {
    /// Reads the keys and checks off every tensor.
    pub(crate) fn read(
        keys: Keys<'_>,
        inv: &mut Inventory<'_>,
    ) -> Result<(Self, Option<Mtp<TensorSpec, ()>>)> {
        let next = NextN::read(keys, inv, MOST_BLOCKS)?;
        let first = "blk.0.attn_norm.weight";
        if next.mtp.is_some() && !inv.has(first) {
            let found = "missing: this file holds an MTP block and not its model";
            return Err(inv.wrong(first, found, "the model's own file, with this one as its MTP block"));
        }
        let params = Params::read(keys)?;
        let recurrent = recurrent_layers(keys, next)?;
        let tied = !inv.has("output.weight");
        let usage = if tied { WeightUse::TiedTable } else { WeightUse::Table };
        let token_embd = inv.table("token_embd.weight", params.hidden, usage)?;
        let vocabulary = token_embd.rows;
        keys.check_vocabulary(vocabulary)?;
        let blocks = recurrent.iter().enumerate();
        let blocks = blocks.map(|(i, r)| block(inv, &params, i, *r)).collect::<Result<Vec<_>>>()?;
        let output_norm = inv.vector("output_norm.weight", params.hidden)?;
        let output = (!tied).then(|| inv.matrix("output.weight", params.hidden, vocabulary)).transpose()?;
        let mtp = next.mtp.map(|i| Mtp::read(inv, i, &params.around_mtp(vocabulary))).transpose()?;
        Ok((Qwen35 { params, token_embd, blocks, output_norm, output }, mtp))
    }
}

impl Qwen35<TensorSpec, (), ()> {
    /// Reads the MTP block of a file for a model of `layers` layers; other blocks of the file are left alone.
    pub(crate) fn read_mtp(
        keys: Keys<'_>,
        inv: &mut Inventory<'_>,
        layers: usize,
        vocabulary: usize,
    ) -> Result<Mtp<TensorSpec, ()>> {
        let next = NextN::read(keys, inv, MOST_BLOCKS)?;
        let Some(block) = next.mtp else {
            return Err(inv.wrong(
                "nextn.eh_proj.weight",
                "missing in every block",
                "the tensors of an MTP block",
            ));
        };
        if next.layers != layers {
            let expected = format!("an MTP block after the model's {layers} layers");
            return Err(keys.wrong("block_count", next.block_count, expected));
        }
        let mtp = Mtp::read(inv, block, &Params::read(keys)?.around_mtp(vocabulary))?;
        inv.finish_prefix(&format!("blk.{block}."), keys.architecture)?;
        Ok(mtp)
    }
}

fn block(
    inv: &mut Inventory<'_>,
    p: &Params,
    i: usize,
    recurrent: bool,
) -> Result<Block<TensorSpec, (), ()>> {
    let prefix = format!("blk.{i}.");
    Ok(Block {
        attn_norm: inv.vector(&format!("{prefix}attn_norm.weight"), p.hidden)?,
        mixer: if recurrent {
            Mixer::DeltaNet(delta_net(inv, p, &prefix)?, ())
        } else {
            Mixer::Attention(attention(inv, p, &prefix)?, ())
        },
        post_attention_norm: inv.vector(&format!("{prefix}post_attention_norm.weight"), p.hidden)?,
        ffn: Ffn::read(inv, &prefix, p.hidden, p.ffn)?,
    })
}

fn attention(inv: &mut Inventory<'_>, p: &Params, block: &str) -> Result<Attention<TensorSpec>> {
    let s = p.attention;
    let name = |suffix: &str| format!("{block}{suffix}.weight");
    let (q, k, v) = (s.heads * s.q_stride, s.kv_heads * s.key_dim, s.kv_heads * s.value_dim);
    let fused = name("attn_qkv");
    let (attn_q, attn_k, attn_v) = if inv.has(&fused) {
        let all = inv.matrix(&fused, p.hidden, q + k + v)?;
        (all.part(0, q), all.part(q, k), all.part(q + k, v))
    } else {
        let attn_q = inv.matrix(&name("attn_q"), p.hidden, q)?;
        let attn_k = inv.matrix(&name("attn_k"), p.hidden, k)?;
        (attn_q, attn_k, inv.matrix(&name("attn_v"), p.hidden, v)?)
    };
    Ok(Attention {
        attn_q,
        attn_k,
        attn_v,
        attn_q_norm: inv.vector(&name("attn_q_norm"), s.key_dim)?,
        attn_k_norm: inv.vector(&name("attn_k_norm"), s.key_dim)?,
        attn_output: inv.matrix(&name("attn_output"), s.heads * s.value_dim, p.hidden)?,
    })
}

fn delta_net(inv: &mut Inventory<'_>, p: &Params, block: &str) -> Result<DeltaNet<TensorSpec>> {
    let s = p.delta;
    let name = |suffix: &str| format!("{block}{suffix}.weight");
    Ok(DeltaNet {
        attn_qkv: inv.matrix(&name("attn_qkv"), p.hidden, s.conv_cols())?,
        attn_gate: inv.matrix(&name("attn_gate"), p.hidden, s.value_cols())?,
        ssm_alpha: inv.matrix(&name("ssm_alpha"), p.hidden, s.value_heads)?,
        ssm_beta: inv.matrix(&name("ssm_beta"), p.hidden, s.value_heads)?,
        ssm_conv1d: inv.taps(&name("ssm_conv1d"), s.conv, s.conv_cols())?,
        ssm_dt: inv.vector(&format!("{block}ssm_dt.bias"), s.value_heads)?,
        ssm_a: inv.vector(&format!("{block}ssm_a"), s.value_heads)?,
        ssm_norm: inv.vector(&name("ssm_norm"), s.value_dim)?,
        ssm_out: inv.matrix(&name("ssm_out"), s.value_cols(), p.hidden)?,
    })
}
