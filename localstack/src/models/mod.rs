//! Models on disk: where they lie, what `nightshift models` shows, and how one is fetched. Models that servers have:
//! how one is called.

mod list;
mod measure;
mod pull;
mod served;
mod shelf;

pub(crate) use list::list;
pub(crate) use measure::measure;
pub(crate) use pull::pull;
pub(crate) use served::served;
pub(crate) use shelf::Shelf;
