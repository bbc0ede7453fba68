//! Tokens that a tenant has waiting: reserved when a batch is published, returned when it ends.

use batch_core::id::TenantId;

use super::fields::{Attrs, to_int};
use super::paths;
use crate::port::{Action, ActionKind, Condition, Update};

const TOKENS: &str = "tokens";

/// Reserves tokens IF the tenant stays within `limit`; none if that cannot be.
///
/// Without a limit they are counted all the same: a limit that is set later then finds the right sum.
pub(super) fn reserve(tenant: &TenantId, tokens: u64, limit: Option<u64>) -> Option<Action> {
    let condition = match limit {
        None => None,
        // A tenant with nothing waiting has no record, which the condition allows.
        Some(limit) => Some(Condition::BelowOrAbsent(
            TOKENS.to_owned(),
            to_int(limit.checked_sub(tokens)?) + 1,
        )),
    };
    Some(Action {
        condition,
        ..add(tenant, to_int(tokens))
    })
}

/// Returns reserved tokens.
pub(super) fn release(tenant: &TenantId, tokens: u64) -> Action {
    add(tenant, -to_int(tokens))
}

fn add(tenant: &TenantId, tokens: i64) -> Action {
    let change = Update {
        set: Attrs::of_record().into_vec(),
        add: vec![(TOKENS.to_owned(), tokens)],
        ..Update::default()
    };
    Action {
        key: paths::quota(tenant),
        kind: ActionKind::Update(change),
        condition: None,
    }
}
