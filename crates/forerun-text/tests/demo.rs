//! The demo model's own tokenizer: the reference's vectors, hard texts, and times that stay near linear.

use std::path::Path;
use std::time::{Duration, Instant};

use forerun_files::{Array, Checkpoint, Gguf, Metadata, Value};
use forerun_text::{ChatOptions, ChatTemplate, Decoded, Message, Tokenizer, TokenizerSpec};
use proptest::prelude::*;

fn demo() -> Metadata {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/demo-Q4_K_M.gguf");
    Gguf::open(&path).expect("the demo model").metadata().clone()
}

fn spec() -> TokenizerSpec {
    TokenizerSpec::from_metadata(&demo()).expect("a tokenizer")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::new(spec()).expect("a tokenizer")
}

#[test]
fn vectors_are_exact() {
    #[derive(serde::Deserialize)]
    struct Vector {
        text: String,
        ids: Vec<u32>,
    }
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("data/demo-vectors.json")).expect("vectors");
    assert!(vectors.len() > 15);
    let tokenizer = tokenizer();
    for Vector { text, ids } in vectors {
        assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, Decoded::WithControl), text);
    }
}

#[test]
fn chat_is_what_the_file_says() {
    let tokenizer = tokenizer();
    let template = ChatTemplate::for_tokenizer(&tokenizer).unwrap();
    let ids = template.encode(&tokenizer, &[Message::new("user", "hi")], &ChatOptions::default()).unwrap();
    let text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(ids, tokenizer.encode(text, true).unwrap());
    assert_eq!(tokenizer.eog().iter().copied().collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn huge_texts_take_near_linear_time() {
    const SIZE: usize = 1 << 20;
    let tokenizer = tokenizer();
    let mut seed = 1u64;
    let mut noise = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    let random: Vec<u8> = (0..SIZE).map(|_| noise()).collect();
    let letters: String = random.iter().map(|&byte| char::from(b'a' + byte % 26)).collect();
    let texts = [
        ("one letter", "a".repeat(SIZE)),
        ("random letters", letters),
        ("random bytes", String::from_utf8_lossy(&random).into_owned()),
        ("spaces", " ".repeat(SIZE)),
        ("spaces and a letter", " ".repeat(SIZE) + "x"),
        ("line breaks", "\n".repeat(SIZE)),
        ("breaks between spaces", "\n ".repeat(SIZE / 2)),
        ("spaces between breaks", " \n\t".repeat(SIZE / 3) + &" ".repeat(SIZE) + "x"),
        ("NUL", "\0".repeat(SIZE)),
        ("combining marks", "\u{301}".repeat(SIZE / 2)),
        ("digits", "7".repeat(SIZE)),
        ("specials", "<|im_start|>".repeat(SIZE / 12)),
        ("half specials", "<|im_start".repeat(SIZE / 10)),
    ];
    for (name, text) in texts {
        let start = Instant::now();
        let ids = tokenizer.encode(&text, true).unwrap();
        let elapsed = start.elapsed();
        println!("{name}: {} bytes, {} ids, {elapsed:?}", text.len(), ids.len());
        assert_eq!(tokenizer.decode(&ids, Decoded::WithControl), text, "{name}");
        // A quadratic loop over a million needs minutes; the margin is for a busy machine.
        assert!(elapsed < Duration::from_secs(20), "{name}: {elapsed:?}");
    }
}

#[test]
fn ids_that_files_list_end_a_text() {
    let mut metadata = demo();
    metadata.set("tokenizer.ggml.eos_token_ids", Value::Array(Array::I32(vec![2, 77])));
    let tokenizer = Tokenizer::new(TokenizerSpec::from_metadata(&metadata).unwrap()).unwrap();
    assert!(tokenizer.is_eog(77) && !tokenizer.is_eog(78));
}

#[test]
fn metadata_errors_name_file_and_key() {
    let strings = |texts: &[&str]| Value::Array(Array::String(texts.iter().map(|&t| t.into()).collect()));
    let good = [
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("qwen35".into())),
        ("tokenizer.ggml.tokens", strings(&["a"])),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1]))),
        ("tokenizer.ggml.merges", strings(&[])),
    ];
    let wrong = Value::F32(0.5);
    for (key, replacement) in [
        ("tokenizer.ggml.model", None),
        ("tokenizer.ggml.tokens", None),
        ("tokenizer.ggml.merges", None),
        ("tokenizer.ggml.model", Some(wrong.clone())),
        ("tokenizer.ggml.pre", Some(wrong.clone())),
        ("tokenizer.ggml.tokens", Some(Value::Array(Array::U8(vec![1])))),
        ("tokenizer.ggml.token_type", Some(Value::Array(Array::I32(vec![7])))),
        ("tokenizer.ggml.token_type", Some(Value::Array(Array::I32(vec![-1])))),
        ("tokenizer.ggml.eos_token_id", Some(Value::I32(-1))),
        ("tokenizer.ggml.add_bos_token", Some(Value::U8(1))),
        ("tokenizer.chat_template", Some(wrong)),
    ] {
        let mut metadata = Metadata::new(Path::new("some/model.gguf"));
        for (name, value) in good.iter().filter(|(name, _)| *name != key) {
            metadata.insert(name, value.clone());
        }
        if let Some(value) = replacement {
            metadata.insert(key, value);
        }
        let error = TokenizerSpec::from_metadata(&metadata).expect_err(key).to_string();
        assert!(error.contains("some/model.gguf") && error.contains(key), "{error}");
    }
}

#[test]
fn random_texts_survive() {
    let tokenizer = tokenizer();
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(text in any::<String>())| {
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert!(!ids.iter().any(|&id| id < 4), "no control tokens from text");
        prop_assert_eq!(tokenizer.decode(&ids, Decoded::WithoutControl), text);
    });
}
