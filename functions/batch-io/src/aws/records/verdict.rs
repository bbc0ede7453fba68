//! What a cancelled transaction means, from the reasons that DynamoDB gives, one an action. Pure.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::CancellationReason;

use super::form;
use crate::port::{Action, ActionKind};
use crate::{IoError, IoKind};

/// What became of one try of a write.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It happened.
    Done,
    /// The conditions at these positions did not hold.
    Conflict(Vec<usize>),
    /// It met another write on one of its items, or too many of them: try again. This is the error if that
    /// does not help.
    Contended(IoError),
    /// It failed for good.
    Failed(IoError),
}

/// Returns the reasons of a cancellation; none for any other error.
pub(super) fn reasons(error: &TransactWriteItemsError) -> Option<&[CancellationReason]> {
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = error else {
        return None;
    };
    Some(cancelled.cancellation_reasons())
}

/// Judges a cancellation, whose error is `failure`.
///
/// Where one action met another write, its condition was not looked at: a conflict would not name all that
/// failed. So meeting another comes before conflicts.
pub(super) fn of_cancellation(
    actions: &[Action],
    reasons: &[CancellationReason],
    failure: IoError,
) -> Verdict {
    let (mut conflicts, mut overflow, mut contended) = (Vec::new(), None, false);
    for (position, (action, reason)) in actions.iter().zip(reasons).enumerate() {
        match reason.code() {
            None | Some("None") => {}
            Some("ConditionalCheckFailed") => match sum_that_does_not_fit(action, reason) {
                None => conflicts.push(position),
                limit => overflow = limit,
            },
            Some("ValidationError" | "ItemCollectionSizeLimitExceeded") => {
                let why = reason
                    .message()
                    .unwrap_or("DynamoDB refused an action")
                    .to_owned();
                return Verdict::Failed(as_kind(failure, IoKind::TooLarge).because(why));
            }
            Some(_) => contended = true,
        }
    }
    if contended {
        Verdict::Contended(as_kind(failure, IoKind::Busy))
    } else if !conflicts.is_empty() {
        Verdict::Conflict(conflicts)
    } else if let Some(limit) = overflow {
        Verdict::Failed(as_kind(failure, IoKind::TooLarge).because(limit))
    } else {
        Verdict::Contended(as_kind(failure, IoKind::Busy))
    }
}

/// Returns why an update cannot be made of an item that meets the caller's condition; none if the condition
/// is what failed.
fn sum_that_does_not_fit(
    action: &Action,
    reason: &CancellationReason,
) -> Option<crate::port::record_rules::RecordLimit> {
    let ActionKind::Update(update) = &action.kind else {
        return None;
    };
    let (_, item) = form::decode(reason.item().filter(|item| !item.is_empty())?.clone()).ok()?;
    let asked = action.condition.as_ref();
    if asked.is_some_and(|condition| !condition.holds(Some(&item))) {
        return None;
    }
    update.applied_to(Some(item)).err()
}

fn as_kind(failure: IoError, kind: IoKind) -> IoError {
    IoError { kind, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Attr, Condition, Item, RecordKey, Update};

    fn action(condition: Option<Condition>) -> Action {
        let update = Update {
            add: vec![("n".to_owned(), 1)],
            ..Update::default()
        };
        Action {
            key: RecordKey::new("p", "s"),
            kind: ActionKind::Update(update),
            condition,
        }
    }

    fn reason(code: &str) -> CancellationReason {
        CancellationReason::builder().code(code).build()
    }

    fn judge(reasons: &[CancellationReason]) -> Verdict {
        let actions = vec![action(Some(Condition::Exists)); reasons.len()];
        of_cancellation(
            &actions,
            reasons,
            IoError::new("test", "", IoKind::TooLarge),
        )
    }

    #[test]
    fn conflicts_name_every_failed_condition() {
        let reasons = [
            "None",
            "ConditionalCheckFailed",
            "None",
            "ConditionalCheckFailed",
        ]
        .map(reason);
        assert!(matches!(judge(&reasons), Verdict::Conflict(positions) if positions == [1, 3]));
    }

    #[test]
    fn meeting_another_is_no_conflict() {
        for code in [
            "TransactionConflict",
            "ThrottlingError",
            "ProvisionedThroughputExceeded",
        ] {
            let reasons = [reason("ConditionalCheckFailed"), reason(code)];
            assert!(
                matches!(judge(&reasons), Verdict::Contended(error) if error.kind == IoKind::Busy),
                "{code}"
            );
        }
    }

    #[test]
    fn an_action_that_cannot_be_made_is_too_large() {
        let reasons = [reason("None"), reason("ValidationError")];
        assert!(
            matches!(judge(&reasons), Verdict::Failed(error) if error.kind == IoKind::TooLarge)
        );
    }

    #[test]
    fn a_sum_that_does_not_fit_is_no_conflict() {
        let stored = |number| {
            let attrs = [("n".to_owned(), Attr::Int(number))].into();
            let item = Item { attrs, due: None };
            let code = CancellationReason::builder().code("ConditionalCheckFailed");
            code.set_item(Some(form::encode(&RecordKey::new("p", "s"), &item)))
                .build()
        };
        assert!(
            matches!(judge(&[stored(i64::MAX)]), Verdict::Failed(error) if error.kind == IoKind::TooLarge)
        );
        assert!(matches!(judge(&[stored(1)]), Verdict::Conflict(positions) if positions == [0]));
    }
}
