//! What collecting costs: `collecting MODEL.gguf TEXT [CHUNKS]` reads the same chunks of 512 tokens in turn with a model that
//! collects and with one that does not, and prints the medians.

use std::time::{Duration, Instant};

use forerun_engine::{Engine, LoadOptions};

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    1e3 * times[times.len() / 2].as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: collecting MODEL.gguf TEXT [CHUNKS]".into());
    };
    let most = args.next().map_or(Ok(usize::MAX), |n| n.parse())?;
    let options = LoadOptions { context: Some(512), ..LoadOptions::default() };
    let engines = [Engine::load(&model, &options)?, Engine::load(&model, &options)?];
    let tokens = engines[0].tokenizer().encode_prompt(&std::fs::read_to_string(text)?, false)?;
    engines[1].with_runner(|runner| runner.collect(false))?;
    let mut times = [Vec::new(), Vec::new()];
    // The first chunk is read to prepare the plans.
    for (i, chunk) in tokens.chunks_exact(512).take(most.saturating_add(1)).enumerate() {
        for (engine, times) in engines.iter().zip(&mut times) {
            let started = Instant::now();
            engine.with_runner(|runner| runner.read_through(chunk, false))?;
            if i > 0 {
                times.push(started.elapsed());
            }
        }
    }
    if times[0].is_empty() {
        return Err("the text has fewer than 1024 tokens".into());
    }
    let chunks = times[0].len();
    let [plain, collecting] = times.map(median);
    println!(
        "{chunks} chunks of 512: {plain:.2} ms, collecting {collecting:.2} ms, {:.3} times",
        collecting / plain
    );
    Ok(())
}
