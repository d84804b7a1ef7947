//! DFlash: a block-diffusion drafter ("DFlash: Block Diffusion for Flash Speculative Decoding", z-lab) that guesses a whole
//! block of tokens in one step.
//!
//! Its layers are a small transformer's, but their keys and values come from two places: from the block itself (the last
//! token that is known, then mask tokens), and from the **context**: the outputs of some of the model's layers, side by side,
//! projected once for all layers, `ctx = RMS(fc · features, hidden_norm)`. Only the context's keys and values outlive a step.
//! Layers that do not slide see all of the block, both ways; embedding and head are the model's.

pub(crate) mod config;
pub(crate) mod read;
pub(crate) mod rope;

use forerun_tensor::{
    Act, Activation, AttentionOp, AttentionShape, Gate, Ids, Kv, Op, Plan, PlanBuilder, Ring, RopeId,
    RopeKvOp, RopeSpec, Weight,
};

use crate::caches::KvLayer;
use crate::error::Result;
use crate::ffn::Dense;
use crate::model::Place;
use crate::tensors::{TensorSpec, tensor_group, total};

pub(crate) use read::Target;

/// Sizes and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// H, the model's.
    pub hidden: usize,
    /// Epsilon of every norm.
    pub eps: f32,
    /// Heads.
    pub attention: AttentionShape,
    /// Rotary embedding over whole heads.
    pub rope: RopeSpec,
    /// The model's layers whose outputs are the features, ascending.
    pub target_layers: Vec<usize>,
    /// Rows that the drafter was trained to fill: the last known token and the masks after it.
    pub block: usize,
    /// The token that stands for what is not known; `None` where the file was converted without its tokenizer.
    pub mask: Option<u32>,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Logits are `cap · tanh(logits / cap)`.
    pub softcap: Option<f32>,
}

tensor_group! {
    /// Weights of a layer: names in GGUF, in Hugging Face folders in brackets.
    Layer {
        /// `attn_norm.weight` (`input_layernorm`) `[H]`.
        attn_norm,
        /// `attn_q.weight` (`self_attn.q_proj`) `[heads · head_dim, H]`.
        attn_q,
        /// `attn_k.weight` (`self_attn.k_proj`) `[kv_heads · head_dim, H]`.
        attn_k,
        /// `attn_v.weight` (`self_attn.v_proj`) `[kv_heads · head_dim, H]`.
        attn_v,
        /// `attn_q_norm.weight` (`self_attn.q_norm`) `[head_dim]`.
        attn_q_norm,
        /// `attn_k_norm.weight` (`self_attn.k_norm`) `[head_dim]`.
        attn_k_norm,
        /// `attn_output.weight` (`self_attn.o_proj`) `[H, heads · head_dim]`.
        attn_output,
        /// `ffn_norm.weight` (`post_attention_layernorm`) `[H]`.
        ffn_norm,
    }
}

/// What a row of a layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Only positions up to its own; otherwise all of its block.
    pub causal: bool,
    /// Only keys less than so many positions before it.
    pub window: Option<u32>,
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<T, K> {
    /// Its weights but those of the feed-forward half.
    pub layer: Layer<T>,
    /// `ffn_{gate,up,down}.weight` (`mlp.{gate,up,down}_proj`).
    pub ffn: Dense<T>,
    /// What its rows see.
    pub mask: Mask,
    /// Keys and values of the context, and of a block while it is drafted.
    pub kv: K,
}

/// A drafter: as its file describes it (`T` = [`TensorSpec`], no caches), or loaded (`T` = `Weight`, `K` = `Kv`).
#[derive(Clone, Debug, PartialEq)]
pub struct DFlash<T, K> {
    /// Sizes and constants.
    pub params: Params,
    /// `fc.weight` `[H, features · H]`.
    pub fc: T,
    /// `enc.output_norm.weight` (`hidden_norm`) `[H]`.
    pub hidden_norm: T,
    /// Layers.
    pub blocks: Vec<Block<T, K>>,
    /// `output_norm.weight` (`norm`) `[H]`.
    pub output_norm: T,
    /// `token_embd.weight` `[vocabulary, H]`; `None` when it is the model's.
    pub token_embd: Option<T>,
    /// `output.weight` `[vocabulary, H]`; `None` when it is the model's head.
    pub output: Option<T>,
}

