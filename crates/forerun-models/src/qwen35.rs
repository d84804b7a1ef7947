//! Qwen3.5, 3.6 and 3.8: hybrids of gated delta nets and gated full attention (GGUF architectures `qwen35` with dense and
//! `qwen35moe` with expert feed-forward layers).
//!
//! A block is `r = x + mixer(RMS(x, attn_norm))`, `y = r + ffn(RMS(r, post_attention_norm))`; after the last come
//! `output_norm` and the head. H is the hidden size; matrices are `[rows, columns]`, multiplied as `W · x`.

mod read;

use forerun_tensor::math::powf64;
use forerun_tensor::{
    Act, AttentionOp, AttentionShape, DeltaNetOp, DeltaShape, Gate, Ids, Kv, PlanBuilder, RopeId, RopeKvOp,
    RopeSpec, State, Weight,
};

use crate::caches::KvLayer;
use crate::captures::Captures;
use crate::error::Result;
use crate::ffn::{Ffn, FfnShape};
use crate::model::Place;
use crate::tensors::{TensorSpec, tensor_group};

tensor_group! {
    /// Grouped-query attention with per-head norms of queries and keys and a sigmoid gate on its output.
    Attention {
        /// `attn_q.weight` `[heads · 2 · head_dim, H]`: per head its query rows, then its gate rows.
        attn_q,
        /// `attn_k.weight` `[kv_heads · head_dim, H]`.
        attn_k,
        /// `attn_v.weight` `[kv_heads · head_dim, H]`.
        attn_v,
        /// `attn_q_norm.weight` `[head_dim]`.
        attn_q_norm,
        /// `attn_k_norm.weight` `[head_dim]`.
        attn_k_norm,
        /// `attn_output.weight` `[H, heads · head_dim]`.
        attn_output,
    }
}

tensor_group! {
    /// Gated delta net (Yang, Kautz, Hatamizadeh: "Gated Delta Networks", arXiv 2412.06464) behind a causal convolution.
    DeltaNet {
        /// `attn_qkv.weight` `[conv_cols, H]`: rows of queries, keys, values.
        attn_qkv,
        /// `attn_gate.weight` `[value_cols, H]`: z, the gate of the output norm.
        attn_gate,
        /// `ssm_alpha.weight` `[value_heads, H]`: decay.
        ssm_alpha,
        /// `ssm_beta.weight` `[value_heads, H]`: write strength.
        ssm_beta,
        /// `ssm_conv1d.weight` `[conv_cols, 4]`: taps, oldest first.
        ssm_conv1d,
        /// `ssm_dt.bias` `[value_heads]`.
        ssm_dt,
        /// `ssm_a` `[value_heads]`: negative decay rates.
        ssm_a,
        /// `ssm_norm.weight` `[value_dim]`.
        ssm_norm,
        /// `ssm_out.weight` `[H, value_cols]`.
        ssm_out,
    }
}

/// What mixes positions in a block, with its cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer<T, K, S> {
    /// Full attention and its KV cache.
    Attention(Attention<T>, K),
    /// Delta net and its state.
    DeltaNet(DeltaNet<T>, S),
}

/// A main layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<T, K, S> {
    /// `attn_norm.weight` `[H]`.
    pub attn_norm: T,
    /// Attention or delta net.
    pub mixer: Mixer<T, K, S>,
    /// `post_attention_norm.weight` `[H]`.
    pub post_attention_norm: T,
    /// Feed-forward half.
    pub ffn: Ffn<T>,
}

/// Sizes and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// H.
    pub hidden: usize,
    /// Epsilon of every norm.
    pub eps: f32,
    /// Heads of the attention layers.
    pub attention: AttentionShape,
    /// Heads of the delta nets.
    pub delta: DeltaShape,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Leading dims of a head that are rotated.
    pub rope_dims: usize,
    /// Feed-forward sizes.
    pub ffn: FfnShape,
}

/// The model: as its file describes it (`T` = [`TensorSpec`], no caches), or loaded (`T` = `Weight`, `K` = `Kv`, `S` = `State`).
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen35<T, K, S> {
    /// Sizes and constants.
    pub params: Params,
    /// `token_embd.weight` `[vocabulary, H]`.
    pub token_embd: T,
    /// Main layers.
    pub blocks: Vec<Block<T, K, S>>,
    /// `output_norm.weight` `[H]`.
    pub output_norm: T,
    /// `output.weight` `[vocabulary, H]`; `None` when the head is `token_embd`.
    pub output: Option<T>,
}

impl Params {
    /// Frequency of pair p: base^(−2p / rope_dims). The three position axes of M-RoPE are equal for text.
    fn rope(&self) -> RopeSpec {
        let frequency =
            |p: usize| powf64(f64::from(self.rope_base), -((2 * p) as f64) / self.rope_dims as f64);
        RopeSpec { frequencies: (0..self.rope_dims / 2).map(frequency).collect(), scale: 1.0 }
    }

