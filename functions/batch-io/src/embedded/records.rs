//! Records in SQLite: one table, one index of due work. Every rule of conditions, updates and sizes is in
//! [`record_rules`]; this reads, asks them, and writes.

use std::collections::BTreeMap;
use std::path::Path;

use async_trait::async_trait;
use batch_core::time::UnixMs;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row};
use serde::{Deserialize, Serialize};

use super::OpenError;
use super::sql::{Database, Durability};
use crate::port::record_rules::{self, RecordLimit};
use crate::port::{
    Action, ActionKind, Attr, Due, Item, Page, QueryOrder, RecordKey, Records, TransactError,
    WorkKind,
};
use crate::{IoError, IoKind};

/// The index is partial, as the table's index in DynamoDB is sparse, and holds all that `due` returns.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS item (
    partition_key TEXT NOT NULL,
    sort_key TEXT NOT NULL,
    attrs TEXT NOT NULL,
    due_kind TEXT,
    due_at INTEGER,
    PRIMARY KEY (partition_key, sort_key)
) STRICT;
CREATE INDEX IF NOT EXISTS item_due ON item (due_kind, due_at, partition_key, sort_key)
    WHERE due_kind IS NOT NULL;
";

/// Items in one SQLite file.
#[derive(Debug)]
pub(super) struct SqliteRecords {
    database: Database,
}

impl SqliteRecords {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            database: Database::open(path, SCHEMA, Durability::PowerCut)?,
        })
    }
}

#[async_trait]
impl Records for SqliteRecords {
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError> {
        let name = name_of(key);
        key.check()
            .map_err(|limit| refused("get record", name.as_str(), limit))?;
        let key = key.clone();
        self.database
            .read(move |c| load(c, &key))
            .await
            .map_err(|failure| failure.of("get record", name))
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        if limit == 0 {
            return Err(refused("query records", partition, RecordLimit::NoLimit));
        }
        let range = Range::new(partition, prefix, after, order);
        let page = self
            .database
            .read(move |c| load_page(c, &range, limit))
            .await;
        page.map_err(|failure| failure.of("query records", partition))
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        let name = kind_name(kind);
        if limit == 0 {
            return Err(refused("query due records", name, RecordLimit::NoLimit));
        }
        let entries = self
            .database
            .read(move |c| load_due(c, kind, until, limit))
            .await;
        entries.map_err(|failure| failure.of("query due records", name))
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        const DOING: &str = "run a transaction on";
        let name = actions
            .first()
            .map(|action| name_of(&action.key))
            .unwrap_or_default();
        record_rules::check_actions(&actions)
            .map_err(|limit| refused(DOING, name.as_str(), limit))?;
        let outcome = self.database.write(move |c| run(c, &actions)).await;
        match outcome.map_err(|failure| failure.of(DOING, name.as_str()))? {
            Ok(()) => Ok(()),
            Err(Refusal::Conflict(positions)) => Err(TransactError::Conflict(positions)),
            Err(Refusal::Limit(limit)) => Err(refused(DOING, name, limit).into()),
        }
    }
}

fn name_of(key: &RecordKey) -> String {
    format!("{}/{}", key.partition, key.sort)
}

fn refused(doing: &'static str, key: impl Into<String>, limit: RecordLimit) -> IoError {
    IoError::new(doing, key, IoKind::TooLarge).because(limit)
}

/// Why a transaction changed nothing though the database is well.
enum Refusal {
    Conflict(Vec<usize>),
    Limit(RecordLimit),
}

/// Reads every item that matters, decides, and only then writes.
fn run(connection: &Connection, actions: &[Action]) -> rusqlite::Result<Result<(), Refusal>> {
    let mut found = Vec::with_capacity(actions.len());
    for action in actions {
        let matters = action.condition.is_some() || matches!(action.kind, ActionKind::Update(_));
        found.push(if matters {
            load(connection, &action.key)?
        } else {
            None
        });
    }
    let failed: Vec<usize> = actions
        .iter()
        .zip(&found)
        .enumerate()
        .filter(|(_, (action, item))| {
            action
                .condition
                .as_ref()
                .is_some_and(|it| !it.holds(item.as_ref()))
        })
        .map(|(position, _)| position)
        .collect();
    if !failed.is_empty() {
        return Ok(Err(Refusal::Conflict(failed)));
    }
    let writes = match plan(actions, found) {
        Ok(writes) => writes,
        Err(limit) => return Ok(Err(Refusal::Limit(limit))),
    };
    for (key, item) in writes {
        match item {
            Some(item) => store(connection, key, &item)?,
            None => remove(connection, key)?,
        }
    }
    Ok(Ok(()))
}

/// An item as it will be; none removes it.
type Planned<'a> = (&'a RecordKey, Option<Item>);

