//! Which type each tensor of a file gets. The rules are those of the ecosystem's quantiser, so that files of one name hold
//! the same types whoever made them: most matrices get the type that names the file, and those where errors hurt most
//! (values of attention, the second product of the feed-forward part, the head) more bits.
//!
//! A matrix has a [`Role`] by its name. The first of [`RULES`] for file, role and circumstances decides.

mod rules;

use forerun_files::{Metadata, TensorKind};
use forerun_models::{TensorHeader, always_f32};
use forerun_quant::TensorType;

use crate::error::{Result, WeightsError};
use crate::file_type::FileType;
use rules::{Case, RULES, Role};

/// What the rules ask of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// Blocks, those of the MTP part included.
    layers: usize,
    /// Experts of a layer; 0 in a dense model.
    experts: usize,
    /// Query heads that share a KV head in the first layer; 0 where it has none.
    heads_per_kv: usize,
    /// Whether it is the Llama of 80 layers whose heads share keys and values.
    llama_70b: bool,
    /// Whether an importance matrix is at hand.
    importance: bool,
}

/// Architectures with rules of their own, which are not here.
const OWN_RULES: [&str; 2] = ["falcon", "glm5-next"];

impl Facts {
    /// Reads them from a file's metadata.
    ///
    /// # Errors
    /// When a key is missing or has a value that does not fit, or the architecture has rules of its own.
    pub(crate) fn read(metadata: &Metadata, importance: bool) -> Result<Self> {
        let architecture = metadata.str("general.architecture")?;
        let wrong = |key: String, found: String, expected: &str| WeightsError::Key {
            path: metadata.path().to_path_buf(),
            key,
            found,
            expected: expected.to_owned(),
        };
        if OWN_RULES.contains(&architecture.as_str()) {
            let key = "general.architecture".to_owned();
            return Err(wrong(key, architecture, "an architecture whose mix of types is known"));
        }
        let count = |key: &str| -> Result<Option<usize>> {
            let key = format!("{architecture}.{key}");
            let Some(value) = metadata.get(&key) else { return Ok(None) };
            let number = first_integer(value).and_then(|n| usize::try_from(n).ok());
            number.map(Some).ok_or_else(|| wrong(key, value.summary(), "a whole number, or a list of them"))
        };
        let layers = count("block_count")?.ok_or_else(|| {
            wrong(format!("{architecture}.block_count"), "none".to_owned(), "the number of layers")
        })?;
        let heads = count("attention.head_count")?.unwrap_or(0);
        let kv_heads = count("attention.head_count_kv")?.unwrap_or(heads);
        Ok(Self {
            layers,
            experts: count("expert_count")?.unwrap_or(0),
            heads_per_kv: heads.checked_div(kv_heads).unwrap_or(0),
            llama_70b: architecture == "llama" && layers == 80 && heads != kv_heads,
            importance,
        })
    }
}

/// A number, or the first of a list that has one for every layer.
fn first_integer(value: &forerun_files::Value) -> Option<i128> {
    match value {
        forerun_files::Value::Array(list) => list.integers()?.first().copied(),
        one => one.integer(),
    }
}

/// Whether a mix may change a tensor: a matrix of weights that is large, and whose errors do not decide much by themselves.
pub(crate) fn may_change(t: &TensorHeader) -> bool {
    let TensorKind::Known(now) = t.kind else { return false };
    let matrix = t.dims.iter().skip(1).any(|d| *d > 1);
    matrix
        && now.is_weight()
        && t.name.ends_with("weight")
        && !rules::KEPT.iter().any(|part| t.name.contains(part))
        && !rules::KEPT_NAMES.contains(&t.name.as_str())
}

/// The type of a tensor that no mix changes. What MLX quantised becomes floats: no GGUF file has its types.
fn kept(t: &TensorHeader) -> TensorKind {
    match t.kind {
        TensorKind::Known(TensorType::Affine(_)) => TensorKind::Known(TensorType::F32),
        kind => kind,
    }
}

/// The type of a tensor in a file of floats, or in one where every tensor stays as it is.
fn float(file: FileType, t: &TensorHeader, fixed: Option<TensorType>) -> TensorKind {
    match (file.base(), t.kind) {
        (_, kind) if may_change(t) && fixed.is_some() => fixed.map_or(kind, TensorKind::Known),
        // Integers are no weights.
        (Some(base), TensorKind::Known(now)) if now.is_weight() => {
            TensorKind::Known(if always_f32(&t.name, &t.dims) { TensorType::F32 } else { base })
        }
        (_, kind) => kind,
    }
}

