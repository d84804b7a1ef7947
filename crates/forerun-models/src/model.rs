//! A model on a device: loading it, and recording its steps.

use std::collections::HashSet;
use std::sync::Arc;

use forerun_quant::decode_row;
use forerun_tensor::{
    Backend, DeltaShape, Kv, KvId, Plan, PlanBuilder, Ring, RingSpec, State, StateId, TensorError, Weight,
    WeightData, WeightId, WeightUse,
};

use crate::caches::{CacheConfig, KvLayer};
use crate::captures::{Captures, Taps};
use crate::collect::Collecting;
use crate::dflash::{DFlash, DFlashStep};
use crate::error::{ModelError, Result};
use crate::memory::available;
use crate::mtp::{Mtp, MtpStep, ReducedHead};
use crate::source::Source;
use crate::spec::{Architecture, ModelSpec};
use crate::tensors::TensorSpec;

/// Where the parts of a model go.
pub(crate) trait Place {
    /// What becomes of a tensor.
    type Tensor;
    /// What becomes of an attention layer's cache.
    type Kv;
    /// What becomes of a delta net's state.
    type State;
    fn tensor(&mut self, tensor: &TensorSpec) -> Result<Self::Tensor>;
    fn kv(&mut self, layer: &KvLayer) -> Result<Self::Kv>;
    fn state(&mut self, shape: &DeltaShape) -> Result<Self::State>;
    /// The elements of a vector that the plan itself is made with, each a positive number; none where nothing is loaded.
    fn divisors(&mut self, tensor: &TensorSpec) -> Result<Vec<f32>>;
}

fn weight(id: WeightId, tensor: &TensorSpec) -> Weight {
    Weight { id, rows: tensor.rows, cols: tensor.cols, experts: tensor.experts }
}

/// Handles of no backend, to record a plan whose size is wanted before anything is loaded.
struct Blank<'a>(&'a CacheConfig);

impl Place for Blank<'_> {
    type Tensor = Weight;
    type Kv = Kv;
    type State = State;
    fn tensor(&mut self, tensor: &TensorSpec) -> Result<Weight> {
        Ok(weight(WeightId(0), tensor))
    }
    fn kv(&mut self, layer: &KvLayer) -> Result<Kv> {
        Ok(Kv { id: KvId(0), spec: self.0.kv_spec(layer) })
    }
    fn state(&mut self, shape: &DeltaShape) -> Result<State> {
        Ok(State { id: StateId(0), spec: self.0.state_spec(shape) })
    }
    fn divisors(&mut self, _: &TensorSpec) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }
}

/// Bytes of the activations of the largest step, every 16th of its rows with output.
pub(crate) fn blank_plan_bytes(spec: &ModelSpec, backend: &dyn Backend, caches: &CacheConfig) -> Result<u64> {
    let model = spec.architecture.place(&mut Blank(caches))?;
    let mut plan = PlanBuilder::new(caches.chunk, caches.chunk.div_ceil(16));
    model.record(&mut plan, &Captures::default())?;
    Ok(backend.plan_bytes(&plan.finish()))
}

/// How far loading has come, in bytes of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the tensors that are loaded.
    pub done_bytes: u64,
    /// Bytes of all that will be.
    pub total_bytes: u64,
}

/// Streams tensors from a source to a backend.
struct Loader<'a> {
    source: &'a dyn Source,
    backend: &'a mut dyn Backend,
    caches: &'a CacheConfig,
    progress: &'a mut dyn FnMut(LoadProgress) -> bool,
    at: LoadProgress,
    held: u64,
    /// Every weight with its tensor's name.
    names: Vec<(Weight, String)>,
    /// Tensors of which the backend goes on reading some rows.
    kept: HashSet<String>,
}

impl Loader<'_> {
    fn report(&mut self) -> Result<()> {
        if (self.progress)(self.at) { Ok(()) } else { Err(ModelError::Cancelled) }
    }

    fn broken(&self, spec: &TensorSpec, found: String) -> ModelError {
        ModelError::BadTensor {
            path: self.source.metadata().path().to_path_buf(),
            tensor: spec.name.clone(),
            found,
            expected: format!("{} bytes of type {}", spec.bytes(), spec.ty),
        }
    }

    fn load_error(&self, source: TensorError) -> ModelError {
        ModelError::Load { path: self.source.metadata().path().to_path_buf(), source }
    }
}

