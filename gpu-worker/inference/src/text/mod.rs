//! Text to token ids and back, chat templates, and stop rules.
