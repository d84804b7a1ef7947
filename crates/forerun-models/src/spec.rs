//! What a file says of its model, checked.

use std::path::{Path, PathBuf};

use forerun_quant::TensorType;
use forerun_tensor::{AttentionShape, DeltaShape, Kv, PlanBuilder, State, Weight};

use crate::error::{ModelError, Result};
use crate::keys::Keys;
use crate::model::{Place, Taps};
use crate::qwen35::Qwen35;
use crate::source::Source;
use crate::tensors::{Inventory, TensorSpec};

/// The model of an architecture: as its file describes it, or loaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Architecture<T, K, S> {
    /// `qwen35` and `qwen35moe`.
    Qwen35(Qwen35<T, K, S>),
}

/// Names that `general.architecture` may have.
const NAMES: [&str; 2] = ["qwen35", "qwen35moe"];

impl Architecture<TensorSpec, (), ()> {
    pub(crate) fn place<P: Place>(&self, place: &mut P) -> Result<Architecture<P::Tensor, P::Kv, P::State>> {
        Ok(match self {
            Architecture::Qwen35(m) => Architecture::Qwen35(m.place(place)?),
        })
    }

    fn token_embd(&self) -> &TensorSpec {
        match self {
            Architecture::Qwen35(m) => &m.token_embd,
        }
    }

    fn hidden(&self) -> usize {
        match self {
            Architecture::Qwen35(m) => m.params.hidden,
        }
    }

    fn top_k(&self) -> usize {
        match self {
            Architecture::Qwen35(m) => m.params.ffn.top_k(),
        }
    }

    fn layers(&self) -> usize {
        match self {
            Architecture::Qwen35(m) => m.blocks.len(),
        }
    }
}

impl Architecture<Weight, Kv, State> {
    pub(crate) fn record(&self, plan: &mut PlanBuilder, taps: &Taps) -> Result<()> {
        match self {
            Architecture::Qwen35(m) => m.record(plan, taps),
        }
    }
}

/// The MTP (NextN) draft block of a file. It is not among the tensors of the model itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtpSpec {
    /// Index of its block: its tensors are `blk.{block}.*`.
    pub block: usize,
    /// Names of its tensors, sorted.
    pub tensors: Vec<String>,
    /// Number of elements.
    pub parameters: u64,
}

/// How the blocks of a file divide into main layers and an MTP block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextN {
    /// As the file counts: main layers and MTP block.
    pub(crate) block_count: usize,
    /// Main layers.
    pub(crate) layers: usize,
    mtp: Option<usize>,
}

/// Block index of a tensor's name, and the rest of the name.
fn block_of(name: &str) -> Option<(usize, &str)> {
    let (index, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((index.parse().ok()?, rest))
}

impl NextN {
    /// Reads `block_count` and `nextn_predict_layers` and checks them against the tensors that are there. A file without
    /// the second key may still hold the block, counted or not.
    pub(crate) fn read(keys: Keys<'_>, inv: &Inventory<'_>, most: usize) -> Result<Self> {
        let block_count = keys.count("block_count", 1..=most)?;
        let key = keys.opt_count("nextn_predict_layers", 0..=1)?;
        let mut names: Vec<&str> = inv.headers().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        let nextn = names
            .iter()
            .filter_map(|n| block_of(n).filter(|(_, rest)| rest.starts_with("nextn.")).map(|(i, _)| (i, *n)));
        let nextn: Vec<(usize, &str)> = nextn.collect();
        let (layers, mtp) = match (key, nextn.first()) {
            (Some(1), _) => (block_count - 1, Some(block_count - 1)),
            (_, None) => (block_count, None),
            (None, Some((i, _))) if *i + 1 == block_count => (block_count - 1, Some(block_count - 1)),
            (None, Some(_)) => (block_count, Some(block_count)),
            (Some(_), Some((_, name))) => {
                let expected = format!("none: key `{}` is 0", keys.name("nextn_predict_layers"));
                return Err(inv.wrong(name, "an MTP tensor", expected));
            }
        };
        if let Some((i, name)) = nextn.iter().find(|(i, _)| Some(*i) != mtp) {
            let expected = format!("MTP tensors in the block after the {layers} main layers only");
            return Err(inv.wrong(name, format!("an MTP tensor in block {i}"), expected));
        }
        if layers == 0 {
            return Err(keys.wrong("block_count", block_count, "main layers beside the MTP block"));
        }
        let end = mtp.map_or(layers, |m| m + 1);
        if let Some((i, name)) =
            names.iter().filter_map(|n| Some((block_of(n)?.0, *n))).find(|(i, _)| *i >= end)
        {
            let expected = format!("blocks 0 to {}, as key `{}` says", end - 1, keys.name("block_count"));
            return Err(inv.wrong(name, format!("in block {i}"), expected));
        }
        Ok(Self { block_count, layers, mtp })
    }

    /// Sets the MTP block's tensors aside.
    pub(crate) fn mtp(self, inv: &mut Inventory<'_>) -> Result<Option<MtpSpec>> {
        let Some(block) = self.mtp else { return Ok(None) };
        for suffix in ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"] {
            let name = format!("blk.{block}.{suffix}");
            if !inv.has(&name) {
                return Err(inv.wrong(&name, "missing", "the tensors of an MTP block"));
            }
        }
        let own = |name: &str| block_of(name).is_some_and(|(i, _)| i == block);
        let elements = |dims: &[usize]| dims.iter().fold(1u64, |n, d| n.saturating_mul(*d as u64));
        let mut tensors = Vec::new();
        let mut parameters = 0u64;
        for t in inv.headers().filter(|t| own(&t.name)) {
            parameters = parameters.saturating_add(elements(&t.dims));
            tensors.push(t.name.clone());
        }
        tensors.sort_unstable();
        tensors.iter().for_each(|t| inv.set_aside(t));
        Ok(Some(MtpSpec { block, tensors, parameters }))
    }
}

