//! The MTP (NextN) draft block that Qwen3.5-family files carry: one full-attention block that reads the model's hidden state
//! of a token and the token after it, and guesses the one after that.
//!
//! A **pair** (h, x) is the model's hidden state of token i after `output_norm`, and token i + 1; it stands at position i of
//! the block's own KV cache. `z = eh_proj · [RMS(embed(x), enorm); RMS(h, hnorm)]`, then a block as in the model,
//! `n = RMS(y, shared_head_norm)`, and the head over n. In a chain of guesses n takes the place of h. (DeepSeek-V3 technical
//! report, arXiv 2412.19437, section 2.2.)

mod read;

use std::sync::Arc;

use forerun_tensor::math::powf64;
use forerun_tensor::{
    Act, AttentionOp, AttentionShape, Gate, Ids, Kv, Op, Plan, PlanBuilder, Ring, RopeId, RopeKvOp, RopeSpec,
    Weight,
};

use crate::caches::KvLayer;
use crate::error::Result;
use crate::ffn::{Ffn, FfnShape};
use crate::model::Place;
use crate::tensors::{TensorSpec, total};

pub(crate) use read::Surroundings;

/// How the block's attention output is gated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// Not at all.
    None,
    /// Each query head of `attn_q` is followed by its gate.
    Interleaved,
    /// By `attn_gate`.
    Separate,
}

/// Sizes and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Index of the block in its file: its tensors are `blk.{block}.*`.
    pub block: usize,
    /// H.
    pub hidden: usize,
    /// Epsilon of every norm.
    pub eps: f32,
    /// Heads.
    pub attention: AttentionShape,
    /// Gate of the attention output.
    pub gate: GateKind,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Leading dims of a head that are rotated.
    pub rope_dims: usize,
    /// Feed-forward sizes.
    pub ffn: FfnShape,
}

/// The block: as its file describes it (`T` = [`TensorSpec`], no cache), or loaded (`T` = `Weight`, `K` = `Kv`).
#[derive(Clone, Debug, PartialEq)]
pub struct Mtp<T, K> {
    /// Sizes and constants.
    pub params: Params,
    /// `nextn.embed_tokens.weight` `[vocabulary, H]`; `None` when it is the model's `token_embd`.
    pub embed_tokens: Option<T>,
    /// `nextn.enorm.weight` `[H]`.
    pub enorm: T,
    /// `nextn.hnorm.weight` `[H]`.
    pub hnorm: T,
    /// `nextn.eh_proj.weight` `[H, 2 · H]`: columns of the embedding first.
    pub eh_proj: T,
    /// `attn_norm.weight` `[H]`.
    pub attn_norm: T,
    /// `attn_q.weight` `[heads · q_stride, H]`.
    pub attn_q: T,
    /// `attn_k.weight` `[kv_heads · head_dim, H]`.
    pub attn_k: T,
    /// `attn_v.weight` `[kv_heads · head_dim, H]`.
    pub attn_v: T,
    /// `attn_gate.weight` `[heads · head_dim, H]`, of [`GateKind::Separate`].
    pub attn_gate: Option<T>,
    /// `attn_q_norm.weight` `[head_dim]`.
    pub attn_q_norm: Option<T>,
    /// `attn_k_norm.weight` `[head_dim]`.
    pub attn_k_norm: Option<T>,
    /// `attn_output.weight` `[H, heads · head_dim]`.
    pub attn_output: T,
    /// `post_attention_norm.weight` `[H]`.
    pub post_attention_norm: T,
    /// Feed-forward half.
    pub ffn: Ffn<T>,
    /// `nextn.shared_head_norm.weight` `[H]`; `None` when it is the model's `output_norm`.
    pub shared_head_norm: Option<T>,
    /// `nextn.shared_head_head.weight` `[vocabulary, H]`; `None` when it is the model's head.
    pub shared_head_head: Option<T>,
    /// Keys and values of the pairs.
    pub kv: K,
}

impl Mtp<TensorSpec, ()> {
    /// Puts every weight and the cache where `place` wants them.
    pub(crate) fn place<P: Place>(&self, place: &mut P) -> Result<Mtp<P::Tensor, P::Kv>> {
        let opt = |t: &Option<TensorSpec>, place: &mut P| t.as_ref().map(|t| place.tensor(t)).transpose();
        Ok(Mtp {
            params: self.params.clone(),
            embed_tokens: opt(&self.embed_tokens, place)?,
            enorm: place.tensor(&self.enorm)?,
            hnorm: place.tensor(&self.hnorm)?,
            eh_proj: place.tensor(&self.eh_proj)?,
            attn_norm: place.tensor(&self.attn_norm)?,
            attn_q: place.tensor(&self.attn_q)?,
            attn_k: place.tensor(&self.attn_k)?,
            attn_v: place.tensor(&self.attn_v)?,
            attn_gate: opt(&self.attn_gate, place)?,
            attn_q_norm: opt(&self.attn_q_norm, place)?,
            attn_k_norm: opt(&self.attn_k_norm, place)?,
            attn_output: place.tensor(&self.attn_output)?,
            post_attention_norm: place.tensor(&self.post_attention_norm)?,
            ffn: self.ffn.try_map(|t| place.tensor(t))?,
            shared_head_norm: opt(&self.shared_head_norm, place)?,
            shared_head_head: opt(&self.shared_head_head, place)?,
            kv: place.kv(&KvLayer::full(self.params.attention))?,
        })
    }

