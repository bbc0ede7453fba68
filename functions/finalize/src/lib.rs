//! finalize.
