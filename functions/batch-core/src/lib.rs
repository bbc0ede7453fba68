//! batch-core.