    /// The block's own weights.
    #[must_use]
    pub fn tensors(&self) -> Vec<&TensorSpec> {
        let mut all =
            vec![&self.enorm, &self.hnorm, &self.eh_proj, &self.attn_norm, &self.attn_q, &self.attn_k];
        all.extend([&self.attn_v, &self.attn_output, &self.post_attention_norm]);
        let optional = [&self.embed_tokens, &self.attn_gate, &self.attn_q_norm, &self.attn_k_norm];
        all.extend(optional.into_iter().flatten());
        all.extend([&self.shared_head_norm, &self.shared_head_head].into_iter().flatten());
        all.extend(self.ffn.tensors());
        all
    }

    /// Number of elements of the block's own weights.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        total(self.tensors(), TensorSpec::elements)
    }

    /// Bytes of the block's own weights in the file's types.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        total(self.tensors(), TensorSpec::bytes)
    }
}

/// What a step of the block does with its rows, each a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MtpStep {
    /// Makes their keys and values, nothing else.
    Pairs,
    /// Guesses from the output rows; the others only leave keys and values.
    Guess,
    /// The same, for steps in which every row is an output row (links of chains): fewer operators, all of them over every row.
    Chain,
    /// Runs every row through the block and guesses nothing: what reads the block's products wants all of them.
    Through,
}

/// Where the time of a draft goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MtpPart {
    /// Embedding, hidden state and `eh_proj`.
    Projection,
    /// From `attn_norm` to `attn_output`.
    Attention,
    /// The feed-forward half.
    Ffn,
    /// `shared_head_norm`, the head and the choice.
    Head,
}

impl Mtp<Weight, Kv> {
    /// The part that each operator of one of the block's plans belongs to.
    #[must_use]
    pub fn parts(&self, plan: &Plan) -> Vec<MtpPart> {
        let has = |op: &Op, weight: &Weight| op.weights().contains(&weight.id);
        let ffn_ends = plan
            .ops()
            .iter()
            .rposition(|op| self.ffn.tensors().iter().any(|w| has(op, w)) || matches!(op, Op::Experts(_)));
        let mut part = MtpPart::Projection;
        let mut parts = Vec::with_capacity(plan.ops().len());
        for (i, op) in plan.ops().iter().enumerate() {
            parts.push(part);
            if has(op, &self.eh_proj) {
                part = MtpPart::Attention;
            } else if has(op, &self.attn_output) {
                part = MtpPart::Ffn;
            } else if Some(i) == ffn_ends {
                part = MtpPart::Head;
            }
        }
        parts
    }
}

/// Rows of the head that guesses are chosen from.
#[derive(Clone, Debug, PartialEq)]
pub struct ReducedHead {
    /// The rows, `[ids, H]`.
    pub weight: Weight,
    /// Their token ids, ascending.
    pub ids: Arc<[u32]>,
}

/// What the block shares with its model.
pub(crate) struct Shared<'a> {
    pub(crate) token_embd: &'a Weight,
    pub(crate) output_norm: &'a Weight,
    pub(crate) head: &'a Weight,
    pub(crate) reduced: Option<&'a ReducedHead>,
    pub(crate) hidden: &'a Ring,
}

/// Buffers of the rows that go on from a pair's projection.
struct Row {
    /// Residual stream.
    z: Act,
    /// `RMS(z, attn_norm)`.
    x: Act,
}

