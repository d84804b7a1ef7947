//! Models in Hugging Face folders, presented as the GGUF file that the ecosystem's converter would make of them: its
//! metadata, its tensors' names, dims and types, and their bytes, made when they are asked for.
//!
//! Weights that MLX quantised keep their levels, scales and biases; they have types that no GGUF file has.
//!
//! Everything that reads GGUF reads folders through this: specs, loading, drafters, memory, conversion.

mod assemble;
mod dflash;
mod gemma4;
mod general;
mod keys;
mod names;
mod quantization;
mod qwen35;
mod recipe;
mod stored;
mod tokenizer;

use std::collections::HashMap;
use std::path::Path;

use forerun_files::{Checkpoint, HubFolder, Metadata, Value};

use crate::error::{ModelError, Result};
use crate::json::{Object, first};
use crate::source::{Source, SourceTensor, TensorHeader};
use assemble::{Assembly, Becomes};
use keys::Writer;
pub use names::always_f32;
use quantization::Quantization;
use recipe::Recipe;
use stored::Stored;

const ARCHITECTURES: &str = "qwen35, qwen35moe or gemma4, or a DFlash drafter";

/// What kind of model a folder holds, and its settings.
enum Family {
    Qwen35(qwen35::Qwen35),
    Gemma4(gemma4::Gemma4),
    Drafter(dflash::Drafter),
}

/// A model in a Hugging Face folder, as the GGUF file that it would be.
pub struct HubModel {
    folder: HubFolder,
    metadata: Metadata,
    headers: Vec<TensorHeader>,
    weights: Vec<Stored>,
    recipes: Vec<Recipe>,
    index: HashMap<String, usize>,
}

/// A folder while it is read.
struct Reading<'a> {
    folder: &'a HubFolder,
    weights: Vec<Stored>,
    family: Family,
    architecture: &'static str,
    /// Parts from this one on are files beside the model's own, with an MTP block.
    side: usize,
    /// Whether the model's own tensors went through MLX, which stores gains where others store gains less 1.
    mlx: bool,
}

impl HubModel {
    /// Opens a folder with a model or a drafter, or one safetensors file of it. Files of the folder that its index does not
    /// list and whose names have `mtp` in them hold the model's MTP block.
    ///
    /// # Errors
    /// When a file is missing or broken, the model is not supported, or a tensor is not known, there twice, or not shaped
    /// as `config.json` asks.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_for(path, None)
    }

    /// Opens a drafter whose tokenizer and rotary sections are those of the model in another folder.
    ///
    /// # Errors
    /// As [`HubModel::open`].
    pub fn open_for(path: &Path, target: Option<&Path>) -> Result<Self> {
        let mut folder = HubFolder::open(path)?;
        let side = folder.parts();
        if path.is_dir() {
            for file in folder.other_files()? {
                if file.file_name().is_some_and(|n| n.to_string_lossy().to_lowercase().contains("mtp")) {
                    folder.add_file(&file)?;
                }
            }
        }
        let target = target.map(HubFolder::open).transpose()?;
        let reading = Reading::start(&folder, side, target.as_ref())?;
        let (recipes, metadata) = reading.finish(target.as_ref())?;
        let weights = reading.weights;
        let headers: Vec<TensorHeader> = recipes.iter().map(|r| r.header.clone()).collect();
        let index = headers.iter().enumerate().map(|(i, h)| (h.name.clone(), i)).collect();
        Ok(Self { folder, metadata, headers, weights, recipes, index })
    }

    fn recipe(&self, name: &str) -> Option<&Recipe> {
        self.index.get(name).and_then(|&i| self.recipes.get(i))
    }
}

