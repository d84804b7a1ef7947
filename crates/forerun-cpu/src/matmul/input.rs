//! Activations as products take them.

use forerun_tensor::Result;

use crate::isa::multiversion;
use crate::memory::Buffer;

/// Scale and sums of 32 quantised activations.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct BlockMeta {
    pub(crate) d: f32,
    /// `d · Σq`.
    pub(crate) sx: f32,
    /// Σq of both halves as 16-bit integers in one word.
    pub(crate) pair: i32,
}

/// A quantised row: block b's levels are at `q + b · step`, its sums at `meta + b · step of meta`.
#[derive(Clone, Copy)]
pub(crate) struct QuantRow {
    pub(crate) q: *const i8,
    pub(crate) meta: *const BlockMeta,
}

impl QuantRow {
    /// The row from block `block` on, with the distances that its layout has.
    ///
    /// # Safety
    /// The row has as many blocks.
    #[inline(always)]
    pub(crate) unsafe fn skip(self, block: usize, (q, meta): (usize, usize)) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self { q: self.q.add(block * q), meta: self.meta.byte_add(block * meta) } }
    }
}

/// Rows of a buffer that a product reads.
#[derive(Clone, Copy)]
pub(crate) enum Picked<'a> {
    Run { first: usize, count: usize },
    List(&'a [u32]),
}

impl Picked<'_> {
    pub(crate) fn count(&self) -> usize {
        match self {
            Picked::Run { count, .. } => *count,
            Picked::List(rows) => rows.len(),
        }
    }

    /// The buffer's row that is row `i` here.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> usize {
        match self {
            Picked::Run { first, .. } => first + i,
            Picked::List(rows) => rows[i] as usize,
        }
    }
}

/// Quantised rows that a product reads.
#[derive(Clone, Copy)]
pub(crate) struct Quantised<'a> {
    pub(crate) rows: &'a QuantRows,
    pub(crate) picked: Picked<'a>,
}

impl Quantised<'_> {
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> QuantRow {
        self.rows.row(self.picked.at(i))
    }

    /// Distances between blocks of a row; see [`Layout::steps`].
    #[inline(always)]
    pub(crate) fn steps(&self) -> (usize, usize) {
        self.rows.layout.steps()
    }
}

/// How quantised rows lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A row after the other: best for few rows.
    Rows,
    /// Block by block for 16 rows at a time, levels of all 16, then their sums: one stream for a tile of a prompt.
    Tiles,
}

/// Rows of a tile in [`Layout::Tiles`].
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a tile's levels of one block.
const TILE_LEVELS: usize = 32 * TILE_ROWS;
/// Bytes of a tile's block.
const TILE_BLOCK: usize = TILE_LEVELS + TILE_ROWS * size_of::<BlockMeta>();

impl Layout {
    /// Bytes from one block's levels to the next's, and from its sums to the next's.
    #[inline(always)]
    pub(crate) fn steps(self) -> (usize, usize) {
        match self {
            Layout::Rows => (32, size_of::<BlockMeta>()),
            Layout::Tiles => (TILE_BLOCK, TILE_BLOCK),
        }
    }
}

/// Quantised rows of one width.
pub(crate) struct QuantRows {
    blocks: usize,
    rows: usize,
    pub(crate) layout: Layout,
    data: Buffer<u8>,
}

impl QuantRows {
    pub(crate) fn new(rows: usize, cols: usize) -> Result<Self> {
        let layout = Self::layout(rows);
        let data = Buffer::new(Self::bytes(rows, cols) as usize, "quantised activations")?;
        Ok(Self { blocks: cols / 32, rows, layout, data })
    }

    fn layout(rows: usize) -> Layout {
        if rows > TILE_ROWS { Layout::Tiles } else { Layout::Rows }
    }

