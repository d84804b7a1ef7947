//! Keeps control tokens in messages apart from those that the template writes.
//!
//! A mark, a Unicode noncharacter that occurs nowhere in the variables, is put before each control token in them; it
//! survives whatever the template does (trim, split, join), and [`Tokenizer::encode_guarded`] reads it.

use serde_json::Value;

use crate::Tokenizer;

pub(super) struct Guard<'t> {
    tokenizer: &'t Tokenizer,
    mark: char,
}

impl<'t> Guard<'t> {
    /// A guard with a mark that the variables do not use; `None` if they use all.
    pub(super) fn new(tokenizer: &'t Tokenizer, variables: &Value) -> Option<Self> {
        let text = variables.to_string();
        let mark = ('\u{FDD0}'..='\u{FDEF}').find(|&mark| !text.contains(mark))?;
        Some(Self { tokenizer, mark })
    }

    pub(super) fn mark(&self) -> char {
        self.mark
    }

    /// Puts marks into every string, names of fields included.
    pub(super) fn protect(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.protect_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.protect(item)),
            Value::Object(fields) => {
                let old = std::mem::take(fields);
                fields.extend(old.into_iter().map(|(mut name, mut field)| {
                    self.protect_text(&mut name);
                    self.protect(&mut field);
                    (name, field)
                }));
            }
            _ => {}
        }
    }

    fn protect_text(&self, text: &mut String) {
        let starts: Vec<usize> =
            self.tokenizer.specials().find(text, true).map(|(range, _)| range.start).collect();
        if starts.is_empty() {
            return;
        }
        let mut marked = String::with_capacity(text.len() + starts.len() * self.mark.len_utf8());
        let mut done = 0;
        for start in starts {
            marked.push_str(&text[done..start]);
            marked.push(self.mark);
            done = start;
        }
        marked.push_str(&text[done..]);
        *text = marked;
    }
}
