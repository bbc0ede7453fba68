//! Text to token ids and back, chat templates, and stop rules.
//!
//! Start at [`Tokenizer`] and [`ChatTemplate`]. What users write is never taken for a control token.

mod byte_level;
mod chat_template;
mod deep_stack;
mod gguf_tokenizer;
mod guard;
mod json_tokenizer;
mod specials;
mod split;
pub mod stop;
mod strftime;
mod tokenizer;
mod unicode;

pub use chat_template::{ChatTemplate, TemplateError};
pub(crate) use gguf_tokenizer::{GgufVocabulary, TokenKind};
pub use tokenizer::{Specials, Tokenizer, TokenizerError};
