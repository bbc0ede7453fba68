//! Lists batches, newest first.

use batch_core::id::{BatchId, TenantId};

use super::actions::PAGE_ITEMS;
use super::batches::read_view;
use super::listed::Filling;
use super::{BatchView, Listed, Store, paths};
use crate::IoError;
use crate::port::record_rules::item_bytes;
use crate::port::{Item, QueryOrder, RecordKey};

impl Store {
    /// Lists the tenant's batches, newest first, older than `after`, which need not exist.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_batches(
        &self,
        tenant: &TenantId,
        after: Option<BatchId>,
        limit: usize,
    ) -> Result<Listed<BatchView>, IoError> {
        let partition = paths::batches(tenant);
        // Just below all records of `after`, which the order then leaves out.
        let mut after = after.map(|batch| format!("{batch}/"));
        let mut page = Filling::new(limit);
        let mut records: Vec<(RecordKey, Item)> = Vec::new();
        loop {
            let found = self
                .records
                .query(
                    &partition,
                    "",
                    after.as_deref(),
                    QueryOrder::Descending,
                    PAGE_ITEMS,
                )
                .await?;
            for (key, item) in found.items {
                if records
                    .first()
                    .is_some_and(|(first, _)| batch_of(first) != batch_of(&key))
                    && !push(&mut page, &mut records)?
                {
                    return Ok(page.cut());
                }
                records.push((key, item));
            }
            match found.next {
                Some(next) => after = Some(next),
                None if push(&mut page, &mut records)? => return Ok(page.ended()),
                None => return Ok(page.cut()),
            }
        }
    }
}

fn batch_of(key: &RecordKey) -> &str {
    key.sort.split('/').next().unwrap_or_default()
}

/// Adds the batch of these records to the page, and returns whether it had room.
fn push(
    page: &mut Filling<BatchView>,
    records: &mut Vec<(RecordKey, Item)>,
) -> Result<bool, IoError> {
    let bytes = records
        .iter()
        .map(|(key, item)| item_bytes(key, item))
        .sum();
    let view = read_view(records)?;
    records.clear();
    Ok(view.is_none_or(|view| page.push(view, bytes)))
}
