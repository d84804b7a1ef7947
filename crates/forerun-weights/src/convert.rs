//! Writing a model as a GGUF file, in the types it has or in others.
//!
//! One tensor after the other: of a tensor that changes its type, some megabytes at a time, while what was made before is
//! written. What a folder's tensors become in GGUF (names, order of heads, gains) is [`forerun_models::HubModel`]'s.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use forerun_files::{FileError, GgufWriter};
use forerun_models::{Recode, Source, SourceTensor};
use forerun_quant::TensorType;

use crate::error::{Result, WeightsError};
use crate::imatrix::InputStats;
use crate::plan::{ConvertOptions, Planned, TypeShare, metadata, plan, shares, unweighed, wrong};

/// Bytes of a tensor that are made at once, about.
const PIECE: usize = 4 << 20;
/// Pieces that may wait to be written.
const WAITING: usize = 4;

/// How far a conversion has come, in bytes of the file that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors that are made.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Number of tensors.
    pub tensors: usize,
    /// Of these, those whose type changed.
    pub changed: usize,
    /// Bytes of tensors read.
    pub read_bytes: u64,
    /// Bytes of tensors written.
    pub written_bytes: u64,
    /// Tensors by type.
    pub types: BTreeMap<TensorType, TypeShare>,
    /// Quantised matrices for which the importance matrix has no entry.
    pub unweighed: Vec<String>,
}

impl Converted {
    /// Bits that an element takes on average; 0 where there are none.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        let elements: u64 = self.types.values().map(|share| share.elements).sum();
        if elements == 0 { 0.0 } else { self.written_bytes as f64 * 8.0 / elements as f64 }
    }
}

/// Writes a model to `out` as GGUF. The file gets its name when it is complete; until then, and when anything fails or
/// `progress` returns false, what had that name stays as it was.
///
/// # Errors
/// When a tensor has a type that cannot be read or would be quantised twice, or a value that is no number; when an option
/// or the importance matrix does not fit the model; when a file cannot be read or written; [`WeightsError::Cancelled`].
pub fn convert(
    source: &dyn Source,
    out: &Path,
    options: &ConvertOptions<'_>,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Converted> {
    let plan = plan(source, options)?;
    let tensors: Vec<_> = plan.iter().map(|p| (p.header.name.clone(), p.to, p.header.dims.clone())).collect();
    let writer = GgufWriter::create(out, &metadata(source, options), &tensors)?;
    let (sender, receiver) = sync_channel(WAITING);
    thread::scope(|scope| {
        let written = scope.spawn(move || write(writer, &receiver));
        let made = Maker { source, options, sender, done: Converted::default() }.make(&plan, progress);
        // The writer's error is the cause where both have one: it then takes no more pieces.
        let writer = written.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?;
        let done = made?;
        writer.finish()?;
        Ok(done)
    })
}

/// The bytes that follow of a tensor.
struct Piece {
    name: String,
    bytes: Vec<u8>,
}

/// Writes pieces until none follows.
fn write(mut writer: GgufWriter, pieces: &Receiver<Piece>) -> Result<GgufWriter, FileError> {
    pieces.iter().try_for_each(|piece| writer.tensor(&piece.name, &piece.bytes))?;
    Ok(writer)
}

/// How much errors of every column of a matrix count. Nothing is known of an expert that no token was routed to, or of a
/// matrix that has read nothing but zeros: their columns count alike.
fn importance(stats: &InputStats, matrix: usize, cols: usize) -> Vec<f32> {
    let known = stats.importance(matrix).filter(|all| all.iter().any(|x| *x > 0.0));
    known.unwrap_or_else(|| vec![1.0; cols])
}

struct Maker<'a> {
    source: &'a dyn Source,
    options: &'a ConvertOptions<'a>,
    sender: SyncSender<Piece>,
    done: Converted,
}

impl Maker<'_> {
    /// Makes every piece of the file. The writer has all of them when it returns.
    fn make(mut self, plan: &[Planned<'_>], progress: &mut dyn FnMut(Progress) -> bool) -> Result<Converted> {
        self.done.types = shares(plan);
        self.done.unweighed = unweighed(plan, self.options);
        let total_bytes = plan.iter().fold(0u64, |n, p| n.saturating_add(p.bytes));
        let mut tell = |written: u64| {
            let on = progress(Progress { done_bytes: written, total_bytes });
            if on { Ok(()) } else { Err(WeightsError::Cancelled) }
        };
        tell(0)?;
        for p in plan {
            let name = &p.header.name;
            let tensor = self.source.tensor(name).ok_or_else(|| {
                wrong(self.source, name, "bytes that cannot be read, or no memory for them", "a whole tensor")
            })?;
            self.done.tensors += 1;
            self.done.changed += usize::from(p.to != tensor.ty);
            self.done.read_bytes += tensor.bytes.len() as u64;
            self.pieces(p, &tensor, &mut tell)?;
            drop(tensor);
            self.source.release(name);
        }
        Ok(self.done)
    }

    fn pieces(
        &mut self,
        p: &Planned<'_>,
        tensor: &SourceTensor,
        tell: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        if p.to == tensor.ty {
            return tensor.bytes.chunks(PIECE).try_for_each(|piece| self.put(p, piece.to_vec(), tell));
        }
        let cols = tensor.dims.first().copied().unwrap_or(0);
        let bytes = |ty: TensorType| ty.row_bytes(cols).unwrap_or(0).max(1);
        // Every matrix of a stack of experts has its own importance.
        let matrix_bytes = bytes(tensor.ty).saturating_mul(tensor.dims.get(1).copied().unwrap_or(1)).max(1);
        for (matrix, rows) in tensor.bytes.chunks(matrix_bytes).enumerate() {
            let importance = p.importance.map(|stats| importance(stats, matrix, cols));
            let recode = Recode {
                types: [tensor.ty, p.to],
                cols,
                importance: importance.as_deref(),
                threads: self.options.threads,
            };
            for rows in rows.chunks((PIECE / bytes(p.to)).max(1) * bytes(tensor.ty)) {
                let piece = recode.rows(rows);
                let piece = piece.map_err(|found| {
                    wrong(self.source, &p.header.name, found, "whole rows of finite numbers")
                })?;
                self.put(p, piece, tell)?;
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        p: &Planned<'_>,
        bytes: Vec<u8>,
        tell: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        self.done.written_bytes += bytes.len() as u64;
        // A writer that is gone says why itself.
        let piece = Piece { name: p.header.name.clone(), bytes };
        self.sender.send(piece).map_err(|_| WeightsError::Cancelled)?;
        tell(self.done.written_bytes)
    }
}