fn plan(actions: &[Action], found: Vec<Option<Item>>) -> Result<Vec<Planned<'_>>, RecordLimit> {
    let mut writes = Vec::with_capacity(actions.len());
    let mut bytes = 0;
    for (action, item) in actions.iter().zip(found) {
        let next = match &action.kind {
            ActionKind::Put(item) => Some(item.clone()),
            ActionKind::Update(update) => Some(update.applied_to(item)?),
            ActionKind::Delete => None,
            ActionKind::Check => continue,
        };
        if let Some(item) = &next {
            bytes += record_rules::check_item(&action.key, item)?;
        }
        writes.push((&action.key, next));
    }
    record_rules::check_total(bytes)?;
    Ok(writes)
}

fn load(connection: &Connection, key: &RecordKey) -> rusqlite::Result<Option<Item>> {
    connection
        .prepare_cached(
            "SELECT attrs, due_kind, due_at FROM item WHERE partition_key = ?1 AND sort_key = ?2",
        )?
        .query_row((&key.partition, &key.sort), |row| read_item(row, 0))
        .optional()
}

fn store(connection: &Connection, key: &RecordKey, item: &Item) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO item (partition_key, sort_key, attrs, due_kind, due_at) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (partition_key, sort_key)
             DO UPDATE SET attrs = excluded.attrs, due_kind = excluded.due_kind, due_at = excluded.due_at",
        )?
        .execute((
            &key.partition,
            &key.sort,
            encode_attrs(&item.attrs),
            item.due.map(|due| kind_name(due.kind)),
            item.due.map(|due| due.at.0),
        ))?;
    Ok(())
}

fn remove(connection: &Connection, key: &RecordKey) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM item WHERE partition_key = ?1 AND sort_key = ?2")?
        .execute((&key.partition, &key.sort))?;
    Ok(())
}

/// The part of a partition that a query reads: sort keys above `above` or equal to `from`, below `below`.
struct Range {
    partition: String,
    from: String,
    above: Option<String>,
    below: Option<String>,
    order: QueryOrder,
}

impl Range {
    fn new(partition: &str, prefix: &str, after: Option<&str>, order: QueryOrder) -> Self {
        let end = end_of_prefix(prefix);
        let after = after.map(str::to_owned);
        let (above, below) = match order {
            QueryOrder::Ascending => (after, end),
            QueryOrder::Descending => match (after, end) {
                (Some(after), Some(end)) => (None, Some(after.min(end))),
                (after, end) => (None, after.or(end)),
            },
        };
        Self {
            partition: partition.to_owned(),
            from: prefix.to_owned(),
            above,
            below,
            order,
        }
    }

    fn sql(&self) -> String {
        let above = self
            .above
            .as_ref()
            .map_or("?3 IS NULL", |_| "sort_key > ?3");
        let below = self
            .below
            .as_ref()
            .map_or("?4 IS NULL", |_| "sort_key < ?4");
        let order = match self.order {
            QueryOrder::Ascending => "ASC",
            QueryOrder::Descending => "DESC",
        };
        format!(
            "SELECT sort_key, attrs, due_kind, due_at FROM item
             WHERE partition_key = ?1 AND sort_key >= ?2 AND {above} AND {below} ORDER BY sort_key {order} LIMIT ?5"
        )
    }
}

/// Returns the first text after all that start with `prefix`; none if there is no such text.
///
/// Texts sort alike by bytes and by characters, so it is enough to raise the last character that can be.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

fn load_page(connection: &Connection, range: &Range, limit: usize) -> rusqlite::Result<Page> {
    let mut statement = connection.prepare_cached(&range.sql())?;
    let rows_max = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query((
        &range.partition,
        &range.from,
        &range.above,
        &range.below,
        rows_max,
    ))?;
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let key = RecordKey::new(range.partition.as_str(), row.get::<_, String>(0)?);
        let item = read_item(row, 1)?;
        bytes += record_rules::item_bytes(&key, &item);
        let full = bytes > record_rules::PAGE_BYTES_MAX && !page.items.is_empty();
        if !full {
            page.items.push((key, item));
        }
        // Like DynamoDB, a page that has reached its limit does not look whether more follow.
        if full || page.items.len() >= limit {
            page.next = page.items.last().map(|(key, _)| key.sort.clone());
            break;
        }
    }
    Ok(page)
}

fn load_due(
    connection: &Connection,
    kind: WorkKind,
    until: UnixMs,
    limit: usize,
) -> rusqlite::Result<Vec<(RecordKey, Due)>> {
    connection
        .prepare_cached(
            "SELECT partition_key, sort_key, due_at FROM item WHERE due_kind = ?1 AND due_at <= ?2
             ORDER BY due_at, partition_key, sort_key LIMIT ?3",
        )?
        .query_map(
            (
                kind_name(kind),
                until.0,
                i64::try_from(limit).unwrap_or(i64::MAX),
            ),
            |row| {
                let key = RecordKey {
                    partition: row.get(0)?,
                    sort: row.get(1)?,
                };
                Ok((
                    key,
                    Due {
                        kind,
                        at: UnixMs(row.get(2)?),
                    },
                ))
            },
        )?
        .collect()
}

