//! Overlay files written from what the format says, with nothing of the code under test. Other crates include this file by
//! path.

#![allow(dead_code, reason = "every test file takes what it needs")]

use std::fs;
use std::path::Path;

/// Levels with a scale and a bias for every group along a row.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bits: usize,
    pub(crate) group: usize,
    /// Type of scales and biases, as safetensors names it.
    pub(crate) float: &'static str,
    levels: Vec<u32>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// Numbers that look random.
fn numbers(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    }
}

impl Matrix {
    /// Random levels; scales and biases have few enough bits to be the same in every float type.
    pub(crate) fn random(rows: usize, cols: usize, ty: (usize, usize, &'static str), seed: u64) -> Self {
        let (bits, group, float) = ty;
        let mut next = numbers(seed);
        let levels = (0..rows * cols).map(|_| next() & ((1 << bits) - 1)).collect();
        let groups = rows * cols / group;
        let scales = (0..groups).map(|_| (64 + next() % 64) as f32 / 16_384.0).collect();
        let biases = (0..groups).map(|_| (next() % 64) as f32 / -512.0).collect();
        Self { rows, cols, bits, group, float, levels, scales, biases }
    }

    /// The nearest levels of these values, with BF16 scales and biases.
    pub(crate) fn of(values: &[f32], cols: usize, bits: usize, group: usize) -> Self {
        let bf16 = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
        let (mut levels, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        let top = ((1 << bits) - 1) as f32;
        for group in values.chunks_exact(group) {
            let low = bf16(group.iter().copied().fold(f32::INFINITY, f32::min));
            let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let scale = bf16((high - low) / top).max(f32::MIN_POSITIVE);
            levels.extend(group.iter().map(|x| ((x - low) / scale).round().clamp(0.0, top) as u32));
            scales.push(scale);
            biases.push(low);
        }
        Self { rows: values.len() / cols, cols, bits, group, float: "BF16", levels, scales, biases }
    }

    /// `scale · level + bias` of an element.
    pub(crate) fn value(&self, row: usize, col: usize) -> f32 {
        let i = row * self.cols + col;
        self.scales[i / self.group] * self.levels[i] as f32 + self.biases[i / self.group]
    }

    /// Elements of some rows.
    pub(crate) fn values(&self, rows: std::ops::Range<usize>) -> Vec<f32> {
        rows.flat_map(|r| (0..self.cols).map(move |c| self.value(r, c))).collect()
    }

    /// Every element, columns as rows.
    pub(crate) fn columns(&self) -> Vec<f32> {
        (0..self.cols).flat_map(|c| (0..self.rows).map(move |r| self.value(r, c))).collect()
    }

    /// The levels as one little-endian stream of bits. Rows are whole words.
    fn packed(&self) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.levels.len() * self.bits / 8];
        for (i, level) in self.levels.iter().enumerate() {
            for bit in (0..self.bits).filter(|bit| level >> bit & 1 == 1) {
                let at = i * self.bits + bit;
                bytes[at / 8] |= 1 << (at % 8);
            }
        }
        bytes
    }

    fn floats(&self, values: &[f32]) -> Vec<u8> {
        let f16 = |x: f32| {
            let bits = x.to_bits();
            let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
            let sign = (bits >> 16 & 0x8000) as u16;
            if x == 0.0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 }
        };
        let bytes = |x: &f32| match self.float {
            "F32" => x.to_le_bytes().to_vec(),
            "BF16" => ((x.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            _ => f16(*x).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(bytes).collect()
    }
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// An overlay file in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) strings: Vec<(&'static str, &'static str)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Overlay {
    /// With what the format's writers put into the metadata.
    pub(crate) fn new(bits: &'static str, group: &'static str) -> Self {
        let strings = vec![("format", "mlx-affine-dwq-v1"), ("bits", bits), ("group_size", group)];
        Self { strings, tensors: Vec::new() }
    }

    pub(crate) fn add(&mut self, stem: &str, m: &Matrix) {
        let groups = m.cols / m.group;
        for (part, dtype, width, bytes) in [
            ("weight", "U32", m.cols * m.bits / 32, m.packed()),
            ("scales", m.float, groups, m.floats(&m.scales)),
            ("biases", m.float, groups, m.floats(&m.biases)),
        ] {
            self.raw(&format!("{stem}.{part}"), dtype, &[m.rows, width], bytes);
        }
    }

    pub(crate) fn raw(&mut self, name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.push(Tensor { name: name.into(), dtype, shape: shape.to_vec(), bytes });
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).expect("a tensor of that name")
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.tensors.retain(|t| t.name != name);
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut entries = Vec::new();
        if !self.strings.is_empty() {
            let strings = self.strings.iter().map(|(k, v)| format!("{k:?}:{v:?}")).collect::<Vec<_>>();
            entries.push(format!("\"__metadata__\":{{{}}}", strings.join(",")));
        }
        let mut data = Vec::new();
        for t in &self.tensors {
            let (start, end) = (data.len(), data.len() + t.bytes.len());
            data.extend_from_slice(&t.bytes);
            entries.push(format!(
                "{:?}:{{\"dtype\":{:?},\"shape\":{:?},\"data_offsets\":[{start},{end}]}}",
                t.name, t.dtype, t.shape
            ));
        }
        let mut header = format!("{{{}}}", entries.join(","));
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
    }

    pub(crate) fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).expect("write");
    }
}
