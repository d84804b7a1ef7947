//! Shapes of the `qwen35` and `qwen35moe` architectures: read from metadata, checked against each other, and turned into
//! the list of tensors.

use forerun_quant::TensorType;
use forerun_tensor::{AttentionShape, DeltaShape, WeightUse};

use crate::error::{ModelError, Result};
use crate::source::Source;
use crate::tensors::{ReadPattern, TensorUse};

/// Mixture-of-experts feed-forward layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeSpec {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts a row runs.
    pub used: usize,
    /// Hidden width of an expert.
    pub hidden: usize,
    /// Hidden width of the shared expert.
    pub shared_hidden: usize,
    /// Whether gate and up stand in one tensor, gate first.
    pub fused_gate_up: bool,
}

/// The multi-token-prediction block that a file carries. Plain decoding leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtpSpec {
    /// Number of its block, as in `blk.N`.
    pub block: usize,
    /// Its tensors.
    pub tensors: Vec<String>,
}

/// Shapes of a `qwen35` or `qwen35moe` model.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen35Spec {
    /// Width of the residual stream.
    pub embedding_length: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Context length the model was trained for.
    pub context_length: usize,
    /// Per main layer: gated delta net (true) or full attention.
    pub recurrent: Vec<bool>,
    /// Per main layer: q, k and v of full attention stand in one tensor.
    pub fused_qkv: Vec<bool>,
    /// Heads of the full-attention layers.
    pub attention: AttentionShape,
    /// Heads of the delta-net layers.
    pub delta: DeltaShape,
    /// Hidden width of dense feed-forward layers (0 with experts).
    pub feed_forward_length: usize,
    /// Experts, in `qwen35moe`.
    pub moe: Option<MoeSpec>,
    /// Epsilon of every norm.
    pub eps: f32,
    /// Rotary base.
    pub rope_base: f32,
    /// Rotated dimensions of a head.
    pub rope_dims: usize,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// The MTP block, if the file has one.
    pub mtp: Option<MtpSpec>,
}

/// Reads keys of one architecture.
struct Keys<'a> {
    source: &'a dyn Source,
    arch: &'a str,
}

/// Larger counts are taken for broken files.
const MOST: u32 = 1 << 24;

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn fail<T>(&self, name: &str, found: impl ToString, expected: impl ToString) -> Result<T> {
        Err(ModelError::Key {
            path: self.source.path().to_path_buf(),
            key: self.key(name),
            found: found.to_string(),
            expected: expected.to_string(),
        })
    }

    fn optional(&self, name: &str) -> Result<Option<usize>> {
        match self.source.metadata().opt_u32(&self.key(name))? {
            Some(v) if v > MOST => self.fail(name, v, format!("at most {MOST}")),
            v => Ok(v.map(|v| v as usize)),
        }
    }

    /// A count of at least 1.
    fn count(&self, name: &str) -> Result<usize> {
        match self.optional(name)? {
            Some(0) => self.fail(name, 0, "at least 1"),
            Some(v) => Ok(v),
            None => Ok(self.source.metadata().u32(&self.key(name))? as usize),
        }
    }

    fn positive(&self, name: &str) -> Result<f32> {
        let v = self.source.metadata().f32(&self.key(name))?;
        if v > 0.0 && v.is_finite() { Ok(v) } else { self.fail(name, v, "a positive number") }
    }
}

