//! Gemma 4 (GGUF architecture `gemma4`): sliding and full attention in turn, dense or with a mixture of experts beside the
//! dense feed-forward layer; the small models have an embedding for every layer and share keys and values.
//!
//! Every sub-layer is normed before and after: `x = x + RMS(f(RMS(x)))`. H is the hidden size, d the length of a per-layer
//! embedding; matrices are `[rows, columns]`, multiplied as `W · x`.

mod read;

use forerun_tensor::math::powf64;
use forerun_tensor::{
    Act, Activation, AttentionOp, AttentionShape, ExpertSums, ExpertsOp, Gate, Ids, Kv, PlanBuilder, RopeId,
    RopeKvOp, RopeSpec, RouterKind, RowSet, Scale, Weight,
};

use crate::caches::KvLayer;
use crate::captures::Captures;
use crate::error::Result;
use crate::ffn::Dense;
use crate::model::Place;
use crate::tensors::{TensorSpec, tensor_group};

tensor_group! {
    /// The mixture beside the dense layer: E experts of feed-forward length F, each a gated product as in [`Dense`].
    Experts {
        /// `ffn_gate_inp.scale` `[H]`: gain of the router's input.
        ffn_gate_inp_scale,
        /// `ffn_gate_inp.weight` `[E, H]`, the router.
        ffn_gate_inp,
        /// `pre_ffw_norm_2.weight` `[H]`, before the experts.
        pre_ffw_norm_2,
        /// `ffn_gate_exps.weight` `[E][F, H]`.
        ffn_gate_exps,
        /// `ffn_up_exps.weight` `[E][F, H]`.
        ffn_up_exps,
        /// `ffn_down_exps.weight` `[E][H, F]`.
        ffn_down_exps,
        /// `ffn_down_exps.scale` `[E]`: factor on an expert's weight.
        ffn_down_exps_scale,
        /// `post_ffw_norm_1.weight` `[H]`, after the dense layer.
        post_ffw_norm_1,
        /// `post_ffw_norm_2.weight` `[H]`, after the experts.
        post_ffw_norm_2,
    }
}

tensor_group! {
    /// What a layer does with its part of the per-layer embeddings.
    PerLayer {
        /// `inp_gate.weight` `[d, H]`.
        inp_gate,
        /// `proj.weight` `[H, d]`.
        proj,
        /// `post_norm.weight` `[H]`.
        post_norm,
    }
}

tensor_group! {
    /// Where the embeddings of all L layers come from.
    PerLayerInputs {
        /// `per_layer_token_embd.weight` `[vocabulary, L · d]`.
        per_layer_token_embd,
        /// `per_layer_model_proj.weight` `[L · d, H]`.
        per_layer_model_proj,
        /// `per_layer_proj_norm.weight` `[d]`.
        per_layer_proj_norm,
    }
}

/// Keys and values of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum KeysValues<T, K> {
    /// Its own.
    Own {
        /// `attn_k.weight` `[kv_heads · head_dim, H]`.
        attn_k: T,
        /// `attn_v.weight`, of the same shape; `None` when values are the keys before their norm and rotation.
        attn_v: Option<T>,
        /// `attn_k_norm.weight` `[head_dim]`.
        attn_k_norm: T,
        /// Their cache.
        kv: K,
    },
    /// Those of an earlier layer of the same kind, which has its own.
    Of(usize),
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<T, K> {
    /// Whether attention slides over a window; otherwise it is full.
    pub sliding: bool,
    /// Heads.
    pub attention: AttentionShape,
    /// `attn_norm.weight` `[H]`.
    pub attn_norm: T,
    /// `attn_q.weight` `[heads · head_dim, H]`.
    pub attn_q: T,
    /// `attn_q_norm.weight` `[head_dim]`.
    pub attn_q_norm: T,
    /// Keys and values.
    pub keys_values: KeysValues<T, K>,
    /// `attn_output.weight` `[H, heads · head_dim]`.
    pub attn_output: T,
    /// `post_attention_norm.weight` `[H]`.
    pub post_attention_norm: T,
    /// `ffn_norm.weight` `[H]`.
    pub ffn_norm: T,
    /// The dense feed-forward layer.
    pub ffn: Dense<T>,
    /// The mixture beside it.
    pub experts: Option<Box<Experts<T>>>,
    /// `post_ffw_norm.weight` `[H]`.
    pub post_ffw_norm: T,
    /// The layer's part of the per-layer embeddings.
    pub per_layer: Option<PerLayer<T>>,
    /// `layer_output_scale.weight` `[1]`: factor on the residual stream after the layer.
    pub layer_output_scale: Option<T>,
}

