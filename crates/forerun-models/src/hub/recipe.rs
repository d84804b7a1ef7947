//! How a GGUF tensor is made of the tensors of a folder: which rows of which, in which order, and what becomes of the
//! elements.

use forerun_files::{HubFolder, TensorKind};
use forerun_quant::{TensorType, decode_row};
use forerun_tensor::math::powf64;

use super::stored::Stored;
use crate::source::{SourceTensor, TensorHeader};

/// What becomes of every element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Map {
    /// It stays.
    #[default]
    Same,
    /// `1 + x`: a norm's weight becomes its gain.
    OnePlus,
    /// `−exp(x)`: the logarithm of a decay becomes its rate.
    NegExp,
}

impl Map {
    fn of(self, x: f32) -> f32 {
        match self {
            Map::Same => x,
            Map::OnePlus => 1.0 + x,
            Map::NegExp => -powf64(std::f64::consts::E, f64::from(x)) as f32,
        }
    }
}

/// Rows of a tensor of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index among the folder's weights.
    pub(super) tensor: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
}

/// Blocks of columns in another order: block i of a row is block `order[i]` of the row in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// Elements of a block.
    pub(super) block: usize,
    pub(super) order: Vec<usize>,
}

/// Where the elements come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Float32 values that the configuration implies.
    Values(Vec<f32>),
    /// Rows of `cols` elements, one piece after the other.
    Rows { cols: usize, ty: TensorType, pieces: Vec<Piece>, columns: Option<Columns>, map: Map },
}

/// A GGUF tensor and how it is made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recipe {
    pub(super) header: TensorHeader,
    pub(super) content: Content,
}

/// Adds rows; rows that follow the last piece's become a part of it.
pub(super) fn push(pieces: &mut Vec<Piece>, next: Piece) {
    match pieces.last_mut() {
        Some(last) if last.tensor == next.tensor && last.first + last.rows == next.first => {
            last.rows += next.rows
        }
        _ => pieces.push(next),
    }
}

impl Recipe {
    /// The type that the tensor has in GGUF.
    fn ty(&self) -> Option<TensorType> {
        match self.header.kind {
            TensorKind::Known(ty) => Some(ty),
            _ => None,
        }
    }

    /// The one piece whose bytes are the tensor's own, where nothing changes.
    fn whole(&self) -> Option<Piece> {
        match &self.content {
            Content::Rows { ty, pieces, columns: None, map: Map::Same, .. } if Some(*ty) == self.ty() => {
                if let [piece] = pieces.as_slice() {
                    Some(*piece)
                } else {
                    None
                }
            }
            _ => None,
        }
    }

    /// Whether the bytes lie in the folder as they are.
    pub(super) fn is_mapped(&self, weights: &[Stored]) -> bool {
        self.whole().and_then(|piece| weights.get(piece.tensor)).is_some_and(Stored::is_mapped)
    }

    /// Makes the tensor; `None` when memory is short or the folder is not what it was.
    pub(super) fn make(&self, folder: &HubFolder, weights: &[Stored]) -> Option<SourceTensor> {
        let ty = self.ty()?;
        let bytes = match &self.content {
            Content::Values(values) => {
                values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
            }
            Content::Rows { cols, ty: from, pieces, columns, map } => match self.whole() {
                Some(piece) if self.is_mapped(weights) => {
                    weights.get(piece.tensor)?.mapped(folder, *cols, piece.first..piece.first + piece.rows)?
                }
                _ => {
                    let columns = columns.as_ref();
                    let rows = Rows { folder, weights, cols: *cols, from: *from, to: ty, map: *map, columns };
                    rows.gather(pieces)?.into()
                }
            },
        };
        Some(SourceTensor { dims: self.header.dims.clone(), ty, bytes })
    }

    /// Lets the pages of the folder's tensors go.
    pub(super) fn release(&self, folder: &HubFolder, weights: &[Stored]) {
        if let Content::Rows { pieces, .. } = &self.content {
            let mut last = None;
            for piece in pieces.iter().filter(|p| last.replace(p.tensor) != Some(p.tensor)) {
                if let Some(weight) = weights.get(piece.tensor) {
                    weight.release(folder);
                }
            }
        }
    }
}

/// Gathers rows of one shape and type.
struct Rows<'a> {
    folder: &'a HubFolder,
    weights: &'a [Stored],
    cols: usize,
    from: TensorType,
    to: TensorType,
    map: Map,
    columns: Option<&'a Columns>,
}

/// Bytes of rows that are put together at once, about: what a tensor takes beside itself.
const AT_ONCE: usize = 1 << 20;

impl Rows<'_> {
    fn gather(&self, pieces: &[Piece]) -> Option<Vec<u8>> {
        let (row, out_row) = (self.from.row_bytes(self.cols)?, self.to.row_bytes(self.cols)?);
        let rows = pieces.iter().try_fold(0usize, |n, p| n.checked_add(p.rows))?;
        let mut out = Vec::new();
        out.try_reserve_exact(rows.checked_mul(out_row)?).ok()?;
        let step = (AT_ONCE / row).max(1);
        for piece in pieces {
            let weight = self.weights.get(piece.tensor)?;
            let end = piece.first.checked_add(piece.rows)?;
            for first in (piece.first..end).step_by(step) {
                let bytes = weight.rows(self.folder, self.cols, first..(first + step).min(end))?;
                if self.from != self.to || self.map != Map::Same {
                    self.decode(&bytes, row, &mut out)?;
                } else if let Some(columns) = self.columns {
                    self.reorder(columns, &bytes, row, &mut out)?;
                } else {
                    out.extend_from_slice(&bytes);
                }
            }
        }
        Some(out)
    }

    fn reorder(&self, columns: &Columns, bytes: &[u8], row: usize, out: &mut Vec<u8>) -> Option<()> {
        let block = self.from.row_bytes(columns.block)?;
        for row in bytes.chunks_exact(row) {
            for from in &columns.order {
                out.extend_from_slice(row.get(from * block..(from + 1) * block)?);
            }
        }
        Some(())
    }

    /// Float32, changed element by element.
    fn decode(&self, bytes: &[u8], row: usize, out: &mut Vec<u8>) -> Option<()> {
        if self.to != TensorType::F32 {
            return None;
        }
        let mut values = vec![0.0; self.cols];
        let mut put = |values: &[f32]| out.extend(values.iter().flat_map(|x| self.map.of(*x).to_le_bytes()));
        for row in bytes.chunks_exact(row) {
            decode_row(self.from, row, &mut values).ok()?;
            match self.columns {
                None => put(&values),
                Some(columns) => {
                    let block = columns.block;
                    for from in &columns.order {
                        put(values.get(from * block..(from + 1) * block)?);
                    }
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_follow_are_one_piece() {
        let mut pieces = Vec::new();
        for (tensor, first, rows) in [(0, 0, 2), (0, 2, 3), (0, 6, 1), (1, 7, 1)] {
            push(&mut pieces, Piece { tensor, first, rows });
        }
        let of = |(tensor, first, rows)| Piece { tensor, first, rows };
        assert_eq!(pieces, [(0, 0, 5), (0, 6, 1), (1, 7, 1)].map(of));
    }

    #[test]
    fn elements() {
        assert_eq!(Map::OnePlus.of(-0.25), 0.75);
        assert_eq!(Map::NegExp.of(0.0), -1.0);
        assert_eq!(Map::NegExp.of(std::f32::consts::LN_2), -2.0);
        assert_eq!(Map::NegExp.of(-200.0), 0.0);
    }
}
