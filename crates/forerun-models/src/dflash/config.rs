//! What a file says of its drafter: `config.json` of a Hugging Face folder, or the metadata of a GGUF file.

use std::path::Path;

use forerun_files::{Metadata, Value};
use serde_json::Value as Json;

use super::rope::Yarn;
use crate::error::Result;
use crate::json::{Object, first, shown};
use crate::keys::Keys;

/// The name of the architecture in GGUF files.
pub(super) const ARCHITECTURE: &str = "dflash";
const MOST_LAYERS: usize = 256;
const MOST_HIDDEN: usize = 1 << 17;
const MOST_HEADS: usize = 1 << 10;
const MOST_HEAD_DIM: usize = 1 << 12;
const MOST_FFN: usize = 1 << 20;
const MOST_BLOCK: usize = 1 << 10;
const MOST_WINDOW: usize = 1 << 30;

/// Settings, from whichever file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) ffn: usize,
    pub(crate) eps: f32,
    pub(crate) rope_base: f64,
    pub(crate) yarn: Option<Yarn>,
    pub(crate) block: usize,
    /// Ids of the model's layers whose outputs are the features, as they stand in the file.
    pub(crate) target_layers: Vec<usize>,
    /// The model's layers, where the file says how many.
    pub(crate) layers_of_target: Option<usize>,
    /// `None` where a GGUF file was converted without its tokenizer.
    pub(crate) mask: Option<u32>,
    /// Per layer, whether it slides.
    pub(crate) sliding: Vec<bool>,
    pub(crate) window: Option<u32>,
    /// Whether layers are causal; `None` for the sliding ones only.
    pub(crate) causal: Option<bool>,
    pub(crate) softcap: Option<f32>,
    pub(crate) embedding_scale: Option<f32>,
    /// Number of token ids, where the file says.
    pub(crate) vocabulary: Option<usize>,
}

impl Config {
    /// Reads a `config.json`. Newer files keep some settings in `dflash_config` and `rope_parameters`.
    pub(crate) fn from_json(path: &Path, json: &Json) -> Result<Self> {
        let top = Object { path, prefix: "", json };
        let own = top.object("dflash_config", "dflash_config.")?;
        let hidden = top.count("hidden_size", 1, MOST_HIDDEN)?;
        let layers = top.count("num_hidden_layers", 1, MOST_LAYERS)?;
        let heads = top.count("num_attention_heads", 1, MOST_HEADS)?;
        let layers_of_target = top.opt_count("num_target_layers", 1, 1 << 12)?;
        let both = |key| first([own.opt_count(key, 2, MOST_BLOCK), top.opt_count(key, 2, MOST_BLOCK)]);
        let block = both("block_size")?;
        let (rope_base, yarn) = json_rope(top)?;
        let (sliding, window) = json_sliding(top, own, layers)?;
        if let Some(act) = top.get("hidden_act").filter(|act| **act != "silu") {
            return Err(top.wrong("hidden_act", shown(act), "silu"));
        }
        if top.opt_bool("attention_bias")? == Some(true) {
            return Err(top.wrong("attention_bias", "true", "false"));
        }
        Ok(Self {
            hidden,
            layers,
            heads,
            kv_heads: top.opt_count("num_key_value_heads", 1, heads)?.unwrap_or(heads),
            head_dim: top.opt_count("head_dim", 1, MOST_HEAD_DIM)?.unwrap_or(hidden / heads),
            ffn: top.count("intermediate_size", 1, MOST_FFN)?,
            eps: top.positive("rms_norm_eps")? as f32,
            rope_base,
            yarn,
            block: block.ok_or_else(|| top.wrong("block_size", "nothing", "a number from 2 on"))?,
            target_layers: json_target_layers(top, own, layers, layers_of_target)?,
            layers_of_target,
            mask: Some(own.count("mask_token_id", 0, 1 << 24)? as u32),
            sliding,
            window,
            causal: first([top.opt_bool("is_causal"), own.opt_bool("causal")])?,
            softcap: first(
                [own, top].map(|o| o.opt_positive("final_logit_softcapping").map(|x| x.map(|x| x as f32))),
            )?,
            embedding_scale: own.opt_positive("input_embedding_scale")?.map(|x| x as f32),
            vocabulary: top.opt_count("vocab_size", 1, 1 << 24)?,
        })
    }

