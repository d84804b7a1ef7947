//! Any bytes as a GGUF file: an error, or a file whose every tensor and key can be used.

#![no_main]

use std::path::Path;

use forerun_files::{Checkpoint, Gguf, TensorKind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzz.gguf");
    let file = match Gguf::from_bytes(path, bytes) {
        Ok(file) => file,
        Err(e) => {
            let message = e.to_string();
            assert!(message.starts_with("fuzz.gguf: ") && message.contains("expected"), "{message}");
            return;
        }
    };
    let m = file.metadata();
    for (key, value) in m.iter() {
        let _ = value.summary();
        let _ = (m.opt_str(key), m.opt_u32(key), m.opt_f32(key), m.opt_bool(key));
        let _ = (m.opt_strings(key), m.opt_u32s(key), m.opt_f32s(key), m.opt_bools(key));
    }
    for info in file.tensors() {
        assert!(info.elements() > 0);
        match (info.kind, file.tensor(&info.name)) {
            (TensorKind::Known(ty), Ok(view)) => {
                let rows = info.elements() / info.dims[0];
                assert_eq!(Some(view.bytes.len()), ty.row_bytes(info.dims[0]).map(|row| row * rows));
                std::hint::black_box(view.bytes.iter().fold(0, |a, b| a ^ b));
            }
            (TensorKind::Unknown(_), Err(_)) => {}
            (kind, result) => panic!("{kind}: {result:?}"),
        }
    }
});
