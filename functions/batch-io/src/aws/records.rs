//! Records in one DynamoDB table.
//!
//! An item's attributes are attributes of the table, so that conditions and updates are DynamoDB's own. The
//! work index is the sparse index `work`: an item that is due has `wk` and `due`, any other has neither.
//!
//! A single action that may be repeated without harm is a plain write, at half the price of a transaction.
//! Every other goes as a transaction under a token of its own, so that the SDK may repeat it after a lost
//! answer: a conflict is always another's doing, and a sum is added once.

mod expression;
mod form;
mod verdict;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use batch_core::time::UnixMs;
use futures::future::try_join_all;

use super::failure::{self, Place};
use super::patience;
use crate::port::record_rules::{self, RecordLimit};
use crate::port::{
    Action, ActionKind, Due, Item, Page, QueryOrder, RecordKey, Records, TransactError, WorkKind,
};
use crate::{IoError, IoKind};

use expression::Expression;
use form::{SORT, SUFFIXES, WORK_INDEX};
use verdict::Verdict;

/// Tries of a write that met another on its items.
const TRIES: u32 = 8;

/// The table of one deployment.
#[derive(Debug)]
pub(super) struct DynamoRecords {
    client: Client,
    table: String,
}

impl DynamoRecords {
    pub(super) fn new(client: Client, table: &str) -> Self {
        Self {
            client,
            table: table.to_owned(),
        }
    }

    fn failed<E>(
        &self,
        doing: &'static str,
        key: impl Into<String>,
        error: &SdkError<E, HttpResponse>,
    ) -> IoError
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        failure::failed(doing, key, Place::Table(&self.table), error)
    }

    /// Reads the keys of one suffix of the work index, page by page, until there are enough.
    async fn due_in(
        &self,
        kind: WorkKind,
        suffix: u8,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        const DOING: &str = "read the work index";
        let work = form::work(kind, suffix);
        let mut found = Vec::new();
        let mut start = None;
        loop {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .index_name(WORK_INDEX)
                .key_condition_expression("#wk = :wk AND #due <= :due")
                .expression_attribute_names("#wk", form::WORK)
                .expression_attribute_names("#due", form::DUE)
                .expression_attribute_values(":wk", AttributeValue::S(work.clone()))
                .expression_attribute_values(":due", AttributeValue::N(until.0.to_string()))
                .limit(whole(limit - found.len()))
                .set_exclusive_start_key(start)
                .send()
                .await
                .map_err(|error| self.failed(DOING, work.as_str(), &error))?;
            for attributes in page.items.unwrap_or_default() {
                let (key, item) =
                    form::decode(attributes).map_err(|why| corrupt(DOING, &work, why))?;
                found.extend(item.due.map(|due| (key, due)));
            }
            start = page.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    /// Runs a write once. The token makes its repetitions one.
    async fn attempt(&self, actions: &[Action], token: &str) -> Verdict {
        match actions {
            [action] if action.may_be_repeated() => self.write(action).await,
            _ => self.transact_as(actions, token).await,
        }
    }

    /// Runs an action that asks nothing and adds nothing.
    async fn write(&self, action: &Action) -> Verdict {
        const DOING: &str = "write record";
        let key = form::encode_key(&action.key);
        match &action.kind {
            ActionKind::Put(item) => {
                let put = self.client.put_item().table_name(&self.table);
                let item = form::encode(&action.key, item);
                let outcome = put.set_item(Some(item)).send().await;
                self.judge(DOING, &action.key, outcome)
            }
            ActionKind::Update(update) => {
                let mut words = Expression::default();
                let change = words.update(&action.key, update);
                let outcome = self
                    .client
                    .update_item()
                    .table_name(&self.table)
                    .set_key(Some(key))
                    .update_expression(change)
                    .set_expression_attribute_names(words.names())
                    .set_expression_attribute_values(words.values())
                    .send()
                    .await;
                self.judge(DOING, &action.key, outcome)
            }
            ActionKind::Delete => {
                let delete = self.client.delete_item().table_name(&self.table);
                let outcome = delete.set_key(Some(key)).send().await;
                self.judge(DOING, &action.key, outcome)
            }
            ActionKind::Check => Verdict::Done,
        }
    }

    fn judge<T, E>(
        &self,
        doing: &'static str,
        key: &RecordKey,
        outcome: Result<T, SdkError<E, HttpResponse>>,
    ) -> Verdict
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let Err(error) = outcome else {
            return Verdict::Done;
        };
        let met_another = error.code() == Some("TransactionConflictException");
        let failure = self.failed(doing, name(key), &error);
        if met_another {
            Verdict::Contended(failure)
        } else {
            Verdict::Failed(failure)
        }
    }

    async fn transact_as(&self, actions: &[Action], token: &str) -> Verdict {
        const DOING: &str = "run a records transaction";
        let items: Vec<TransactWriteItem> = actions
            .iter()
            .map(|action| expression::transact_item(&self.table, action))
            .collect();
        let outcome = self
            .client
            .transact_write_items()
            .set_transact_items(Some(items))
            .client_request_token(token)
            .send()
            .await;
        let Err(error) = outcome else {
            return Verdict::Done;
        };
        let key = name(&actions[0].key);
        let failure = self.failed(DOING, key, &error);
        match error.as_service_error().and_then(verdict::reasons) {
            Some(reasons) => verdict::of_cancellation(actions, reasons, failure),
            None => Verdict::Failed(failure),
        }
    }
}

