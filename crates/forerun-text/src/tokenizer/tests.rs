use proptest::prelude::*;

use super::toy::{toy, toy_spec};
use super::*;

#[test]
fn broken_descriptions_name_the_key() {
    type Change = fn(&mut TokenizerSpec);
    let cases: [(Change, &str, &str); 14] = [
        (|s| s.model = "llama".into(), "tokenizer.ggml.model", "`llama`"),
        (|s| s.pre = "deepseek".into(), "tokenizer.ggml.pre", "`deepseek`"),
        (|s| s.pre.clear(), "tokenizer.ggml.pre", "``"),
        (|s| s.tokens.clear(), "tokenizer.ggml.tokens", "0 tokens"),
        (|s| s.kinds.truncate(3), "tokenizer.ggml.token_type", "3 entries"),
        (|s| s.eos = Some(9999), "tokenizer.ggml.eos_token_id", "9999"),
        (|s| s.bos = Some(u32::MAX), "tokenizer.ggml.bos_token_id", "4294967295"),
        (|s| s.end_ids = vec![1, 5000], "tokenizer.ggml.eos_token_ids", "5000"),
        (|s| s.add_bos = true, "tokenizer.ggml.add_bos_token", "bos_token_id"),
        (|s| s.merges.push("a b".into()), "tokenizer.ggml.merges", "\"a b\" at rank 3"),
        (|s| s.merges[0] = "aaaa aaaa".into(), "tokenizer.ggml.merges", "rank 0"),
        (|s| s.merges[1].clear(), "tokenizer.ggml.merges", "rank 1"),
        (|s| s.merges[2] = "aa".into(), "tokenizer.ggml.merges", "rank 2"),
        (|s| s.tokens[4 + 10] = "gone".into(), "tokenizer.ggml.tokens", "byte 0x0a"),
    ];
    for (change, key, found) in cases {
        let mut spec = toy_spec();
        change(&mut spec);
        let error = Tokenizer::new(spec).expect_err(key).to_string();
        assert!(error.starts_with("toy.gguf: ") && error.contains(key) && error.contains(found), "{error}");
    }
}

#[test]
fn pieces_follow_the_pattern() {
    // As the pattern with its look-ahead cuts, worked out by hand.
    let cases: [(&str, &[&str]); 11] = [
        ("a  b", &["a", " ", " b"]),
        ("a   ", &["a", "   "]),
        ("  \n  x", &["  \n", " ", " x"]),
        ("\u{a0}\u{a0}\u{a0}7", &["\u{a0}\u{a0}", "\u{a0}", "7"]),
        ("it's DON'T 'x", &["it", "'s", " DON", "'T", " '", "x"]),
        ("12", &["1", "2"]),
        ("e\u{301}x \u{301}", &["e\u{301}x", " \u{301}"]),
        ("!?\n\n\nx", &["!?\n\n\n", "x"]),
        ("\r\n \r\n a", &["\r\n \r\n", " a"]),
        (" \0\0", &[" \0\0"]),
        ("", &[]),
    ];
    let spec = toy_spec();
    let splitter = byte_level::Splitter::new(&spec).unwrap();
    for (text, pieces) in cases {
        let found: Vec<&str> = splitter.pieces(text).map(|range| &text[range]).collect();
        assert_eq!(found, pieces, "{text:?}");
    }
}

#[test]
fn specials() {
    let tokenizer = toy(|_| {});
    assert_eq!(tokenizer.encode("<|im_start|><|im_end|><|endoftext|>", true).unwrap(), [1, 2, 0]);
    let plain = tokenizer.encode("<|im_start|><think>", false).unwrap();
    assert!(!plain.contains(&1) && plain.last() == Some(&3), "user-defined tokens are text: {plain:?}");
    assert_eq!(tokenizer.decode(&plain, Decoded::WithoutControl), "<|im_start|><think>");
    assert_eq!(tokenizer.decode(&[1, 3, 2, 9999], Decoded::WithoutControl), "<think>\u{FFFD}");
    assert_eq!(tokenizer.eog().iter().copied().collect::<Vec<_>>(), [0, 2]);
    assert!(!tokenizer.is_eog(1));
    assert_eq!(toy(|s| s.end_ids = vec![3]).eog().len(), 3);
    assert_eq!(tokenizer.token_bytes(9999), None);
    assert_eq!(tokenizer.token_bytes(4), Some(&[0u8][..]));
}

#[test]
fn longest_special_wins_and_missing_kinds_are_filled() {
    let longest = toy(|s| {
        s.tokens.extend(["<think>er", "hink"].map(String::from));
        s.kinds.extend([TokenKind::UserDefined; 2]);
    });
    assert_eq!(longest.encode("<think>er", false).unwrap().len(), 1);
    let filled = toy(|s| s.kinds.clear());
    assert_eq!(filled.encode("<|im_end|>", true).unwrap(), [2]);
}

