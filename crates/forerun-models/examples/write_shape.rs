//! Writes a model of random weights as a GGUF file, to measure loading with.
//!
//! `cargo run --release -p forerun-models --example write_shape -- qwen35-2b q4_k_m OUT.gguf`

use std::path::Path;

use forerun_files::GgufWriter;
use forerun_models::{Source, Synthetic, WeightMix};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [shape, ty, out] = args.as_slice() else {
        return Err("usage: write_shape SHAPE TYPE OUT.gguf".into());
    };
    let source = Synthetic::named(shape, WeightMix::from_name(ty)?, 0)?;
    let tensors: Vec<_> = source
        .tensors()
        .iter()
        .filter_map(|t| Some((t.name.clone(), source.tensor(&t.name)?.ty, t.dims.clone())))
        .collect();
    let mut writer = GgufWriter::create(Path::new(out), source.metadata(), &tensors)?;
    for (name, _, _) in &tensors {
        let tensor = source.tensor(name).ok_or("a tensor that cannot be made")?;
        writer.tensor(name, &tensor.bytes)?;
    }
    writer.finish()?;
    Ok(())
}
