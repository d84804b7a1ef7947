//! What a file says of its model, checked.

use std::path::{Path, PathBuf};

use forerun_quant::TensorType;
use forerun_tensor::{DeltaShape, Kv, PlanBuilder, Ring, State, Weight};

use crate::caches::KvLayer;
use crate::captures::Captures;
use crate::dflash::{DFlash, Target};
use crate::error::{ModelError, Result};
use crate::gemma4::Gemma4;
use crate::keys::Keys;
use crate::model::Place;
use crate::mtp::{Mtp, Shared};
use crate::qwen35::{Mixer, Qwen35};
use crate::source::Source;
use crate::tensors::{Inventory, TensorSpec, total};

/// The model of an architecture: as its file describes it, or loaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Architecture<T, K, S> {
    /// `qwen35` and `qwen35moe`.
    Qwen35(Qwen35<T, K, S>),
    /// `gemma4`.
    Gemma4(Gemma4<T, K>),
}

/// Names that `general.architecture` may have.
const NAMES: [&str; 3] = ["qwen35", "qwen35moe", GEMMA4];
const GEMMA4: &str = "gemma4";

impl Architecture<TensorSpec, (), ()> {
    pub(crate) fn place<P: Place>(&self, place: &mut P) -> Result<Architecture<P::Tensor, P::Kv, P::State>> {
        Ok(match self {
            Architecture::Qwen35(m) => Architecture::Qwen35(m.place(place)?),
            Architecture::Gemma4(m) => Architecture::Gemma4(m.place(place)?),
        })
    }

    fn hidden(&self) -> usize {
        match self {
            Architecture::Qwen35(m) => m.params.hidden,
            Architecture::Gemma4(m) => m.params.hidden,
        }
    }

    fn top_k(&self) -> usize {
        match self {
            Architecture::Qwen35(m) => m.params.ffn.top_k(),
            Architecture::Gemma4(m) => m.params.top_k,
        }
    }

    fn layers(&self) -> usize {
        match self {
            Architecture::Qwen35(m) => m.blocks.len(),
            Architecture::Gemma4(m) => m.blocks.len(),
        }
    }

    /// Layers of full and of sliding attention.
    fn attention_layers(&self) -> [usize; 2] {
        match self {
            Architecture::Qwen35(m) => {
                [m.blocks.iter().filter(|b| matches!(b.mixer, Mixer::Attention(..))).count(), 0]
            }
            Architecture::Gemma4(m) => {
                [false, true].map(|kind| m.blocks.iter().filter(|b| b.sliding == kind).count())
            }
        }
    }

    fn window(&self) -> Option<usize> {
        match self {
            Architecture::Qwen35(_) => None,
            Architecture::Gemma4(m) => m.blocks.iter().any(|b| b.sliding).then_some(m.params.window),
        }
    }

    /// Factor on embeddings.
    fn embedding_scale(&self) -> f32 {
        match self {
            Architecture::Qwen35(_) => 1.0,
            Architecture::Gemma4(m) => m.params.embedding_scale(),
        }
    }
}

impl<T, K, S> Architecture<T, K, S> {
    fn token_embd(&self) -> &T {
        match self {
            Architecture::Qwen35(m) => &m.token_embd,
            Architecture::Gemma4(m) => &m.token_embd,
        }
    }

    /// The matrix that makes logits, and the norm before it.
    pub(crate) fn head(&self) -> (&T, &T) {
        match self {
            Architecture::Qwen35(m) => (m.output.as_ref().unwrap_or(&m.token_embd), &m.output_norm),
            Architecture::Gemma4(m) => (m.output.as_ref().unwrap_or(&m.token_embd), &m.output_norm),
        }
    }
}

impl Architecture<Weight, Kv, State> {
    /// Records a step.
    pub(crate) fn record(&self, plan: &mut PlanBuilder, captures: &Captures<'_>) -> Result<()> {
        match self {
            Architecture::Qwen35(m) => m.record(plan, captures),
            Architecture::Gemma4(m) => m.record(plan, captures),
        }
    }

    /// What a DFlash drafter shares with the model.
    pub(crate) fn shared_with_dflash<'a>(&'a self, features: &'a Ring) -> crate::dflash::Shared<'a> {
        crate::dflash::Shared { token_embd: self.token_embd(), head: self.head().0, features }
    }

    /// What an MTP block shares with the model.
    pub(crate) fn shared<'a>(&'a self, hidden: &'a Ring) -> Shared<'a> {
        let (head, output_norm) = self.head();
        Shared { token_embd: self.token_embd(), output_norm, head, reduced: None, hidden }
    }
}

/// How the blocks of a file divide into main layers and an MTP block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextN {
    /// As the file counts: main layers and MTP block.
    pub(crate) block_count: usize,
    /// Main layers.
    pub(crate) layers: usize,
    /// The MTP block.
    pub(crate) mtp: Option<usize>,
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
        if mtp.is_some() && names.iter().all(|n| block_of(n).is_none_or(|(i, _)| i >= layers)) {
            return Ok(Self { block_count, layers, mtp });
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
    pub(crate) caches: Vec<KvLayer>,
    pub(crate) delta: Vec<DeltaShape>,
    /// The draft block, where the file has one.
    pub mtp: Option<Mtp<TensorSpec, ()>>,
}

