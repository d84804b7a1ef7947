//! The Qwen3.5 hybrid (`qwen35`, `qwen35moe`): layers of gated delta net and of gated full attention, each followed by a
//! dense or mixture-of-experts feed-forward layer. Fields are named after the tensors.
//!
//! ```text
//! r = x + mixer(RMS(x, attn_norm))
//! y = r + ffn(RMS(r, post_attention_norm))
//! ```

use forerun_tensor::math::powf64;
use forerun_tensor::{
    Act, Activation, AttentionOp, DeltaNetOp, ExpertsOp, Gate, Ids, Kv, KvSpec, Plan, PlanBuilder, Result as TensorResult,
    RopeId, RopeKvOp, RopeSpec, RouterKind, SharedExpert, State, StateSpec, Weight,
};

use crate::caches::CacheConfig;
use crate::error::Result;
use crate::load::Loader;
use crate::model::StepShape;
use crate::qwen35_spec::{MoeSpec, Qwen35Spec};

#[derive(Debug)]
pub(crate) struct Qwen35 {
    token_embd: Weight,
    output_norm: Weight,
    output: Weight,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    attn_norm: Weight,
    mixer: Mixer,
    post_attention_norm: Weight,
    ffn: FeedForward,
}

#[derive(Debug)]
enum Mixer {
    Delta(Box<DeltaNet>),
    Attention(Box<Attention>),
}

#[derive(Debug)]
struct DeltaNet {
    attn_qkv: Weight,
    attn_gate: Weight,
    ssm_alpha: Weight,
    ssm_beta: Weight,
    ssm_conv1d: Weight,
    ssm_dt: Weight,
    ssm_a: Weight,
    ssm_norm: Weight,
    ssm_out: Weight,
    state: State,
}

#[derive(Debug)]
struct Attention {
    attn_q: Weight,
    attn_k: Weight,
    attn_v: Weight,
    attn_q_norm: Weight,
    attn_k_norm: Weight,
    attn_output: Weight,
    kv: Kv,
}

#[derive(Debug)]
enum FeedForward {
    Dense { ffn_gate: Weight, ffn_up: Weight, ffn_down: Weight },
    Experts(Box<Experts>),
}

#[derive(Debug)]
struct Experts {
    used: usize,
    ffn_gate_inp: Weight,
    ffn_gate_exps: Weight,
    ffn_up_exps: Weight,
    ffn_down_exps: Weight,
    ffn_gate_inp_shexp: Weight,
    ffn_gate_shexp: Weight,
    ffn_up_shexp: Weight,
    ffn_down_shexp: Weight,
}

