//! Hugging Face folders, read as the GGUF files that they would be.

mod equal;
mod folder;
mod hostile;
mod layouts;
mod mlx;
mod pack;
mod tokenizer;