    /// Reads the metadata of a GGUF file.
    pub(super) fn from_gguf(meta: &Metadata) -> Result<Self> {
        let keys = Keys { meta, architecture: ARCHITECTURE };
        for key in ["attention.value_scale", "logit_scale"] {
            if let Some(x) = meta.opt_f32(&keys.name(key))?.filter(|x| *x != 1.0) {
                return Err(keys.wrong(key, x, "1: other values belong to other kinds of drafters"));
            }
        }
        let layers = keys.count("block_count", 1..=MOST_LAYERS)?;
        let heads = keys.count("attention.head_count", 1..=MOST_HEADS)?;
        let head_dim = keys.count("attention.key_length", 1..=MOST_HEAD_DIM)?;
        let value_dim = keys.count("attention.value_length", 1..=MOST_HEAD_DIM)?;
        if value_dim != head_dim {
            let expected = format!("the {head_dim} of `{}`", keys.name("attention.key_length"));
            return Err(keys.wrong("attention.value_length", value_dim, expected));
        }
        let mask = meta.opt_u32("tokenizer.ggml.mask_token_id")?;
        let (sliding, window) = gguf_sliding(keys, layers)?;
        let opt_positive = |key: &str| {
            let found = meta.opt_f32(&keys.name(key))?;
            found.map(|_| keys.positive(key)).transpose()
        };
        Ok(Self {
            hidden: keys.count("embedding_length", 1..=MOST_HIDDEN)?,
            layers,
            heads,
            kv_heads: keys.count("attention.head_count_kv", 1..=heads)?,
            head_dim,
            ffn: keys.count("feed_forward_length", 1..=MOST_FFN)?,
            eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            rope_base: f64::from(keys.positive("rope.freq_base")?),
            yarn: gguf_yarn(keys)?,
            block: keys.count("block_size", 2..=MOST_BLOCK)?,
            target_layers: gguf_target_layers(keys)?,
            layers_of_target: None,
            mask,
            sliding,
            window,
            causal: meta.opt_bool(&keys.name("attention.causal"))?,
            softcap: opt_positive("final_logit_softcapping")?,
            embedding_scale: opt_positive("embedding_scale")?,
            vocabulary: match meta.get("tokenizer.ggml.tokens") {
                Some(Value::Array(tokens)) => Some(tokens.len()),
                _ => keys.opt_count("vocab_size", 1..=1 << 24)?,
            },
        })
    }
}

/// Base of the rotary frequencies, and YaRN's settings.
fn json_rope(top: Object<'_>) -> Result<(f64, Option<Yarn>)> {
    let newer = top.object("rope_parameters", "rope_parameters.")?;
    let older = top.object("rope_scaling", "rope_scaling.")?;
    let base = first([newer.opt_positive("rope_theta"), top.opt_positive("rope_theta")])?;
    let base = base.ok_or_else(|| top.wrong("rope_theta", "nothing", "a finite number above 0"))?;
    let scaling = if newer.get("rope_type").is_some() { newer } else { older };
    let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
    match kind.map(|k| k.as_str().unwrap_or_default()) {
        None | Some("default") => Ok((base, None)),
        Some("yarn") => Ok((base, Some(json_yarn(top, scaling)?))),
        Some(_) => {
            let found = kind.map(shown).unwrap_or_default();
            Err(scaling.wrong("rope_type", found, "`default` or `yarn`"))
        }
    }
}

fn json_yarn(top: Object<'_>, scaling: Object<'_>) -> Result<Yarn> {
    let factor = scaling.positive("factor")?;
    let original = first([
        scaling.opt_positive("original_max_position_embeddings"),
        top.opt_positive("max_position_embeddings"),
    ])?;
    let original = original.ok_or_else(|| {
        scaling.wrong("original_max_position_embeddings", "nothing", "a number of positions")
    })?;
    let scales = [scaling.opt_positive("mscale")?, scaling.opt_positive("mscale_all_dim")?];
    let attention_factor = match (scaling.opt_positive("attention_factor")?, scales) {
        (Some(explicit), _) => explicit,
        (None, [Some(m), Some(all)]) => Yarn::scale(factor, m) / Yarn::scale(factor, all),
        _ => Yarn::scale(factor, 1.0),
    };
    Ok(Yarn {
        factor,
        original,
        beta_fast: scaling.opt_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: scaling.opt_positive("beta_slow")?.unwrap_or(1.0),
        attention_factor,
        truncate: scaling.opt_bool("truncate")?.unwrap_or(true),
    })
}

