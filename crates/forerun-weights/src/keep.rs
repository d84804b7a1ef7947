//! Types that a user wants for some tensors.

use forerun_models::TensorHeader;
use forerun_quant::{ENCODED, TensorType};
use regex::Regex;

use crate::error::{Result, WeightsError};
use crate::mix::may_change;

/// A wish: tensors of these names get this type, whatever the file's type says.
#[derive(Clone, Debug)]
pub struct Keep {
    text: String,
    pattern: Regex,
    /// `None` for the type it has.
    ty: Option<TensorType>,
}

fn option(found: String, expected: impl Into<String>) -> WeightsError {
    WeightsError::Option { option: "keep", found, expected: expected.into() }
}

impl Keep {
    /// Reads `PATTERN=TYPE`. The pattern is a regular expression that is looked for anywhere in a tensor's name; the type is one
    /// that rows can be encoded in, or `same` for what the tensor has.
    ///
    /// # Errors
    /// When the text has another form, the pattern is no regular expression, or there is no such type.
    pub fn parse(text: &str) -> Result<Self> {
        let form = "PATTERN=TYPE, as in 'attn_v=q8_0'";
        let (pattern, ty) = text
            .rsplit_once('=')
            .filter(|(pattern, _)| !pattern.is_empty())
            .ok_or_else(|| option(text.to_owned(), form))?;
        let named = TensorType::from_name(ty).filter(|ty| ENCODED.contains(ty));
        if named.is_none() && !ty.eq_ignore_ascii_case("same") {
            let names = ENCODED.iter().map(|ty| ty.name().to_lowercase()).collect::<Vec<_>>().join(", ");
            return Err(option(ty.to_owned(), format!("same, {names}")));
        }
        let pattern = Regex::new(pattern).map_err(|e| {
            let why = e.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            option(format!("{pattern:?} ({why})"), "a regular expression")
        })?;
        Ok(Self { text: text.to_owned(), pattern, ty: named })
    }
}

/// The type that each tensor gets of the first wish for it; `None` where there is none.
///
/// # Errors
/// When a wish is for no matrix that may change its type, or for one whose rows are no whole blocks of the type.
pub(crate) fn fixed(wishes: &[Keep], tensors: &[TensorHeader]) -> Result<Vec<Option<TensorType>>> {
    for wish in wishes {
        let mut named = tensors.iter().filter(|t| wish.pattern.is_match(&t.name)).peekable();
        let any = named.peek().is_some();
        if !named.any(may_change) {
            let what =
                if any { "only tensors that never change their type" } else { "no tensor of this name" };
            let expected =
                "a pattern that is found in the name of a matrix (`forerun info --tensors` lists them)";
            return Err(option(format!("{:?}, and {what}", wish.text), expected));
        }
    }
    let of = |t: &TensorHeader| -> Result<Option<TensorType>> {
        let Some(wish) = wishes.iter().find(|wish| wish.pattern.is_match(&t.name)) else { return Ok(None) };
        let forerun_files::TensorKind::Known(now) = t.kind else { return Ok(None) };
        let ty = wish.ty.unwrap_or(now);
        let cols = t.dims.first().copied().unwrap_or(0);
        if may_change(t) && ty.row_bytes(cols).is_none() {
            let expected = format!("a type whose blocks make up rows of {cols}, as those of `{}`", t.name);
            return Err(option(format!("{:?}, blocks of {}", wish.text, ty.block_elements()), expected));
        }
        Ok(Some(ty))
    };
    tensors.iter().map(of).collect()
}
