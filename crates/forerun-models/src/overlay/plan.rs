//! Which tensors of a model the matrices of an overlay stand for.

use std::collections::{BTreeMap, HashMap, HashSet};

use forerun_files::TensorKind;
use forerun_quant::TensorType;

use super::file::{Matrix, OverlayFile};
use crate::error::{ModelError, Result};
use crate::source::{Source, TensorHeader};

/// Rows of a tensor that is put together, counted over all of a stack's matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Of a matrix of the overlay.
    Affine { stem: String, first: usize, rows: usize },
    /// Of a tensor of the model.
    Base { name: String, first: usize, rows: usize },
}

impl Piece {
    pub(super) fn rows(&self) -> usize {
        match self {
            Piece::Affine { rows, .. } | Piece::Base { rows, .. } => *rows,
        }
    }
}

/// How a tensor is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// One piece after the other.
    Pieces(Vec<Piece>),
    /// The columns of a matrix of the overlay, decoded.
    Transposed(String),
}

/// A tensor that takes a place in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) header: TensorHeader,
    pub(super) content: Content,
    /// Bytes of the model's own weights there.
    pub(super) replaced_bytes: u64,
}

impl Made {
    /// Whether it is more than rows of the model's own.
    pub(super) fn is_of_overlay(&self) -> bool {
        match &self.content {
            Content::Transposed(_) => true,
            Content::Pieces(pieces) => pieces.iter().any(|p| matches!(p, Piece::Affine { .. })),
        }
    }
}

/// Tensors that are made, and those of the model that they stand for under other names.
pub(super) struct Plan {
    pub(super) made: Vec<Made>,
    pub(super) dropped: HashSet<String>,
}

const QUERY_KEY_VALUE: [&str; 3] = ["attn_q", "attn_k", "attn_v"];
const FFN: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];
const HEAD: &str = "output";
const KNOWN: &str = "`output`, or `blk.N.` and attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up or ffn_down, or, with \
                     an expert's number, ffn_gate_up, ffn_gate, ffn_up or ffn_down";

/// The experts of one block that the overlay has: stems by number.
#[derive(Default)]
struct Experts {
    gate_up: BTreeMap<usize, String>,
    gate: BTreeMap<usize, String>,
    up: BTreeMap<usize, String>,
    down: BTreeMap<usize, String>,
}

/// What a stem names.
enum Place<'a> {
    Head,
    Dense(usize, &'a str),
    Expert(usize, &'a str, usize),
}

/// A number as it is written when nobody adds to it: two spellings of one place must not meet.
fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n: &usize| n.to_string() == text)
}

fn place(stem: &str) -> Option<Place<'_>> {
    if stem == HEAD {
        return Some(Place::Head);
    }
    let (block, role) = stem.strip_prefix("blk.")?.split_once('.')?;
    let block = number(block)?;
    match role.split_once('.') {
        None => {
            let known = QUERY_KEY_VALUE.contains(&role) || FFN.contains(&role) || role == "attn_output";
            known.then_some(Place::Dense(block, role))
        }
        Some((role, expert)) => {
            let known = FFN.contains(&role) || role == "ffn_gate_up";
            Some(Place::Expert(block, role, number(expert).filter(|_| known)?))
        }
    }
}

/// Finds a place for every matrix.
pub(super) fn plan(base: &dyn Source, file: &OverlayFile) -> Result<Plan> {
    let tensors = base.tensors().iter().map(|t| (t.name.as_str(), t)).collect();
    let plan = Plan { made: Vec::new(), dropped: HashSet::new() };
    let mut planner = Planner { base, file, tensors, plan };
    let mut experts: BTreeMap<usize, Experts> = BTreeMap::new();
    let mut fused: BTreeMap<usize, [Option<String>; 3]> = BTreeMap::new();
    for stem in file.matrices.keys() {
        match place(stem) {
            None => return Err(file.wrong(stem, "an unknown stem", KNOWN)),
            Some(Place::Head) => planner.head(stem)?,
            Some(Place::Dense(block, role)) => {
                let part = QUERY_KEY_VALUE.iter().position(|r| *r == role);
                match part.filter(|_| planner.has_fused_attention(block, role)) {
                    Some(part) => fused.entry(block).or_default()[part] = Some(stem.clone()),
                    None => planner.dense(block, role, stem)?,
                }
            }
            Some(Place::Expert(block, role, expert)) => {
                let of = experts.entry(block).or_default();
                let of = match role {
                    "ffn_gate_up" => &mut of.gate_up,
                    "ffn_gate" => &mut of.gate,
                    "ffn_up" => &mut of.up,
                    _ => &mut of.down,
                };
                of.insert(expert, stem.clone());
            }
        }
    }
    fused.into_iter().try_for_each(|(block, stems)| planner.fused_attention(block, stems))?;
    experts.iter().try_for_each(|(block, experts)| planner.experts(*block, experts))?;
    Ok(planner.plan)
}