/// Divisors of the rotary frequencies of full attention, `rope_freqs.weight` `[rotated dims / 2]`: 1 for the pairs that
/// turn, 1e30 for those that stand still.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFreqs {
    /// The tensor.
    pub tensor: TensorSpec,
    /// Its elements; none before the model is loaded.
    pub values: Vec<f32>,
}

/// Sizes and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// H.
    pub hidden: usize,
    /// Epsilon of every norm.
    pub eps: f32,
    /// Positions that a row of a sliding layer sees, its own included.
    pub window: usize,
    /// Base of the rotary frequencies of full attention.
    pub rope_base: f32,
    /// Rotated dims of a head of full attention.
    pub rope_dims: usize,
    /// Base of the rotary frequencies of sliding attention.
    pub rope_base_swa: f32,
    /// Rotated dims of a head of sliding attention.
    pub rope_dims_swa: usize,
    /// Experts that a row runs in a layer; 0 for dense models.
    pub top_k: usize,
    /// d; 0 without per-layer embeddings.
    pub per_layer: usize,
    /// Logits l become `cap · tanh(l / cap)`.
    pub final_logit_softcapping: Option<f32>,
}

/// The model: as its file describes it (`T` = [`TensorSpec`], no caches), or loaded (`T` = `Weight`, `K` = `Kv`).
#[derive(Clone, Debug, PartialEq)]
pub struct Gemma4<T, K> {
    /// Sizes and constants.
    pub params: Params,
    /// `token_embd.weight` `[vocabulary, H]`.
    pub token_embd: T,
    /// Per-layer embeddings.
    pub per_layer: Option<PerLayerInputs<T>>,
    /// `rope_freqs.weight`, where there is full attention.
    pub rope_freqs: Option<RopeFreqs>,
    /// Layers.
    pub blocks: Vec<Block<T, K>>,
    /// `output_norm.weight` `[H]`.
    pub output_norm: T,
    /// `output.weight` `[vocabulary, H]`; `None` when the head is `token_embd`.
    pub output: Option<T>,
}

/// The model's rotary embeddings within a plan.
#[derive(Clone, Copy)]
struct Ropes {
    full: RopeId,
    sliding: RopeId,
}

impl Params {
    /// Factor on embeddings: √H.
    #[must_use]
    pub fn embedding_scale(&self) -> f32 {
        (self.hidden as f32).sqrt()
    }

    fn cache_of<T, K>(&self, block: &Block<T, K>) -> KvLayer {
        KvLayer { shape: block.attention, window: block.sliding.then_some(self.window) }
    }
}

/// Frequency of pair p: base^(−2p / dims), divided by its factor where there is one.
fn rope(base: f32, dims: usize, factors: &[f32]) -> RopeSpec {
    let frequency = |p: usize| {
        let factor = f64::from(factors.get(p).copied().unwrap_or(1.0));
        powf64(f64::from(base), -((2 * p) as f64) / dims as f64) / factor
    };
    RopeSpec { frequencies: (0..dims / 2).map(frequency).collect(), scale: 1.0 }
}

impl<T, K> KeysValues<T, K> {
    fn attn_v(&self) -> Option<&T> {
        match self {
            KeysValues::Own { attn_v, .. } => attn_v.as_ref(),
            KeysValues::Of(_) => None,
        }
    }
}

