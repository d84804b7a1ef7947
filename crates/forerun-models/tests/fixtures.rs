//! Whole models against outputs of transformers in float32. `FORERUN_FIXTURES=DIR` runs every folder in DIR instead of the
//! checked-in ones.

mod common;

use std::num::NonZeroUsize;

use forerun_cpu::{CpuBackend, CpuConfig, Isa};
use forerun_tensor::reference::ReferenceBackend;

#[test]
fn reference_backend_equals_transformers() {
    common::compare(&|| Box::new(ReferenceBackend::new()), 1e-9);
}

/// Every instruction set of this machine, float weights, float32 caches.
#[test]
fn cpu_backend_equals_transformers() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for threads in [1, 2] {
            let config =
                CpuConfig { threads: NonZeroUsize::new(threads), isa: Some(isa), ..CpuConfig::default() };
            common::compare(&|| Box::new(CpuBackend::new(&config).expect("backend")), 1e-7);
        }
    }
}
