//! The tensors of an MTP block, checked.

use forerun_tensor::{AttentionShape, WeightUse};

use super::{GateKind, Mtp, Params};
use crate::error::Result;
use crate::ffn::{Ffn, FfnShape};
use crate::tensors::{Inventory, TensorSpec};

/// What the model around the block decides.
pub(crate) struct Surroundings {
    pub(crate) hidden: usize,
    pub(crate) eps: f32,
    /// Heads of the model's attention layers.
    pub(crate) attention: AttentionShape,
    pub(crate) rope_base: f32,
    pub(crate) rope_dims: usize,
    pub(crate) ffn: FfnShape,
    pub(crate) vocabulary: usize,
}

/// Query, key and value projections, and how the output is gated.
struct Projections {
    attn_q: TensorSpec,
    attn_k: TensorSpec,
    attn_v: TensorSpec,
    attn_gate: Option<TensorSpec>,
    shape: AttentionShape,
    gate: GateKind,
}

impl Mtp<TensorSpec, ()> {
    /// Reads block `block`.
    pub(crate) fn read(inv: &mut Inventory<'_>, block: usize, model: &Surroundings) -> Result<Self> {
        let prefix = format!("blk.{block}.");
        let name = |suffix: &str| format!("{prefix}{suffix}.weight");
        let hidden = model.hidden;
        let p = projections(inv, &prefix, model)?;
        let ffn = ffn_shape(inv, &prefix, model)?;
        let (head_dim, heads) = (p.shape.key_dim, p.shape.heads);
        let norms = ["attn_q_norm", "attn_k_norm"].map(name);
        if inv.has(&norms[0]) != inv.has(&norms[1]) {
            let missing = if inv.has(&norms[0]) { &norms[1] } else { &norms[0] };
            return Err(inv.wrong(missing, "missing", "norms of both queries and keys, or of neither"));
        }
        let table = name("nextn.embed_tokens");
        let embed_tokens =
            inv.has(&table).then(|| inv.table(&table, hidden, WeightUse::Table)).transpose()?;
        if let Some(t) = embed_tokens.as_ref().filter(|t| t.rows != model.vocabulary) {
            let expected = format!("the {} rows of the model's vocabulary", model.vocabulary);
            return Err(inv.wrong(&table, format!("{} rows", t.rows), expected));
        }
        let params = Params {
            block,
            hidden,
            eps: model.eps,
            attention: p.shape,
            gate: p.gate,
            rope_base: model.rope_base,
            rope_dims: model.rope_dims,
            ffn,
        };
        Ok(Mtp {
            params,
            embed_tokens,
            enorm: inv.vector(&name("nextn.enorm"), hidden)?,
            hnorm: inv.vector(&name("nextn.hnorm"), hidden)?,
            eh_proj: inv.matrix(&name("nextn.eh_proj"), 2 * hidden, hidden)?,
            attn_norm: inv.vector(&name("attn_norm"), hidden)?,
            attn_q: p.attn_q,
            attn_k: p.attn_k,
            attn_v: p.attn_v,
            attn_gate: p.attn_gate,
            attn_q_norm: inv.has(&norms[0]).then(|| inv.vector(&norms[0], head_dim)).transpose()?,
            attn_k_norm: inv.has(&norms[1]).then(|| inv.vector(&norms[1], head_dim)).transpose()?,
            attn_output: inv.matrix(&name("attn_output"), heads * head_dim, hidden)?,
            post_attention_norm: inv.vector(&name("post_attention_norm"), hidden)?,
            ffn: Ffn::read(inv, &prefix, hidden, ffn)?,
            shared_head_norm: opt_vector(inv, &name("nextn.shared_head_norm"), hidden)?,
            shared_head_head: opt_matrix(inv, &name("nextn.shared_head_head"), hidden, model.vocabulary)?,
            kv: (),
        })
    }
}

fn opt_vector(inv: &mut Inventory<'_>, name: &str, len: usize) -> Result<Option<TensorSpec>> {
    inv.has(name).then(|| inv.vector(name, len)).transpose()
}

fn opt_matrix(inv: &mut Inventory<'_>, name: &str, cols: usize, rows: usize) -> Result<Option<TensorSpec>> {
    inv.has(name).then(|| inv.matrix(name, cols, rows)).transpose()
}

fn projections(inv: &mut Inventory<'_>, prefix: &str, model: &Surroundings) -> Result<Projections> {
    let name = |suffix: &str| format!("{prefix}{suffix}.weight");
    let (s, hidden) = (model.attention, model.hidden);
    let (plain, kv) = (s.heads * s.key_dim, s.kv_heads * s.key_dim);
    let (fused, gate_name) = (name("attn_qkv"), name("attn_gate"));
    let q_name = if inv.has(&fused) { fused.clone() } else { name("attn_q") };
    let beside = if inv.has(&fused) { 2 * kv } else { 0 };
    let rows = inv.dims(&q_name).map(|d| d.get(1).copied().unwrap_or(1));
    let separate = inv.has(&gate_name);
    let (gate, q_rows) = match rows {
        Some(r) if r == 2 * plain + beside && !separate => (GateKind::Interleaved, 2 * plain),
        Some(r) if r == plain + beside && separate => (GateKind::Separate, plain),
        Some(r) if r == plain + beside => (GateKind::None, plain),
        Some(r) if r == 2 * plain + beside => {
            let found = format!("a gate of its own beside the {r} rows of `{q_name}`");
            return Err(inv.wrong(&gate_name, found, "gates in one of the two only"));
        }
        found => {
            let found = found.map_or("missing".into(), |r| format!("{r} rows"));
            let expected = format!("{} rows, or {} with gates between", plain + beside, 2 * plain + beside);
            return Err(inv.wrong(&q_name, found, expected));
        }
    };
    let (attn_q, attn_k, attn_v) = if inv.has(&fused) {
        let all = inv.matrix(&fused, hidden, q_rows + 2 * kv)?;
        (all.part(0, q_rows), all.part(q_rows, kv), all.part(q_rows + kv, kv))
    } else {
        let attn_q = inv.matrix(&q_name, hidden, q_rows)?;
        (attn_q, inv.matrix(&name("attn_k"), hidden, kv)?, inv.matrix(&name("attn_v"), hidden, kv)?)
    };
    let attn_gate = opt_matrix(inv, &gate_name, hidden, plain)?;
    let q_stride = q_rows / s.heads;
    Ok(Projections { attn_q, attn_k, attn_v, attn_gate, shape: AttentionShape { q_stride, ..s }, gate })
}

/// Feed-forward sizes: those of the model, or a dense layer of any length where the block has one.
fn ffn_shape(inv: &Inventory<'_>, prefix: &str, model: &Surroundings) -> Result<FfnShape> {
    let (dense, router) = (format!("{prefix}ffn_gate.weight"), format!("{prefix}ffn_gate_inp.weight"));
    match (inv.dims(&dense), inv.has(&router), model.ffn) {
        (Some(_), true, _) => {
            Err(inv.wrong(&router, "a router beside a dense feed-forward layer", "one of the two"))
        }
        (None, true, FfnShape::Dense { .. }) => {
            Err(inv.wrong(&router, "a router", format!("a dense layer, `{dense}`, as in the model")))
        }
        (Some(dims), false, _) => {
            let ffn = dims.get(1).copied().unwrap_or(1);
            FfnShape::dense(ffn).ok_or_else(|| {
                inv.wrong(&dense, format!("{ffn} rows"), "a feed-forward length of at most 1048576")
            })
        }
        (None, _, shape) => Ok(shape),
    }
}
