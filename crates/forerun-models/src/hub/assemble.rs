//! The tensors of a folder, put together as GGUF's.

use std::collections::HashMap;
use std::path::Path;

use forerun_files::TensorKind;
use forerun_quant::TensorType;

use super::names::always_f32;
use super::recipe::{Columns, Content, Map, Piece, Recipe, push};
use super::stored::Stored;
use crate::error::{ModelError, Result};
use crate::source::TensorHeader;

/// Value heads of a delta net in GGUF's order. A folder has the heads of one key head together, GGUF has the first of every
/// key head, then the second of every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heads {
    pub(super) key_heads: usize,
    /// Value heads per key head.
    pub(super) per_key: usize,
}

impl Heads {
    pub(super) fn count(self) -> usize {
        self.key_heads * self.per_key
    }

    /// For every head of GGUF, its place in the folder.
    pub(super) fn order(self) -> impl Iterator<Item = usize> {
        (0..self.per_key).flat_map(move |j| (0..self.key_heads).map(move |g| g * self.per_key + j))
    }
}

/// Order of rows or columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As it is.
    #[default]
    Same,
    /// From row `first` on, blocks of `block` rows are value heads. The elements of a vector count as rows.
    Rows { heads: Heads, first: usize, block: usize },
    /// Blocks of `block` columns are value heads.
    Columns { heads: Heads, block: usize },
}

/// What becomes of a tensor of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
    /// A tensor of GGUF.
    One { name: String, order: Order, map: Map },
    /// The same without dimensions of 1.
    Squeezed { name: String, order: Order },
    /// A matrix of a stack.
    Expert { name: String, expert: usize },
    /// Two stacks: the first and the second half of every matrix's rows.
    Halves { names: [String; 2] },
    /// Nothing: the model does not need it.
    Nothing,
}

impl Becomes {
    pub(super) fn one(name: impl Into<String>) -> Self {
        Self::mapped(name, Map::Same)
    }

    pub(super) fn mapped(name: impl Into<String>, map: Map) -> Self {
        Becomes::One { name: name.into(), order: Order::Same, map }
    }

    pub(super) fn ordered(name: impl Into<String>, order: Order) -> Self {
        Becomes::One { name: name.into(), order, map: Map::Same }
    }
}

/// The stack that experts are collected in.
struct Stack {
    dims: Vec<usize>,
    ty: TensorType,
    /// Tensors by expert.
    parts: Vec<Option<usize>>,
}