impl Loader<'_> {
    /// A tensor's bytes.
    fn data(&self, spec: &TensorSpec) -> Result<WeightData> {
        let Some(tensor) = self.source.tensor(&spec.name) else {
            return Err(self.broken(spec, "no data that can be read, or no memory for it".into()));
        };
        if tensor.ty != spec.ty {
            return Err(self.broken(spec, format!("type {}", tensor.ty)));
        }
        let data = spec.data(&tensor.bytes);
        data.ok_or_else(|| self.broken(spec, format!("{} bytes", tensor.bytes.len())))
    }

    /// Some rows of a matrix, gathered.
    fn rows(&mut self, spec: &TensorSpec, ids: &[u32]) -> Result<Weight> {
        let data = self.data(spec)?;
        let row = data.row_bytes().map_err(|e| self.load_error(e))?;
        let mut bytes = Vec::with_capacity(row * ids.len());
        for id in ids {
            let at = *id as usize * row;
            let Some(found) = data.bytes.get(at..at + row).filter(|_| (*id as usize) < spec.rows) else {
                let (found, expected) = (id.to_string(), format!("token ids below {}", spec.rows));
                return Err(ModelError::Option { option: "draft head", found, expected });
            };
            bytes.extend_from_slice(found);
        }
        let (rows, usage) = (ids.len(), WeightUse::Matrix);
        let data = WeightData { rows, usage, bytes: bytes.into(), ..data };
        let loaded = self.backend.load(&data).map_err(|e| self.load_error(e))?;
        self.held = self.held.saturating_add(loaded.held);
        Ok(Weight { id: loaded.id, rows, cols: spec.cols, experts: 1 })
    }
}

impl Place for Loader<'_> {
    type Tensor = Weight;
    type Kv = Kv;
    type State = State;

    fn tensor(&mut self, spec: &TensorSpec) -> Result<Weight> {
        let data = self.data(spec)?;
        let loaded = self.backend.load(&data).map_err(|e| self.load_error(e))?;
        drop(data);
        self.held = self.held.saturating_add(loaded.held);
        if loaded.keeps_source {
            self.kept.insert(spec.name.clone());
        }
        if !self.kept.contains(&spec.name) {
            self.source.release(&spec.name);
        }
        self.at.done_bytes = self.at.done_bytes.saturating_add(spec.bytes());
        self.report()?;
        let weight = weight(loaded.id, spec);
        self.names.push((weight, spec.name.clone()));
        Ok(weight)
    }

    fn kv(&mut self, layer: &KvLayer) -> Result<Kv> {
        let spec = self.caches.kv_spec(layer);
        let id = self.backend.new_kv(&spec).map_err(|e| self.load_error(e))?;
        Ok(Kv { id, spec })
    }

    fn state(&mut self, shape: &DeltaShape) -> Result<State> {
        let spec = self.caches.state_spec(shape);
        let id = self.backend.new_state(&spec).map_err(|e| self.load_error(e))?;
        Ok(State { id, spec })
    }

    fn divisors(&mut self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let data = self.data(spec)?;
        let mut values = vec![0.0; spec.cols];
        let row = data.bytes.get(..spec.row_bytes() as usize).unwrap_or_default();
        if let Err(e) = decode_row(spec.ty, row, &mut values) {
            return Err(self.broken(spec, e.to_string()));
        }
        if let Some(i) = values.iter().position(|v| !(*v > 0.0 && v.is_finite())) {
            return Err(ModelError::BadTensor {
                path: self.source.metadata().path().to_path_buf(),
                tensor: spec.name.clone(),
                found: format!("element {i} is {}", values[i]),
                expected: "finite numbers above 0".into(),
            });
        }
        self.at.done_bytes = self.at.done_bytes.saturating_add(spec.bytes());
        self.report()?;
        Ok(values)
    }
}

/// What kind of step a plan is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// The most rows.
    pub max_rows: usize,
    /// The most rows with output.
    pub max_out: usize,
    /// Hidden states to copy out.
    pub taps: Taps,
}

