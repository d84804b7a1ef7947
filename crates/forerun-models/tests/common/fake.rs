//! A made-up file: the keys and tensors of a synthetic model, changed at will.

// Every test binary uses a part of it.
#![allow(dead_code)]

use std::collections::HashMap;

use forerun_files::{Array, Metadata, TensorKind, Value};
use forerun_models::{
    Gemma4Shape, ModelSpec, Shape, Source, SourceTensor, Synthetic, TensorHeader, WeightMix,
};
use forerun_quant::{TensorType, decode_row, random_rows};
use forerun_tensor::SharedBytes;

/// A source that can be spoilt. Asking for the bytes of a tensor that has none is a failure of the test.
#[derive(Clone)]
pub(crate) struct Fake {
    architecture: String,
    metadata: Metadata,
    pub(crate) headers: Vec<TensorHeader>,
    bytes: HashMap<String, SharedBytes>,
}

impl Fake {
    /// Headers without bytes: reading a spec must not ask for any.
    pub(crate) fn headers(shape: &Shape) -> Self {
        Self::of(&Synthetic::new(shape, WeightMix::All(TensorType::Q8_0), 1).expect("shape"))
    }

    /// The same of a Gemma 4.
    pub(crate) fn gemma(shape: &Gemma4Shape) -> Self {
        Self::of(&Synthetic::gemma4(shape, WeightMix::All(TensorType::Q8_0), 1).expect("shape"))
    }

    /// Headers and bytes.
    pub(crate) fn filled(shape: &Shape, mix: WeightMix, seed: u64) -> Self {
        Self::filled_of(&Synthetic::new(shape, mix, seed).expect("shape"))
    }

    /// The same of a Gemma 4.
    pub(crate) fn filled_gemma(shape: &Gemma4Shape, mix: WeightMix, seed: u64) -> Self {
        Self::filled_of(&Synthetic::gemma4(shape, mix, seed).expect("shape"))
    }

    fn filled_of(good: &Synthetic) -> Self {
        let mut fake = Self::of(good);
        let bytes = |t: &TensorHeader| (t.name.clone(), good.tensor(&t.name).expect("a tensor").bytes);
        fake.bytes = fake.headers.iter().map(bytes).collect();
        fake
    }

    fn of(good: &Synthetic) -> Self {
        let (metadata, headers) = (good.metadata().clone(), good.tensors().to_vec());
        let architecture = metadata.str("general.architecture").expect("an architecture");
        Self { architecture, metadata, headers, bytes: HashMap::new() }
    }