/// Per layer whether it slides, and the window.
fn json_sliding(top: Object<'_>, own: Object<'_>, layers: usize) -> Result<(Vec<bool>, Option<u32>)> {
    let kinds =
        top.opt_list("layer_types", "`full_attention` or `sliding_attention` for every layer", |k| match k
            .as_str()?
        {
            "full_attention" => Some(false),
            "sliding_attention" => Some(true),
            _ => None,
        })?;
    let asked = first([own.opt_bool("use_swa"), top.opt_bool("use_sliding_window")])?.unwrap_or(false);
    let sliding = match kinds {
        Some(kinds) if kinds.len() == layers => kinds,
        Some(kinds) => {
            let found = format!("{} layers", kinds.len());
            return Err(top.wrong("layer_types", found, format!("the {layers} of num_hidden_layers")));
        }
        None if asked => {
            return Err(top.wrong("layer_types", "nothing", "the kind of every layer where some slide"));
        }
        None => vec![false; layers],
    };
    let window = first([
        own.opt_count("swa_window_size", 1, MOST_WINDOW),
        top.opt_count("sliding_window", 1, MOST_WINDOW),
    ])?;
    if window.is_none() && sliding.contains(&true) {
        return Err(top.wrong("sliding_window", "nothing", "the window of the sliding layers"));
    }
    Ok((sliding, window.map(|w| w as u32)))
}

/// Ids of the model's layers; where the file names none, spread over the model as the training code does.
fn json_target_layers(
    top: Object<'_>,
    own: Object<'_>,
    layers: usize,
    of_target: Option<usize>,
) -> Result<Vec<usize>> {
    let id = |v: &Json| v.as_u64().and_then(|n| usize::try_from(n).ok());
    if let Some(ids) = own.opt_list("target_layer_ids", "ids of the model's layers", id)? {
        return Ok(ids);
    }
    let Some(target) = of_target else {
        return Err(own.wrong(
            "target_layer_ids",
            "nothing",
            "ids, or num_target_layers to spread them over",
        ));
    };
    if layers == 1 {
        return Ok(vec![target / 2]);
    }
    if target < 4 {
        return Err(top.wrong("num_target_layers", target, "at least 4 layers to spread features over"));
    }
    Ok((0..layers).map(|i| 1 + rounded(i * (target - 4), layers - 1)).collect())
}

/// `a / b`, rounded to the nearest integer, ties to the even one.
fn rounded(a: usize, b: usize) -> usize {
    let (floor, rest) = (a / b, a % b);
    match (2 * rest).cmp(&b) {
        std::cmp::Ordering::Less => floor,
        std::cmp::Ordering::Greater => floor + 1,
        std::cmp::Ordering::Equal => floor + floor % 2,
    }
}

/// The file numbers the inputs of layers: one more than the layer whose output it is.
fn gguf_target_layers(keys: Keys<'_>) -> Result<Vec<usize>> {
    let key = "target_layers";
    let Some(inputs) = keys.meta.opt_u32s(&keys.name(key))? else {
        return Err(keys.wrong(key, "nothing", "the model's layers whose outputs are the features"));
    };
    if inputs.contains(&0) {
        return Err(keys.wrong(key, format!("{inputs:?}"), "numbers from 1 on: ids of layers, plus 1"));
    }
    Ok(inputs.iter().map(|i| *i as usize - 1).collect())
}

fn gguf_sliding(keys: Keys<'_>, layers: usize) -> Result<(Vec<bool>, Option<u32>)> {
    let window = keys.opt_count("attention.sliding_window", 0..=MOST_WINDOW)?.filter(|w| *w > 0);
    let key = "attention.sliding_window_pattern";
    let sliding = match keys.meta.opt_bools(&keys.name(key))? {
        Some(pattern) if pattern.len() == layers => pattern,
        Some(pattern) => {
            let expected = format!("the {layers} of `{}`", keys.name("block_count"));
            return Err(keys.wrong(key, format!("{} layers", pattern.len()), expected));
        }
        None if window.is_some() => {
            return Err(keys.wrong(key, "nothing", "which layers slide where there is a window"));
        }
        None => vec![false; layers],
    };
    if window.is_none() && sliding.contains(&true) {
        return Err(keys.wrong("attention.sliding_window", "nothing", "the window of the sliding layers"));
    }
    Ok((sliding, window.map(|w| w as u32)))
}

