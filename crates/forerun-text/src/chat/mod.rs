//! Chat templates: a conversation becomes the prompt that the model was trained on.

mod guard;
mod namespace;
mod python;
mod size;
mod source;
mod stack;
#[cfg(test)]
mod tests;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{TextError, Tokenizer};
use guard::Guard;
use namespace::Namespaces;

/// ChatML, the template for files that have none.
pub const CHATML: &str = "{%- for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const NAME: &str = "chat";
/// Instructions that a template may spend, whatever it renders, and for each byte that it is given.
const FUEL: (u64, u64) = (2_000_000, 100);
/// Bytes that a template may have.
const LARGEST: usize = 64 << 10;

/// One message of a conversation, in the form of the OpenAI API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else a template knows.
    pub role: String,
    /// What is said; none beside tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// The thinking that led to an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls that the assistant makes: `{"type": "function", "function": {"name", "arguments"}}`. Arguments may be an
    /// object or its JSON text; templates get the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Value>>,
    /// Further fields (`name`, `tool_call_id`), which templates see as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts such as `{"type": "text", "text": "…"}`. If all are text, templates get them as one text.
    Parts(Vec<Value>),
}

impl Message {
    /// A message of plain text.
    #[must_use]
    pub fn new(role: &str, text: &str) -> Self {
        Self { role: role.to_owned(), content: Some(Content::Text(text.to_owned())), ..Self::default() }
    }

    fn to_template(&self) -> Value {
        let mut value = json!(self);
        if let Some(Content::Parts(parts)) = &self.content
            && let Some(text) = parts.iter().map(text_part).collect::<Option<String>>()
        {
            value["content"] = Value::String(text);
        }
        for call in value.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            let function = if call.get("function").is_some() { &mut call["function"] } else { call };
            if let Some(Value::String(text)) = function.get("arguments")
                && let Ok(Value::Object(object)) = serde_json::from_str(text)
            {
                function["arguments"] = Value::Object(object);
            }
        }
        value
    }
}

fn text_part(part: &Value) -> Option<&str> {
    let is_text = part.get("type").is_none_or(|kind| kind == "text");
    part.get("text").and_then(Value::as_str).filter(|_| is_text)
}

/// What a template is told besides the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Tool definitions, an array.
    pub tools: Option<Value>,
    /// Whether the model thinks before it answers; none leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Whether the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables.
    pub extra: Map<String, Value>,
    /// The moment that `strftime_now` shows: seconds since 1970, in UTC; none is now, in local time.
    pub unix_time: Option<i64>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            tools: None,
            enable_thinking: None,
            add_generation_prompt: true,
            extra: Map::new(),
            unix_time: None,
        }
    }
}

/// A chat template: Jinja as Hugging Face's `transformers` runs it (blocks trimmed, loop controls, Python's string and
/// dictionary methods, `tojson`, `raise_exception`, `strftime_now`).
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Variables with the texts of tokens: `bos_token` and the like.
    tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// When its syntax is wrong, with the line, it is larger than 64 KiB, or one of its tags is longer than 4 KiB without
    /// its string literals.
    pub fn new(source: &str) -> Result<Self, TextError> {
        if source.len() > LARGEST {
            let message = format!("found {} bytes, expected at most {LARGEST}", source.len());
            return Err(TextError::Template { line: 0, message });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| template_error(&e))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        python::install(&mut environment);
        let source = source::prepare(source)?;
        let depth = source.len();
        let parsed = stack::deep(depth, || environment.add_template_owned(NAME, source))?;
        parsed.map_err(|e| template_error(&e))?;
        Ok(Self { environment, tokens: Map::new() })
    }

    /// The template of a model, which also learns the texts of `bos_token`, `eos_token`, `unk_token` and `pad_token`;
    /// [`CHATML`] when the file has none but knows its tokens.
    ///
    /// # Errors
    /// When the template's syntax is wrong, or there is none and the vocabulary lacks `<|im_start|>` or `<|im_end|>`.
    pub fn for_tokenizer(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let spec = tokenizer.spec();
        let chatml = || ["<|im_start|>", "<|im_end|>"].iter().all(|text| tokenizer.special(text).is_some());
        let source = match &spec.chat_template {
            Some(source) => source,
            None if chatml() => CHATML,
            None => {
                let expected = "a template, or the tokens <|im_start|> and <|im_end|>";
                return Err(spec.error("tokenizer.chat_template", "nothing".into(), expected));
            }
        };
        let mut template = Self::new(source)?;
        let named = [
            ("bos_token", spec.bos),
            ("eos_token", spec.eos),
            ("unk_token", spec.unk),
            ("pad_token", spec.pad),
        ];
        for (name, id) in named {
            if let Some(text) = id.and_then(|id| tokenizer.token(id)) {
                template.tokens.insert(name.to_owned(), text.into());
            }
        }
        Ok(template)
    }

    /// Renders a conversation. To get token ids use [`ChatTemplate::encode`], which tells the template's control
    /// tokens from such text in a message.
    ///
    /// # Errors
    /// When the template fails, raises an exception, or does not come to an end; with the line.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, TextError> {
        self.render_variables(self.variables(messages, options), options)
    }

    /// Renders a conversation into token ids, BOS included where the model wants it. Control tokens count where the
    /// template writes them; in messages, tools and other variables they are plain text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, TextError> {
        let mut variables = Value::Object(self.variables(messages, options));
        let guard = Guard::new(tokenizer, &variables).ok_or_else(|| TextError::Template {
            line: 0,
            message: "messages use every noncharacter".into(),
        })?;
        guard.protect(&mut variables);
        let Value::Object(variables) = variables else { return Ok(Vec::new()) };
        let text = self.render_variables(variables, options)?;
        Ok(tokenizer.with_bos(tokenizer.encode_guarded(&text, true, Some(guard.mark()))?))
    }

    fn variables(&self, messages: &[Message], options: &ChatOptions) -> Map<String, Value> {
        let mut variables = options.extra.clone();
        variables.insert("messages".into(), messages.iter().map(Message::to_template).collect());
        variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        if let Some(tools) =
            options.tools.as_ref().filter(|tools| tools.as_array().is_none_or(|a| !a.is_empty()))
        {
            variables.insert("tools".into(), tools.clone());
        }
        if let Some(thinking) = options.enable_thinking {
            variables.insert("enable_thinking".into(), thinking.into());
        }
        variables
    }

    fn render_variables(
        &self,
        mut variables: Map<String, Value>,
        options: &ChatOptions,
    ) -> Result<String, TextError> {
        for (name, text) in &self.tokens {
            variables.entry(name).or_insert_with(|| text.clone());
        }
        let bytes = Value::Object(variables.clone()).to_string().len() as u64;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL.0.saturating_add(bytes.saturating_mul(FUEL.1))));
        python::set_clock(&mut environment, options.unix_time);
        let namespaces = Namespaces::default();
        namespaces.install(&mut environment);
        let render = || {
            let text = environment.get_template(NAME)?.render(minijinja::value::Serde(&variables));
            namespaces.clear();
            text
        };
        stack::deep(0, render)?.map_err(|e| template_error(&e))
    }
}

fn template_error(error: &minijinja::Error) -> TextError {
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Template { line: error.line().unwrap_or(0), message }
}