/// The layer in `blk.3.NAME`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// The type of every tensor, in their order. `fixed` are types that a caller wants; they change no other tensor's.
///
/// # Errors
/// When the layer of a tensor is not known but decides.
pub(crate) fn types(
    file: FileType,
    metadata: &Metadata,
    importance: bool,
    tensors: &[TensorHeader],
    fixed: &[Option<TensorType>],
) -> Result<Vec<TensorKind>> {
    if !file.is_mix() {
        return Ok(tensors.iter().zip(fixed).map(|(t, fixed)| float(file, t, *fixed)).collect());
    }
    let facts = Facts::read(metadata, importance)?;
    let mix = Mix::new(file, facts, tensors);
    let mut types: Vec<TensorKind> = tensors.iter().map(kept).collect();
    // Counted places of a role are those of the file's tensors by layer and name, whatever their order in the file.
    let mut order: Vec<usize> = (0..tensors.len()).filter(|i| may_change(&tensors[*i])).collect();
    order.sort_by(|a, b| {
        let key = |i: usize| (layer_of(&tensors[i].name), tensors[i].name.as_str());
        key(*a).cmp(&key(*b))
    });
    let mut seen = [0; Role::COUNT];
    for i in order {
        let (t, role) = (&tensors[i], mix.role(&tensors[i].name));
        let place = seen[role as usize];
        seen[role as usize] += 1;
        let chosen = match (fixed[i], file.base()) {
            (Some(fixed), _) => Some(fixed),
            (None, None) => None,
            (None, Some(base)) => {
                let place = mix.place(t, role, place, metadata)?;
                Some(rules::whole_blocks(mix.choose(base, t, role, place), t))
            }
        };
        if let Some(ty) = chosen {
            types[i] = TensorKind::Known(ty);
        }
    }
    Ok(types)
}

/// Where a matrix stands among those of its role.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    of: usize,
}

struct Mix {
    file: FileType,
    facts: Facts,
    /// Whether the embedding is the head too.
    tied: bool,
    /// Matrices that make values of attention.
    values: usize,
}

impl Mix {
    fn new(file: FileType, facts: Facts, tensors: &[TensorHeader]) -> Self {
        let tied = !tensors.iter().any(|t| t.name == "output.weight");
        let values = tensors.iter().filter(|t| Role::of(&t.name) == Role::AttnV).count();
        Self { file, facts, tied, values }
    }

    fn role(&self, name: &str) -> Role {
        match Role::of(name) {
            Role::Embedding if self.tied => Role::Output,
            role => role,
        }
    }

    /// The layer of a matrix of the feed-forward part, which has several in a layer where there are experts; else the place
    /// in the order of names.
    fn place(&self, t: &TensorHeader, role: Role, index: usize, metadata: &Metadata) -> Result<Place> {
        let of = if role == Role::AttnV { self.values } else { self.facts.layers };
        if role != Role::FfnDown || self.facts.experts <= 1 {
            return Ok(Place { index, of });
        }
        match layer_of(&t.name).filter(|layer| *layer < of) {
            Some(index) => Ok(Place { index, of }),
            None => Err(WeightsError::Tensor {
                path: metadata.path().to_path_buf(),
                tensor: t.name.clone(),
                found: "a name without a layer of the model".to_owned(),
                expected: format!("blk.N. with N below {of}"),
            }),
        }
    }

    fn choose(&self, base: TensorType, t: &TensorHeader, role: Role, place: Place) -> TensorType {
        let holds = |case: &Case| match *case {
            Case::CutBlocks => t.dims.first().is_none_or(|cols| base.row_bytes(*cols).is_none()),
            Case::ManyHeadsPerKv => self.facts.heads_per_kv >= 4,
            Case::EightExperts => self.facts.experts == 8,
            Case::NotEightExperts => self.facts.experts != 8,
            Case::Llama70b => self.facts.llama_70b,
            Case::First(n) => place.index < n,
            Case::FirstShare(n) => place.index < place.of / n,
            Case::MoreBits => more_bits(place),
            Case::Importance => self.facts.importance,
            Case::NoImportance => !self.facts.importance,
        };
        let rule = RULES.iter().find(|rule| {
            rule.role == role
                && (rule.files.is_empty() || rule.files.contains(&self.file))
                && rule.cases.iter().all(holds)
        });
        rule.map_or(base, |rule| rule.ty)
    }
}

/// The first and last eighth of the layers, and every third between them.
fn more_bits(Place { index, of }: Place) -> bool {
    let eighth = of / 8;
    index < eighth || index >= 7 * of / 8 || (index - eighth) % 3 == 2
}

#[cfg(test)]
mod tests;