impl Block<TensorSpec, ()> {
    fn place<P: Place>(&self, place: &mut P, cache: &KvLayer) -> Result<Block<P::Tensor, P::Kv>> {
        let experts = self.experts.as_ref();
        Ok(Block {
            sliding: self.sliding,
            attention: self.attention,
            attn_norm: place.tensor(&self.attn_norm)?,
            attn_q: place.tensor(&self.attn_q)?,
            attn_q_norm: place.tensor(&self.attn_q_norm)?,
            keys_values: match &self.keys_values {
                KeysValues::Own { attn_k, attn_v, attn_k_norm, kv: () } => KeysValues::Own {
                    attn_k: place.tensor(attn_k)?,
                    attn_v: attn_v.as_ref().map(|t| place.tensor(t)).transpose()?,
                    attn_k_norm: place.tensor(attn_k_norm)?,
                    kv: place.kv(cache)?,
                },
                KeysValues::Of(layer) => KeysValues::Of(*layer),
            },
            attn_output: place.tensor(&self.attn_output)?,
            post_attention_norm: place.tensor(&self.post_attention_norm)?,
            ffn_norm: place.tensor(&self.ffn_norm)?,
            ffn: self.ffn.try_map(|t| place.tensor(t))?,
            experts: experts.map(|e| e.try_map(|t| place.tensor(t)).map(Box::new)).transpose()?,
            post_ffw_norm: place.tensor(&self.post_ffw_norm)?,
            per_layer: self.per_layer.as_ref().map(|p| p.try_map(|t| place.tensor(t))).transpose()?,
            layer_output_scale: self.layer_output_scale.as_ref().map(|t| place.tensor(t)).transpose()?,
        })
    }
}

impl Gemma4<TensorSpec, ()> {
    /// Puts every weight and cache where `place` wants it.
    pub(crate) fn place<P: Place>(&self, place: &mut P) -> Result<Gemma4<P::Tensor, P::Kv>> {
        let token_embd = place.tensor(&self.token_embd)?;
        let per_layer = self.per_layer.as_ref().map(|p| p.try_map(|t| place.tensor(t))).transpose()?;
        let rope_freqs = match &self.rope_freqs {
            Some(RopeFreqs { tensor, .. }) => {
                Some(RopeFreqs { tensor: tensor.clone(), values: place.divisors(tensor)? })
            }
            None => None,
        };
        let blocks = self.blocks.iter().map(|b| b.place(place, &self.params.cache_of(b)));
        let blocks = blocks.collect::<Result<_>>()?;
        let output_norm = place.tensor(&self.output_norm)?;
        let output = self.output.as_ref().map(|t| place.tensor(t)).transpose()?;
        let params = self.params.clone();
        Ok(Gemma4 { params, token_embd, per_layer, rope_freqs, blocks, output_norm, output })
    }
}

impl Gemma4<Weight, Kv> {
    /// Records a step from token ids to logits and picks.
    pub(crate) fn record(&self, plan: &mut PlanBuilder, captures: &Captures<'_>) -> Result<()> {
        let p = &self.params;
        let factors = self.rope_freqs.as_ref().map_or(&[][..], |f| &f.values);
        let ropes = Ropes {
            full: plan.rope(rope(p.rope_base, p.rope_dims, factors)),
            sliding: plan.rope(rope(p.rope_base_swa, p.rope_dims_swa, &[])),
        };
        let x = plan.embed(&self.token_embd, Ids::Step, p.embedding_scale())?;
        captures.embedding(plan, x);
        let inputs = self.per_layer.as_ref().map(|w| self.per_layer_inputs(plan, w, x)).transpose()?;
        for (i, block) in self.blocks.iter().enumerate() {
            self.attention(plan, block, ropes, x)?;
            // The factor after the layer goes to the last of its sums.
            let scale = block.layer_output_scale.as_ref().map(Scale::Weight);
            match (&block.per_layer, inputs) {
                (Some(w), Some(inputs)) => {
                    self.feed_forward(plan, block, None, x)?;
                    self.per_layer_input(plan, w, (inputs, i), scale, x)?;
                }
                _ => self.feed_forward(plan, block, scale, x)?,
            }
            captures.layer(plan, i, x)?;
        }
        let hidden = captures.normed_output(plan, x, &self.output_norm, p.eps)?;
        let [logits] = plan.mat_mul(hidden, [self.output.as_ref().unwrap_or(&self.token_embd)])?;
        if let Some(cap) = p.final_logit_softcapping {
            plan.softcap(logits, cap)?;
        }
        plan.sample(logits, None, true)?;
        Ok(())
    }