impl ModelSpec {
    /// Reads and checks a source. No weight's bytes are touched.
    ///
    /// # Errors
    /// Names the key or tensor that is at fault, what was found and what was expected.
    pub fn read(source: &dyn Source) -> Result<Self> {
        let keys = keys(source)?;
        let (meta, name) = (keys.meta, keys.architecture);
        let mut inv = Inventory::new(source);
        let (architecture, mtp) = if name == GEMMA4 {
            (Architecture::Gemma4(Gemma4::read(keys, &mut inv)?), None)
        } else {
            let (model, mtp) = Qwen35::read(keys, &mut inv)?;
            (Architecture::Qwen35(model), mtp)
        };
        inv.finish(name)?;
        let mut parts = Parts::default();
        architecture.place(&mut parts)?;
        Ok(Self {
            path: meta.path().to_path_buf(),
            name: meta.opt_str("general.name")?,
            architecture_name: name,
            context_length: keys.count("context_length", 1..=1 << 30)?,
            architecture,
            tensors: parts.tensors,
            caches: parts.caches,
            delta: parts.delta,
            mtp,
        })
    }

    /// Reads the MTP block of another file for this model: a file that holds the block alone, or a whole model with one.
    ///
    /// # Errors
    /// When the file has no block, it is broken, or it was made for a model of other sizes.
    pub fn read_mtp(&self, source: &dyn Source) -> Result<Mtp<TensorSpec, ()>> {
        let keys = keys(source)?;
        if keys.architecture != self.architecture_name {
            return Err(ModelError::Key {
                path: keys.meta.path().to_path_buf(),
                key: "general.architecture".into(),
                found: keys.architecture.into(),
                expected: format!("`{}`, as in the model", self.architecture_name),
            });
        }
        if self.architecture_name == GEMMA4 {
            let found = "a block for another model".into();
            return Err(ModelError::Option {
                option: "mtp",
                found,
                expected: "a model of the Qwen3.5 family".into(),
            });
        }
        let mut inv = Inventory::new(source);
        let layers = self.layers();
        let mtp = Qwen35::read_mtp(keys, &mut inv, layers, self.vocabulary())?;
        if mtp.params.hidden != self.hidden() {
            return Err(keys.wrong(
                "embedding_length",
                mtp.params.hidden,
                format!("{}, as in the model", self.hidden()),
            ));
        }
        Ok(mtp)
    }

    /// Reads a DFlash drafter for this model, from a GGUF file or a Hugging Face folder.
    ///
    /// # Errors
    /// When the file is broken or no DFlash drafter, or the drafter does not fit the model.
    pub fn read_dflash(&self, source: &dyn Source) -> Result<DFlash<TensorSpec, ()>> {
        let target = Target {
            hidden: self.hidden(),
            layers: self.layers(),
            vocabulary: self.vocabulary(),
            embedding_scale: self.architecture.embedding_scale(),
        };
        DFlash::read(source, &target)
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

    /// Main layers of full attention.
    #[must_use]
    pub fn attention_layers(&self) -> usize {
        self.architecture.attention_layers()[0]
    }

    /// Main layers of sliding attention.
    #[must_use]
    pub fn sliding_layers(&self) -> usize {
        self.architecture.attention_layers()[1]
    }

    /// Positions that a row of a sliding layer sees; `None` without such layers.
    #[must_use]
    pub fn window(&self) -> Option<usize> {
        self.architecture.window()
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
        total(&self.tensors, TensorSpec::elements)
    }

    /// Bytes of the weights in the file's types (no MTP block).
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        total(&self.tensors, TensorSpec::bytes)
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

/// The keys of a source whose architecture is known.
fn keys(source: &dyn Source) -> Result<Keys<'_>> {
    let meta = source.metadata();
    let found = meta.str("general.architecture")?;
    let Some(architecture) = NAMES.into_iter().find(|n| *n == found) else {
        let path = meta.path().to_path_buf();
        let expected = match found.as_str() {
            "dflash" => "a model; this is a drafter, for --drafter beside its model",
            _ => "qwen35, qwen35moe or gemma4",
        };
        return Err(ModelError::Architecture { path, found, expected });
    };
    Ok(Keys { meta, architecture })
}

/// Lists of everything that a model is made of.
#[derive(Default)]
struct Parts {
    tensors: Vec<TensorSpec>,
    caches: Vec<KvLayer>,
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
    fn kv(&mut self, layer: &KvLayer) -> Result<()> {
        self.caches.push(*layer);
        Ok(())
    }
    fn state(&mut self, shape: &DeltaShape) -> Result<()> {
        self.delta.push(*shape);
        Ok(())
    }
    fn divisors(&mut self, tensor: &TensorSpec) -> Result<Vec<f32>> {
        self.tensors.push(tensor.clone());
        Ok(Vec::new())
    }
}
