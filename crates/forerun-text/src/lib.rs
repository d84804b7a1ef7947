//! Text: tokenizer, incremental decoding, chat templates.
//!
//! [`TokenizerSpec`] is what a model file says about its tokenizer; [`Tokenizer`] turns text into token ids and ids
//! into bytes; [`StreamDecoder`] emits text while tokens arrive, and [`StopStrings`] and [`ThinkSplitter`] work on
//! that stream. [`ChatTemplate`] renders a conversation into the prompt that the model was trained on.
//!
//! ```no_run
//! use forerun_text::{Decoded, StreamDecoder, Tokenizer, TokenizerSpec};
//! # fn show(metadata: &forerun_files::Metadata) -> Result<(), forerun_text::TextError> {
//! let tokenizer = Tokenizer::new(TokenizerSpec::from_metadata(metadata)?)?;
//! let ids = tokenizer.encode("def main():", false)?;
//! let mut stream = StreamDecoder::new(&tokenizer, Decoded::WithoutControl);
//! for id in ids {
//!     print!("{}", stream.push(id));
//! }
//! println!("{}", stream.finish());
//! # Ok(()) }
//! ```

mod chat;
mod error;
mod spec;
mod stop;
mod stream;
mod think;
mod tokenizer;

pub use chat::{CHATML, ChatOptions, ChatTemplate, Content, Message};
pub use error::TextError;
pub use spec::{TokenKind, TokenizerSpec};
pub use stop::{StopOutput, StopStrings};
pub use stream::StreamDecoder;
pub use think::{Split, ThinkSplitter};
pub use tokenizer::{Decoded, Tokenizer};