impl DFlash<TensorSpec, ()> {
    /// Puts every weight and cache where `place` wants it.
    pub(crate) fn place<P: Place>(&self, place: &mut P) -> Result<DFlash<P::Tensor, P::Kv>> {
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for b in &self.blocks {
            blocks.push(Block {
                layer: b.layer.try_map(|t| place.tensor(t))?,
                ffn: b.ffn.try_map(|t| place.tensor(t))?,
                mask: b.mask,
                kv: place.kv(&KvLayer::full(self.params.attention))?,
            });
        }
        Ok(DFlash {
            params: self.params.clone(),
            fc: place.tensor(&self.fc)?,
            hidden_norm: place.tensor(&self.hidden_norm)?,
            blocks,
            output_norm: place.tensor(&self.output_norm)?,
            token_embd: self.token_embd.as_ref().map(|t| place.tensor(t)).transpose()?,
            output: self.output.as_ref().map(|t| place.tensor(t)).transpose()?,
        })
    }

    /// The drafter's own weights.
    #[must_use]
    pub fn tensors(&self) -> Vec<&TensorSpec> {
        let layers = self.blocks.iter().flat_map(|b| b.layer.fields().into_iter().chain(b.ffn.fields()));
        let whole = [&self.fc, &self.hidden_norm, &self.output_norm];
        whole.into_iter().chain(layers).chain(&self.token_embd).chain(&self.output).collect()
    }

    /// Number of elements of the drafter's own weights.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        total(self.tensors(), TensorSpec::elements)
    }

    /// Bytes of the drafter's own weights in the file's types.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        total(self.tensors(), TensorSpec::bytes)
    }
}

/// What a step of the drafter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DFlashStep {
    /// Rows are verified tokens: their features become keys and values of every layer.
    Context,
    /// Rows are blocks, each the last token of a sequence and masks; output rows are guessed from.
    Block,
}

/// Where the time of a draft goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DFlashPart {
    /// Features, their projection, and the context's keys and values.
    Context,
    /// From a layer's `attn_norm` to its `attn_output`.
    Attention,
    /// The feed-forward halves.
    Ffn,
    /// `output_norm`, the head and the choice.
    Head,
}

/// What the drafter shares with its model.
pub(crate) struct Shared<'a> {
    pub(crate) token_embd: &'a Weight,
    pub(crate) head: &'a Weight,
    /// Features of positions.
    pub(crate) features: &'a Ring,
}

impl DFlash<Weight, Kv> {
    /// The part that each operator of one of the drafter's plans belongs to.
    #[must_use]
    pub fn parts(&self, plan: &Plan) -> Vec<DFlashPart> {
        let ops = plan.ops();
        if !ops.iter().any(|op| matches!(op, Op::Sample { .. })) {
            return vec![DFlashPart::Context; ops.len()];
        }
        let has = |op: &Op, weight: &Weight| op.weights().contains(&weight.id);
        let mut part = DFlashPart::Attention;
        let mut parts = Vec::with_capacity(ops.len());
        for op in ops {
            if self.blocks.iter().any(|b| has(op, &b.layer.ffn_norm)) {
                part = DFlashPart::Ffn;
            } else if self.blocks.iter().any(|b| has(op, &b.layer.attn_norm)) {
                part = DFlashPart::Attention;
            } else if matches!(op, Op::Select { .. }) {
                part = DFlashPart::Head;
            }
            parts.push(part);
        }
        parts
    }