impl Mtp<Weight, Kv> {
    /// Records a step whose rows are pairs: row (p, x) reads the hidden state of position p from the ring and stands at
    /// position p. Every row's K and V are written; only output rows are guessed from. Their n goes to the ring, one
    /// position further, for the next link of a chain.
    pub(crate) fn record(&self, plan: &mut PlanBuilder, shared: &Shared<'_>, step: MtpStep) -> Result<()> {
        let rope = plan.rope(self.params.rope());
        let all = self.project(plan, shared)?;
        let row = match step {
            MtpStep::Chain | MtpStep::Through => {
                let [q, k, v] = plan.mat_mul(all.x, [&self.attn_q, &self.attn_k, &self.attn_v])?;
                self.rope_kv(plan, rope, Some(q), Some((k, v)))?;
                self.attention(plan, &all, q)?;
                all
            }
            MtpStep::Pairs | MtpStep::Guess => {
                let [k, v] = plan.mat_mul(all.x, [&self.attn_k, &self.attn_v])?;
                self.rope_kv(plan, rope, None, Some((k, v)))?;
                if step == MtpStep::Pairs {
                    return Ok(());
                }
                let row = Row { z: plan.select(all.z)?, x: plan.select(all.x)? };
                let [q] = plan.mat_mul(row.x, [&self.attn_q])?;
                self.rope_kv(plan, rope, Some(q), None)?;
                self.attention(plan, &row, q)?;
                row
            }
        };
        let h = plan.rms_norm(row.z, Some(&self.post_attention_norm), self.params.eps)?;
        self.ffn.record(plan, h, row.z, self.params.ffn.top_k())?;
        if step == MtpStep::Through {
            return Ok(());
        }
        let z = if step == MtpStep::Chain { plan.select(row.z)? } else { row.z };
        let norm = self.shared_head_norm.as_ref().unwrap_or(shared.output_norm);
        let n = plan.rms_norm(z, Some(norm), self.params.eps)?;
        plan.keep(n, shared.hidden, 1)?;
        let (head, map) = match shared.reduced {
            Some(reduced) => (&reduced.weight, Some(plan.token_map(reduced.ids.clone())?)),
            None => (self.shared_head_head.as_ref().unwrap_or(shared.head), None),
        };
        let [logits] = plan.mat_mul(n, [head])?;
        plan.sample(logits, map, true)?;
        Ok(())
    }

    /// `z = eh_proj · [RMS(embed(x), enorm); RMS(h, hnorm)]` of every row, and its norm.
    fn project(&self, plan: &mut PlanBuilder, shared: &Shared<'_>) -> Result<Row> {
        let eps = self.params.eps;
        let table = self.embed_tokens.as_ref().unwrap_or(shared.token_embd);
        let e = plan.embed(table, Ids::Step, 1.0)?;
        let e = plan.rms_norm(e, Some(&self.enorm), eps)?;
        let h = plan.recall(shared.hidden);
        let h = plan.rms_norm(h, Some(&self.hnorm), eps)?;
        let both = plan.concat(&[e, h])?;
        let [z] = plan.mat_mul(both, [&self.eh_proj])?;
        let x = plan.rms_norm(z, Some(&self.attn_norm), eps)?;
        Ok(Row { z, x })
    }

    /// Adds attention of `q` over all pairs so far to the residual stream.
    fn attention(&self, plan: &mut PlanBuilder, row: &Row, q: Act) -> Result<()> {
        let gate = match (&self.attn_gate, self.params.gate) {
            (Some(attn_gate), _) => {
                let [gate] = plan.mat_mul(row.x, [attn_gate])?;
                Gate::Separate(gate)
            }
            (None, GateKind::Interleaved) => Gate::Interleaved,
            (None, _) => Gate::None,
        };
        let shape = self.params.attention;
        let op = AttentionOp {
            q,
            gate,
            kv: self.kv.id,
            shape,
            scale: 1.0 / (shape.key_dim as f32).sqrt(),
            causal: true,
            window: None,
            advance: 0,
            out: q,
        };
        let o = plan.attention(op, &self.kv)?;
        plan.mat_mul_add(o, &self.attn_output, row.z).map_err(Into::into)
    }

    fn rope_kv(
        &self,
        plan: &mut PlanBuilder,
        rope: RopeId,
        q: Option<Act>,
        kv: Option<(Act, Act)>,
    ) -> Result<()> {
        let norms = [self.attn_q_norm.as_ref(), self.attn_k_norm.as_ref()];
        let op = RopeKvOp {
            q,
            k: kv.map(|(k, _)| k),
            v: kv.map(|(_, v)| v),
            q_norm: norms[0].map(|w| w.id),
            k_norm: norms[1].map(|w| w.id),
            v_norm: false,
            eps: self.params.eps,
            shape: self.params.attention,
            rope,
            kv: self.kv.id,
            advance: 0,
        };
        plan.rope_kv(op, norms, &self.kv).map_err(Into::into)
    }
}

impl Params {
    /// Frequency of pair p: base^(−2p / rope_dims).
    fn rope(&self) -> RopeSpec {
        let frequency =
            |p: usize| powf64(f64::from(self.rope_base), -((2 * p) as f64) / self.rope_dims as f64);
        RopeSpec { frequencies: (0..self.rope_dims / 2).map(frequency).collect(), scale: 1.0 }
    }
}
