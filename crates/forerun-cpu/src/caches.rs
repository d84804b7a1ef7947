//! KV caches and delta-net states.

use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_tensor::{KvSpec, KvType, Result, RingSpec, StateSpec, TensorError};

use crate::isa::{Isa, multiversion};
use crate::matmul::f16_to_f32;
use crate::memory::Buffer;

/// Positions of a key tile: scores have one key a lane.
pub(crate) const KEYS: usize = 16;

/// Keys and values of one layer. Keys stand in tiles of 16 positions, `[slot][head][tile][element][16]`; values in rows,
/// `[slot][head][position][element]`. Q8_0 keeps its scales apart, per 32 elements of a head, in the same order.
pub(crate) struct KvCache {
    pub(crate) spec: KvSpec,
    keys: Buffer<u8>,
    values: Buffer<u8>,
    key_scales: Buffer<u16>,
    value_scales: Buffer<u16>,
}

fn element_bytes(ty: KvType) -> usize {
    match ty {
        KvType::F32 => 4,
        KvType::F16 => 2,
        KvType::Q8_0 => 1,
    }
}

fn f16(v: f32) -> u16 {
    half::f16::from_f32(v).to_bits()
}

impl KvCache {
    pub(crate) fn new(spec: &KvSpec) -> Result<Self> {
        if spec.block == 0 || !spec.block.is_multiple_of(8) || spec.capacity == 0 || spec.slots == 0 {
            return Err(TensorError::Unsupported {
                backend: "cpu",
                message: format!("a KV cache of {spec:?}: blocks are multiples of 8, nothing is 0"),
            });
        }
        let vectors = spec.slots * spec.heads * spec.capacity.next_multiple_of(KEYS);
        let bytes = element_bytes(spec.ty);
        let scales = |dim: usize| if spec.ty == KvType::Q8_0 { vectors * dim.div_ceil(32) } else { 0 };
        Ok(Self {
            keys: Buffer::new(vectors * spec.key_dim * bytes, "KV cache")?,
            values: Buffer::new(vectors * spec.value_dim * bytes, "KV cache")?,
            key_scales: Buffer::new(scales(spec.key_dim), "KV cache")?,
            value_scales: Buffer::new(scales(spec.value_dim), "KV cache")?,
            spec: spec.clone(),
        })
    }

    /// Index of a position's vector among all of the cache.
    fn vector(&self, slot: usize, head: usize, pos: usize) -> usize {
        let at = pos % self.spec.capacity;
        (slot * self.spec.heads + head) * self.spec.capacity.next_multiple_of(KEYS) + at
    }

    /// Writes a key and a value.
    ///
    /// # Safety
    /// No other thread uses this position of this slot and head until the caller's unit is finished.
    pub(crate) unsafe fn write(&self, slot: usize, head: usize, pos: usize, key: &[f32], value: &[f32]) {
        let v = self.vector(slot, head, pos);
        let (kd, vd) = (self.spec.key_dim, self.spec.value_dim);
        let (tile, lane) = (v / KEYS, v % KEYS);
        let key_at = |d: usize| tile * kd * KEYS + d * KEYS + lane;
        // SAFETY: indices stay in the buffers by construction; exclusive by the caller's contract.
        unsafe {
            match self.spec.ty {
                KvType::F32 => {
                    let (k, w) = (self.keys.as_ptr().cast::<f32>(), self.values.as_ptr().cast::<f32>());
                    key.iter().enumerate().for_each(|(d, x)| k.add(key_at(d)).write(*x));
                    value.iter().enumerate().for_each(|(d, x)| w.add(v * vd + d).write(*x));
                }
                KvType::F16 => {
                    let (k, w) = (self.keys.as_ptr().cast::<u16>(), self.values.as_ptr().cast::<u16>());
                    key.iter().enumerate().for_each(|(d, x)| k.add(key_at(d)).write(f16(*x)));
                    value.iter().enumerate().for_each(|(d, x)| w.add(v * vd + d).write(f16(*x)));
                }
                KvType::Q8_0 => {
                    let (k, w) = (self.keys.as_ptr().cast::<i8>(), self.values.as_ptr().cast::<i8>());
                    let (ks, ws) = (self.key_scales.as_ptr(), self.value_scales.as_ptr());
                    let (kb, vb) = (kd.div_ceil(32), vd.div_ceil(32));
                    quantise(
                        key,
                        |d, q| k.add(key_at(d)).write(q),
                        |b, s| ks.add((tile * kb + b) * KEYS + lane).write(s),
                    );
                    quantise(value, |d, q| w.add(v * vd + d).write(q), |b, s| ws.add(v * vb + b).write(s));
                }
            }
        }
    }

