//! `/models`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use batch_core::wire::model::ModelList;
use batch_core::wire::{ModelObject, WireError};

use crate::caller::Caller;
use crate::context::Context;
use crate::reply::{Reply, json};

pub(crate) async fn list(State(context): State<Arc<Context>>, _caller: Caller) -> Reply {
    Ok(json(&ModelList::new(context.catalog.models())))
}

/// An id may hold slashes, written so or as `%2F`. An alias gives the model itself.
pub(crate) async fn retrieve(
    State(context): State<Arc<Context>>,
    _caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Reply {
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let model = context
        .catalog
        .resolve(&id)
        .ok_or_else(|| WireError::no_model(&id))?;
    Ok(json(&ModelObject::from(model)))
}