/// A stack of matrices of the model, or one.
#[derive(Clone, Copy)]
struct Stack {
    cols: usize,
    rows: usize,
    experts: usize,
}

/// Of each expert, the stem and the first of its rows.
type Rows<'a> = BTreeMap<usize, (&'a str, usize)>;

struct Planner<'a> {
    base: &'a dyn Source,
    file: &'a OverlayFile,
    tensors: HashMap<&'a str, &'a TensorHeader>,
    plan: Plan,
}

impl Planner<'_> {
    fn stack_of(&self, name: &str) -> Option<Stack> {
        let dims = &self.tensors.get(name)?.dims;
        let at = |i: usize| dims.get(i).copied().unwrap_or(1);
        (dims.len() <= 3).then(|| Stack { cols: at(0), rows: at(1), experts: at(2) })
    }

    /// The error that the model has no such weight.
    fn no_place(&self, stem: &str, name: &str, why: &str) -> ModelError {
        let model = self.base.metadata().path().display();
        self.file.wrong(stem, format!("a weight that {model} has not"), format!("no `{name}`{why}"))
    }

    /// The error that a tensor of the model is not what it should be.
    fn model_wrong(&self, tensor: &str, found: String, expected: String) -> ModelError {
        let path = self.base.metadata().path().to_path_buf();
        ModelError::BadTensor { path, tensor: tensor.to_owned(), found, expected }
    }

    fn matrix(&self, stem: &str) -> Result<Matrix> {
        let found = self.file.matrices.get(stem).copied();
        found.ok_or_else(|| self.file.wrong(stem, "missing", "a matrix of the file"))
    }

    /// Refuses a matrix of another shape.
    fn fit(&self, stem: &str, rows: usize, cols: usize) -> Result<()> {
        let m = self.matrix(stem)?;
        if (m.rows, m.cols) == (rows, cols) {
            return Ok(());
        }
        let found = format!("{} rows of {} elements", m.rows, m.cols);
        Err(self.file.wrong(stem, found, format!("{rows} rows of {cols}, as in the model")))
    }

    /// Puts a tensor into the plan. `own` is the tensor whose rows it stands for.
    fn put(&mut self, name: String, shape: Stack, ty: TensorType, content: Content, own: &str) {
        let mut dims = vec![shape.cols, shape.rows];
        if name.ends_with("_exps.weight") {
            dims.push(shape.experts);
        }
        let header = TensorHeader { name, dims, kind: TensorKind::Known(ty) };
        let own = self.tensors.get(own).map(|t| TensorHeader { kind: t.kind, ..header.clone() });
        let replaced_bytes = own.map_or(0, |t| t.bytes() as u64);
        self.plan.made.push(Made { header, content, replaced_bytes });
    }

    /// A matrix whose rows are outputs, in place of `name`.
    fn rows(&mut self, stem: &str, name: String, shape: Stack) -> Result<()> {
        self.fit(stem, shape.rows, shape.cols)?;
        let ty = TensorType::Affine(self.matrix(stem)?.ty);
        let piece = Piece::Affine { stem: stem.to_owned(), first: 0, rows: shape.rows };
        self.put(name.clone(), shape, ty, Content::Pieces(vec![piece]), &name);
        Ok(())
    }

    /// The head. A model that shares its embedding gets one of its own.
    fn head(&mut self, stem: &str) -> Result<()> {
        let name = format!("{HEAD}.weight");
        let table = if self.tensors.contains_key(name.as_str()) { &name } else { "token_embd.weight" };
        match self.stack_of(table) {
            Some(shape) => self.rows(stem, name, shape),
            None => Err(self.no_place(stem, table, " in the model")),
        }
    }

    fn is_delta_net(&self, block: usize) -> bool {
        self.tensors.contains_key(format!("blk.{block}.ssm_out.weight").as_str())
    }

    fn has_fused_attention(&self, block: usize, role: &str) -> bool {
        let has = |role: &str| self.tensors.contains_key(format!("blk.{block}.{role}.weight").as_str());
        !has(role) && has("attn_qkv") && !self.is_delta_net(block)
    }

    fn dense(&mut self, block: usize, role: &str, stem: &str) -> Result<()> {
        let name = format!("blk.{block}.{role}.weight");
        let Some(shape) = self.stack_of(&name).filter(|s| s.experts == 1) else {
            let linear = role.starts_with("attn") && self.is_delta_net(block);
            let kind = if linear { ", which is linear attention" } else { "" };
            let why = format!(" in block {block}{kind}");
            return Err(self.no_place(stem, &name, &why));
        };
        if FFN.contains(&role) && self.is_transposed(stem, shape)? {
            self.put(name.clone(), shape, TensorType::F32, Content::Transposed(stem.to_owned()), &name);
            return Ok(());
        }
        self.rows(stem, name, shape)
    }

    /// Whether a dense feed-forward weight has inputs as rows. What fits both ways must be told.
    fn is_transposed(&self, stem: &str, shape: Stack) -> Result<bool> {
        let m = self.matrix(stem)?;
        let fits = (m.rows, m.cols) == (shape.cols, shape.rows);
        match self.file.transposed {
            None if fits && shape.rows == shape.cols => {
                let found = format!("{} rows of {} elements, which fit either way", m.rows, m.cols);
                let expected = "the key `transposed`, true or false, in the metadata of the file";
                Err(self.file.wrong(stem, found, expected))
            }
            Some(true) if !fits => {
                let found = format!("{} rows of {} elements", m.rows, m.cols);
                let expected = format!("{} rows of {}: key `transposed` is true", shape.cols, shape.rows);
                Err(self.file.wrong(stem, found, expected))
            }
            said => Ok(fits && said.unwrap_or(true)),
        }
    }

    /// Queries, keys and values of a block that has them in one tensor: each becomes one of its own.
    fn fused_attention(&mut self, block: usize, stems: [Option<String>; 3]) -> Result<()> {
        let fused = format!("blk.{block}.attn_qkv.weight");
        let (Some(all), Some(header)) = (self.stack_of(&fused), self.tensors.get(fused.as_str()).copied())
        else {
            return Ok(());
        };
        let kv = self.kv_rows()?;
        let Some(q) = kv.checked_mul(2).and_then(|kv| all.rows.checked_sub(kv)) else {
            let expected = format!("queries beside keys and values of {kv} rows each");
            return Err(self.model_wrong(&fused, format!("{} rows", all.rows), expected));
        };
        let mut first = 0;
        for ((role, rows), stem) in QUERY_KEY_VALUE.into_iter().zip([q, kv, kv]).zip(stems) {
            let (name, shape) = (format!("blk.{block}.{role}.weight"), Stack { rows, ..all });
            match (stem, header.kind) {
                (Some(stem), _) => {
                    self.fit(&stem, rows, all.cols)?;
                    let ty = TensorType::Affine(self.matrix(&stem)?.ty);
                    let pieces = vec![Piece::Affine { stem, first: 0, rows }];
                    self.put(name, shape, ty, Content::Pieces(pieces), &fused);
                }
                (None, kind) => self.keep(name, shape, kind, &fused, [first])?,
            }
            first += rows;
        }
        self.plan.dropped.insert(fused);
        Ok(())
    }

    /// Rows of the model's keys, and of its values.
    fn kv_rows(&self) -> Result<usize> {
        let meta = self.base.metadata();
        let architecture = meta.str("general.architecture")?;
        let count = |key: &str| meta.u64(&format!("{architecture}.attention.{key}"));
        let rows = count("head_count_kv")?.saturating_mul(count("key_length")?);
        Ok(usize::try_from(rows).unwrap_or(usize::MAX))
    }

    /// Rows of the model's own tensor under another name; of each matrix, from one of `firsts` on.
    fn keep(
        &mut self,
        name: String,
        shape: Stack,
        kind: TensorKind,
        own: &str,
        firsts: impl IntoIterator<Item = usize>,
    ) -> Result<()> {
        let TensorKind::Known(ty) = kind else {
            let expected = "a supported type, or an overlay of all its parts";
            return Err(self.model_wrong(own, format!("type {kind}"), expected.into()));
        };
        let piece = |first| Piece::Base { name: own.to_owned(), first, rows: shape.rows };
        let pieces = firsts.into_iter().map(piece).collect();
        self.put(name, shape, ty, Content::Pieces(pieces), own);
        Ok(())
    }

    fn experts(&mut self, block: usize, experts: &Experts) -> Result<()> {
        let name = format!("blk.{block}.ffn_down_exps.weight");
        self.gates_and_ups(block, experts)?;
        let down = &experts.down;
        let Some(stem) = down.values().next() else { return Ok(()) };
        let Some(shape) = self.stack_of(&name) else {
            return Err(self.no_place(stem, &name, &format!(" in block {block}")));
        };
        down.values().try_for_each(|stem| self.fit(stem, shape.rows, shape.cols))?;
        let rows = down.iter().map(|(e, stem)| (*e, (stem.as_str(), 0))).collect();
        self.stack(name.clone(), shape, &rows, &name)
    }

    /// Gates and ups, which either file may have in one matrix.
    fn gates_and_ups(&mut self, block: usize, experts: &Experts) -> Result<()> {
        let name = |role: &str| format!("blk.{block}.{role}_exps.weight");
        let Experts { gate_up, gate, up, .. } = experts;
        let Some(any) = gate_up.values().chain(gate.values()).chain(up.values()).next() else {
            return Ok(());
        };
        let fused = name("ffn_gate_up");
        let both = self.stack_of(&fused);
        if let Some(odd) = both.filter(|s| !s.rows.is_multiple_of(2)) {
            return Err(self.model_wrong(
                &fused,
                format!("{} rows", odd.rows),
                "as many gates as ups".into(),
            ));
        }
        let own = |role| if both.is_some() { fused.clone() } else { name(role) };
        let half = |s: Stack| Stack { rows: s.rows / 2, ..s };
        let shape = |role: &str| both.map(half).or_else(|| self.stack_of(&name(role)));
        let (Some(gates), Some(ups)) = (shape("ffn_gate"), shape("ffn_up")) else {
            return Err(self.no_place(any, &name("ffn_gate"), &format!(" in block {block}")));
        };
        gate.values().try_for_each(|stem| self.fit(stem, gates.rows, gates.cols))?;
        up.values().try_for_each(|stem| self.fit(stem, ups.rows, ups.cols))?;
        let pair = gates.rows.saturating_add(ups.rows);
        gate_up.values().try_for_each(|stem| self.fit(stem, pair, gates.cols))?;
        if let (Some(both), true) = (both, gate.is_empty() && up.is_empty()) {
            let rows = gate_up.iter().map(|(e, stem)| (*e, (stem.as_str(), 0))).collect();
            return self.stack(fused.clone(), both, &rows, &fused);
        }
        for (role, stems, shape, first) in [("ffn_gate", gate, gates, 0), ("ffn_up", up, ups, gates.rows)] {
            let rows = self.merged(stems, gate_up, first)?;
            match (rows.is_empty(), self.tensors.get(fused.as_str()).copied()) {
                (false, _) => self.stack(name(role), shape, &rows, &own(role))?,
                (true, Some(header)) => {
                    let stride = gates.rows + ups.rows;
                    let firsts = (0..shape.experts).map(|e| e * stride + first);
                    self.keep(name(role), shape, header.kind, &fused, firsts)?;
                }
                (true, None) => {}
            }
        }
        if both.is_some() {
            self.plan.dropped.insert(fused);
        }
        Ok(())
    }

    /// The experts of one role, out of matrices of their own and of those that hold gate and up.
    fn merged<'s>(
        &self,
        alone: &'s BTreeMap<usize, String>,
        gate_up: &'s BTreeMap<usize, String>,
        first: usize,
    ) -> Result<Rows<'s>> {
        let mut rows: Rows<'s> = alone.iter().map(|(e, stem)| (*e, (stem.as_str(), 0))).collect();
        for (e, stem) in gate_up {
            if let Some((other, _)) = rows.insert(*e, (stem, first)) {
                let found = format!("the same expert as `{other}`");
                return Err(self.file.wrong(stem, found, "every expert once"));
            }
        }
        Ok(rows)
    }

    /// A stack of experts, all of which must be there, in one type.
    fn stack(&mut self, name: String, shape: Stack, of: &Rows<'_>, own: &str) -> Result<()> {
        let Some((&last, (stem, _))) = of.last_key_value() else { return Ok(()) };
        if last >= shape.experts {
            let expected = format!("experts 0 to {}, as in the model", shape.experts.saturating_sub(1));
            return Err(self.file.wrong(stem, format!("expert {last}"), expected));
        }
        if let Some(e) = (0..shape.experts).find(|e| !of.contains_key(e)) {
            let role = stem.rsplit_once('.').map_or(*stem, |(role, _)| role);
            let found = format!("missing: {} of the {} experts are", shape.experts - of.len(), shape.experts);
            return Err(self.file.wrong(&format!("{role}.{e}"), found, "all experts or none"));
        }
        let ty = self.matrix(stem)?.ty;
        for (other, _) in of.values() {
            let found = self.matrix(other)?.ty;
            if found != ty {
                let expected = format!("{}, as `{stem}` has: one type for all experts", ty.name());
                return Err(self.file.wrong(other, format!("type {}", found.name()), expected));
            }
        }
        let piece = |(stem, first): &(&str, usize)| Piece::Affine {
            stem: (*stem).to_owned(),
            first: *first,
            rows: shape.rows,
        };
        let pieces = of.values().map(piece).collect();
        self.put(name, shape, TensorType::Affine(ty), Content::Pieces(pieces), own);
        Ok(())
    }
}