#[async_trait]
impl Records for DynamoRecords {
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError> {
        const DOING: &str = "read record";
        key.check()
            .map_err(|limit| refused(DOING, name(key), limit))?;
        let read = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(form::encode_key(key)))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| self.failed(DOING, name(key), &error))?;
        let item = read.item.map(form::decode).transpose();
        let item = item.map_err(|why| corrupt(DOING, &name(key), why))?;
        Ok(item.map(|(_, item)| item))
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        const DOING: &str = "query records";
        if limit == 0 {
            return Err(refused(DOING, partition, RecordLimit::NoLimit));
        }
        let start = match start_of(prefix, after, order) {
            Start::Edge => None,
            Start::After(sort) => Some(form::encode_key(&RecordKey::new(partition, sort))),
            Start::Nowhere => {
                return Ok(Page {
                    items: Vec::new(),
                    next: None,
                });
            }
        };
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .consistent_read(true)
            .scan_index_forward(order == QueryOrder::Ascending)
            .limit(whole(limit))
            .set_exclusive_start_key(start);
        let page = within(query, partition, prefix)
            .send()
            .await
            .map_err(|error| self.failed(DOING, partition, &error))?;
        let items = page.items.unwrap_or_default().into_iter().map(form::decode);
        let items = items.collect::<Result<Vec<_>, _>>();
        let next = page.last_evaluated_key.unwrap_or_default().remove(SORT);
        Ok(Page {
            items: items.map_err(|why| corrupt(DOING, partition, why))?,
            next: next.and_then(|sort| sort.as_s().ok().cloned()),
        })
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        if limit == 0 {
            return Err(refused(
                "read the work index",
                form::kind_name(kind),
                RecordLimit::NoLimit,
            ));
        }
        let suffixes = (0..SUFFIXES).map(|suffix| self.due_in(kind, suffix, until, limit));
        let mut found = try_join_all(suffixes).await?.concat();
        found.sort_by(|(key, due), (other_key, other)| (due.at, key).cmp(&(other.at, other_key)));
        found.truncate(limit);
        Ok(found)
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        record_rules::check_actions(&actions)
            .map_err(|limit| refused("run a records transaction", "", limit))?;
        let token = token();
        let mut tries = 0;
        loop {
            match self.attempt(&actions, &token).await {
                Verdict::Done => return Ok(()),
                Verdict::Conflict(positions) => return Err(TransactError::Conflict(positions)),
                Verdict::Failed(error) => return Err(error.into()),
                Verdict::Contended(error) if tries + 1 >= TRIES => return Err(error.into()),
                Verdict::Contended(_) => patience::pause(tries).await,
            }
            tries += 1;
        }
    }
}

/// Where a query goes on.
#[derive(Debug, PartialEq, Eq)]
enum Start<'a> {
    /// At the first key of the prefix, in its order.
    Edge,
    /// Beyond this key. It need not exist.
    After(&'a str),
    /// There is nothing beyond.
    Nowhere,
}

/// DynamoDB refuses to start at a key that does not have the query's prefix.
fn start_of<'a>(prefix: &str, after: Option<&'a str>, order: QueryOrder) -> Start<'a> {
    let Some(after) = after else {
        return Start::Edge;
    };
    let beyond_edge = match order {
        QueryOrder::Ascending => after < prefix || after.is_empty(),
        QueryOrder::Descending => after > prefix,
    };
    if after.starts_with(prefix) && !after.is_empty() {
        Start::After(after)
    } else if beyond_edge {
        Start::Edge
    } else {
        Start::Nowhere
    }
}

fn within(query: QueryFluentBuilder, partition: &str, prefix: &str) -> QueryFluentBuilder {
    let query = query
        .expression_attribute_names("#pk", form::PARTITION)
        .expression_attribute_values(":pk", AttributeValue::S(partition.to_owned()));
    if prefix.is_empty() {
        return query.key_condition_expression("#pk = :pk");
    }
    query
        .key_condition_expression("#pk = :pk AND begins_with(#sk, :sk)")
        .expression_attribute_names("#sk", SORT)
        .expression_attribute_values(":sk", AttributeValue::S(prefix.to_owned()))
}

/// Makes the token of one transaction. DynamoDB knows it again for ten minutes.
fn token() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    format!("{:032x}", u128::from_le_bytes(bytes))
}

fn name(key: &RecordKey) -> String {
    format!("{}/{}", key.partition, key.sort)
}

fn whole(limit: usize) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

fn refused(doing: &'static str, key: impl Into<String>, limit: RecordLimit) -> IoError {
    IoError::new(doing, key, IoKind::TooLarge).because(limit)
}

fn corrupt(doing: &'static str, key: &str, why: form::Unreadable) -> IoError {
    IoError::new(doing, key, IoKind::Corrupt).because(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_starts_inside_its_prefix() {
        use QueryOrder::{Ascending, Descending};
        let table = [
            ("b/", None, Ascending, Start::Edge),
            ("b/", Some("b/2"), Ascending, Start::After("b/2")),
            ("b/", Some("b/2"), Descending, Start::After("b/2")),
            ("b/", Some("a"), Ascending, Start::Edge),
            ("b/", Some("a"), Descending, Start::Nowhere),
            ("b/", Some("c"), Ascending, Start::Nowhere),
            ("b/", Some("c"), Descending, Start::Edge),
            ("", Some("x"), Ascending, Start::After("x")),
            ("", Some(""), Ascending, Start::Edge),
            ("", Some(""), Descending, Start::Nowhere),
        ];
        for (prefix, after, order, start) in table {
            assert_eq!(
                start_of(prefix, after, order),
                start,
                "{prefix} {after:?} {order:?}"
            );
        }
    }
}
