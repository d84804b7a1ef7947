//! A target with an overlay: whoever drafts for it, it gives what plain decoding gives, to the bit.

mod common;
#[path = "../../forerun-models/tests/overlay/writer.rs"]
mod writer;

use std::path::{Path, PathBuf};

use common::requests::{Given, complete, plain};
use common::{DEMO, DEMO_DRAFTER, open};
use forerun_engine::{
    BackendChoice, DFlashFile, DraftOptions, DrafterKind, Engine, Isa, LoadOptions, Request, SamplingParams,
    Speculation,
};
use forerun_models::Source;
use forerun_quant::decode_row;
use writer::{Matrix, Overlay};

const PROMPTS: [&str; 3] = ["def fib(n):\n    ", "class Stack:\n    def push(self, item):\n", "import os\n"];

/// The demo's own weights in 4 bits: of its full attention, of its feed-forward layers (some of them transposed), of its MTP
/// block, and a head where it had none.
fn demo_overlay(path: &Path) {
    let demo = open(DEMO.as_ref());
    let mut overlay = Overlay::new("4", "32");
    let blocks: [(usize, &[&str]); 4] = [
        (3, &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]),
        (4, &["ffn_gate", "ffn_up", "ffn_down"]),
        (7, &["attn_q", "attn_output"]),
        (8, &["attn_q", "attn_k", "ffn_up"]),
    ];
    let stems = blocks.iter().flat_map(|(i, roles)| roles.iter().map(move |r| format!("blk.{i}.{r}")));
    for stem in stems.chain(["output".to_owned()]) {
        let name = if stem == "output" { "token_embd.weight".into() } else { format!("{stem}.weight") };
        let t = demo.tensor(&name).unwrap_or_else(|| panic!("{name}"));
        let (cols, rows) = (t.dims[0], t.dims[1]);
        let mut values = vec![0.0; rows * cols];
        let packed = t.bytes.chunks_exact(t.ty.row_bytes(cols).expect("whole blocks"));
        for (bytes, row) in packed.zip(values.chunks_exact_mut(cols)) {
            decode_row(t.ty, bytes, row).expect("a row");
        }
        if stem == "blk.4.ffn_up" {
            let columns: Vec<f32> =
                (0..cols).flat_map(|c| (0..rows).map(|r| values[r * cols + c]).collect::<Vec<_>>()).collect();
            overlay.add(&stem, &Matrix::of(&columns, rows, 4, 32));
        } else {
            overlay.add(&stem, &Matrix::of(&values, cols, 4, 32));
        }
    }
    overlay.write(path);
}

fn load(overlay: Option<&Path>, dflash: bool, isa: Isa, threads: usize) -> Engine {
    let dflash = dflash.then(|| DFlashFile { path: DEMO_DRAFTER.into(), ty: None, passes: 1 });
    let options = LoadOptions {
        backend: BackendChoice::Cpu(common::cpu(isa, threads)),
        context: Some(128),
        draft: DraftOptions { dflash, ..DraftOptions::default() },
        overlay: overlay.map(PathBuf::from),
        ..LoadOptions::default()
    };
    Engine::load(DEMO, &options).unwrap_or_else(|e| panic!("{e}"))
}

fn requests() -> impl Iterator<Item = Request> {
    PROMPTS.into_iter().zip([0.0, 0.8, 0.6]).enumerate().map(|(i, (prompt, temperature))| {
        let mut request = Request::new(prompt, SamplingParams::plain(temperature, i as u64)).max_tokens(40);
        request.ignore_eos = true;
        request
    })
}

#[test]
fn drafters_run_on_a_target_with_an_overlay() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-overlay.safetensors");
    demo_overlay(&path);
    let engine = load(Some(&path), true, Isa::detect(), 2);
    let report = engine.overlay().expect("a report");
    assert_eq!((report.replaced, report.decoded), (15, 1));
    let mut session = engine.session().expect("a session");
    let wanted: Vec<Given> = requests().map(|r| plain(&mut session, &r)).collect();
    for (kind, depth) in
        [(DrafterKind::Mtp, 3), (DrafterKind::Mtp, 7), (DrafterKind::Dflash, 7), (DrafterKind::Dflash, 15)]
    {
        let (mut drafted, mut accepted) = (0, 0);
        for (request, wanted) in requests().zip(&wanted) {
            session.clear();
            let request = request.speculation(Speculation::fixed(depth).with(&[kind]));
            let done = complete(&mut session, &request);
            assert_eq!(Given::new(&done), *wanted, "{kind:?} {depth}");
            drafted += done.summary.speculation.drafted;
            accepted += done.summary.speculation.accepted;
        }
        assert!(drafted > 20 && accepted > 10, "{kind:?} {depth}: {accepted} of {drafted}");
    }
    // Neither instruction sets nor threads matter, and the overlay does.
    let scalar = load(Some(&path), false, Isa::Scalar, 1);
    let bare = load(None, false, Isa::detect(), 2);
    let given = |engine: &Engine| -> Vec<Given> {
        let mut session = engine.session().expect("a session");
        requests().map(|r| plain(&mut session, &r)).collect()
    };
    assert_eq!(given(&scalar), wanted);
    assert_ne!(given(&bare), wanted);
    assert!(bare.overlay().is_none());
}
