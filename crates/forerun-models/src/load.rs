//! Bringing tensors from a source to a backend, one after the other.

use forerun_tensor::{Backend, Weight, WeightData};

use crate::error::{ModelError, Result};
use crate::source::Source;
use crate::spec::ModelSpec;
use crate::tensors::TensorUse;

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of tensors loaded.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// Loads tensors by name. Shapes were checked when the spec was read.
pub(crate) struct Loader<'a> {
    source: &'a dyn Source,
    backend: &'a mut dyn Backend,
    progress: &'a mut dyn FnMut(LoadProgress) -> bool,
    uses: Vec<TensorUse>,
    done: LoadProgress,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        source: &'a dyn Source,
        spec: &ModelSpec,
        backend: &'a mut dyn Backend,
        progress: &'a mut dyn FnMut(LoadProgress) -> bool,
    ) -> Self {
        let done = LoadProgress { done_bytes: 0, total_bytes: spec.weight_bytes() };
        Self { source, backend, progress, uses: spec.tensors().cloned().collect(), done }
    }

    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        self.backend
    }

    /// A whole tensor.
    pub(crate) fn weight(&mut self, name: &str) -> Result<Weight> {
        let rows = self.find(name)?.shape().1;
        let [weight] = self.split(name, [rows])?;
        Ok(weight)
    }

    /// The tensors of block `i`.
    pub(crate) fn block(&mut self, i: usize, name: &str) -> Result<Weight> {
        self.weight(&format!("blk.{i}.{name}"))
    }

    /// Consecutive row ranges of a tensor (of every expert of it), as weights of their own.
    pub(crate) fn split<const N: usize>(&mut self, name: &str, parts: [usize; N]) -> Result<[Weight; N]> {
        let tensor = self.find(name)?.clone();
        let (info, ty) = tensor.check(self.source)?;
        let (cols, rows, experts) = tensor.shape();
        let bytes = self.source.bytes(info)?;
        let row_bytes = ty.row_bytes(cols).unwrap_or(0);
        let mut weights = [None; N];
        let mut keeps = false;
        let mut first = 0;
        for (weight, part) in weights.iter_mut().zip(parts) {
            let rest = bytes.slice(first * row_bytes..bytes.len()).ok_or_else(|| self.missing(&tensor))?;
            let data = WeightData {
                name: name.to_owned(),
                ty,
                rows: part,
                cols,
                experts,
                expert_stride: rows * row_bytes,
                bytes: rest,
                usage: tensor.usage,
            };
            let loaded = self.backend.load(&data)?;
            keeps |= loaded.keeps_source;
            *weight = Some(Weight { id: loaded.id, rows: part, cols, experts });
            first += part;
        }
        if !keeps {
            self.source.release(info);
        }
        self.done.done_bytes += (row_bytes * rows * experts) as u64;
        if !(self.progress)(self.done) {
            return Err(ModelError::Cancelled);
        }
        let complete = weights.iter().flatten().copied().collect::<Vec<_>>();
        complete.try_into().map_err(|_| self.missing(&tensor))
    }

    fn find(&self, name: &str) -> Result<&TensorUse> {
        self.uses.iter().find(|u| u.name == name).ok_or_else(|| ModelError::MissingTensor {
            path: self.source.path().to_path_buf(),
            name: name.to_owned(),
            dims: Vec::new(),
        })
    }

    fn missing(&self, tensor: &TensorUse) -> ModelError {
        ModelError::MissingTensor {
            path: self.source.path().to_path_buf(),
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
        }
    }
}
