//! What chat templates expect of Python and of Hugging Face's `transformers`.

use std::io;

use jiff::{Timestamp, Zoned, tz::TimeZone};
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter};

use super::namespace::ASSIGN;
use super::size::{Size, pay_bytes};

/// Bytes that an indentation or a separator of `tojson` may have.
const WIDEST: usize = 64;
/// Bytes that a byte of text can become in JSON: `\u0000`.
const ESCAPED: usize = 6;
/// Indentation of `pprint`.
const PRETTY: usize = 4;

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment
        .add_function("raise_exception", |message: String| -> Result<(), Error> { Err(failed(message)) });
    environment.add_filter("tojson", tojson);
    environment.add_filter("pprint", |state: &State, value: &Value| -> Result<String, Error> {
        Size::of(state, value)?.pay(state, 0, PRETTY, ESCAPED)?;
        Ok(format!("{value:#?}"))
    });
    environment.add_filter("string", |state: &State, value: &Value| -> Result<Value, Error> {
        pay_for_containers(state, value)?;
        minijinja::filters::string(state, value)
    });
    environment.set_formatter(|out, state, value| {
        pay_for_containers(state, value)?;
        minijinja::escape_formatter(out, state, value)
    });
}

/// The engine itself charges for texts, but for a container only once it is written.
fn pay_for_containers(state: &State, value: &Value) -> Result<(), Error> {
    if value.as_object().is_none() {
        return Ok(());
    }
    Size::of(state, value)?.pay(state, 0, 0, 1)
}

/// Python's methods of texts, lists and dictionaries.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == ASSIGN {
        return Err(failed(format!("can only assign to namespaces, not {}", value.kind())));
    }
    if let ("format", Some(text)) = (name, value.as_str()) {
        pay_for_format(state, text, args)?;
    }
    if name == "join" {
        args.iter().try_for_each(|list| pay_for_containers(state, list))?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `str.format` writes any argument in any field, and pads it to any width or precision: the numbers in the fields.
fn pay_for_format(state: &State, text: &str, args: &[Value]) -> Result<(), Error> {
    let (mut fields, mut padding) = (0_usize, 0_usize);
    for field in text.split('{').skip(1) {
        fields += 1;
        let inside = field.split('}').next().unwrap_or_default();
        for number in inside.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty()) {
            padding = padding.saturating_add(number.parse().unwrap_or(usize::MAX));
        }
    }
    pay_bytes(state, padding.saturating_mul(char::MAX.len_utf8()))?;
    args.iter().try_for_each(|value| Size::of(state, value)?.pay(state, 0, 0, fields))
}

/// Defines `strftime_now`: a moment in seconds since 1970, in UTC, or now in local time.
pub(super) fn set_clock(environment: &mut Environment<'static>, unix_time: Option<i64>) {
    environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        let moment = match unix_time {
            Some(seconds) => Timestamp::from_second(seconds).map_err(failed)?.to_zoned(TimeZone::UTC),
            None => Zoned::now(),
        };
        jiff::fmt::strtime::format(&format, &moment).map_err(failed)
    });
}

fn failed(message: impl ToString) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}

/// Python's `json.dumps`, which escapes neither HTML nor, unless asked, anything beyond ASCII.
fn tojson(state: &State, value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => short("indent", text)?,
            None => " ".repeat(usize::try_from(indent)?.min(WIDEST)),
        }),
    };
    let separators: Option<(String, String)> =
        match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
            None => None,
            Some([item, key]) => Some((short("separators", item)?, short("separators", key)?)),
            Some(_) => return Err(failed("tojson: separators are two texts")),
        };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (item.to_owned(), ": ".to_owned()));
    let width = indent.as_ref().map_or(0, String::len);
    Size::of(state, value)?.pay(state, item.len() + key.len(), width, ESCAPED)?;
    let style = PythonStyle { indent, item, key, ascii, depth: 0, filled: false };

    let mut value = serde_json::to_value(value).map_err(failed)?;
    if sort {
        value.sort_all_objects();
    }
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(failed)?;
    String::from_utf8(out).map_err(failed)
}

fn short(option: &str, text: &str) -> Result<String, Error> {
    if text.len() > WIDEST {
        return Err(failed(format!("tojson: {option} of {} bytes, expected at most {WIDEST}", text.len())));
    }
    Ok(text.to_owned())
}

struct PythonStyle {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    depth: usize,
    /// Whether the innermost open array or object has anything in it.
    filled: bool,
}

impl PythonStyle {
    fn line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if self.filled {
            self.line(out)?;
        }
        self.filled = true;
        out.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.line(out)
    }
}

impl Formatter for PythonStyle {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(text.as_bytes());
        }
        text.chars().try_for_each(|c| match c {
            ' '..='~' => write!(out, "{c}"),
            _ => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}")),
        })
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        match escape {
            CharEscape::Quote => out.write_all(b"\\\""),
            CharEscape::ReverseSolidus => out.write_all(b"\\\\"),
            CharEscape::Solidus => out.write_all(b"/"),
            CharEscape::Backspace => out.write_all(b"\\b"),
            CharEscape::FormFeed => out.write_all(b"\\f"),
            CharEscape::LineFeed => out.write_all(b"\\n"),
            CharEscape::CarriageReturn => out.write_all(b"\\r"),
            CharEscape::Tab => out.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(out, "\\u{byte:04x}"),
        }
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

/// Python's `repr` of a float: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    match scientific
        .split_once('e')
        .and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)))
    {
        Some((digits, exponent)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        None => scientific,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.1, "0.1"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
        ] {
            assert_eq!(python_float(value), text);
        }
    }
}