/// A model as its file describes it: every key and every tensor's presence, dims and type were checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    path: PathBuf,
    name: Option<String>,
    architecture_name: &'static str,
    context_length: usize,
    pub(crate) architecture: Architecture<TensorSpec, (), ()>,
    pub(crate) tensors: Vec<TensorSpec>,
    pub(crate) attention: Vec<AttentionShape>,
    pub(crate) delta: Vec<DeltaShape>,
    /// The draft block, where the file has one.
    pub mtp: Option<MtpSpec>,
}

impl ModelSpec {
    /// Reads and checks a source. No weight's bytes are touched.
    ///
    /// # Errors
    /// Names the key or tensor that is at fault, what was found and what was expected.
    pub fn read(source: &dyn Source) -> Result<Self> {
        let meta = source.metadata();
        let found = meta.str("general.architecture")?;
        let Some(name) = NAMES.into_iter().find(|n| *n == found) else {
            return Err(ModelError::Architecture {
                path: meta.path().to_path_buf(),
                found,
                expected: "qwen35 or qwen35moe",
            });
        };
        let keys = Keys { meta, architecture: name };
        let mut inv = Inventory::new(source);
        let (model, mtp) = Qwen35::read(keys, &mut inv)?;
        inv.finish(name)?;
        let architecture = Architecture::Qwen35(model);
        let mut parts = Parts::default();
        architecture.place(&mut parts)?;
        Ok(Self {
            path: meta.path().to_path_buf(),
            name: meta.opt_str("general.name")?,
            architecture_name: name,
            context_length: keys.count("context_length", 1..=1 << 30)?,
            architecture,
            tensors: parts.tensors,
            attention: parts.attention,
            delta: parts.delta,
            mtp,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's name, where the file gives one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// `general.architecture`.
    #[must_use]
    pub fn architecture_name(&self) -> &'static str {
        self.architecture_name
    }

    /// Sizes and tensors of the architecture.
    #[must_use]
    pub fn architecture(&self) -> &Architecture<TensorSpec, (), ()> {
        &self.architecture
    }

    /// Positions that the model was trained for.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.context_length
    }

    /// Number of token ids: rows of the embedding.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.architecture.token_embd().rows
    }

    /// Hidden size.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.architecture.hidden()
    }

    /// Main layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.architecture.layers()
    }

    /// Main layers with a KV cache.
    #[must_use]
    pub fn attention_layers(&self) -> usize {
        self.attention.len()
    }

    /// Experts that a row runs in a layer; 0 for dense models.
    #[must_use]
    pub fn experts_per_row(&self) -> usize {
        self.architecture.top_k()
    }

    /// The weights that are loaded (no MTP block).
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Number of elements of the weights (no MTP block).
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().fold(0, |n, t| n.saturating_add(t.elements()))
    }

    /// Bytes of the weights in the file's types (no MTP block).
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |n, t| n.saturating_add(t.bytes()))
    }

    /// The type that holds most of the weights' bytes.
    #[must_use]
    pub fn main_type(&self) -> TensorType {
        let bytes_of = |ty: TensorType| {
            self.tensors.iter().filter(|t| t.ty == ty).fold(0u64, |n, t| n.saturating_add(t.bytes()))
        };
        TensorType::ALL.iter().copied().max_by_key(|ty| bytes_of(*ty)).unwrap_or(TensorType::F32)
    }
}

/// Lists of everything that a model is made of.
#[derive(Default)]
struct Parts {
    tensors: Vec<TensorSpec>,
    attention: Vec<AttentionShape>,
    delta: Vec<DeltaShape>,
}

impl Place for Parts {
    type Tensor = ();
    type Kv = ();
    type State = ();
    fn tensor(&mut self, tensor: &TensorSpec) -> Result<()> {
        self.tensors.push(tensor.clone());
        Ok(())
    }
    fn kv(&mut self, shape: &AttentionShape) -> Result<()> {
        self.attention.push(*shape);
        Ok(())
    }
    fn state(&mut self, shape: &DeltaShape) -> Result<()> {
        self.delta.push(*shape);
        Ok(())
    }
}