/// A model whose weights and caches a backend holds. Its plans run on that backend only.
#[derive(Clone, Debug)]
pub struct Model {
    spec: ModelSpec,
    caches: CacheConfig,
    loaded: Architecture<Weight, Kv, State>,
    mtp: Option<LoadedMtp>,
    dflash: Option<LoadedDFlash>,
    /// Weights of the model and its MTP block with their tensors' names.
    pub(crate) names: Vec<(Weight, String)>,
    pub(crate) collecting: Collecting,
    held: u64,
}

/// An MTP block to be loaded beside a model.
#[derive(Clone, Copy)]
pub struct MtpSource<'a> {
    /// The file that holds the block: the model's own, or another.
    pub source: &'a dyn Source,
    /// The block, as [`ModelSpec::mtp`] or [`ModelSpec::read_mtp`] describe it.
    pub block: &'a Mtp<TensorSpec, ()>,
    /// The model's own source, which the rows of a reduced head come from.
    pub model: &'a dyn Source,
    /// Token ids that guesses are chosen from, ascending; `None` for all.
    pub head_ids: Option<&'a Arc<[u32]>>,
}

/// Refuses what cannot be the rows of a reduced head.
fn check_head_ids(ids: &[u32], vocabulary: usize) -> Result<()> {
    let wrong =
        |found: String, expected: String| Err(ModelError::Option { option: "draft head", found, expected });
    if ids.is_empty() {
        return wrong("no token ids".into(), "at least one".into());
    }
    if let Some(w) = ids.windows(2).find(|w| w[0] >= w[1]) {
        return wrong(format!("{} before {}", w[0], w[1]), "token ids that ascend".into());
    }
    match ids.last() {
        Some(id) if *id as usize >= vocabulary => {
            wrong(id.to_string(), format!("token ids below {vocabulary}"))
        }
        _ => Ok(()),
    }
}

/// Refuses plans for no rows, or for more output rows than rows.
fn check_rows(max_rows: usize, max_out: usize) -> Result<()> {
    if max_rows > 0 && max_out <= max_rows {
        return Ok(());
    }
    let (found, expected) =
        (format!("{max_rows} rows, {max_out} with output"), "at least 1, and as many as have output");
    Err(ModelError::Option { option: "max_rows", found, expected: expected.into() })
}

/// An MTP block on a device.
#[derive(Clone, Debug)]
struct LoadedMtp {
    block: Mtp<Weight, Kv>,
    hidden: Ring,
    reduced: Option<ReducedHead>,
}

/// A DFlash drafter on a device.
#[derive(Clone, Debug)]
struct LoadedDFlash {
    drafter: DFlash<Weight, Kv>,
    features: Ring,
}

