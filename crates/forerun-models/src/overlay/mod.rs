//! A file of affine weights laid over a model: what it holds takes the place of the model's own weights of those names.
//!
//! The file is safetensors of the format `mlx-affine-dwq-v1`. Its stems are GGUF names without `.weight`, of dense
//! projections, of the head (`output`), and of single experts (`blk.0.ffn_gate.7`, or `ffn_gate_up` with the gate's rows
//! first). Rows are outputs, in GGUF's order of heads. They run as they are, as affine types; only a dense feed-forward
//! weight that is stored transposed has its groups across rows and must be decoded: it becomes float32, which loses nothing.

mod file;
mod plan;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use forerun_files::{Metadata, TensorKind};
use forerun_quant::TensorType;

use crate::error::Result;
use crate::source::{Source, SourceTensor, TensorHeader};
use file::OverlayFile;
use plan::{Content, Made, Piece, Plan};

/// What an overlay changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayReport {
    /// The file.
    pub file: PathBuf,
    /// Weights of the model that are now affine rows of the file, a stack of experts being one.
    pub replaced: usize,
    /// Weights that had to be decoded to float32.
    pub decoded: usize,
    /// The affine types of the file that are in use.
    pub types: Vec<TensorType>,
    /// Bytes of all these weights.
    pub bytes: u64,
    /// Bytes that the model's own had in their place.
    pub replaced_bytes: u64,
}

/// A model with another file's weights over its own.
pub struct OverlaySource {
    base: Box<dyn Source>,
    file: OverlayFile,
    headers: Vec<TensorHeader>,
    made: HashMap<String, Made>,
    /// Tensors of the model that others stand for.
    dropped: HashSet<String>,
    report: OverlayReport,
}

impl OverlaySource {
    /// Opens the overlay `path` of the model `base`. No weight's bytes are touched.
    ///
    /// # Errors
    /// When the file is broken, of another format, or has anything that the model has no place for. Names the key or the
    /// tensor.
    pub fn open(base: Box<dyn Source>, path: &Path) -> Result<Self> {
        let file = OverlayFile::open(path)?;
        let Plan { made, dropped } = plan::plan(&*base, &file)?;
        let report = report(&file, &made);
        let mut made: HashMap<String, Made> = made.into_iter().map(|m| (m.header.name.clone(), m)).collect();
        let kept = base.tensors().iter().filter(|t| !dropped.contains(&t.name));
        let mut headers: Vec<_> = kept.map(|t| made.get(&t.name).map_or(t, |m| &m.header).clone()).collect();
        let known: HashSet<&str> = base.tensors().iter().map(|t| t.name.as_str()).collect();
        let mut added: Vec<_> =
            made.values().map(|m| &m.header).filter(|t| !known.contains(t.name.as_str())).cloned().collect();
        added.sort_by(|a, b| a.name.cmp(&b.name));
        headers.append(&mut added);
        made.shrink_to_fit();
        Ok(Self { base, file, headers, made, dropped, report })
    }

    /// A tensor out of rows of the file or of the model's own.
    fn gather(&self, made: &Made, pieces: &[Piece]) -> Option<SourceTensor> {
        let TensorKind::Known(ty) = made.header.kind else { return None };
        let dims = made.header.dims.clone();
        let row = ty.row_bytes(*dims.first()?)?;
        if let [Piece::Base { name, first, rows }] = pieces {
            let own = self.base.tensor(name)?;
            let bytes =
                own.bytes.slice(first.checked_mul(row)?..first.checked_add(*rows)?.checked_mul(row)?)?;
            return Some(SourceTensor { dims, ty, bytes });
        }
        let rows = pieces.iter().try_fold(0usize, |n, p| n.checked_add(p.rows()))?;
        let size = rows.checked_mul(row)?;
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(size).ok()?;
        bytes.resize(size, 0);
        let mut rest = bytes.as_mut_slice();
        for piece in pieces {
            let (out, after) = rest.split_at_mut_checked(piece.rows().checked_mul(row)?)?;
            rest = after;
            match piece {
                Piece::Affine { stem, first, .. } => self.file.join(stem, *first, out)?,
                Piece::Base { name, first, .. } => {
                    let start = first.checked_mul(row)?;
                    let own = self.base.tensor(name)?;
                    out.copy_from_slice(own.bytes.get(start..start.checked_add(out.len())?)?);
                }
            }
        }
        Some(SourceTensor { dims, ty, bytes: bytes.into() })
    }
}

fn report(file: &OverlayFile, made: &[Made]) -> OverlayReport {
    let mut report = OverlayReport {
        file: file.path().to_path_buf(),
        replaced: 0,
        decoded: 0,
        types: Vec::new(),
        bytes: 0,
        replaced_bytes: 0,
    };
    for m in made.iter().filter(|m| m.is_of_overlay()) {
        match (&m.content, m.header.kind) {
            (Content::Transposed(_), _) => report.decoded += 1,
            (Content::Pieces(_), kind) => {
                report.replaced += 1;
                if let TensorKind::Known(ty) = kind
                    && !report.types.contains(&ty)
                {
                    report.types.push(ty);
                }
            }
        }
        report.bytes = report.bytes.saturating_add(m.header.bytes() as u64);
        report.replaced_bytes = report.replaced_bytes.saturating_add(m.replaced_bytes);
    }
    report.types.sort_unstable();
    report
}

impl Source for OverlaySource {
    fn metadata(&self) -> &Metadata {
        self.base.metadata()
    }

    fn config(&self) -> Option<&serde_json::Value> {
        self.base.config()
    }

    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }

    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let Some(made) = self.made.get(name) else {
            return if self.dropped.contains(name) { None } else { self.base.tensor(name) };
        };
        match &made.content {
            Content::Pieces(pieces) => self.gather(made, pieces),
            Content::Transposed(stem) => {
                let bytes = self.file.columns(stem)?.into();
                Some(SourceTensor { dims: made.header.dims.clone(), ty: TensorType::F32, bytes })
            }
        }
    }

    /// Tables are what a backend goes on reading, and they are the model's own.
    fn is_mapped(&self) -> bool {
        self.base.is_mapped()
    }

    fn release(&self, name: &str) {
        match self.made.get(name).map(|m| &m.content) {
            None => self.base.release(name),
            Some(Content::Transposed(stem)) => self.file.release(stem),
            Some(Content::Pieces(pieces)) => {
                for piece in pieces {
                    match piece {
                        Piece::Affine { stem, .. } => self.file.release(stem),
                        Piece::Base { name, .. } => self.base.release(name),
                    }
                }
            }
        }
    }

    fn overlay(&self) -> Option<&OverlayReport> {
        Some(&self.report)
    }
}