#[test]
fn bos_once() {
    let tokenizer = toy(|s| (s.bos, s.add_bos) = (Some(1), true));
    assert_eq!(tokenizer.encode_prompt("<|im_end|>", true).unwrap(), [1, 2]);
    assert_eq!(tokenizer.encode_prompt("<|im_start|>", true).unwrap(), [1]);
    assert_eq!(tokenizer.encode_prompt("", true).unwrap(), [1]);
    assert_eq!(tokenizer.encode("", true).unwrap(), [0u32; 0]);
}

fn gemma() -> Tokenizer {
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<turn|>"].map(String::from).into();
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    let mut kinds = vec![TokenKind::Control; 4];
    kinds.extend([TokenKind::Byte; 256]);
    tokens.extend(["a", "▁", "▁a", "\n", "\n\n\n", "b"].map(String::from));
    kinds.extend([TokenKind::Normal; 6]);
    let spec = TokenizerSpec {
        origin: "gemma.gguf".into(),
        model: "gemma4".into(),
        tokens,
        kinds,
        merges: vec!["▁ a".into()],
        bos: Some(2),
        add_bos: true,
        ..TokenizerSpec::default()
    };
    Tokenizer::new(spec).unwrap()
}

#[test]
fn gemma_spaces_newlines_and_bytes() {
    let tokenizer = gemma();
    let text = " a b\n\n\n\n\n\na\n\n\né<turn|>";
    let ids = tokenizer.encode_prompt(text, true).unwrap();
    // Six newlines are no token and take single ones; three are one.
    let expected = [2, 262, 261, 265, 263, 263, 263, 263, 263, 263, 260, 264, 4 + 0xC3, 4 + 0xA9, 3];
    assert_eq!(ids, expected);
    assert_eq!(tokenizer.decode(&ids, Decoded::WithoutControl), text.replace("<turn|>", ""));
    assert_eq!(tokenizer.eog().iter().copied().collect::<Vec<_>>(), [1, 3]);
}

/// The patterns as models have them.
const WITH_LOOK_AHEAD: [(&str, &str); 2] = [
    (
        "qwen35",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "qwen2",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

proptest! {
    #[test]
    fn pieces_equal_the_pattern_with_look_ahead(
        text in prop_oneof!["[ \t\n\ra\u{301}\u{a0}7!'sS]{0,24}", any::<String>()],
    ) {
        for (pre, pattern) in WITH_LOOK_AHEAD {
            let splitter = byte_level::Splitter::new(&TokenizerSpec { pre: pre.into(), ..toy_spec() }).unwrap();
            let regex = fancy_regex::Regex::new(pattern).unwrap();
            let expected: Vec<_> = regex.find_iter(&text).map(|found| found.unwrap().range()).collect();
            prop_assert_eq!(splitter.pieces(&text).collect::<Vec<_>>(), expected, "{} {:?}", pre, text);
        }
    }

    #[test]
    fn text_survives(text in any::<String>(), parse_special: bool) {
        for tokenizer in [toy(|_| {}), gemma()] {
            // Gemma has no way back from a literal ▁.
            let text = text.replace('▁', "");
            let ids = tokenizer.encode(&text, parse_special).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, Decoded::WithControl), text);
        }
    }

    #[test]
    fn streams_equal_batches(ids in prop::collection::vec(0u32..270, 0..60), control: bool) {
        let decoded = if control { Decoded::WithControl } else { Decoded::WithoutControl };
        for tokenizer in [toy(|_| {}), gemma()] {
            let mut stream = crate::StreamDecoder::new(&tokenizer, decoded);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text.push_str(&stream.finish());
            prop_assert_eq!(text, tokenizer.decode(&ids, decoded));
        }
    }

    #[test]
    fn streams_of_characters_show_each_when_it_is_whole(text in "[aé日🙂]{0,12}") {
        let tokenizer = toy(|_| {});
        let mut stream = crate::StreamDecoder::new(&tokenizer, Decoded::WithControl);
        let mut shown = String::new();
        for (i, byte) in text.bytes().enumerate() {
            let id = (4..260).find(|&id| tokenizer.token_bytes(id) == Some(&[byte])).unwrap();
            shown.push_str(&stream.push(id));
            let whole = (0..=i + 1).rev().find(|&end| text.is_char_boundary(end)).unwrap();
            prop_assert_eq!(&shown, &text[..whole]);
        }
    }
}

#[test]
fn special_tokens_have_a_longest() {
    let set = |text: String| move |spec: &mut crate::TokenizerSpec| spec.tokens[1] = text;
    let tokenizer = toy(set("ab".repeat(512)));
    assert_eq!(tokenizer.encode(&"ab".repeat(512), true).unwrap(), [1]);
    let mut spec = tokenizer.spec().clone();
    spec.tokens[1] = "ab".repeat(513);
    let error = super::specials::Specials::new(&spec).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("tokenizer.ggml.tokens") && error.contains("1026 bytes in token 1"), "{error}");
}