impl Model {
    /// Streams the weights into a backend and allocates the caches. At its peak this takes what was loaded so far and one
    /// tensor. `progress` is called after each tensor; when it returns false, loading stops.
    ///
    /// # Errors
    /// When the model does not fit (the message says what it needs), a tensor's bytes are not what `spec` says, the backend
    /// refuses, or `progress` asks to stop. What was loaded stays with the backend until it is dropped.
    pub fn load(
        source: &dyn Source,
        spec: ModelSpec,
        backend: &mut dyn Backend,
        caches: &CacheConfig,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<Self> {
        let mut need = spec.memory(backend, caches)?;
        if !source.is_mapped() {
            need.weights = need.weights.saturating_add(spec.kept_bytes(backend));
        }
        let available = caches.memory.or_else(available).unwrap_or(u64::MAX);
        if need.total() > available {
            return Err(ModelError::Memory { path: spec.path().to_path_buf(), need, available });
        }
        let at = LoadProgress { done_bytes: 0, total_bytes: spec.file_bytes() };
        let mut loader = Loader {
            source,
            backend,
            caches,
            progress,
            at,
            held: 0,
            names: Vec::new(),
            kept: HashSet::new(),
        };
        loader.report()?;
        let loaded = spec.architecture.place(&mut loader)?;
        let (held, names) = (loader.held, loader.names);
        let (caches, collecting) = (caches.clone(), Collecting::default());
        Ok(Self { spec, caches, loaded, mtp: None, dflash: None, names, collecting, held })
    }

    /// Loads an MTP block, with its KV cache and the ring that hands it the model's hidden states. From then on every
    /// recorded step keeps them.
    ///
    /// # Errors
    /// As [`Model::load`], and when the ids of the reduced head are none, do not ascend or are not in the vocabulary.
    pub fn load_mtp(
        &mut self,
        from: MtpSource<'_>,
        backend: &mut dyn Backend,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<()> {
        if let Some(ids) = from.head_ids {
            check_head_ids(ids, self.spec.vocabulary())?;
        }
        let own_head = from.block.shared_head_head.as_ref();
        let mut block = from.block.clone();
        if from.head_ids.is_some() {
            // Only the rows of the reduced head are ever multiplied.
            block.shared_head_head = None;
        }
        let at = LoadProgress { done_bytes: 0, total_bytes: block.file_bytes() };
        let caches = self.caches.clone();
        let mut loader = Loader {
            source: from.source,
            backend,
            caches: &caches,
            progress,
            at,
            held: 0,
            names: Vec::new(),
            kept: HashSet::new(),
        };
        let block = block.place(&mut loader)?;
        let reduced = match from.head_ids {
            Some(ids) => {
                let (head, source) = match own_head {
                    Some(head) => (head, from.source),
                    None => (self.spec.architecture.head().0, from.model),
                };
                loader.source = source;
                Some(ReducedHead { weight: loader.rows(head, ids)?, ids: ids.clone() })
            }
            None => None,
        };
        let spec = caches.ring_spec(block.params.hidden);
        let id = loader.backend.new_ring(&spec).map_err(|e| loader.load_error(e))?;
        self.held = self.held.saturating_add(loader.held);
        self.names.append(&mut loader.names);
        self.mtp = Some(LoadedMtp { block, hidden: Ring { id, spec }, reduced });
        Ok(())
    }

    /// The MTP block, where one was loaded.
    #[must_use]
    pub fn mtp(&self) -> Option<&Mtp<Weight, Kv>> {
        self.mtp.as_ref().map(|m| &m.block)
    }

    /// Token ids that the MTP block's guesses are chosen from; `None` for all.
    #[must_use]
    pub fn mtp_head_ids(&self) -> Option<&Arc<[u32]>> {
        self.mtp.as_ref()?.reduced.as_ref().map(|r| &r.ids)
    }

    /// Hidden states that are kept for the MTP block, where one was loaded.
    #[must_use]
    pub fn hidden_ring(&self) -> Option<&Ring> {
        self.mtp.as_ref().map(|m| &m.hidden)
    }

    /// Positions whose hidden states are kept for the MTP block.
    #[must_use]
    pub fn hidden_capacity(&self) -> usize {
        self.hidden_ring().map_or(0, |ring| ring.spec.capacity)
    }

    /// Loads a DFlash drafter, with its KV caches and the ring that hands it the outputs of the model's layers. From then
    /// on every recorded step keeps them.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_dflash(
        &mut self,
        source: &dyn Source,
        drafter: &DFlash<TensorSpec, ()>,
        backend: &mut dyn Backend,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<()> {
        let at = LoadProgress { done_bytes: 0, total_bytes: drafter.file_bytes() };
        let caches = self.caches.clone();
        let cols = drafter.params.target_layers.len() * drafter.params.hidden;
        let spec = RingSpec { slots: caches.slots, ..caches.ring_spec(cols) };
        let need = drafter.memory(backend, &caches, spec.bytes());
        let available = caches.memory.or_else(available).unwrap_or(u64::MAX);
        if need.total() > available {
            let path = source.metadata().path().to_path_buf();
            return Err(ModelError::Memory { path, need, available });
        }
        let (held, names, kept) = (0, Vec::new(), HashSet::new());
        let mut loader = Loader { source, backend, caches: &caches, progress, at, held, names, kept };
        loader.report()?;
        let drafter = drafter.place(&mut loader)?;
        let id = loader.backend.new_ring(&spec).map_err(|e| loader.load_error(e))?;
        self.held = self.held.saturating_add(loader.held);
        self.dflash = Some(LoadedDFlash { drafter, features: Ring { id, spec } });
        Ok(())
    }

    /// The DFlash drafter, where one was loaded.
    #[must_use]
    pub fn dflash(&self) -> Option<&DFlash<Weight, Kv>> {
        self.dflash.as_ref().map(|d| &d.drafter)
    }

    /// Positions whose features are kept for the DFlash drafter.
    #[must_use]
    pub fn features_capacity(&self) -> usize {
        self.dflash.as_ref().map_or(0, |d| d.features.spec.capacity)
    }

    /// Records a step of the DFlash drafter.
    ///
    /// # Errors
    /// When none is loaded, or the shape has no rows or more output rows than rows.
    pub fn record_dflash(&self, max_rows: usize, max_out: usize, step: DFlashStep) -> Result<Plan> {
        let Some(dflash) = &self.dflash else {
            let (found, expected) = ("none loaded".into(), "a DFlash drafter".into());
            return Err(ModelError::Option { option: "drafter", found, expected });
        };
        check_rows(max_rows, max_out)?;
        let mut plan = PlanBuilder::new(max_rows, max_out);
        dflash.drafter.record(&mut plan, &self.loaded.shared_with_dflash(&dflash.features), step)?;
        Ok(plan.finish())
    }

    /// Records a step of the MTP block whose rows are pairs. Row (position p, token x) reads the hidden state of position
    /// p.
    ///
    /// # Errors
    /// When no block is loaded, or the shape has no rows or more output rows than rows.
    pub fn record_mtp(&self, max_rows: usize, max_out: usize, step: MtpStep) -> Result<Plan> {
        let Some(mtp) = &self.mtp else {
            let (found, expected) = ("none loaded".into(), "a model with an MTP block".into());
            return Err(ModelError::Option { option: "mtp", found, expected });
        };
        check_rows(max_rows, max_out)?;
        let mut plan = PlanBuilder::new(max_rows, max_out).collecting(self.collecting.collection.clone());
        let shared = self.loaded.shared(&mtp.hidden);
        let shared = crate::mtp::Shared { reduced: mtp.reduced.as_ref(), ..shared };
        mtp.block.record(&mut plan, &shared, step)?;
        Ok(plan.finish())
    }

    /// Records a step.
    ///
    /// # Errors
    /// When the shape has no rows, more output rows than rows, or taps of layers that do not exist.
    pub fn record(&self, shape: &StepShape) -> Result<Plan> {
        check_rows(shape.max_rows, shape.max_out)?;
        let layers = self.spec.layers();
        if let Some(layer) = shape.taps.layers.iter().find(|l| **l >= layers) {
            let (found, expected) = (layer.to_string(), format!("below {layers}"));
            return Err(ModelError::Option { option: "taps.layers", found, expected });
        }
        let mut plan =
            PlanBuilder::new(shape.max_rows, shape.max_out).collecting(self.collecting.collection.clone());
        let captures = Captures {
            taps: Some(&shape.taps),
            hidden: self.mtp.as_ref().map(|m| &m.hidden),
            features: self.dflash.as_ref().map(|d| (d.drafter.params.target_layers.as_slice(), &d.features)),
        };
        self.loaded.record(&mut plan, &captures)?;
        Ok(plan.finish())
    }

    /// Whether layers carry a state, which cannot be cut back to fewer tokens as a KV cache can.
    #[must_use]
    pub fn has_states(&self) -> bool {
        !self.spec.delta.is_empty()
    }

    /// Whether the KV caches of a sequence still hold all that its first `tokens` tokens need to go on, when positions
    /// below `written` were written since it began: rings may have lost the oldest.
    #[must_use]
    pub fn still_holds(&self, tokens: usize, written: usize) -> bool {
        self.spec.caches.iter().all(|layer| {
            let spec = self.caches.kv_spec(layer);
            let first_seen = layer.window.map_or(0, |w| (tokens + 1).saturating_sub(w));
            !spec.ring || first_seen >= written.saturating_sub(spec.capacity)
        })
    }

    /// What the file says of the model.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Shapes of the caches.
    #[must_use]
    pub fn caches(&self) -> &CacheConfig {
        &self.caches
    }

    /// Weights and caches, named after the tensors.
    #[must_use]
    pub fn architecture(&self) -> &Architecture<Weight, Kv, State> {
        &self.loaded
    }

    /// Bytes of memory that the backend holds for the weights.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held
    }
}
