//! The suite that every backend must pass against the scalar reference.
//!
//! It sees a backend as an engine does: it loads small models with random weights, runs steps, and reads the
//! log-probabilities of the whole vocabulary for every row. Within one backend it compares bits, with the
//! reference it compares within a tolerance. Panics with the case's name where a backend fails.

mod case;
#[cfg(test)]
mod cuda;
mod extra;
mod model;
mod sampling;
mod shape;
mod step;
#[cfg(test)]
mod tests;
pub(in crate::backend) mod weights;

use super::scalar::{ScalarBackend, ScalarConfig};
use super::{Backend, BackendError, KvType, Recipe};

/// The most rows that the suite puts in one step: backends are made for at least this many.
pub const MAX_ROWS: usize = 64;

/// What the suite must know of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How its products are computed.
    pub recipe: Recipe,
    /// Number type of its cache.
    pub kv: KvType,
    /// The most that a log-probability may differ from the reference's.
    pub tolerance: f32,
}

/// What a backend refused at load, as it may.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Names of the cases that did not run.
    pub skipped: Vec<&'static str>,
}

/// Runs the whole suite; `make` makes a backend for at least [`MAX_ROWS`] rows.
///
/// # Panics
///
/// If the backend fails a case.
pub fn run<B: Backend>(make: impl Fn() -> B, options: Options) -> Report {
    let mut report = Report::default();
    let suite = Suite {
        make: &make,
        options,
    };
    for shape in shape::shapes() {
        suite.attempt(&mut report, shape.name, || {
            case::matches_the_reference(&suite, &shape)
        });
    }
    for shape in shape::shapes().into_iter().filter(|shape| shape.invariance) {
        suite.attempt(&mut report, shape.name, || {
            case::rows_do_not_depend_on_the_schedule(&suite, &shape)
        });
    }
    suite.attempt(&mut report, "prefix hits", || {
        case::shared_pages_give_the_same_rows(&suite)
    });
    suite.attempt(&mut report, "poison", || {
        case::stale_memory_is_never_read(&suite)
    });
    suite.attempt(&mut report, "empty steps", || {
        case::empty_steps_change_nothing(&suite)
    });
    suite.attempt(&mut report, "last tokens", || {
        case::last_tokens_come_from_the_slots(&suite)
    });
    suite.attempt(&mut report, "sampling", || {
        sampling::draws_equal_the_reference(&suite)
    });
    suite.attempt(&mut report, "histories", || {
        sampling::histories_follow_the_slots(&suite)
    });
    suite.attempt(&mut report, "experts", || {
        extra::experts_match_the_reference(&suite)
    });
    suite.attempt(&mut report, "latent", || {
        extra::latent_attention_matches_the_reference(&suite)
    });
    suite.attempt(&mut report, "encoder", || {
        extra::encoder_matches_the_reference(&suite)
    });
    report
}

/// Checks that two backends give the same bits, row by row, on every shape that both load.
///
/// # Panics
///
/// If they do not.
pub fn assert_same_bits<A: Backend, B: Backend>(
    a: impl Fn() -> A,
    b: impl Fn() -> B,
    options: Options,
) {
    let (a, b) = (Suite { make: &a, options }, Suite { make: &b, options });
    let mut compared = 0;
    for shape in shape::shapes() {
        match (case::trace(&a, &shape), case::trace(&b, &shape)) {
            (Ok(left), Ok(right)) => {
                step::assert_same_bits(shape.name, &left, &right);
                compared += 1;
            }
            (Err(BackendError::Unsupported { .. }), Err(BackendError::Unsupported { .. })) => {}
            (left, right) => panic!("{}: {:?}, {:?}", shape.name, left.err(), right.err()),
        }
    }
    assert!(compared > 0, "no shape loads on both backends");
}

/// A backend under test.
struct Suite<'a, B> {
    make: &'a dyn Fn() -> B,
    options: Options,
}

impl<B: Backend> Suite<'_, B> {
    /// Runs a case, and notes its name if the backend does not support what it needs.
    fn attempt(
        &self,
        report: &mut Report,
        name: &'static str,
        case: impl FnOnce() -> Result<(), BackendError>,
    ) {
        match case() {
            Ok(()) => {}
            Err(BackendError::Unsupported { .. }) if !report.skipped.contains(&name) => {
                report.skipped.push(name)
            }
            Err(BackendError::Unsupported { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// Makes the reference, and its options.
fn reference() -> (ScalarBackend, Options) {
    let backend = ScalarBackend::new(ScalarConfig {
        max_rows: MAX_ROWS,
        lookahead: 0,
    });
    (
        backend,
        Options {
            recipe: Recipe::F32,
            kv: KvType::F32,
            tolerance: 0.0,
        },
    )
}
