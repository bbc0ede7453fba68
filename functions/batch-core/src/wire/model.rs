//! Models as clients see them.

use serde::Serialize;

use crate::catalog::Model;

/// A model object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelObject<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    owned_by: &'a str,
}

impl<'a> From<&'a Model> for ModelObject<'a> {
    /// The catalog holds no dates: `created`, which clients require, is always 0.
    fn from(model: &'a Model) -> Self {
        Self {
            id: &model.id,
            object: "model",
            created: 0,
            owned_by: model.owned_by.as_deref().unwrap_or("nightshift"),
        }
    }
}

/// All models: the one list without pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelObject<'a>>,
}

impl<'a> ModelList<'a> {
    /// Lists models in the catalog's order.
    #[must_use]
    pub fn new(models: &'a [Model]) -> Self {
        Self {
            object: "list",
            data: models.iter().map(ModelObject::from).collect(),
        }
    }
}
