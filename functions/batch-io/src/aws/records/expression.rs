//! Conditions and updates in DynamoDB's expressions. Pure.
//!
//! Names and values are always placeholders: attribute names may be reserved words or hold anything.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update as UpdateItem,
};

use super::form;
use crate::port::{Action, ActionKind, Attr, Condition, RecordKey, Update};

/// Most values of one `IN`.
///
/// Source: DynamoDB developer guide, "Comparison operator and function reference".
const IN_MAX: usize = 100;

/// The placeholders of one action's expressions.
#[derive(Debug, Default)]
pub(super) struct Expression {
    names: Vec<String>,
    values: Vec<AttributeValue>,
}

impl Expression {
    /// Returns what the names stand for; none if there are none, which DynamoDB wants left out.
    pub(super) fn names(&self) -> Option<HashMap<String, String>> {
        let names = self.names.iter().enumerate();
        let names: HashMap<_, _> = names
            .map(|(n, name)| (format!("#{n}"), name.clone()))
            .collect();
        (!names.is_empty()).then_some(names)
    }

    /// Returns what the values stand for; none if there are none.
    pub(super) fn values(&self) -> Option<HashMap<String, AttributeValue>> {
        let values = self.values.iter().enumerate();
        let values: HashMap<_, _> = values
            .map(|(n, value)| (format!(":{n}"), value.clone()))
            .collect();
        (!values.is_empty()).then_some(values)
    }

    /// Writes a condition; none if it always holds.
    pub(super) fn condition(&mut self, condition: &Condition) -> Option<String> {
        Some(match condition {
            Condition::Exists => format!("attribute_exists({})", self.own(form::PARTITION)),
            Condition::Absent => format!("attribute_not_exists({})", self.own(form::PARTITION)),
            Condition::Equals(name, attr) => {
                format!("{} = {}", self.name(name), self.value(attr))
            }
            Condition::OneOf(name, attrs) => self.one_of(name, attrs),
            Condition::BelowOrAbsent(name, limit) => {
                let (name, limit) = (self.name(name), self.number(*limit));
                format!("(attribute_not_exists({name}) OR {name} < {limit})")
            }
            Condition::AtMost(name, limit) => {
                format!("{} <= {}", self.name(name), self.number(*limit))
            }
            Condition::All(conditions) => {
                let parts: Vec<_> = conditions
                    .iter()
                    .filter_map(|part| self.condition(part))
                    .collect();
                if parts.is_empty() {
                    return None;
                }
                format!("({})", parts.join(" AND "))
            }
        })
    }

    /// Writes an update. One that changes nothing still makes its item.
    pub(super) fn update(&mut self, key: &RecordKey, update: &Update) -> String {
        let mut set: Vec<_> = update
            .set
            .iter()
            .map(|(name, attr)| format!("{} = {}", self.name(name), self.value(attr)))
            .collect();
        let add: Vec<_> = update
            .add
            .iter()
            .map(|(name, change)| format!("{} {}", self.name(name), self.number(*change)))
            .collect();
        let mut remove: Vec<_> = update.remove.iter().map(|name| self.name(name)).collect();
        match update.due {
            None => {}
            Some(None) => remove.extend([form::WORK, form::DUE].map(|name| self.own(name))),
            Some(Some(due)) => {
                let [work, at] = form::due_values(key, due);
                for (name, value) in [(form::WORK, work), (form::DUE, at)] {
                    set.push(format!("{} = {}", self.own(name), self.placed(value)));
                }
            }
        }
        if set.is_empty() && add.is_empty() && remove.is_empty() {
            remove.push(self.own(form::NOTHING));
        }
        let clauses = [("SET", set), ("ADD", add), ("REMOVE", remove)].into_iter();
        let clauses = clauses.filter(|(_, parts)| !parts.is_empty());
        let clauses: Vec<_> = clauses
            .map(|(word, parts)| format!("{word} {}", parts.join(", ")))
            .collect();
        clauses.join(" ")
    }

    /// Writes what must hold for the sums of an update to stay in 64 bits; none if it adds nothing.
    ///
    /// DynamoDB counts with 38 digits: without this a sum could become a number that we cannot read.
    fn sums_fit(&mut self, update: &Update) -> Option<String> {
        let parts = update.add.iter().filter(|(_, change)| *change != 0);
        let parts: Vec<_> = parts
            .map(|(name, change)| {
                let (sign, limit) = if *change > 0 {
                    ("<=", i64::MAX - change)
                } else {
                    (">=", i64::MIN - change)
                };
                let (name, limit) = (self.name(name), self.number(limit));
                format!("(attribute_not_exists({name}) OR {name} {sign} {limit})")
            })
            .collect();
        (!parts.is_empty()).then(|| parts.join(" AND "))
    }

    /// DynamoDB has no `IN` of nothing, which never holds.
    fn one_of(&mut self, name: &str, attrs: &[Attr]) -> String {
        let name = self.name(name);
        let lists = attrs.chunks(IN_MAX).map(|some| {
            let values: Vec<_> = some.iter().map(|attr| self.value(attr)).collect();
            format!("{name} IN ({})", values.join(", "))
        });
        let lists: Vec<_> = lists.collect();
        if lists.is_empty() {
            format!("(attribute_exists({name}) AND attribute_not_exists({name}))")
        } else {
            format!("({})", lists.join(" OR "))
        }
    }

    fn name(&mut self, name: &str) -> String {
        self.own(&form::stored_name(name))
    }

    fn own(&mut self, stored: &str) -> String {
        let known = self.names.iter().position(|name| name == stored);
        let n = known.unwrap_or_else(|| {
            self.names.push(stored.to_owned());
            self.names.len() - 1
        });
        format!("#{n}")
    }

