//! The CPU backend. Every operator gives equal bits on every instruction set and any number of threads: lanes are output
//! rows, columns or keys, never parts of one sum, except where a sum has 16 lanes by definition.
//!
//! Reading order: [`CpuBackend`] (`backend.rs`) prepares plans; `exec.rs` runs one as a single parallel region of
//! `pool.rs`, in the phases of `phases.rs`; `ops/` has a file per operator; `matmul/` the products.

mod act;
mod backend;
mod caches;
mod exec;
mod isa;
mod matmul;
mod memory;
mod ops;
mod phases;
mod pool;
mod sums;
mod view;

pub use backend::{CpuBackend, CpuConfig};
pub use isa::Isa;