impl Qwen35Spec {
    /// Reads and checks the shapes of a file whose architecture is `arch`; every tensor is checked too.
    ///
    /// # Errors
    /// Names the key or tensor that is missing, contradicts another or is not supported.
    pub fn read(source: &dyn Source, arch: &str, moe: bool) -> Result<Self> {
        let keys = Keys { source, arch };
        refuse_rope_scaling(&keys)?;
        let blocks = keys.count("block_count")?;
        let mtp = read_mtp(&keys, blocks)?;
        let main = blocks - usize::from(mtp.is_some());
        if main == 0 || source.find("blk.0.attn_norm.weight").is_none() {
            return Err(ModelError::Unsupported {
                path: source.path().to_path_buf(),
                what: "a file without main layers (no `blk.0.attn_norm.weight`: the MTP block alone?)".into(),
                supported: "complete models".into(),
            });
        }
        let embedding_length = keys.count("embedding_length")?;
        let attention = read_attention(&keys)?;
        let rope_dims = keys.count("rope.dimension_count")?;
        if !rope_dims.is_multiple_of(2) || rope_dims > attention.key_dim {
            return keys.fail("rope.dimension_count", rope_dims, format!("an even number of at most {}", attention.key_dim));
        }
        let recurrent = read_recurrent(&keys, blocks, main)?;
        let fused_qkv = (0..main).map(|i| !recurrent[i] && source.find(&format!("blk.{i}.attn_qkv.weight")).is_some());
        let spec = Self {
            embedding_length,
            vocabulary: read_vocabulary(&keys, embedding_length)?,
            context_length: keys.count("context_length")?,
            fused_qkv: fused_qkv.collect(),
            recurrent,
            attention,
            delta: read_delta(&keys)?,
            feed_forward_length: if moe { 0 } else { keys.count("feed_forward_length")? },
            moe: if moe { Some(read_moe(&keys)?) } else { None },
            eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            rope_base: keys.positive("rope.freq_base")?,
            rope_dims,
            tied: source.find("output.weight").is_none(),
            mtp,
        };
        for tensor in spec.tensors() {
            tensor.check(source)?;
        }
        Ok(spec)
    }

    /// Every tensor of the main model.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorUse> {
        let h = self.embedding_length;
        let mut list = List { tensors: Vec::new() };
        let table = if self.tied { WeightUse::TiedTable } else { WeightUse::Table };
        let read = if self.tied { ReadPattern::All } else { ReadPattern::Rows };
        list.push("token_embd.weight".into(), vec![h, self.vocabulary], table, read);
        list.vector("output_norm.weight".into(), h);
        if !self.tied {
            list.matrix("output.weight".into(), h, self.vocabulary);
        }
        for (i, recurrent) in self.recurrent.iter().enumerate() {
            list.vector(format!("blk.{i}.attn_norm.weight"), h);
            list.vector(format!("blk.{i}.post_attention_norm.weight"), h);
            if *recurrent {
                self.delta_tensors(i, &mut list);
            } else {
                self.attention_tensors(i, &mut list);
            }
            self.feed_forward_tensors(i, &mut list);
        }
        list.tensors
    }

    fn delta_tensors(&self, i: usize, list: &mut List) {
        let (h, d) = (self.embedding_length, &self.delta);
        let (conv, value) = (d.conv_cols(), d.value_cols());
        list.matrix(format!("blk.{i}.attn_qkv.weight"), h, conv);
        list.matrix(format!("blk.{i}.attn_gate.weight"), h, value);
        list.matrix(format!("blk.{i}.ssm_alpha.weight"), h, d.value_heads);
        list.matrix(format!("blk.{i}.ssm_beta.weight"), h, d.value_heads);
        list.push(format!("blk.{i}.ssm_conv1d.weight"), vec![d.conv, conv], WeightUse::Vector, ReadPattern::All);
        list.vector(format!("blk.{i}.ssm_dt.bias"), d.value_heads);
        list.vector(format!("blk.{i}.ssm_a"), d.value_heads);
        list.vector(format!("blk.{i}.ssm_norm.weight"), d.value_dim);
        list.matrix(format!("blk.{i}.ssm_out.weight"), value, h);
    }

    fn attention_tensors(&self, i: usize, list: &mut List) {
        let (h, a) = (self.embedding_length, &self.attention);
        let (q, k, v) = (a.heads * a.q_stride, a.kv_heads * a.key_dim, a.kv_heads * a.value_dim);
        if self.fused_qkv[i] {
            list.matrix(format!("blk.{i}.attn_qkv.weight"), h, q + k + v);
        } else {
            list.matrix(format!("blk.{i}.attn_q.weight"), h, q);
            list.matrix(format!("blk.{i}.attn_k.weight"), h, k);
            list.matrix(format!("blk.{i}.attn_v.weight"), h, v);
        }
        list.vector(format!("blk.{i}.attn_q_norm.weight"), a.key_dim);
        list.vector(format!("blk.{i}.attn_k_norm.weight"), a.key_dim);
        list.matrix(format!("blk.{i}.attn_output.weight"), a.heads * a.value_dim, h);
    }

    fn feed_forward_tensors(&self, i: usize, list: &mut List) {
        let h = self.embedding_length;
        let Some(moe) = &self.moe else {
            let f = self.feed_forward_length;
            list.matrix(format!("blk.{i}.ffn_gate.weight"), h, f);
            list.matrix(format!("blk.{i}.ffn_up.weight"), h, f);
            list.matrix(format!("blk.{i}.ffn_down.weight"), f, h);
            return;
        };
        list.matrix(format!("blk.{i}.ffn_gate_inp.weight"), h, moe.experts);
        let mut stacked = |name: &str, cols: usize, rows: usize| {
            let dims = vec![cols, rows, moe.experts];
            list.push(format!("blk.{i}.{name}.weight"), dims, WeightUse::Matrix, ReadPattern::Experts(moe.used));
        };
        if moe.fused_gate_up {
            stacked("ffn_gate_up_exps", h, 2 * moe.hidden);
        } else {
            stacked("ffn_gate_exps", h, moe.hidden);
            stacked("ffn_up_exps", h, moe.hidden);
        }
        stacked("ffn_down_exps", moe.hidden, h);
        list.push(format!("blk.{i}.ffn_gate_inp_shexp.weight"), vec![h, 1], WeightUse::Matrix, ReadPattern::All);
        list.matrix(format!("blk.{i}.ffn_gate_shexp.weight"), h, moe.shared_hidden);
        list.matrix(format!("blk.{i}.ffn_up_shexp.weight"), h, moe.shared_hidden);
        list.matrix(format!("blk.{i}.ffn_down_shexp.weight"), moe.shared_hidden, h);
    }

    /// The usual Q4_K_M mix of a tensor: Q6_K for down projections, values and head, Q8_0 for shared experts, F32 for
    /// routers, alpha, beta and everything small, Q4_K for the rest.
    #[must_use]
    pub fn q4_k_m_type(name: &str) -> TensorType {
        let is = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
        if is(&["_shexp.weight"]) && !is(&["gate_inp"]) {
            TensorType::Q8_0
        } else if is(&["ffn_gate_inp", "ssm_alpha", "ssm_beta"]) {
            TensorType::F32
        } else if is(&["ffn_down", "attn_v.", "output.weight"]) && !is(&["attn_output"]) {
            TensorType::Q6_K
        } else {
            TensorType::Q4_K
        }
    }
}

