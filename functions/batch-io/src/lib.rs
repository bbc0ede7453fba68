//! batch-io.
