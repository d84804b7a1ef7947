//! Tests of GGUF files: reading, writing, split checkpoints, hostile files.

// A failed step of a test is a failed test.
#![allow(clippy::unwrap_used)]

mod broken;
mod common;
mod reading;
mod split;
mod writing;