struct List {
    tensors: Vec<TensorUse>,
}

impl List {
    fn push(&mut self, name: String, dims: Vec<usize>, usage: WeightUse, read: ReadPattern) {
        self.tensors.push(TensorUse { name, dims, usage, read });
    }
    fn matrix(&mut self, name: String, cols: usize, rows: usize) {
        self.push(name, vec![cols, rows], WeightUse::Matrix, ReadPattern::All);
    }
    fn vector(&mut self, name: String, len: usize) {
        self.push(name, vec![len], WeightUse::Vector, ReadPattern::All);
    }
}

fn refuse_rope_scaling(keys: &Keys<'_>) -> Result<()> {
    match keys.source.metadata().opt_str(&keys.key("rope.scaling.type"))?.as_deref() {
        None | Some("none" | "") => Ok(()),
        Some(other) => Err(ModelError::Unsupported {
            path: keys.source.path().to_path_buf(),
            what: format!("key `{}`: rope scaling {other:?}", keys.key("rope.scaling.type")),
            supported: "none".into(),
        }),
    }
}

/// The MTP block is the last of `block_count` blocks. Some files lack the key though the tensors are there.
fn read_mtp(keys: &Keys<'_>, blocks: usize) -> Result<Option<MtpSpec>> {
    let prefix = format!("blk.{}.", blocks - 1);
    let there = keys.source.find(&format!("{prefix}nextn.eh_proj.weight")).is_some();
    let declared = keys.optional("nextn_predict_layers")?;
    match declared {
        Some(n) if n > 1 => return keys.fail("nextn_predict_layers", n, "0 or 1"),
        Some(1) if !there => {
            let name = format!("{prefix}nextn.eh_proj.weight");
            return keys.fail("nextn_predict_layers", 1, format!("tensor `{name}`, which is missing"));
        }
        Some(0) if there => {
            return keys.fail("nextn_predict_layers", 0, format!("1, since `{prefix}nextn.eh_proj.weight` is there"));
        }
        _ => {}
    }
    Ok(there.then(|| MtpSpec {
        block: blocks - 1,
        tensors: keys.source.tensors().iter().map(|t| t.name.clone()).filter(|n| n.starts_with(&prefix)).collect(),
    }))
}

