//! Runs a function on a stack of its own size.
//!
//! The template engine walks and drops values and syntax trees by recursion, as deep as a template likes to
//! nest them. Depth is bounded by fuel and by the template's length, so a stack in proportion is never
//! overflowed; the memory is reserved, and only used if the recursion comes.

use std::thread::{Builder, scope};

/// Runs `work` to its end on a stack of `stack_bytes`.
///
/// # Errors
///
/// [`std::io::Error`] if the system gives no such stack.
pub(super) fn on_stack<T: Send>(
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> std::io::Result<T> {
    scope(|scope| {
        let thread = Builder::new()
            .name("chat-template".to_owned())
            .stack_size(stack_bytes)
            .spawn_scoped(scope, work)?;
        Ok(thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