    /// The embeddings of all layers side by side, `[rows, L · d]`:
    /// `(RMS(per_layer_model_proj · x / √H, per_layer_proj_norm) + √d · per_layer_token_embd) / √2`.
    fn per_layer_inputs(&self, plan: &mut PlanBuilder, w: &PerLayerInputs<Weight>, x: Act) -> Result<Act> {
        let (h, d) = (self.params.hidden as f32, self.params.per_layer as f32);
        let tokens = plan.embed(&w.per_layer_token_embd, Ids::Step, d.sqrt())?;
        let [projected] = plan.mat_mul(x, [&w.per_layer_model_proj])?;
        // RMS(p / √H) with epsilon eps is RMS(p) with epsilon H · eps.
        let eps = h * self.params.eps;
        let scale = Some(Scale::Constant(std::f32::consts::FRAC_1_SQRT_2));
        Ok(plan.rms_norm_groups(projected, &w.per_layer_proj_norm, eps, Some(tokens), scale)?)
    }

    /// Adds attention to the residual stream.
    fn attention(&self, plan: &mut PlanBuilder, w: &Block<Weight, Kv>, ropes: Ropes, x: Act) -> Result<()> {
        let (eps, shape) = (self.params.eps, w.attention);
        let h = plan.rms_norm(x, Some(&w.attn_norm), eps)?;
        let (q, kv) = self.queries_keys_values(plan, w, ropes, h)?;
        let op = AttentionOp {
            q,
            gate: Gate::None,
            kv: kv.id,
            shape,
            scale: 1.0,
            causal: true,
            window: w.sliding.then_some(self.params.window as u32),
            advance: 0,
            out: q,
        };
        let o = plan.attention(op, kv)?;
        let [y] = plan.mat_mul(o, [&w.attn_output])?;
        plan.rms_norm_into(y, Some(&w.post_attention_norm), eps, Some(x), None, x)?;
        Ok(())
    }