fn gguf_yarn(keys: Keys<'_>) -> Result<Option<Yarn>> {
    let positive = |key: &str, default: f32| -> Result<f64> {
        let found = keys.meta.opt_f32(&keys.name(key))?;
        found.map(|_| keys.positive(key)).transpose().map(|x| f64::from(x.unwrap_or(default)))
    };
    match keys.meta.opt_str(&keys.name("rope.scaling.type"))?.as_deref() {
        None | Some("none") => return Ok(None),
        Some("yarn") => {}
        Some(kind) => {
            return Err(keys.wrong("rope.scaling.type", format!("`{kind}`"), "`none` or `yarn`"));
        }
    }
    let factor = f64::from(keys.positive("rope.scaling.factor")?);
    let original = keys.count("rope.scaling.original_context_length", 1..=MOST_WINDOW)? as f64;
    let attention = positive("rope.scaling.attn_factor", 1.0)?;
    Ok(Some(Yarn {
        factor,
        original,
        beta_fast: positive("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: positive("rope.scaling.yarn_beta_slow", 1.0)?,
        // This key multiplies YaRN's own factor, unlike `attention_factor` of a config, which takes its place.
        attention_factor: attention * Yarn::scale(factor, 1.0),
        truncate: true,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut Json)) -> Result<Config> {
        let mut json = serde_json::json!({
            "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "block_size": 8, "num_target_layers": 32,
            "dflash_config": {"mask_token_id": 4},
        });
        change(&mut json);
        Config::from_json(Path::new("drafter"), &json)
    }

    #[test]
    fn layers_spread_evenly_where_none_are_named() {
        let of = |layers: u32, target: u32| {
            config(|c| {
                c["num_hidden_layers"] = layers.into();
                c["num_target_layers"] = target.into();
            })
            .map(|c| c.target_layers)
        };
        assert_eq!(of(1, 9).expect("config"), [4]);
        assert_eq!(of(5, 64).expect("config"), [1, 16, 31, 46, 61]);
        // 1 + 13.5 rounds to the even 14 before the 1 is added.
        assert_eq!(of(3, 31).expect("config"), [1, 15, 28]);
        assert!(of(3, 3).is_err());
    }

    #[test]
    fn newer_places_win_over_older_ones() {
        let c = config(|c| {
            c["rope_parameters"] = serde_json::json!({"rope_theta": 5e5, "rope_type": "default"});
            c["final_logit_softcapping"] = 20.0.into();
            c["dflash_config"]["final_logit_softcapping"] = 30.0.into();
            c["dflash_config"]["block_size"] = 16.into();
            c["dflash_config"]["causal"] = true.into();
            c["is_causal"] = false.into();
        })
        .expect("config");
        assert_eq!((c.rope_base, c.softcap, c.block), (5e5, Some(30.0), 16));
        assert_eq!(c.causal, Some(false), "is_causal is asked first");
    }

    /// A change of a good config, and parts of the message.
    type Case = (fn(&mut Json), &'static [&'static str]);

    #[test]
    fn what_is_wrong_is_named() {
        let cases: [Case; 9] = [
            (|c| c["hidden_size"] = 0.into(), &["`hidden_size`", "0", "1 to"]),
            (|c| c["hidden_size"] = Json::Null, &["`hidden_size`", "nothing"]),
            (|c| c["rope_theta"] = "x".into(), &["`rope_theta`", "\"x\""]),
            (
                |c| c["rope_scaling"] = serde_json::json!({"rope_type": "llama3"}),
                &["`rope_scaling.rope_type`", "llama3", "yarn"],
            ),
            (
                |c| c["rope_scaling"] = serde_json::json!({"type": "yarn"}),
                &["`rope_scaling.factor`", "nothing"],
            ),
            (|c| c["dflash_config"] = 3.into(), &["`dflash_config`", "3", "an object"]),
            (|c| c["dflash_config"]["mask_token_id"] = (-1).into(), &["`dflash_config.mask_token_id`", "-1"]),
            (
                |c| c["layer_types"] = serde_json::json!(["full_attention"]),
                &["`layer_types`", "1 layers", "3"],
            ),
            (
                |c| c["layer_types"] = serde_json::json!(vec!["sliding_attention"; 3]),
                &["`sliding_window`", "nothing"],
            ),
        ];
        for (change, parts) in cases {
            let error = config(change).expect_err("a wrong config").to_string();
            assert!(parts.iter().all(|p| error.contains(p)), "{error}: {parts:?}");
        }
    }
}