fn kind_name(kind: WorkKind) -> &'static str {
    match kind {
        WorkKind::Batch => "batch",
        WorkKind::Shard => "shard",
        WorkKind::Backlog => "backlog",
        WorkKind::Retention => "retention",
        WorkKind::Outbox => "outbox",
    }
}

fn kind_named(name: &str) -> Option<WorkKind> {
    const KINDS: [WorkKind; 5] = [
        WorkKind::Batch,
        WorkKind::Shard,
        WorkKind::Backlog,
        WorkKind::Retention,
        WorkKind::Outbox,
    ];
    KINDS.into_iter().find(|kind| kind_name(*kind) == name)
}

/// Reads `attrs, due_kind, due_at` from the columns that start at `first`.
fn read_item(row: &Row<'_>, first: usize) -> rusqlite::Result<Item> {
    let attrs = decode_attrs(row.get_ref(first)?.as_str()?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(first, Type::Text, Box::new(error))
    })?;
    let kind: Option<String> = row.get(first + 1)?;
    let at: Option<i64> = row.get(first + 2)?;
    let due = match (kind, at) {
        (Some(name), Some(at)) => {
            let unknown =
                || rusqlite::Error::InvalidColumnType(first + 1, name.clone(), Type::Text);
            Some(Due {
                kind: kind_named(&name).ok_or_else(unknown)?,
                at: UnixMs(at),
            })
        }
        (_, _) => None,
    };
    Ok(Item { attrs, due })
}

#[derive(Serialize)]
#[serde(untagged)]
enum AttrRef<'a> {
    Text(&'a str),
    Int(i64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StoredAttr {
    Int(i64),
    Text(String),
}

/// A JSON object of texts and whole numbers.
fn encode_attrs(attrs: &BTreeMap<String, Attr>) -> String {
    let attrs: BTreeMap<&str, AttrRef<'_>> = attrs
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Attr::Text(text) => AttrRef::Text(text),
                Attr::Int(number) => AttrRef::Int(*number),
            };
            (name.as_str(), value)
        })
        .collect();
    serde_json::to_string(&attrs).expect("texts and numbers are JSON")
}

fn decode_attrs(text: &str) -> serde_json::Result<BTreeMap<String, Attr>> {
    let stored: BTreeMap<String, StoredAttr> = serde_json::from_str(text)?;
    let attr = |value| match value {
        StoredAttr::Int(number) => Attr::Int(number),
        StoredAttr::Text(text) => Attr::Text(text),
    };
    Ok(stored
        .into_iter()
        .map(|(name, value)| (name, attr(value)))
        .collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attr() -> impl Strategy<Value = Attr> {
        prop_oneof![any::<i64>().prop_map(Attr::Int), ".*".prop_map(Attr::Text)]
    }

    proptest! {
        #[test]
        fn attributes_survive_their_encoding(attrs in proptest::collection::btree_map(".*", attr(), 0..6)) {
            prop_assert_eq!(decode_attrs(&encode_attrs(&attrs)).unwrap(), attrs);
        }

        #[test]
        fn the_end_of_a_prefix_parts_what_starts_with_it_from_what_follows(
            prefix in "[a\u{7f}\u{80}\u{d7ff}\u{e000}\u{10ffff}]{0,3}",
            text in "[a-b\u{7f}\u{80}\u{d7ff}\u{e000}\u{10ffff}]{0,4}",
        ) {
            let inside = text >= prefix && end_of_prefix(&prefix).is_none_or(|end| text < end);
            prop_assert_eq!(inside, text.starts_with(&prefix));
        }
    }

    #[tokio::test]
    async fn a_damaged_item_is_corrupt() {
        let dir = tempfile::tempdir().unwrap();
        let records = SqliteRecords::open(&dir.path().join("records.db")).unwrap();
        for (sort, attrs) in [
            ("cut", "{\"a\": \"b"),
            ("float", "{\"a\": 1.5}"),
            ("list", "[]"),
        ] {
            let insert = "INSERT INTO item (partition_key, sort_key, attrs) VALUES ('p', ?1, ?2)";
            records
                .database
                .write(move |c| c.execute(insert, (sort, attrs)))
                .await
                .unwrap();
            let error = records.get(&RecordKey::new("p", sort)).await.unwrap_err();
            assert_eq!(error.kind, IoKind::Corrupt, "{sort}");
        }
    }
}
