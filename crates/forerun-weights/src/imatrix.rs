//! Importance matrices: how large the inputs of each weight's columns were while a model read a text, in the ecosystem's
//! GGUF form. For a weight `NAME` with n matrices (1, or one per expert) of K columns the file holds `NAME.in_sum2`
//! {K, n}, the sums of squared inputs, and `NAME.counts` {1, n}, how many rows were added up; both F32. The mean square
//! `in_sum2 / counts` is what encoders weigh errors by.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forerun_files::{Array, Checkpoint, Gguf, GgufWriter, Metadata, TensorInfo, Value};
use forerun_quant::TensorType;

use crate::error::{Result, WeightsError};

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const TYPE: &str = "general.type";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// Squared inputs of one weight, added up.
#[derive(Clone, Debug, PartialEq)]
pub struct InputStats {
    cols: usize,
    /// [matrix][column], Σ x².
    sums: Vec<f64>,
    /// Rows added up for each matrix.
    counts: Vec<f64>,
}

impl InputStats {
    /// No rows yet for `matrices` matrices (1, or the number of experts) of `cols` columns.
    #[must_use]
    pub fn new(cols: usize, matrices: usize) -> Self {
        Self { cols, sums: vec![0.0; cols * matrices], counts: vec![0.0; matrices] }
    }

    /// Input columns of the weight.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Matrices: 1, or the number of experts.
    #[must_use]
    pub fn matrices(&self) -> usize {
        self.counts.len()
    }

    /// Σ x² of each column of a matrix. Sums are kept in float64, and rounded when they are written.
    ///
    /// # Panics
    /// When there is no such matrix.
    #[must_use]
    pub fn sums(&self, matrix: usize) -> &[f64] {
        &self.sums[matrix * self.cols..][..self.cols]
    }

    /// Rows that were added up for a matrix; an expert that no token was routed to has none.
    ///
    /// # Panics
    /// When there is no such matrix.
    #[must_use]
    pub fn count(&self, matrix: usize) -> f64 {
        self.counts[matrix]
    }

    /// Adds the squares of one row of inputs of a matrix.
    ///
    /// # Panics
    /// When there is no such matrix, or the row has another number of columns.
    pub fn add_row(&mut self, matrix: usize, row: &[f32]) {
        assert_eq!(row.len(), self.cols, "columns of an input row");
        let sums = &mut self.sums[matrix * self.cols..][..self.cols];
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += f64::from(*x) * f64::from(*x);
        }
        self.counts[matrix] += 1.0;
    }

    /// Adds what was summed elsewhere: the sums of squares of `rows` rows of a matrix.
    ///
    /// # Panics
    /// When there is no such matrix, or there is another number of columns.
    pub fn add_sums(&mut self, matrix: usize, sums: &[f64], rows: f64) {
        assert_eq!(sums.len(), self.cols, "columns of input sums");
        let into = &mut self.sums[matrix * self.cols..][..self.cols];
        into.iter_mut().zip(sums).for_each(|(a, b)| *a += b);
        self.counts[matrix] += rows;
    }

    /// Mean square of each input column of a matrix, in float32 as the ecosystem divides; `None` when no row was added up.
    ///
    /// # Panics
    /// When there is no such matrix.
    #[must_use]
    pub fn importance(&self, matrix: usize) -> Option<Vec<f32>> {
        let count = self.counts[matrix] as f32;
        (count > 0.0).then(|| self.sums(matrix).iter().map(|sum| *sum as f32 / count).collect())
    }
}

/// An importance matrix of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Imatrix {
    path: PathBuf,
    /// Names of the texts that were read.
    pub datasets: Vec<String>,
    /// Chunks of text that were read.
    pub chunks: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
    weights: BTreeMap<String, InputStats>,
}

impl Imatrix {
    /// One without weights. `path` is what errors call it.
    #[must_use]
    pub fn new(path: &Path, chunk_size: u32) -> Self {
        Self {
            path: path.to_path_buf(),
            datasets: Vec::new(),
            chunks: 0,
            chunk_size,
            weights: BTreeMap::new(),
        }
    }

    /// The file that it came from, or was made for.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is known of a weight, by the weight's tensor name.
    #[must_use]
    pub fn get(&self, weight: &str) -> Option<&InputStats> {
        self.weights.get(weight)
    }

    /// The same, with no rows where nothing is known yet.
    ///
    /// # Errors
    /// When the weight is known with another shape.
    pub fn entry(&mut self, weight: &str, cols: usize, matrices: usize) -> Result<&mut InputStats> {
        let path = self.path.clone();
        let stats = self.weights.entry(weight.to_owned()).or_insert_with(|| InputStats::new(cols, matrices));
        if (stats.cols, stats.matrices()) == (cols, matrices) {
            return Ok(stats);
        }
        Err(WeightsError::Tensor {
            path,
            tensor: weight.to_owned(),
            found: shape(stats.cols, stats.matrices()),
            expected: shape(cols, matrices),
        })
    }

