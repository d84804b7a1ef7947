//! Mixes of large models against those of llama.cpp's `llama-quantize --dry-run`, which was shown the same names and shapes.

use std::collections::BTreeMap;

use forerun_files::TensorKind;
use forerun_models::{Source, Synthetic, WeightMix};

use super::types;
use crate::file_type::FileType;

/// Shape, file type, then the types of its tensors in order: `F32*2 Q4_K` are two of F32 and one of Q4_K.
type Mixes = BTreeMap<String, BTreeMap<String, String>>;

fn expand(runs: &str) -> impl Iterator<Item = &str> {
    runs.split(' ').flat_map(|run| {
        let (ty, n) = run.split_once('*').unwrap_or((run, "1"));
        std::iter::repeat_n(ty, n.parse().expect("a number"))
    })
}

#[test]
fn large_models_get_the_types_of_llama_quantize() {
    let mixes: Mixes = serde_json::from_str(include_str!("../../tests/data/mixes.json")).expect("JSON");
    assert_eq!(mixes.len(), 4);
    for (shape, files) in &mixes {
        let mix = WeightMix::from_name("bf16").expect("a type");
        let source = Synthetic::named(shape, mix, 0).expect("a shape");
        let tensors = source.tensors();
        assert_eq!(files.len(), 6, "{shape}");
        for (name, want) in files {
            let file = FileType::from_name(name).expect("a file type");
            let fixed = vec![None; tensors.len()];
            let got = types(file, source.metadata(), false, tensors, &fixed).expect("a mix");
            let want: Vec<&str> = expand(want).collect();
            assert_eq!(got.len(), want.len(), "{shape}");
            for ((tensor, got), want) in tensors.iter().zip(got).zip(want) {
                let TensorKind::Known(got) = got else { panic!("{}: {got}", tensor.name) };
                assert_eq!(got.name(), want, "{shape} as {name}: {}", tensor.name);
            }
        }
    }
}