fn read_attention(keys: &Keys<'_>) -> Result<AttentionShape> {
    let heads = keys.count("attention.head_count")?;
    let kv_heads = keys.count("attention.head_count_kv")?;
    if !heads.is_multiple_of(kv_heads) {
        return keys.fail("attention.head_count_kv", kv_heads, format!("a divisor of the {heads} query heads"));
    }
    let key_dim = keys.count("attention.key_length")?;
    let value_dim = keys.count("attention.value_length")?;
    if key_dim != value_dim {
        return keys.fail("attention.value_length", value_dim, format!("the key length {key_dim}"));
    }
    Ok(AttentionShape { heads, kv_heads, key_dim, value_dim, q_stride: 2 * key_dim })
}

fn read_recurrent(keys: &Keys<'_>, blocks: usize, main: usize) -> Result<Vec<bool>> {
    const LAYERS: &str = "attention.recurrent_layers";
    if let Some(list) = keys.source.metadata().opt_bools(&keys.key(LAYERS))? {
        if list.len() != blocks {
            return keys.fail(LAYERS, format!("{} entries", list.len()), format!("one for each of {blocks} blocks"));
        }
        if list[main..].contains(&true) {
            return keys.fail(LAYERS, format!("true for block {main}"), "false for the MTP block");
        }
        return Ok(list[..main].to_vec());
    }
    let interval = match keys.optional("full_attention_interval")? {
        Some(0) => return keys.fail("full_attention_interval", 0, "at least 1"),
        interval => interval.unwrap_or(4),
    };
    Ok((0..main).map(|i| !(i + 1).is_multiple_of(interval)).collect())
}

fn read_vocabulary(keys: &Keys<'_>, embedding_length: usize) -> Result<usize> {
    let Some(table) = keys.source.find("token_embd.weight") else {
        return Err(ModelError::MissingTensor {
            path: keys.source.path().to_path_buf(),
            name: "token_embd.weight".into(),
            dims: vec![embedding_length, keys.optional("vocab_size")?.unwrap_or(0)],
        });
    };
    let rows = table.dims.get(1).copied().unwrap_or(1);
    match keys.optional("vocab_size")? {
        Some(v) if v != rows => keys.fail("vocab_size", v, format!("the {rows} rows of token_embd.weight")),
        _ if rows > MOST as usize => keys.fail("vocab_size", rows, format!("at most {MOST}")),
        _ => Ok(rows),
    }
}

fn read_delta(keys: &Keys<'_>) -> Result<DeltaShape> {
    let key_heads = keys.count("ssm.group_count")?;
    let value_heads = keys.count("ssm.time_step_rank")?;
    let dim = keys.count("ssm.state_size")?;
    let inner = keys.count("ssm.inner_size")?;
    let conv = keys.count("ssm.conv_kernel")?;
    if !value_heads.is_multiple_of(key_heads) {
        return keys.fail("ssm.time_step_rank", value_heads, format!("a multiple of the {key_heads} key heads"));
    }
    if inner != value_heads * dim {
        return keys.fail("ssm.inner_size", inner, format!("{value_heads} value heads of {dim}"));
    }
    if !(2..=8).contains(&conv) {
        return keys.fail("ssm.conv_kernel", conv, "2 to 8");
    }
    Ok(DeltaShape { key_heads, value_heads, key_dim: dim, value_dim: dim, conv, interleaved: true })
}

fn read_moe(keys: &Keys<'_>) -> Result<MoeSpec> {
    let experts = keys.count("expert_count")?;
    let used = keys.count("expert_used_count")?;
    if used > experts {
        return keys.fail("expert_used_count", used, format!("at most the {experts} experts"));
    }
    Ok(MoeSpec {
        experts,
        used,
        hidden: keys.count("expert_feed_forward_length")?,
        shared_hidden: keys.count("expert_shared_feed_forward_length")?,
        fused_gate_up: keys.source.find("blk.0.ffn_gate_up_exps.weight").is_some(),
    })
}
