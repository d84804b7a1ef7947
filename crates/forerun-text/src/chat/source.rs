//! What is done to a template's source before the engine gets it.

use regex::{Captures, Regex};

use super::namespace::ASSIGN;
use crate::TextError;

/// Bytes of a tag or an expression outside of its string literals: the engine's time to parse one is quadratic.
const LONGEST: usize = 4 << 10;

/// The source with assignments to namespaces (`{% set ns.x = 1 %}`) as calls of their method, and with the tags that
/// mark what training learns from (`{% generation %}`) as blocks that are always taken. Lines keep their numbers.
///
/// What this does not recognise as an assignment, the engine refuses.
pub(super) fn prepare(source: &str) -> Result<String, TextError> {
    let rules = Rules::new()?;
    let mut out = String::with_capacity(source.len());
    let mut blocks = Vec::new();
    let mut rest = source;
    while let Some(at) = opening(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (length, code) = extent(rest);
        if code > LONGEST {
            let line = 1 + source[..source.len() - rest.len()].matches('\n').count();
            let message =
                format!("a tag of {code} bytes without its string literals, expected at most {LONGEST}");
            return Err(TextError::Template { line, message });
        }
        let tag = &rest[..length];
        rest = &rest[length..];
        if rules.raw.is_match(tag) {
            let end = rules.endraw.find(rest).map_or(rest.len(), |found| found.end());
            out.push_str(tag);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        } else {
            out.push_str(&rules.rewrite(tag, &mut blocks));
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Where the next tag, expression or comment begins.
fn opening(text: &str) -> Option<usize> {
    let opens = |at: usize| matches!(text.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#'));
    text.match_indices('{').map(|(at, _)| at).find(|at| opens(*at))
}

/// Length of the tag, expression or comment at the start of a text, and how much of it is code outside of strings.
fn extent(text: &str) -> (usize, usize) {
    let bytes = text.as_bytes();
    let close = match bytes[1] {
        b'#' => return (text.find("#}").map_or(text.len(), |at| at + 2), 0),
        b'%' => b'%',
        _ => b'}',
    };
    let (mut at, mut code, mut open) = (2, 0_usize, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        if open == 0 && byte == close && bytes.get(at + 1) == Some(&b'}') {
            return (at + 2, code);
        }
        match byte {
            b'\'' | b'"' => at = string_end(bytes, at),
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        at += 1;
        code += 1;
    }
    (text.len(), code)
}

/// Where the string literal that begins at `start` has its closing quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            _ if byte == bytes[start] => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len().saturating_sub(1)
}

/// A block (`{% set ns.x %}…{% endset %}`) that is to be assigned to a namespace when it ends.
struct Block {
    base: String,
    name: String,
    variable: String,
}

struct Rules {
    raw: Regex,
    endraw: Regex,
    assignment: Regex,
    block: Regex,
    plain_block: Regex,
    end_block: Regex,
    generation: Regex,
    end_generation: Regex,
}

impl Rules {
    fn new() -> Result<Self, TextError> {
        const TARGET: &str = r"(\w+(?:\s*\.\s*\w+)*?)\s*\.\s*(\w+)";
        let regex = |pattern: &str| {
            Regex::new(pattern).map_err(|e| TextError::Template { line: 0, message: e.to_string() })
        };
        let tag = |inside: &str| regex(&format!(r"(?s)^\{{%([-+]?)\s*{inside}\s*([-+]?)%\}}$"));
        Ok(Self {
            raw: tag("raw")?,
            endraw: regex(r"\{%[-+]?\s*endraw\s*[-+]?%\}")?,
            assignment: tag(&format!(r"set\s+{TARGET}\s*=\s*(.*?)"))?,
            block: tag(&format!(r"set\s+{TARGET}\s*(\|.*?)?"))?,
            plain_block: tag(r"set\s+\w+\s*(?:\|.*?)?")?,
            end_block: tag("endset")?,
            generation: tag("generation")?,
            end_generation: tag("endgeneration")?,
        })
    }

    fn rewrite(&self, tag: &str, blocks: &mut Vec<Option<Block>>) -> String {
        let call = |base: &str, name: &str, value: &str| format!("do {base}.{ASSIGN}('{name}', ({value}))");
        if let Some(found) = self.assignment.captures(tag) {
            let [open, base, name, value, close] = parts(&found);
            return format!("{{%{open} {} {close}%}}", call(base, name, value));
        }
        if let Some(found) = self.block.captures(tag) {
            let [open, base, name, filter, close] = parts(&found);
            let variable = format!("block_{}_{name}", blocks.len());
            let text = format!("{{%{open} set {variable} {filter} {close}%}}");
            blocks.push(Some(Block { base: base.to_owned(), name: name.to_owned(), variable }));
            return text;
        }
        if self.plain_block.is_match(tag) {
            blocks.push(None);
        } else if let Some(found) = self.end_block.captures(tag) {
            if let Some(Block { base, name, variable }) = blocks.pop().flatten() {
                let [open, close] = parts(&found);
                return format!("{{%{open} endset %}}{{% {} {close}%}}", call(&base, &name, &variable));
            }
        } else if let Some(found) = self.generation.captures(tag) {
            let [open, close] = parts(&found);
            return format!("{{%{open} if true {close}%}}");
        } else if let Some(found) = self.end_generation.captures(tag) {
            let [open, close] = parts(&found);
            return format!("{{%{open} endif {close}%}}");
        }
        tag.to_owned()
    }
}

/// The groups of a match, empty where one took no part.
fn parts<'t, const N: usize>(found: &Captures<'t>) -> [&'t str; N] {
    std::array::from_fn(|group| found.get(group + 1).map_or("", |part| part.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_become_calls() {
        for (source, expected) in [
            ("{%- set ns.x = a -%}", "{%- do ns.__setattr__('x', (a)) -%}"),
            ("{%set a.b.c=1,2%}", "{% do a.b.__setattr__('c', (1,2)) %}"),
            ("{% set n.s = '%}' ~ \"\\\"%}\" %}", "{% do n.__setattr__('s', ('%}' ~ \"\\\"%}\")) %}"),
            ("{% set x = y.z == 1 %}{{ 'set a.b = 1' }}", "{% set x = y.z == 1 %}{{ 'set a.b = 1' }}"),
            ("{# {% set a.b = 1 %} #}{% raw %}{% set a.b = 1 %}{% endraw %}", ""),
            (
                "{{ {'a': {'b': 1}} }}{% set n.x = {'a': {}} %}",
                "{{ {'a': {'b': 1}} }}{% do n.__setattr__('x', ({'a': {}})) %}",
            ),
            (
                "{% set n.x | upper %}{% set y %}b{% endset %}a{%- endset -%}",
                "{% set block_0_x | upper %}{% set y %}b{% endset %}a{%- endset %}{% do n.__setattr__('x', (block_0_x)) -%}",
            ),
            ("{{ 'open", ""),
            ("{% set a.b = (", ""),
        ] {
            let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            let expected = if expected.is_empty() { source } else { expected };
            assert_eq!(squeeze(&prepare(source).unwrap()), squeeze(expected), "{source}");
        }
    }

    #[test]
    fn long_tags_name_their_line() {
        let error = prepare(&format!("\n{{{{ 1{} }}}}", "~1".repeat(LONGEST))).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        let text = format!("{{{{ '{}' }}}}", "x".repeat(2 * LONGEST));
        assert_eq!(prepare(&text).unwrap(), text, "string literals may be long");
    }
}