impl Qwen35 {
    pub(crate) fn load(spec: &Qwen35Spec, loader: &mut Loader<'_>, caches: &CacheConfig) -> Result<Self> {
        let token_embd = loader.weight("token_embd.weight")?;
        let output_norm = loader.weight("output_norm.weight")?;
        let output = if spec.tied { token_embd } else { loader.weight("output.weight")? };
        let layers = (0..spec.recurrent.len())
            .map(|i| {
                Ok(Layer {
                    attn_norm: loader.block(i, "attn_norm.weight")?,
                    mixer: if spec.recurrent[i] {
                        Mixer::Delta(Box::new(DeltaNet::load(spec, i, loader, caches)?))
                    } else {
                        Mixer::Attention(Box::new(Attention::load(spec, i, loader, caches)?))
                    },
                    post_attention_norm: loader.block(i, "post_attention_norm.weight")?,
                    ffn: FeedForward::load(spec.moe.as_ref(), i, loader)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { token_embd, output_norm, output, layers })
    }

    pub(crate) fn record(&self, spec: &Qwen35Spec, shape: &StepShape) -> TensorResult<Plan> {
        let mut b = PlanBuilder::new(shape.max_rows, shape.max_out);
        let rope = b.rope(rotary(spec));
        let x = b.embed(&self.token_embd, Ids::Step, 1.0)?;
        if shape.taps.embeddings {
            b.output(x);
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer.record(&mut b, spec, rope, x)?;
            if shape.taps.layers.contains(&i) {
                b.output(x);
            }
        }
        let last = b.select(x)?;
        let hidden = b.rms_norm(last, Some(&self.output_norm), spec.eps)?;
        if shape.taps.hidden {
            b.output(hidden);
        }
        let [logits] = b.mat_mul(hidden, [&self.output])?;
        b.sample(logits, true)?;
        Ok(b.finish())
    }
}

/// Frequencies base^(−2p/dims) of the rotated pairs. Text has the same position in every section of the multimodal
/// rotary embedding, so sections do not matter here.
fn rotary(spec: &Qwen35Spec) -> RopeSpec {
    let dims = spec.rope_dims;
    let frequency = |p: usize| powf64(f64::from(spec.rope_base), -2.0 * p as f64 / dims as f64);
    RopeSpec { frequencies: (0..dims / 2).map(frequency).collect(), scale: 1.0 }
}

impl Layer {
    /// Brings the residual stream `x` through the layer, in place.
    fn record(&self, b: &mut PlanBuilder, spec: &Qwen35Spec, rope: RopeId, x: Act) -> TensorResult<()> {
        let n = b.rms_norm(x, Some(&self.attn_norm), spec.eps)?;
        match &self.mixer {
            Mixer::Delta(delta) => delta.record(b, spec, n, x)?,
            Mixer::Attention(attention) => attention.record(b, spec, rope, n, x)?,
        }
        let n = b.rms_norm(x, Some(&self.post_attention_norm), spec.eps)?;
        self.ffn.record(b, n, x)
    }
}

impl DeltaNet {
    fn load(spec: &Qwen35Spec, i: usize, loader: &mut Loader<'_>, caches: &CacheConfig) -> Result<Self> {
        let state = StateSpec { slots: caches.slots + caches.snapshots, shape: spec.delta, tape: caches.tape };
        Ok(Self {
            attn_qkv: loader.block(i, "attn_qkv.weight")?,
            attn_gate: loader.block(i, "attn_gate.weight")?,
            ssm_alpha: loader.block(i, "ssm_alpha.weight")?,
            ssm_beta: loader.block(i, "ssm_beta.weight")?,
            ssm_conv1d: loader.block(i, "ssm_conv1d.weight")?,
            ssm_dt: loader.block(i, "ssm_dt.bias")?,
            ssm_a: loader.block(i, "ssm_a")?,
            ssm_norm: loader.block(i, "ssm_norm.weight")?,
            ssm_out: loader.block(i, "ssm_out.weight")?,
            state: State { id: loader.backend().new_state(&state)?, spec: state },
        })
    }

    /// `x += ssm_out · deltanet(n)`.
    fn record(&self, b: &mut PlanBuilder, spec: &Qwen35Spec, n: Act, x: Act) -> TensorResult<()> {
        let [qkv, z, alpha, beta] =
            b.mat_mul(n, [&self.attn_qkv, &self.attn_gate, &self.ssm_alpha, &self.ssm_beta])?;
        let op = DeltaNetOp {
            qkv,
            z,
            alpha,
            beta,
            conv: self.ssm_conv1d.id,
            dt_bias: self.ssm_dt.id,
            a: self.ssm_a.id,
            norm: self.ssm_norm.id,
            state: self.state.id,
            shape: spec.delta,
            eps: spec.eps,
            out: qkv,
        };
        let o = b.delta_net(op, [&self.ssm_conv1d, &self.ssm_dt, &self.ssm_a, &self.ssm_norm], &self.state)?;
        b.mat_mul_add(o, &self.ssm_out, x)
    }
}

impl Attention {
    fn load(spec: &Qwen35Spec, i: usize, loader: &mut Loader<'_>, caches: &CacheConfig) -> Result<Self> {
        let a = &spec.attention;
        let [attn_q, attn_k, attn_v] = if spec.fused_qkv[i] {
            let rows = [a.heads * a.q_stride, a.kv_heads * a.key_dim, a.kv_heads * a.value_dim];
            loader.split(&format!("blk.{i}.attn_qkv.weight"), rows)?
        } else {
            [
                loader.block(i, "attn_q.weight")?,
                loader.block(i, "attn_k.weight")?,
                loader.block(i, "attn_v.weight")?,
            ]
        };
        let kv = KvSpec {
            slots: caches.slots,
            capacity: caches.context,
            ring: false,
            heads: a.kv_heads,
            key_dim: a.key_dim,
            value_dim: a.value_dim,
            ty: caches.kv,
            block: caches.kv_block,
        };
        Ok(Self {
            attn_q,
            attn_k,
            attn_v,
            attn_q_norm: loader.block(i, "attn_q_norm.weight")?,
            attn_k_norm: loader.block(i, "attn_k_norm.weight")?,
            attn_output: loader.block(i, "attn_output.weight")?,
            kv: Kv { id: loader.backend().new_kv(&kv)?, spec: kv },
        })
    }

    /// `x += attn_output · (attention(n) · sigmoid(gate))`.
    fn record(&self, b: &mut PlanBuilder, spec: &Qwen35Spec, rope: RopeId, n: Act, x: Act) -> TensorResult<()> {
        let [q, k, v] = b.mat_mul(n, [&self.attn_q, &self.attn_k, &self.attn_v])?;
        let rope_kv = RopeKvOp {
            q: Some(q),
            k: Some(k),
            v: Some(v),
            q_norm: None,
            k_norm: None,
            v_norm: false,
            eps: spec.eps,
            shape: spec.attention,
            rope,
            kv: self.kv.id,
            advance: 0,
        };
        b.rope_kv(rope_kv, [Some(&self.attn_q_norm), Some(&self.attn_k_norm)], &self.kv)?;
        let attention = AttentionOp {
            q,
            gate: Gate::Interleaved,
            kv: self.kv.id,
            shape: spec.attention,
            scale: 1.0 / (spec.attention.key_dim as f32).sqrt(),
            causal: true,
            window: None,
            advance: 0,
            out: q,
        };
        let o = b.attention(attention, &self.kv)?;
        b.mat_mul_add(o, &self.attn_output, x)
    }
}

impl FeedForward {
    fn load(moe: Option<&MoeSpec>, i: usize, loader: &mut Loader<'_>) -> Result<Self> {
        let Some(moe) = moe else {
            return Ok(Self::Dense {
                ffn_gate: loader.block(i, "ffn_gate.weight")?,
                ffn_up: loader.block(i, "ffn_up.weight")?,
                ffn_down: loader.block(i, "ffn_down.weight")?,
            });
        };
        let [ffn_gate_exps, ffn_up_exps] = if moe.fused_gate_up {
            loader.split(&format!("blk.{i}.ffn_gate_up_exps.weight"), [moe.hidden; 2])?
        } else {
            [loader.block(i, "ffn_gate_exps.weight")?, loader.block(i, "ffn_up_exps.weight")?]
        };
        Ok(Self::Experts(Box::new(Experts {
            used: moe.used,
            ffn_gate_inp: loader.block(i, "ffn_gate_inp.weight")?,
            ffn_gate_exps,
            ffn_up_exps,
            ffn_down_exps: loader.block(i, "ffn_down_exps.weight")?,
            ffn_gate_inp_shexp: loader.block(i, "ffn_gate_inp_shexp.weight")?,
            ffn_gate_shexp: loader.block(i, "ffn_gate_shexp.weight")?,
            ffn_up_shexp: loader.block(i, "ffn_up_shexp.weight")?,
            ffn_down_shexp: loader.block(i, "ffn_down_shexp.weight")?,
        })))
    }

    /// `x += ffn(n)`.
    fn record(&self, b: &mut PlanBuilder, n: Act, x: Act) -> TensorResult<()> {
        match self {
            Self::Dense { ffn_gate, ffn_up, ffn_down } => {
                let hidden = b.gated_mat_mul(n, ffn_gate, ffn_up, Activation::Silu)?;
                b.mat_mul_add(hidden, ffn_down, x)
            }
            Self::Experts(experts) => experts.record(b, n, x),
        }
    }
}

impl Experts {
    /// `x += Σ w_e · expert_e(n) + sigmoid(gate · n) · shared(n)`.
    fn record(&self, b: &mut PlanBuilder, n: Act, x: Act) -> TensorResult<()> {
        let [logits, gate] = b.mat_mul(n, [&self.ffn_gate_inp, &self.ffn_gate_inp_shexp])?;
        let routes = b.route(logits, RouterKind::SoftmaxRenormalised, self.used)?;
        let hidden = b.gated_mat_mul(n, &self.ffn_gate_shexp, &self.ffn_up_shexp, Activation::Silu)?;
        let [shared] = b.mat_mul(hidden, [&self.ffn_down_shexp])?;
        let op = ExpertsOp {
            x: n,
            routes,
            gate: self.ffn_gate_exps.id,
            up: self.ffn_up_exps.id,
            down: self.ffn_down_exps.id,
            activation: Activation::Silu,
            shared: Some(SharedExpert { out: shared, gate }),
            residual: Some(x),
            out: x,
        };
        b.experts(op, [&self.ffn_gate_exps, &self.ffn_up_exps, &self.ffn_down_exps])
    }
}