    /// Decodes the keys of `count` positions from `first` on into `out [element][width]`, `width` a multiple of 16 and
    /// `first` at a tile's start within the block; and the values into `values [position][element]`.
    pub(crate) fn read(
        &self,
        isa: Isa,
        slot: usize,
        head: usize,
        span: Span,
        keys: &mut [f32],
        values: &mut [f32],
    ) {
        let (kd, vd) = (self.spec.key_dim, self.spec.value_dim);
        for i in 0..span.count {
            let v = self.vector(slot, head, span.first + i);
            let out = &mut values[i * vd..(i + 1) * vd];
            match self.spec.ty {
                KvType::F32 => copy_f32(isa, cast(&self.values, v * vd, vd), out),
                KvType::F16 => widen_f16(isa, cast(&self.values, v * vd, vd), out),
                KvType::Q8_0 => {
                    let q: &[i8] = cast(&self.values, v * vd, vd);
                    let blocks = vd.div_ceil(32);
                    scale_q8(isa, q, &self.value_scales[v * blocks..(v + 1) * blocks], out);
                }
            }
        }
        let mut i = 0;
        while i < span.count {
            let v = self.vector(slot, head, span.first + i);
            let (tile, lane) = (v / KEYS, v % KEYS);
            let lanes = (KEYS - lane)
                .min(span.count - i)
                .min(self.spec.capacity - (span.first + i) % self.spec.capacity);
            let at = tile * kd * KEYS;
            let out = Columns { out: &mut *keys, width: span.width, at: i, lane, lanes };
            match self.spec.ty {
                KvType::F32 => transpose_f32(isa, cast(&self.keys, at, kd * KEYS), out),
                KvType::F16 => transpose_f16(isa, cast(&self.keys, at, kd * KEYS), out),
                KvType::Q8_0 => {
                    let blocks = kd.div_ceil(32) * KEYS;
                    let scales = &self.key_scales[tile * blocks..(tile + 1) * blocks];
                    transpose_q8(isa, cast(&self.keys, at, kd * KEYS), scales, out);
                }
            }
            i += lanes;
        }
    }

    pub(crate) fn copy(&self, from: u32, to: u32, positions: u32) -> Result<()> {
        let (from, to) = (from as usize, to as usize);
        let too_many = !self.spec.ring && positions as usize > self.spec.capacity;
        if from.max(to) >= self.spec.slots || too_many {
            return Err(TensorError::Step(format!(
                "copying {positions} positions from slot {from} to {to}: the cache has {} slots of {}",
                self.spec.slots, self.spec.capacity
            )));
        }
        copy_slot(&self.keys, from, to, self.spec.slots);
        copy_slot(&self.values, from, to, self.spec.slots);
        copy_slot(&self.key_scales, from, to, self.spec.slots);
        copy_slot(&self.value_scales, from, to, self.spec.slots);
        Ok(())
    }
}

fn copy_slot<T: crate::memory::Plain>(buffer: &Buffer<T>, from: usize, to: usize, slots: usize) {
    let len = buffer.len() / slots;
    // SAFETY: both ranges are in the buffer; the backend is borrowed mutably, so no region runs.
    unsafe { std::ptr::copy(buffer.as_ptr().add(from * len), buffer.as_ptr().add(to * len), len) };
}

/// Positions to read.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Row length of the decoded keys.
    pub(crate) width: usize,
}

fn cast<T: crate::memory::Plain>(buffer: &Buffer<u8>, at: usize, len: usize) -> &[T] {
    debug_assert!((at + len) * size_of::<T>() <= buffer.len());
    // SAFETY: in range (checked above in debug builds, by construction otherwise), aligned since the buffer is, and plain.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<T>().add(at), len) }
}

/// Blocks of 32 (the last may be shorter): scale f16(amax / 127), level round-half-even(x / scale).
fn quantise(x: &[f32], mut level: impl FnMut(usize, i8), mut scale: impl FnMut(usize, u16)) {
    for (b, block) in x.chunks(32).enumerate() {
        let amax = block.iter().fold(0.0_f32, |a, v| if v.abs() > a { v.abs() } else { a });
        let bits = f16(amax / 127.0);
        let d = f16_to_f32(bits);
        scale(b, bits);
        for (i, v) in block.iter().enumerate() {
            let q = if d == 0.0 { 0.0 } else { (v / d).round_ties_even().clamp(-127.0, 127.0) };
            level(32 * b + i, q as i8);
        }
    }
}