    /// Records a step.
    pub(crate) fn record(&self, plan: &mut PlanBuilder, shared: &Shared<'_>, step: DFlashStep) -> Result<()> {
        let rope = plan.rope(self.params.rope.clone());
        match step {
            DFlashStep::Context => self.context(plan, shared, rope),
            DFlashStep::Block => self.block(plan, shared, rope),
        }
    }

    /// Keys and values of every layer for rows whose features are in the ring.
    fn context(&self, plan: &mut PlanBuilder, shared: &Shared<'_>, rope: RopeId) -> Result<()> {
        let features = plan.recall(shared.features);
        let [ctx] = plan.mat_mul(features, [&self.fc])?;
        plan.rms_norm_into(ctx, Some(&self.hidden_norm), self.params.eps, None, None, ctx)?;
        for block in &self.blocks {
            let [k, v] = plan.mat_mul(ctx, [&block.layer.attn_k, &block.layer.attn_v])?;
            self.rope_kv(plan, rope, block, None, (k, v))?;
        }
        Ok(())
    }

    /// Guesses for the output rows of blocks.
    fn block(&self, plan: &mut PlanBuilder, shared: &Shared<'_>, rope: RopeId) -> Result<()> {
        let eps = self.params.eps;
        let table = self.token_embd.as_ref().unwrap_or(shared.token_embd);
        let h = plan.embed(table, Ids::Step, self.params.embedding_scale)?;
        for block in &self.blocks {
            let w = &block.layer;
            let x = plan.rms_norm(h, Some(&w.attn_norm), eps)?;
            let [q, k, v] = plan.mat_mul(x, [&w.attn_q, &w.attn_k, &w.attn_v])?;
            self.rope_kv(plan, rope, block, Some(q), (k, v))?;
            let o = self.attention(plan, block, q)?;
            plan.mat_mul_add(o, &w.attn_output, h)?;
            let x = plan.rms_norm(h, Some(&w.ffn_norm), eps)?;
            let f = plan.gated_mat_mul(x, &block.ffn.ffn_gate, &block.ffn.ffn_up, Activation::Silu)?;
            plan.mat_mul_add(f, &block.ffn.ffn_down, h)?;
        }
        let guessed = plan.select(h)?;
        let n = plan.rms_norm(guessed, Some(&self.output_norm), eps)?;
        let [logits] = plan.mat_mul(n, [self.output.as_ref().unwrap_or(shared.head)])?;
        if let Some(cap) = self.params.softcap {
            plan.softcap(logits, cap)?;
        }
        plan.sample(logits, None, true)?;
        Ok(())
    }

    fn attention(&self, plan: &mut PlanBuilder, block: &Block<Weight, Kv>, q: Act) -> Result<Act> {
        let shape = self.params.attention;
        let op = AttentionOp {
            q,
            gate: Gate::None,
            kv: block.kv.id,
            shape,
            scale: 1.0 / (shape.key_dim as f32).sqrt(),
            causal: block.mask.causal,
            window: block.mask.window,
            advance: 0,
            out: q,
        };
        Ok(plan.attention(op, &block.kv)?)
    }

    fn rope_kv(
        &self,
        plan: &mut PlanBuilder,
        rope: RopeId,
        block: &Block<Weight, Kv>,
        q: Option<Act>,
        (k, v): (Act, Act),
    ) -> Result<()> {
        let w = &block.layer;
        let op = RopeKvOp {
            q,
            k: Some(k),
            v: Some(v),
            q_norm: Some(w.attn_q_norm.id),
            k_norm: Some(w.attn_k_norm.id),
            v_norm: false,
            eps: self.params.eps,
            shape: self.params.attention,
            rope,
            kv: block.kv.id,
            advance: 0,
        };
        Ok(plan.rope_kv(op, [Some(&w.attn_q_norm), Some(&w.attn_k_norm)], &block.kv)?)
    }
}
