//! Folders made of a fixture's, with changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};
use serde_json::Value;

#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// What lies in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) config: Value,
    pub(crate) tensors: Tensors,
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models")).join(name)
}

impl Folder {
    pub(crate) fn of_fixture(name: &str) -> Self {
        let folder = fixture(name);
        let config = std::fs::read(folder.join("config.json")).expect("config");
        let bytes = std::fs::read(folder.join("model.safetensors")).expect("tensors");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let tensors = file.iter().map(|(name, t)| {
            let tensor = Tensor { dtype: t.dtype(), shape: t.shape().to_vec(), data: t.data().to_vec() };
            (name.to_owned(), tensor)
        });
        Self { config: serde_json::from_slice(&config).expect("JSON"), tensors: tensors.collect() }
    }

    /// Renames every tensor.
    pub(crate) fn renamed(self, name: impl Fn(&str) -> String) -> Self {
        Self { tensors: self.tensors.into_iter().map(|(n, t)| (name(&n), t)).collect(), ..self }
    }

    /// Takes the tensors whose names begin so out of the folder.
    pub(crate) fn take(&mut self, prefix: &str) -> Tensors {
        let names: Vec<String> = self.tensors.keys().filter(|n| n.starts_with(prefix)).cloned().collect();
        names.into_iter().filter_map(|n| self.tensors.remove_entry(&n)).collect()
    }

    /// Writes the folder with all tensors in one file.
    pub(crate) fn write(&self, dir: &Path) {
        std::fs::create_dir_all(dir).expect("a folder");
        std::fs::write(dir.join("config.json"), self.config.to_string()).expect("written");
        write_tensors(&dir.join("model.safetensors"), &self.tensors);
    }
}

pub(crate) fn write_tensors(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, t)| {
        (name.clone(), TensorView::new(t.dtype, t.shape.clone(), &t.data).expect("a tensor"))
    });
    std::fs::write(path, serialize(views.collect::<Vec<_>>(), None).expect("safetensors")).expect("written");
}