/// The object with the text model's settings: multimodal files have it inside.
fn text_config(top: Object<'_>) -> Result<Object<'_>> {
    match top.get("text_config") {
        Some(_) => top.object("text_config", "text_config."),
        None => Ok(top),
    }
}

/// Whether the model that a drafter is for divides its rotary dims into sections.
fn has_sections(target: &HubFolder) -> Result<bool> {
    let Some(json) = target.config() else { return Ok(false) };
    let text = text_config(Object { path: target.path(), prefix: "", json })?;
    let rope = text.object("rope_parameters", "rope_parameters.")?;
    Ok(rope.get("mrope_section").is_some())
}

impl<'a> Reading<'a> {
    fn start(folder: &'a HubFolder, side: usize, target: Option<&HubFolder>) -> Result<Self> {
        let json = folder.config().unwrap_or(&serde_json::Value::Null);
        let top = Object { path: folder.path(), prefix: "", json };
        let text = text_config(top)?;
        let weights = Stored::all(folder, &Quantization::read(top)?)?;
        let class =
            top.get("architectures").and_then(|a| a.get(0)).and_then(|a| a.as_str()).unwrap_or_default();
        let tied = first([text.opt_bool("tie_word_embeddings"), top.opt_bool("tie_word_embeddings")])?;
        let (family, architecture) = if class.starts_with("DFlash") || top.get("dflash_config").is_some() {
            let sections = target.map(has_sections).transpose()?.unwrap_or(false);
            (Family::Drafter(dflash::Drafter::read(top, sections)?), "dflash")
        } else {
            match text.get("model_type").or_else(|| top.get("model_type")).and_then(|m| m.as_str()) {
                Some("qwen3_5" | "qwen3_5_text") => {
                    (Family::Qwen35(qwen35::Qwen35::read(text, false, tied)?), "qwen35")
                }
                Some("qwen3_5_moe" | "qwen3_5_moe_text") => {
                    (Family::Qwen35(qwen35::Qwen35::read(text, true, tied)?), "qwen35moe")
                }
                Some("gemma4" | "gemma4_text") => {
                    (Family::Gemma4(gemma4::Gemma4::read(text, tied)?), "gemma4")
                }
                found => {
                    let found = found.map_or_else(|| format!("{class} without `model_type`"), str::to_owned);
                    let path = folder.path().to_path_buf();
                    return Err(ModelError::Architecture { path, found, expected: ARCHITECTURES });
                }
            }
        };
        let mlx = is_mlx(folder, side)?;
        Ok(Self { folder, weights, family, architecture, side, mlx })
    }

    fn finish(&self, target: Option<&HubFolder>) -> Result<(Vec<Recipe>, Metadata)> {
        let recipes = self.recipes()?;
        let rows = recipes.iter().find(|r| r.header.name == "token_embd.weight");
        let vocabulary = match (rows.and_then(|r| r.header.dims.get(1)), &self.family) {
            (Some(rows), _) => Some(*rows),
            (None, Family::Drafter(drafter)) => drafter.vocabulary(),
            (None, _) => None,
        };
        let mut meta = Metadata::new(self.folder.path());
        meta.set("general.architecture", Value::String(self.architecture.into()));
        meta.set("general.type", Value::String("model".into()));
        general::sampling(self.folder, &mut meta)?;
        general::name(self.folder, &mut meta);
        meta.set("general.size_label", Value::String(general::size_label(&recipes)));
        let file_type = general::file_type(&recipes);
        let mtp = recipes.iter().any(|r| r.header.name.contains(".nextn."));
        let mut keys = Writer { meta: &mut meta, architecture: self.architecture };
        match &self.family {
            Family::Qwen35(m) => m.metadata(&mut keys, mtp, file_type),
            Family::Gemma4(m) => m.metadata(&mut keys, file_type),
            Family::Drafter(m) => m.metadata(&mut keys, file_type),
        }
        meta.set("general.quantization_version", Value::U32(2));
        let with_tokenizer = target.unwrap_or(self.folder);
        tokenizer::put(with_tokenizer, self.architecture, vocabulary, &mut meta)?;
        if let Family::Drafter(drafter) = &self.family
            && let Some(mask) = drafter.mask()
        {
            meta.set("tokenizer.ggml.mask_token_id", Value::U32(mask));
        }
        Ok((recipes, meta))
    }

    fn recipes(&self) -> Result<Vec<Recipe>> {
        let experts = match &self.family {
            Family::Qwen35(m) => m.experts(),
            Family::Gemma4(m) => m.experts(),
            Family::Drafter(_) => 0,
        };
        let mut assembly = Assembly::new(self.folder.path(), &self.weights, experts);
        if let Family::Gemma4(m) = &self.family {
            assembly.values("rope_freqs.weight", m.rope_freqs());
        }
        for (i, tensor) in self.weights.iter().enumerate() {
            assembly.add(i, self.place(tensor)?)?;
        }
        assembly.complete()?;
        if let Family::Gemma4(m) = &self.family {
            let has = |name: &str| assembly.recipes.iter().any(|r| r.header.name == name);
            if let Some(tensor) = m.missing_values(has) {
                return Err(ModelError::BadTensor {
                    path: self.folder.path().to_path_buf(),
                    tensor,
                    found: "missing".into(),
                    expected: "values of every layer whose keys are not its values (`attention_k_eq_v`)"
                        .into(),
                });
            }
        }
        Ok(assembly.recipes)
    }

    /// What becomes of a tensor.
    fn place(&self, tensor: &Stored) -> Result<Becomes> {
        let Some(name) = names::canonical(&tensor.name) else { return Ok(Becomes::Nothing) };
        let beside = tensor.part >= self.side;
        let becomes = match &self.family {
            // What tool kept an MTP block in such a folder, and what it did to its norms, cannot be seen: only files
            // beside it, which come from the original, are taken.
            Family::Qwen35(_) if self.mlx && !beside && name.starts_with("mtp.") => Some(Becomes::Nothing),
            Family::Qwen35(m) => m.place(name, beside || !self.mlx),
            Family::Gemma4(m) => m.place(name),
            Family::Drafter(m) => m.place(name),
        };
        becomes.ok_or_else(|| ModelError::BadTensor {
            path: self.folder.path().to_path_buf(),
            tensor: tensor.name.clone(),
            found: "not known".into(),
            expected: format!("only tensors of architecture `{}`", self.architecture),
        })
    }
}

/// Whether the convolutions have MLX's shape. All must agree.
fn is_mlx(folder: &HubFolder, side: usize) -> Result<bool> {
    let mut seen: Option<(bool, &str)> = None;
    for tensor in folder.tensors().iter().filter(|t| t.part < side && qwen35::is_conv(&t.name)) {
        let wrong = |expected: String| ModelError::BadTensor {
            path: folder.path().to_path_buf(),
            tensor: tensor.name.clone(),
            found: format!("shape {:?}", tensor.dims.iter().rev().collect::<Vec<_>>()),
            expected,
        };
        let mlx = qwen35::is_mlx_conv(&tensor.dims)
            .ok_or_else(|| wrong("[channels, 1, taps], or [channels, taps, 1] from MLX".into()))?;
        match seen {
            Some((first, name)) if first != mlx => {
                return Err(wrong(format!("its dimensions in the order of those of `{name}`")));
            }
            _ => seen = Some((mlx, &tensor.name)),
        }
    }
    Ok(seen.is_some_and(|(mlx, _)| mlx))
}

impl Source for HubModel {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }

    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        self.recipe(name)?.make(&self.folder, &self.weights)
    }

    /// Tables are what a backend goes on reading: as long as they lie in the folder, nothing is held beside it.
    fn is_mapped(&self) -> bool {
        let tables = self.recipes.iter().filter(|r| r.header.name.contains("token_embd"));
        tables.into_iter().all(|r| r.is_mapped(&self.weights))
    }

    fn release(&self, name: &str) {
        if let Some(recipe) = self.recipe(name) {
            recipe.release(&self.folder, &self.weights);
        }
    }
}