    /// Factor on attention scores: 1/√head_dim.
    fn score_scale(&self) -> f32 {
        1.0 / (self.attention.key_dim as f32).sqrt()
    }
}

impl Qwen35<TensorSpec, (), ()> {
    /// Puts every weight and cache where `place` wants it.
    pub(crate) fn place<P: Place>(&self, place: &mut P) -> Result<Qwen35<P::Tensor, P::Kv, P::State>> {
        let token_embd = place.tensor(&self.token_embd)?;
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for b in &self.blocks {
            blocks.push(Block {
                attn_norm: place.tensor(&b.attn_norm)?,
                mixer: match &b.mixer {
                    Mixer::Attention(a, ()) => Mixer::Attention(
                        a.try_map(|t| place.tensor(t))?,
                        place.kv(&KvLayer::full(self.params.attention))?,
                    ),
                    Mixer::DeltaNet(d, ()) => {
                        Mixer::DeltaNet(d.try_map(|t| place.tensor(t))?, place.state(&self.params.delta)?)
                    }
                },
                post_attention_norm: place.tensor(&b.post_attention_norm)?,
                ffn: b.ffn.try_map(|t| place.tensor(t))?,
            });
        }
        let output_norm = place.tensor(&self.output_norm)?;
        let output = self.output.as_ref().map(|t| place.tensor(t)).transpose()?;
        Ok(Qwen35 { params: self.params.clone(), token_embd, blocks, output_norm, output })
    }
}

impl Qwen35<Weight, Kv, State> {
    /// Records a step from token ids to logits and picks.
    pub(crate) fn record(&self, plan: &mut PlanBuilder, captures: &Captures<'_>) -> Result<()> {
        let eps = self.params.eps;
        let rope = plan.rope(self.params.rope());
        let x = plan.embed(&self.token_embd, Ids::Step, 1.0)?;
        captures.embedding(plan, x);
        for (i, block) in self.blocks.iter().enumerate() {
            let h = plan.rms_norm(x, Some(&block.attn_norm), eps)?;
            match &block.mixer {
                Mixer::Attention(w, kv) => self.attention(plan, w, kv, rope, h, x)?,
                Mixer::DeltaNet(w, state) => self.delta_net(plan, w, state, h, x)?,
            }
            let h = plan.rms_norm(x, Some(&block.post_attention_norm), eps)?;
            block.ffn.record(plan, h, x, self.params.ffn.top_k())?;
            captures.layer(plan, i, x)?;
        }
        let hidden = captures.normed_output(plan, x, &self.output_norm, eps)?;
        let [logits] = plan.mat_mul(hidden, [self.output.as_ref().unwrap_or(&self.token_embd)])?;
        plan.sample(logits, None, true)?;
        Ok(())
    }

    /// Adds attention over `h` to the residual stream `x`.
    fn attention(
        &self,
        plan: &mut PlanBuilder,
        w: &Attention<Weight>,
        kv: &Kv,
        rope: RopeId,
        h: Act,
        x: Act,
    ) -> Result<()> {
        let shape = self.params.attention;
        let [q, k, v] = plan.mat_mul(h, [&w.attn_q, &w.attn_k, &w.attn_v])?;
        let rope_kv = RopeKvOp {
            q: Some(q),
            k: Some(k),
            v: Some(v),
            q_norm: Some(w.attn_q_norm.id),
            k_norm: Some(w.attn_k_norm.id),
            v_norm: false,
            eps: self.params.eps,
            shape,
            rope,
            kv: kv.id,
            advance: 0,
        };
        plan.rope_kv(rope_kv, [Some(&w.attn_q_norm), Some(&w.attn_k_norm)], kv)?;
        let attention = AttentionOp {
            q,
            gate: Gate::Interleaved,
            kv: kv.id,
            shape,
            scale: self.params.score_scale(),
            causal: true,
            window: None,
            advance: 0,
            out: q,
        };
        let o = plan.attention(attention, kv)?;
        plan.mat_mul_add(o, &w.attn_output, x)?;
        Ok(())
    }

    /// Adds the delta net over `h` to the residual stream `x`.
    fn delta_net(
        &self,
        plan: &mut PlanBuilder,
        w: &DeltaNet<Weight>,
        state: &State,
        h: Act,
        x: Act,
    ) -> Result<()> {
        let [qkv, z, alpha, beta] =
            plan.mat_mul(h, [&w.attn_qkv, &w.attn_gate, &w.ssm_alpha, &w.ssm_beta])?;
        let op = DeltaNetOp {
            qkv,
            z,
            alpha,
            beta,
            conv: w.ssm_conv1d.id,
            dt_bias: w.ssm_dt.id,
            a: w.ssm_a.id,
            norm: w.ssm_norm.id,
            state: state.id,
            shape: self.params.delta,
            eps: self.params.eps,
            out: qkv,
        };
        let o = plan.delta_net(op, [&w.ssm_conv1d, &w.ssm_dt, &w.ssm_a, &w.ssm_norm], state)?;
        plan.mat_mul_add(o, &w.ssm_out, x)?;
        Ok(())
    }
}
