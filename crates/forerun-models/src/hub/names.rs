//! Names of tensors in Hugging Face folders, whatever the class or tool that wrote them.

/// What stands before the names of a text model: of multimodal classes, of MLX, of text classes.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// What the names of parts that text does not need begin with, behind `model.` or alone.
const OTHER_PARTS: [&str; 8] = [
    "visual.",
    "vision_tower.",
    "vision_model.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "multi_modal_projector.",
    "vision_embedder.",
];

/// A tensor's name without its prefix; `None` for parts that see or hear, and for tables that are computed.
pub(super) fn canonical(name: &str) -> Option<&str> {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    if OTHER_PARTS.iter().any(|part| bare.starts_with(part)) || name.ends_with("rotary_emb.inv_freq") {
        return None;
    }
    Some(PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name))
}

/// `layers.N.rest` (behind `prefix`) in its parts.
pub(super) fn layer<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (index, rest) = name.strip_prefix(prefix)?.strip_prefix("layers.")?.split_once('.')?;
    Some((number(index)?, rest))
}

/// `N.rest` in its parts.
pub(super) fn numbered(name: &str) -> Option<(usize, &str)> {
    let (index, rest) = name.split_once('.')?;
    Some((number(index)?, rest))
}

/// A number as names write it: no sign, no leading zero.
fn number(digits: &str) -> Option<usize> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if plain { digits.parse().ok() } else { None }
}

/// The second of the pair whose first is `name`.
pub(super) fn lookup(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

/// Whether GGUF files hold a tensor as float32 whatever their type: vectors, norms, routers and convolution taps.
#[must_use]
pub fn always_f32(name: &str, dims: &[usize]) -> bool {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    dims.len() <= 1
        || stem.ends_with("_norm")
        || ["ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d"].iter().any(|s| stem.ends_with(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_every_class() {
        for name in ["model.", "model.language_model.", "language_model.model.", ""]
            .map(|p| format!("{p}norm.weight"))
        {
            assert_eq!(canonical(&name), Some("norm.weight"), "{name}");
        }
        for name in ["language_model.lm_head.weight", "lm_head.weight"] {
            assert_eq!(canonical(name), Some("lm_head.weight"), "{name}");
        }
        for name in ["model.mtp.fc.weight", "mtp.fc.weight", "language_model.mtp.fc.weight"] {
            assert_eq!(canonical(name), Some("mtp.fc.weight"), "{name}");
        }
        for name in
            ["model.visual.blocks.0.norm1.weight", "vision_tower.x", "model.embed_audio.y", "audio_tower.z"]
        {
            assert_eq!(canonical(name), None, "{name}");
        }
    }

    #[test]
    fn numbers_are_plain() {
        assert_eq!(layer("layers.12.mlp.up_proj.weight", ""), Some((12, "mlp.up_proj.weight")));
        assert_eq!(layer("mtp.layers.0.x", "mtp."), Some((0, "x")));
        for name in ["layers.+1.x", "layers.01.x", "layers..x", "layers.x", "layers.99999999999999999999.x"] {
            assert_eq!(layer(name, ""), None, "{name}");
        }
    }
}