    /// Sets a key; `a.` stands for the architecture.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.metadata.set(&self.full(key), value);
    }

    pub(crate) fn count(&mut self, key: &str, n: u64) {
        self.set(key, Value::U64(n));
    }

    pub(crate) fn unset(&mut self, key: &str) {
        let key = self.full(key);
        let mut rest = Metadata::new(self.metadata.path());
        self.metadata.iter().filter(|(k, _)| *k != key).for_each(|(k, v)| rest.set(k, v.clone()));
        self.metadata = rest;
    }

    fn full(&self, key: &str) -> String {
        key.strip_prefix("a.").map_or(key.to_owned(), |k| format!("{}.{k}", self.architecture))
    }

    fn header(&mut self, name: &str) -> &mut TensorHeader {
        self.headers.iter_mut().find(|t| t.name == name).expect("a tensor of that name")
    }

    pub(crate) fn dims(&mut self, name: &str, dims: &[usize]) {
        self.header(name).dims = dims.to_vec();
    }

    pub(crate) fn kind(&mut self, name: &str, kind: TensorKind) {
        self.header(name).kind = kind;
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.header(name);
        self.headers.retain(|t| t.name != name);
    }

    /// Adds a header.
    pub(crate) fn add(&mut self, name: &str, dims: &[usize]) {
        self.typed(name, dims, TensorType::F32);
    }

    fn typed(&mut self, name: &str, dims: &[usize], ty: TensorType) {
        let kind = TensorKind::Known(ty);
        self.headers.push(TensorHeader { name: name.into(), dims: dims.to_vec(), kind });
    }

    /// Adds a tensor, or replaces one: random rows, or gains around 1 for a vector.
    pub(crate) fn put(&mut self, name: &str, dims: &[usize], ty: TensorType) {
        self.headers.retain(|t| t.name != name);
        self.typed(name, dims, ty);
        let seed = name.bytes().fold(dims.len() as u64, |h, b| h.wrapping_mul(31) + u64::from(b));
        let rows = dims[1..].iter().product();
        let mut bytes = random_rows(ty, rows, dims[0], seed).expect("whole blocks");
        if dims.len() == 1 {
            for b in bytes.as_chunks_mut::<4>().0 {
                *b = (1.0 + f32::from_le_bytes(*b)).to_le_bytes();
            }
        }
        self.bytes.insert(name.into(), bytes.into());
    }

    /// Gives an F32 tensor these elements.
    pub(crate) fn floats(&mut self, name: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes.insert(name.into(), bytes.into());
    }

    /// One tensor in place of several: the rows of the parts, one part after the other (in each expert).
    pub(crate) fn fuse(&mut self, name: &str, parts: &[String]) {
        let tensors: Vec<SourceTensor> = parts.iter().map(|p| self.tensor(p).expect("a part")).collect();
        let mut dims = tensors[0].dims.clone();
        dims[1] = tensors.iter().map(|p| p.dims[1]).sum();
        let experts = dims.get(2).copied().unwrap_or(1);
        let rows_of = |p: &SourceTensor, e: usize| {
            let len = p.bytes.len() / experts;
            p.bytes[e * len..(e + 1) * len].to_vec()
        };
        let bytes: Vec<u8> =
            (0..experts).flat_map(|e| tensors.iter().flat_map(move |p| rows_of(p, e))).collect();
        parts.iter().for_each(|p| self.remove(p));
        self.typed(name, &dims, tensors[0].ty);
        self.bytes.insert(name.into(), bytes.into());
    }

    /// Leaves only the tensors of one block, and those of no block.
    pub(crate) fn keep_block(&mut self, block: usize) {
        let prefix = format!("blk.{block}.");
        self.headers.retain(|t| t.name.starts_with(&prefix) || !t.name.starts_with("blk."));
    }

    /// Leaves the MTP block out, as a file without one.
    pub(crate) fn drop_mtp(&mut self, block: usize) {
        let prefix = format!("blk.{block}.");
        self.headers.retain(|t| !t.name.starts_with(&prefix));
        self.unset("a.nextn_predict_layers");
        self.count("a.block_count", block as u64);
    }

    /// Gives a block another number.
    pub(crate) fn renumber(&mut self, from: usize, to: usize) {
        let prefix = format!("blk.{from}.");
        for t in &mut self.headers {
            if let Some(rest) = t.name.strip_prefix(&prefix) {
                t.name = format!("blk.{to}.{rest}");
            }
        }
    }

    /// Dimensions and decoded elements of a tensor that is there.
    pub(crate) fn values(&self, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
        self.headers.iter().find(|t| t.name == name)?;
        let t = self.tensor(name)?;
        let mut row = vec![0.0; t.dims[0]];
        let mut all = Vec::new();
        for bytes in t.bytes.chunks_exact(t.ty.row_bytes(t.dims[0])?) {
            decode_row(t.ty, bytes, &mut row).expect("a row");
            all.extend(row.iter().map(|v| f64::from(*v)));
        }
        Some((t.dims, all))
    }
}

impl Source for Fake {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }
    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let header = self.headers.iter().find(|t| t.name == name)?;
        let TensorKind::Known(ty) = header.kind else { return None };
        let bytes = self.bytes.get(name).unwrap_or_else(|| panic!("the bytes of {name} were asked for"));
        Some(SourceTensor { dims: header.dims.clone(), ty, bytes: bytes.clone() })
    }
    fn release(&self, _: &str) {}
}

/// An array of flags.
pub(crate) fn flags(flags: &[bool]) -> Value {
    Value::Array(Array::Bool(flags.to_vec()))
}

/// How to spoil a file, and what the error must say beside the file's name.
pub(crate) type Case = (fn(&mut Fake), &'static [&'static str]);

/// Every spoilt file is refused with a message that says what it must.
pub(crate) fn check_broken(good: impl Fn() -> Fake, cases: &[Case]) {
    for (i, (spoil, wanted)) in cases.iter().enumerate() {
        let mut fake = good();
        spoil(&mut fake);
        let Err(message) = ModelSpec::read(&fake).map_err(|e| e.to_string()) else {
            panic!("case {i}, {wanted:?}: read without an error")
        };
        for part in ["tiny.gguf"].iter().chain(*wanted) {
            assert!(message.contains(part), "case {i}: {message:?} does not say {part:?}");
        }
    }
}
