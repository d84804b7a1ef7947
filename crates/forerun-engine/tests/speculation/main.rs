//! Exact speculation: whoever drafts and however it goes, a request gives what plain decoding gives, to the bit.

mod callers;
#[path = "../common/mod.rs"]
mod common;
mod drafters;
mod numbers;
mod scripted;
mod shared;