    pub(crate) fn bytes(rows: usize, cols: usize) -> u64 {
        let blocks = cols / 32;
        (match Self::layout(rows) {
            Layout::Rows => rows * blocks * (32 + size_of::<BlockMeta>()),
            Layout::Tiles => rows.div_ceil(TILE_ROWS) * blocks * TILE_BLOCK,
        }) as u64
    }

    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> QuantRow {
        debug_assert!(row < self.rows);
        let (q, meta) = match self.layout {
            Layout::Rows => {
                let levels = self.rows * self.blocks * 32;
                (row * self.blocks * 32, levels + row * self.blocks * size_of::<BlockMeta>())
            }
            Layout::Tiles => {
                let (tile, lane) = (row / TILE_ROWS * self.blocks * TILE_BLOCK, row % TILE_ROWS);
                (tile + 32 * lane, tile + TILE_LEVELS + lane * size_of::<BlockMeta>())
            }
        };
        let base = self.data.as_ptr();
        // SAFETY: both offsets are inside the allocation for rows below the capacity.
        unsafe { QuantRow { q: base.add(q).cast(), meta: base.add(meta).cast() } }
    }

    /// Quantises the blocks of 32 in `x`, which start at column `first` of a row.
    ///
    /// # Safety
    /// No other thread uses these columns of the row at the same time.
    pub(crate) unsafe fn write(&self, isa: crate::isa::Isa, row: usize, first: usize, x: &[f32]) {
        let at = self.row(row);
        let (q_step, meta_step) = self.layout.steps();
        let block = first / 32;
        // SAFETY: within the row; steps are multiples of four and the buffer is aligned, so the sums are.
        let to = unsafe {
            Destination {
                q: at.q.cast_mut().add(block * q_step),
                meta: at.meta.cast_mut().byte_add(block * meta_step),
                q_step,
                meta_step,
            }
        };
        quantise(isa, x, to);
    }
}

/// Where blocks of a row are written.
struct Destination {
    q: *mut i8,
    meta: *mut BlockMeta,
    q_step: usize,
    meta_step: usize,
}

multiversion! {
    /// Quantises whole blocks of 32, as `forerun_quant::QuantBlock` defines.
    fn quantise = quantise_body, (x: &[f32], to: Destination)
}

#[inline(always)]
fn quantise_body(x: &[f32], to: Destination) {
    for (b, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let mut q = [0; 32];
        let meta = quantise_block(x, &mut q);
        // SAFETY: `QuantRows::write` made the destination for as many blocks, and has them for itself.
        unsafe {
            to.q.add(b * to.q_step).cast::<[i8; 32]>().write(q);
            to.meta.byte_add(b * to.meta_step).write(meta);
        }
    }
}

#[inline(always)]
fn quantise_block(x: &[f32; 32], q: &mut [i8; 32]) -> BlockMeta {
    /// A sum with 1.5·2^23 is rounded to the nearest even integer, which its low bits hold.
    const MAGIC: f32 = 12_582_912.0;
    let mut top = [0u32; 16];
    for i in 0..16 {
        let a = x[i].to_bits() & 0x7fff_ffff;
        let b = x[i + 16].to_bits() & 0x7fff_ffff;
        top[i] = if a > b { a } else { b };
    }
    let top = top.iter().fold(0, |a, b| if *b > a { *b } else { a });
    let amax = f32::from_bits(top);
    if top >= f32::INFINITY.to_bits() || amax < 1e-30 {
        q.fill(0);
        let d = if amax < 1e-30 { 0.0 } else { f32::NAN };
        return BlockMeta { d, sx: d * 0.0, ..BlockMeta::default() };
    }
    let d = amax / 127.0;
    let inverse = 127.0 / amax;
    let mut levels = [0i32; 32];
    for i in 0..32 {
        levels[i] = (x[i] * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
        q[i] = levels[i] as i8;
    }
    let half_sums = [levels[..16].iter().sum(), levels[16..].iter().sum::<i32>()];
    let sum = half_sums[0] + half_sums[1];
    BlockMeta { d, sx: d * sum as f32, pair: (half_sums[0] & 0xffff) | (half_sums[1] << 16) }
}