/// Where a tile's lanes go in decoded keys.
struct Columns<'a> {
    out: &'a mut [f32],
    width: usize,
    at: usize,
    lane: usize,
    lanes: usize,
}

#[inline(always)]
fn transpose<T: Copy>(tile: &[T], c: Columns<'_>, f: impl Fn(T, usize, usize) -> f32) {
    for (d, row) in tile.as_chunks::<KEYS>().0.iter().enumerate() {
        let out = &mut c.out[d * c.width + c.at..];
        if c.lanes == KEYS {
            for (l, (o, v)) in out[..KEYS].iter_mut().zip(row).enumerate() {
                *o = f(*v, d, l);
            }
        } else {
            for (l, (o, v)) in out[..c.lanes].iter_mut().zip(&row[c.lane..]).enumerate() {
                *o = f(*v, d, l + c.lane);
            }
        }
    }
}

#[inline(always)]
fn copy_f32_body(v: &[f32], out: &mut [f32]) {
    out.copy_from_slice(v);
}
#[inline(always)]
fn widen_f16_body(v: &[u16], out: &mut [f32]) {
    for (o, v) in out.iter_mut().zip(v) {
        *o = f16_to_f32(*v);
    }
}
#[inline(always)]
fn scale_q8_body(v: &[i8], scales: &[u16], out: &mut [f32]) {
    for ((v, o), s) in v.chunks(32).zip(out.chunks_mut(32)).zip(scales) {
        let d = f16_to_f32(*s);
        for (v, o) in v.iter().zip(o) {
            *o = d * f32::from(*v);
        }
    }
}
#[inline(always)]
fn transpose_f32_body(tile: &[f32], c: Columns<'_>) {
    transpose(tile, c, |v, _, _| v);
}
#[inline(always)]
fn transpose_f16_body(tile: &[u16], c: Columns<'_>) {
    transpose(tile, c, |v, _, _| f16_to_f32(v));
}
#[inline(always)]
fn transpose_q8_body(tile: &[i8], scales: &[u16], c: Columns<'_>) {
    transpose(tile, c, |v, d, l| f16_to_f32(scales[d / 32 * KEYS + l]) * f32::from(v));
}