    fn value(&mut self, attr: &Attr) -> String {
        self.placed(form::value(attr))
    }

    fn number(&mut self, number: i64) -> String {
        self.value(&Attr::Int(number))
    }

    fn placed(&mut self, value: AttributeValue) -> String {
        self.values.push(value);
        format!(":{}", self.values.len() - 1)
    }
}

/// Makes one action of a transaction.
///
/// An update that adds asks for the item back where its condition fails, so that a sum which does not fit
/// can be told from a condition of the caller's.
pub(super) fn transact_item(table: &str, action: &Action) -> TransactWriteItem {
    const COMPLETE: &str = "an action has its table, its key and its expression";
    let mut words = Expression::default();
    let asked = action
        .condition
        .as_ref()
        .and_then(|condition| words.condition(condition));
    let (key, item) = (form::encode_key(&action.key), TransactWriteItem::builder());
    let item = match &action.kind {
        ActionKind::Put(whole) => {
            let put = Put::builder()
                .table_name(table)
                .set_item(Some(form::encode(&action.key, whole)))
                .set_condition_expression(asked)
                .set_expression_attribute_names(words.names())
                .set_expression_attribute_values(words.values());
            item.put(put.build().expect(COMPLETE))
        }
        ActionKind::Update(update) => {
            let fits = words.sums_fit(update);
            let change = words.update(&action.key, update);
            let told = fits
                .is_some()
                .then_some(ReturnValuesOnConditionCheckFailure::AllOld);
            let all: Vec<_> = asked.into_iter().chain(fits).collect();
            let update = UpdateItem::builder()
                .table_name(table)
                .set_key(Some(key))
                .update_expression(change)
                .set_condition_expression((!all.is_empty()).then(|| all.join(" AND ")))
                .set_return_values_on_condition_check_failure(told)
                .set_expression_attribute_names(words.names())
                .set_expression_attribute_values(words.values());
            item.update(update.build().expect(COMPLETE))
        }
        ActionKind::Delete => {
            let delete = Delete::builder()
                .table_name(table)
                .set_key(Some(key))
                .set_condition_expression(asked)
                .set_expression_attribute_names(words.names())
                .set_expression_attribute_values(words.values());
            item.delete(delete.build().expect(COMPLETE))
        }
        ActionKind::Check => {
            let asked = asked.unwrap_or_else(|| {
                let name = words.own(form::PARTITION);
                format!("(attribute_exists({name}) OR attribute_not_exists({name}))")
            });
            let check = ConditionCheck::builder()
                .table_name(table)
                .set_key(Some(key))
                .condition_expression(asked)
                .set_expression_attribute_names(words.names())
                .set_expression_attribute_values(words.values());
            item.condition_check(check.build().expect(COMPLETE))
        }
    };
    item.build()
}

#[cfg(test)]
mod tests {
    use batch_core::time::UnixMs;

    use super::*;
    use crate::port::{Due, WorkKind};

    #[test]
    fn conditions_are_written_with_placeholders_alone() {
        let mut words = Expression::default();
        let condition = Condition::All(vec![
            Condition::Exists,
            Condition::Equals("status".to_owned(), Attr::Text("open".to_owned())),
            Condition::OneOf("status".to_owned(), vec![Attr::Int(1), Attr::Int(2)]),
            Condition::All(vec![]),
            Condition::BelowOrAbsent("ttl".to_owned(), 7),
            Condition::AtMost("n".to_owned(), 8),
        ]);
        assert_eq!(
            words.condition(&condition).unwrap(),
            "(attribute_exists(#0) AND #1 = :0 AND (#1 IN (:1, :2)) AND (attribute_not_exists(#2) OR #2 < :3) \
             AND #3 <= :4)"
        );
        assert_eq!(words.names().unwrap()["#2"], ".ttl");
        assert_eq!(
            words.values().unwrap()[":0"],
            AttributeValue::S("open".to_owned())
        );
        assert_eq!(words.condition(&Condition::All(vec![])), None);
    }

    #[test]
    fn updates_are_written_clause_by_clause() {
        let key = RecordKey::new("p", "s");
        let update = Update {
            set: vec![("a".to_owned(), Attr::Int(1))],
            add: vec![("n".to_owned(), -2)],
            remove: vec!["b".to_owned()],
            due: Some(Some(Due {
                kind: WorkKind::Batch,
                at: UnixMs(5),
            })),
        };
        let mut words = Expression::default();
        assert_eq!(
            words.update(&key, &update),
            "SET #0 = :0, #3 = :2, #4 = :3 ADD #1 :1 REMOVE #2"
        );
        let mut words = Expression::default();
        assert_eq!(words.update(&key, &Update::default()), "REMOVE #0");
        assert_eq!(words.names().unwrap()["#0"], form::NOTHING);
        assert_eq!(words.values(), None);
    }

    #[test]
    fn sums_are_held_to_64_bits() {
        let update = Update {
            add: vec![
                ("up".to_owned(), 1),
                ("down".to_owned(), -1),
                ("not".to_owned(), 0),
            ],
            ..Update::default()
        };
        let mut words = Expression::default();
        assert_eq!(
            words.sums_fit(&update).unwrap(),
            "(attribute_not_exists(#0) OR #0 <= :0) AND (attribute_not_exists(#1) OR #1 >= :1)"
        );
        let number = |number: i64| AttributeValue::N(number.to_string());
        let values = words.values().unwrap();
        assert_eq!(values[":0"], number(i64::MAX - 1));
        assert_eq!(values[":1"], number(i64::MIN + 1));
    }
}
