//! Models on disk: where they lie, what `nightshift models` shows, and how one is fetched.

mod list;
mod measure;
mod pull;
mod shelf;

pub(crate) use list::list;
pub(crate) use measure::measure;
pub(crate) use pull::pull;
pub(crate) use shelf::Shelf;