    /// Weights by name, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &InputStats)> {
        self.weights.iter().map(|(name, stats)| (name.as_str(), stats))
    }

    /// Number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether nothing is known of any weight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Adds what another one knows: rows, chunks, and the names of texts that are new.
    ///
    /// # Errors
    /// When a weight has another shape there, or the chunks another size. Nothing is added then.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.chunk_size != other.chunk_size {
            return Err(WeightsError::Key {
                path: other.path.clone(),
                key: CHUNK_SIZE.to_owned(),
                found: other.chunk_size.to_string(),
                expected: format!("{}, as in what it is added to", self.chunk_size),
            });
        }
        for (name, theirs) in &other.weights {
            let fits = |ours: &InputStats| (ours.cols, ours.matrices()) == (theirs.cols, theirs.matrices());
            if let Some(ours) = self.weights.get(name).filter(|ours| !fits(ours)) {
                return Err(WeightsError::Tensor {
                    path: other.path.clone(),
                    tensor: name.clone(),
                    found: shape(theirs.cols, theirs.matrices()),
                    expected: format!("{}, as in what it is added to", shape(ours.cols, ours.matrices())),
                });
            }
        }
        for (name, theirs) in &other.weights {
            let ours = self.entry(name, theirs.cols, theirs.matrices())?;
            for matrix in 0..theirs.matrices() {
                ours.add_sums(matrix, theirs.sums(matrix), theirs.count(matrix));
            }
        }
        self.chunks = self.chunks.saturating_add(other.chunks);
        for name in &other.datasets {
            if !self.datasets.contains(name) {
                self.datasets.push(name.clone());
            }
        }
        Ok(())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When the file cannot be read or is no importance matrix, or a weight's sums and counts do not fit each other or are
    /// no sums of squares.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_checkpoint(&Gguf::open(path)?)
    }

    /// Reads a file that is open. Tensors of other names than sums and counts are left out.
    ///
    /// # Errors
    /// As [`Imatrix::read`].
    pub fn from_checkpoint(file: &dyn Checkpoint) -> Result<Self> {
        let metadata = file.metadata();
        let found = metadata.str(TYPE)?;
        if found != "imatrix" {
            let (key, expected) = (TYPE.to_owned(), "imatrix".to_owned());
            return Err(WeightsError::Key { path: file.path().to_path_buf(), key, found, expected });
        }
        let mut imatrix = Self::new(file.path(), metadata.u32(CHUNK_SIZE)?);
        imatrix.chunks = metadata.u32(CHUNK_COUNT)?;
        imatrix.datasets = metadata.strings(DATASETS)?;
        for info in file.tensors() {
            if let Some(weight) = info.name.strip_suffix(SUMS) {
                imatrix.weights.insert(weight.to_owned(), read_stats(file, weight, info)?);
            } else if let Some(weight) = info.name.strip_suffix(COUNTS) {
                // Counts without sums would be a weight that silently goes without.
                file.tensor(&format!("{weight}{SUMS}"))?;
            }
        }
        if imatrix.is_empty() {
            let (key, expected) = (TYPE.to_owned(), "sums of at least one weight".to_owned());
            let found = "imatrix without tensors NAME.in_sum2".to_owned();
            return Err(WeightsError::Key { path: file.path().to_path_buf(), key, found, expected });
        }
        Ok(imatrix)
    }

    /// Writes a file, weights in the order of their names. It gets its name when it is complete.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut metadata = Metadata::new(path);
        let string = |s: &str| Value::String(s.to_owned());
        metadata.set(TYPE, string("imatrix"));
        metadata.set(DATASETS, Value::Array(Array::String(self.datasets.clone())));
        metadata.set(CHUNK_COUNT, Value::U32(self.chunks));
        metadata.set(CHUNK_SIZE, Value::U32(self.chunk_size));
        let mut infos = Vec::with_capacity(2 * self.weights.len());
        for (name, stats) in &self.weights {
            let info = |suffix: &str, cols| {
                (format!("{name}{suffix}"), TensorType::F32, vec![cols, stats.matrices()])
            };
            infos.extend([info(SUMS, stats.cols), info(COUNTS, 1)]);
        }
        let mut writer = GgufWriter::create(path, &metadata, &infos)?;
        for (name, stats) in &self.weights {
            writer.tensor(&format!("{name}{SUMS}"), &float32(&stats.sums))?;
            writer.tensor(&format!("{name}{COUNTS}"), &float32(&stats.counts))?;
        }
        Ok(writer.finish()?)
    }
}

pub(crate) fn shape(cols: usize, matrices: usize) -> String {
    match matrices {
        1 => format!("{cols} columns"),
        _ => format!("{matrices} matrices of {cols} columns"),
    }
}

fn float32(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()
}

fn read_stats(file: &dyn Checkpoint, weight: &str, sums: &TensorInfo) -> Result<InputStats> {
    let (cols, matrices) = (sums.dims[0], sums.elements() / sums.dims[0]);
    let counts_name = format!("{weight}{COUNTS}");
    let read = |name: &str, expected: usize| -> Result<Vec<f64>> {
        let view = file.tensor(name)?;
        let fault = |found: String, expected: String| {
            Err(WeightsError::Tensor {
                path: file.path().to_path_buf(),
                tensor: name.to_owned(),
                found,
                expected,
            })
        };
        if view.ty != TensorType::F32 {
            return fault(format!("type {}", view.ty), "F32".to_owned());
        }
        let values: Vec<f64> =
            view.bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
        if values.len() != expected {
            return fault(
                format!("{} elements", values.len()),
                format!("{expected}, one for each matrix of {SUMS}"),
            );
        }
        match values.iter().find(|x| !(x.is_finite() && **x >= 0.0)) {
            Some(x) => fault(x.to_string(), "finite values of at least 0".to_owned()),
            None => Ok(values),
        }
    };
    Ok(InputStats { cols, sums: read(&sums.name, sums.elements())?, counts: read(&counts_name, matrices)? })
}