multiversion! { fn copy_f32 = copy_f32_body, (v: &[f32], out: &mut [f32]) }
multiversion! { fn widen_f16 = widen_f16_body, (v: &[u16], out: &mut [f32]) }
multiversion! { fn scale_q8 = scale_q8_body, (v: &[i8], scales: &[u16], out: &mut [f32]) }
multiversion! { fn transpose_f32 = transpose_f32_body, (tile: &[f32], c: Columns<'_>) }
multiversion! { fn transpose_f16 = transpose_f16_body, (tile: &[u16], c: Columns<'_>) }
multiversion! { fn transpose_q8 = transpose_q8_body, (tile: &[i8], scales: &[u16], c: Columns<'_>) }

/// Delta-net state of one layer: `S [slot][value head][key element][value element]`, the last `conv − 1` rows of
/// projections, and the tape.
pub(crate) struct StateCache {
    pub(crate) spec: StateSpec,
    state: Buffer<f32>,
    history: Buffer<f32>,
    tape: Buffer<f32>,
    /// Tokens that each slot's state has taken in.
    stands: Vec<AtomicUsize>,
    /// Rows on each slot's tape.
    taped: Vec<AtomicUsize>,
}

/// Floats of a tape row: raw projections, convolved q|k|v, decays, betas.
pub(crate) fn tape_width(spec: &StateSpec) -> usize {
    2 * spec.shape.conv_cols() + 2 * spec.shape.value_heads
}

impl StateCache {
    pub(crate) fn new(spec: &StateSpec) -> Result<Self> {
        let s = &spec.shape;
        Ok(Self {
            state: Buffer::new(spec.slots * s.value_heads * s.key_dim * s.value_dim, "delta-net state")?,
            history: Buffer::new(spec.slots * (s.conv - 1) * s.conv_cols(), "delta-net history")?,
            tape: Buffer::new(spec.slots * spec.tape * tape_width(spec), "delta-net tape")?,
            stands: (0..spec.slots).map(|_| AtomicUsize::new(0)).collect(),
            taped: (0..spec.slots).map(|_| AtomicUsize::new(0)).collect(),
            spec: spec.clone(),
        })
    }

    pub(crate) fn stands(&self, slot: usize) -> usize {
        self.stands[slot].load(Ordering::Relaxed)
    }

    pub(crate) fn taped(&self, slot: usize) -> usize {
        self.taped[slot].load(Ordering::Relaxed)
    }

    pub(crate) fn set_place(&self, slot: usize, stands: usize, taped: usize) {
        self.stands[slot].store(stands, Ordering::Relaxed);
        self.taped[slot].store(taped, Ordering::Relaxed);
    }

    /// State of one value head, `[key element][value element]`.
    pub(crate) fn head(&self, slot: usize, head: usize) -> *mut f32 {
        let s = &self.spec.shape;
        let size = s.key_dim * s.value_dim;
        // SAFETY: slot and head are within the allocation.
        unsafe { self.state.as_ptr().add((slot * s.value_heads + head) * size) }
    }

    pub(crate) fn history(&self, slot: usize) -> &[f32] {
        let len = (self.spec.shape.conv - 1) * self.spec.shape.conv_cols();
        &self.history[slot * len..(slot + 1) * len]
    }

    /// # Safety
    /// No other thread uses this slot's history until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn history_mut(&self, slot: usize) -> &mut [f32] {
        let len = (self.spec.shape.conv - 1) * self.spec.shape.conv_cols();
        // SAFETY: in range, exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.history.as_ptr().add(slot * len), len) }
    }

    pub(crate) fn tape_row(&self, slot: usize, row: usize) -> &[f32] {
        let width = tape_width(&self.spec);
        &self.tape[(slot * self.spec.tape + row) * width..][..width]
    }

    /// # Safety
    /// No other thread uses this tape row until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn tape_row_mut(&self, slot: usize, row: usize) -> &mut [f32] {
        let width = tape_width(&self.spec);
        // SAFETY: in range, exclusive by the caller's contract.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.tape.as_ptr().add((slot * self.spec.tape + row) * width),
                width,
            )
        }
    }

    pub(crate) fn copy(&self, from: u32, to: u32) -> Result<()> {
        let (from, to) = (from as usize, to as usize);
        if from.max(to) >= self.spec.slots {
            return Err(TensorError::Step(format!(
                "copying the state of slot {from} to {to} of {}",
                self.spec.slots
            )));
        }
        if self.taped(from) > 0 {
            return Err(TensorError::Step(format!(
                "slot {from} has {} undecided rows on its tape",
                self.taped(from)
            )));
        }
        copy_slot(&self.state, from, to, self.spec.slots);
        copy_slot(&self.history, from, to, self.spec.slots);
        self.set_place(to, self.stands(from), 0);
        Ok(())
    }
}

/// Rows by slot and position, `[slot][position mod capacity][cols]`.
pub(crate) struct RingCache {
    pub(crate) spec: RingSpec,
    data: Buffer<f32>,
}

impl RingCache {
    pub(crate) fn new(spec: &RingSpec) -> Result<Self> {
        spec.check()?;
        Ok(Self {
            spec: spec.clone(),
            data: Buffer::new(spec.slots * spec.capacity * spec.cols, "hidden states")?,
        })
    }

    fn offset(&self, slot: usize, pos: usize) -> usize {
        (slot * self.spec.capacity + pos % self.spec.capacity) * self.spec.cols
    }

    pub(crate) fn row(&self, slot: usize, pos: usize) -> &[f32] {
        let at = self.offset(slot, pos);
        &self.data[at..at + self.spec.cols]
    }

    /// # Safety
    /// No other thread uses this row until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row_mut(&self, slot: usize, pos: usize) -> &mut [f32] {
        debug_assert!(slot < self.spec.slots);
        // SAFETY: steps are checked to name slots that exist; exclusive by the caller's contract.
        unsafe {
            std::slice::from_raw_parts_mut(self.data.as_ptr().add(self.offset(slot, pos)), self.spec.cols)
        }
    }

    pub(crate) fn copy(&self, from: u32, to: u32, pos: u32) -> Result<()> {
        let (from, to, slots) = (from as usize, to as usize, self.spec.slots);
        if from.max(to) >= slots {
            let message = format!("copying a row of slot {from} to {to}, expected slots below {slots}");
            return Err(TensorError::Step(message));
        }
        if from != to {
            // SAFETY: no region runs, and the rows are different ones.
            unsafe { self.row_mut(to, pos as usize) }.copy_from_slice(self.row(from, pos as usize));
        }
        Ok(())
    }
}