    /// Queries, and the cache that their keys and values are in: the layer's own, which this step's rows go to, or an
    /// earlier layer's.
    fn queries_keys_values<'a>(
        &'a self,
        plan: &mut PlanBuilder,
        w: &'a Block<Weight, Kv>,
        ropes: Ropes,
        h: Act,
    ) -> Result<(Act, &'a Kv)> {
        let (source, own) = match &w.keys_values {
            KeysValues::Own { .. } => (w, true),
            KeysValues::Of(layer) => (&self.blocks[*layer], false),
        };
        let KeysValues::Own { attn_k, attn_k_norm, kv, .. } = &source.keys_values else {
            unreachable!("reading a file finds layers that have keys and values")
        };
        let (q, k, v) = match source.keys_values.attn_v() {
            _ if !own => (plan.mat_mul(h, [&w.attn_q])?[0], None, None),
            Some(attn_v) => {
                let [q, k, v] = plan.mat_mul(h, [&w.attn_q, attn_k, attn_v])?;
                (q, Some(k), Some(v))
            }
            None => {
                let [q, k] = plan.mat_mul(h, [&w.attn_q, attn_k])?;
                (q, Some(k), Some(k))
            }
        };
        let op = RopeKvOp {
            q: Some(q),
            k,
            v,
            q_norm: Some(w.attn_q_norm.id),
            k_norm: own.then_some(attn_k_norm.id),
            v_norm: true,
            eps: self.params.eps,
            shape: w.attention,
            rope: if w.sliding { ropes.sliding } else { ropes.full },
            kv: kv.id,
            advance: 0,
        };
        plan.rope_kv(op, [Some(&w.attn_q_norm), own.then_some(attn_k_norm)], kv)?;
        Ok((q, kv))
    }

    /// Adds the feed-forward half to the residual stream: the dense layer, or that and the mixture.
    fn feed_forward(
        &self,
        plan: &mut PlanBuilder,
        w: &Block<Weight, Kv>,
        scale: Option<Scale<'_>>,
        x: Act,
    ) -> Result<()> {
        let eps = self.params.eps;
        let h = plan.rms_norm(x, Some(&w.ffn_norm), eps)?;
        let h = plan.gated_mat_mul(h, &w.ffn.ffn_gate, &w.ffn.ffn_up, Activation::GeluTanh)?;
        let [y] = plan.mat_mul(h, [&w.ffn.ffn_down])?;
        if let Some(experts) = &w.experts {
            plan.rms_norm_into(y, Some(&experts.post_ffw_norm_1), eps, None, None, y)?;
            self.experts(plan, experts, x, y)?;
        }
        plan.rms_norm_into(y, Some(&w.post_ffw_norm), eps, Some(x), scale, x)?;
        Ok(())
    }

    /// Adds the mixture over the residual stream `x` to `y`. The router reads `RMS(x, ffn_gate_inp.scale) / √H`.
    fn experts(&self, plan: &mut PlanBuilder, w: &Experts<Weight>, x: Act, y: Act) -> Result<()> {
        let (hidden, eps) = (self.params.hidden, self.params.eps);
        let r = plan.act(RowSet::Step, hidden);
        let scale = Some(Scale::Constant(1.0 / (hidden as f32).sqrt()));
        plan.rms_norm_into(x, Some(&w.ffn_gate_inp_scale), eps, None, scale, r)?;
        let [logits] = plan.mat_mul(r, [&w.ffn_gate_inp])?;
        let kind = RouterKind::SoftmaxRenormalisedScaled(w.ffn_down_exps_scale.id);
        let routes = plan.route(logits, kind, self.params.top_k)?;
        let h = plan.rms_norm(x, Some(&w.pre_ffw_norm_2), eps)?;
        let op = ExpertsOp {
            x: h,
            routes,
            gate: w.ffn_gate_exps.id,
            up: w.ffn_up_exps.id,
            down: w.ffn_down_exps.id,
            activation: Activation::GeluTanh,
            shared: None,
            residual: None,
            sums: ExpertSums::default(),
            out: plan.act(RowSet::Step, hidden),
        };
        plan.experts(op, [&w.ffn_gate_exps, &w.ffn_up_exps, &w.ffn_down_exps])?;
        plan.rms_norm_into(op.out, Some(&w.post_ffw_norm_2), eps, Some(y), None, y)?;
        Ok(())
    }

    /// Adds `RMS(proj · (gelu(inp_gate · x) ⊙ p), post_norm)` to the residual stream, p the layer's part of `inputs`.
    fn per_layer_input(
        &self,
        plan: &mut PlanBuilder,
        w: &PerLayer<Weight>,
        (inputs, layer): (Act, usize),
        scale: Option<Scale<'_>>,
        x: Act,
    ) -> Result<()> {
        let [g] = plan.mat_mul(x, [&w.inp_gate])?;
        plan.multiply(g, Activation::GeluTanh, inputs, layer * self.params.per_layer)?;
        let [y] = plan.mat_mul(g, [&w.proj])?;
        plan.rms_norm_into(y, Some(&w.post_norm), self.params.eps, Some(x), scale, x)?;
        Ok(())
    }
}
