//! A loaded model.

use forerun_tensor::{Backend, Plan};

use crate::caches::CacheConfig;
use crate::error::{ModelError, Result};
use crate::load::{LoadProgress, Loader};
use crate::qwen35::Qwen35;
use crate::source::Source;
use crate::spec::{Architecture, ModelSpec};

/// Outputs of inner layers that a plan brings out besides its picks, as [`forerun_tensor::StepOut::taps`] in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taps {
    /// The embeddings that go into the first layer.
    pub embeddings: bool,
    /// Outputs (residual stream) of these layers, ascending.
    pub layers: Vec<usize>,
    /// The hidden state of output rows after the output norm.
    pub hidden: bool,
}

/// What a plan must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// The most rows.
    pub max_rows: usize,
    /// The most output rows.
    pub max_out: usize,
    /// Further outputs.
    pub taps: Taps,
}

/// A model whose weights and caches a backend holds.
#[derive(Debug)]
pub struct Model {
    spec: ModelSpec,
    caches: CacheConfig,
    weights: Qwen35,
}

impl Model {
    /// Loads weights and allocates caches. `progress` is called after every tensor; false stops the loading.
    ///
    /// # Errors
    /// When memory does not suffice (said before anything is loaded, where the system tells what is free), a tensor's
    /// data is not there, or the backend refuses.
    pub fn load(
        source: &dyn Source,
        spec: ModelSpec,
        backend: &mut dyn Backend,
        caches: &CacheConfig,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<Self> {
        check_memory(&spec, backend, caches)?;
        let Architecture::Qwen35(shapes) = spec.architecture();
        let mut loader = Loader::new(source, &spec, backend, progress);
        let weights = Qwen35::load(shapes, &mut loader, caches)?;
        Ok(Self { spec, caches: caches.clone(), weights })
    }

    /// The shapes.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The caches.
    #[must_use]
    pub fn caches(&self) -> &CacheConfig {
        &self.caches
    }

    /// Records the plan of a step.
    ///
    /// # Errors
    /// When shapes do not fit each other, which a checked spec rules out.
    pub fn record(&self, shape: &StepShape) -> Result<Plan> {
        let Architecture::Qwen35(spec) = self.spec.architecture();
        Ok(self.weights.record(spec, shape)?)
    }
}

fn check_memory(spec: &ModelSpec, backend: &dyn Backend, caches: &CacheConfig) -> Result<()> {
    let need = spec.memory(Some(backend), caches).total();
    match available_memory() {
        Some(free) if need > free => Err(ModelError::Memory {
            path: spec.path().to_path_buf(),
            need: gigabytes(need),
            free: gigabytes(free),
            hint: "use a smaller --context, --kv q8_0, or a smaller quantisation",
        }),
        _ => Ok(()),
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// Bytes that can be had without swapping, where the system tells (Linux).
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
