//! Exact speculation: whoever drafts and however it goes, a request gives what plain decoding gives, to the bit.

#[path = "../common/mod.rs"]
mod common;
mod drafters;
mod scripted;
mod shared;