/// Puts GGUF's tensors together, in the order in which those of the folder complete them.
pub(super) struct Assembly<'a> {
    path: &'a Path,
    tensors: &'a [Stored],
    experts: usize,
    stacks: HashMap<String, Stack>,
    made: HashMap<String, usize>,
    pub(super) recipes: Vec<Recipe>,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(path: &'a Path, tensors: &'a [Stored], experts: usize) -> Self {
        Self { path, tensors, experts, stacks: HashMap::new(), made: HashMap::new(), recipes: Vec::new() }
    }

    fn wrong(&self, tensor: usize, found: impl Into<String>, expected: impl Into<String>) -> ModelError {
        ModelError::BadTensor {
            path: self.path.to_path_buf(),
            tensor: self.tensors[tensor].name.clone(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    fn wrong_dims(&self, tensor: usize, expected: impl Into<String>) -> ModelError {
        let found: Vec<usize> = self.tensors[tensor].dims.iter().rev().copied().collect();
        self.wrong(tensor, format!("shape {found:?}"), expected)
    }

    fn ty(&self, tensor: usize) -> Result<TensorType> {
        match self.tensors[tensor].kind {
            TensorKind::Known(ty) => Ok(ty),
            kind => {
                Err(self.wrong(tensor, format!("type {kind}"), "F32, F16 or BF16, or MLX's affine weights"))
            }
        }
    }

    /// Adds a tensor that no tensor of the folder becomes.
    pub(super) fn values(&mut self, name: &str, values: Vec<f32>) {
        let kind = TensorKind::Known(TensorType::F32);
        let header = TensorHeader { name: name.into(), dims: vec![values.len()], kind };
        self.made.insert(name.into(), usize::MAX);
        self.recipes.push(Recipe { header, content: Content::Values(values) });
    }

    /// Adds a tensor of the folder.
    pub(super) fn add(&mut self, tensor: usize, becomes: Becomes) -> Result<()> {
        let dims = self.tensors[tensor].dims.clone();
        match becomes {
            Becomes::Nothing => Ok(()),
            Becomes::One { name, order, map } => self.one(tensor, name, dims, order, map),
            Becomes::Squeezed { name, order } => {
                let squeezed: Vec<usize> = dims.into_iter().filter(|d| *d != 1).collect();
                self.one(tensor, name, squeezed, order, Map::Same)
            }
            Becomes::Expert { name, expert } => self.expert(tensor, name, &dims, expert),
            Becomes::Halves { names } => self.halves(tensor, names, &dims),
        }
    }

    fn one(&mut self, tensor: usize, name: String, dims: Vec<usize>, order: Order, map: Map) -> Result<()> {
        let ty = self.ty(tensor)?;
        let elements: usize = dims.iter().product();
        let vector_of_heads = dims.len() == 1 && matches!(order, Order::Rows { .. });
        let cols = if vector_of_heads { 1 } else { dims.first().copied().unwrap_or(1) };
        let rows = elements / cols;
        let mut pieces = Vec::new();
        let mut columns = None;
        match order {
            Order::Same => push(&mut pieces, Piece { tensor, first: 0, rows }),
            Order::Rows { heads, first, block } => {
                let expected = first + heads.count() * block;
                if rows != expected {
                    return Err(self.wrong_dims(tensor, format!("{expected} rows by config.json")));
                }
                if first > 0 {
                    push(&mut pieces, Piece { tensor, first: 0, rows: first });
                }
                for head in heads.order() {
                    push(&mut pieces, Piece { tensor, first: first + head * block, rows: block });
                }
            }
            Order::Columns { heads, block } => {
                let expected = heads.count() * block;
                if cols != expected {
                    return Err(self.wrong_dims(tensor, format!("{expected} columns by config.json")));
                }
                push(&mut pieces, Piece { tensor, first: 0, rows });
                columns = (heads.per_key > 1).then(|| Columns { block, order: heads.order().collect() });
            }
        }
        self.finish(tensor, name, dims, Content::Rows { cols, ty, pieces, columns, map })
    }

    fn expert(&mut self, tensor: usize, name: String, dims: &[usize], expert: usize) -> Result<()> {
        let ty = self.ty(tensor)?;
        if dims.len() != 2 {
            return Err(self.wrong_dims(tensor, "a matrix"));
        }
        if expert >= self.experts {
            let expected = format!("experts 0 to {} by config.json", self.experts.saturating_sub(1));
            return Err(self.wrong(tensor, format!("expert {expert}"), expected));
        }
        let new = || Stack { dims: dims.to_vec(), ty, parts: vec![None; self.experts] };
        let stack = self.stacks.entry(name.clone()).or_insert_with(new);
        let (stack_dims, stack_ty) = (stack.dims.clone(), stack.ty);
        if stack_dims != dims || stack_ty != ty {
            let expected =
                format!("shape {stack_dims:?} (columns first) of {stack_ty}, as the other experts have");
            return Err(self.wrong(tensor, format!("{dims:?} of {ty}"), expected));
        }
        if let Some(first) = stack.parts[expert].replace(tensor) {
            return Err(self.again(tensor, first));
        }
        if stack.parts.contains(&None) {
            return Ok(());
        }
        let mut pieces = Vec::with_capacity(self.experts);
        stack
            .parts
            .iter()
            .flatten()
            .for_each(|&t| push(&mut pieces, Piece { tensor: t, first: 0, rows: dims[1] }));
        self.stacks.remove(&name);
        let content = Content::Rows { cols: dims[0], ty, pieces, columns: None, map: Map::Same };
        self.finish(tensor, name, vec![dims[0], dims[1], self.experts], content)
    }

    fn halves(&mut self, tensor: usize, names: [String; 2], dims: &[usize]) -> Result<()> {
        let ty = self.ty(tensor)?;
        let &[cols, rows, experts] = dims else { return Err(self.wrong_dims(tensor, "a stack of matrices")) };
        if !rows.is_multiple_of(2) {
            return Err(self.wrong_dims(tensor, "as many rows of gates as of ups"));
        }
        let half = rows / 2;
        for (i, name) in names.into_iter().enumerate() {
            let piece = |e: usize| Piece { tensor, first: e * rows + i * half, rows: half };
            let content = Content::Rows {
                cols,
                ty,
                pieces: (0..experts).map(piece).collect(),
                columns: None,
                map: Map::Same,
            };
            self.finish(tensor, name, vec![cols, half, experts], content)?;
        }
        Ok(())
    }

    fn again(&self, tensor: usize, first: usize) -> ModelError {
        let found = match self.tensors.get(first) {
            Some(first) => format!("the same weight as `{}`", first.name),
            None => "a weight that config.json implies".into(),
        };
        self.wrong(tensor, found, "every weight once")
    }

    fn finish(&mut self, tensor: usize, name: String, dims: Vec<usize>, content: Content) -> Result<()> {
        if let Some(first) = self.made.insert(name.clone(), tensor) {
            return Err(self.again(tensor, first));
        }
        let Content::Rows { ty, map, columns, .. } = &content else { return Ok(()) };
        let cut = columns.as_ref().is_some_and(|c| ty.row_bytes(c.block).is_none());
        // Blocks of columns smaller than a group of affine weights take its scale with them only as floats.
        let f32 = *map != Map::Same || always_f32(&name, &dims) || cut;
        let kind = TensorKind::Known(if f32 { TensorType::F32 } else { *ty });
        self.recipes.push(Recipe { header: TensorHeader { name, dims, kind }, content });
        Ok(())
    }

    /// Refuses stacks that lack experts.
    pub(super) fn complete(&self) -> Result<()> {
        let incomplete = self.stacks.iter().min_by_key(|(name, _)| name.as_str());
        let Some((_, stack)) = incomplete else { return Ok(()) };
        let missing = stack.parts.iter().position(Option::is_none).unwrap_or_default();
        let there = stack.parts.iter().flatten().next().copied().unwrap_or_default();
        let expected = format!("one like it for each of the {} experts of config.json", self.experts);
        Err(self.wrong(there, format!("none like it for expert {missing}"), expected))
    }
}
