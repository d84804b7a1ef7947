//! Exact speculation: whoever drafts and however it goes, a request gives what plain decoding gives, to the bit.

mod callers;
#[path = "../common/mod.rs"]
mod common;
mod drafters;
#[path = "../../../forerun-models/tests/hub/folder.rs"]
mod folder;
mod numbers;
#[path = "../../../forerun-models/tests/hub/pack.rs"]
mod pack;
mod scripted;
mod shared;
