//! One page of a list.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::limits::LIST_PAGE_BYTES_MAX;

/// A page. `last_id` is what the next page's `after` must be.
#[derive(Debug, Clone, Serialize)]
pub struct Page {
    object: &'static str,
    data: Vec<Box<RawValue>>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl Page {
    /// Makes a page of objects and their ids. It ends before 4 MiB, but never before its first object.
    #[must_use]
    pub fn new<T: Serialize>(
        objects: impl IntoIterator<Item = (String, T)>,
        has_more: bool,
    ) -> Self {
        let mut page = Self {
            object: "list",
            data: Vec::new(),
            first_id: None,
            last_id: None,
            has_more,
        };
        let mut bytes = 0;
        for (id, object) in objects {
            let object =
                serde_json::value::to_raw_value(&object).expect("wire objects always serialise");
            bytes += object.get().len();
            if bytes > LIST_PAGE_BYTES_MAX && !page.data.is_empty() {
                page.has_more = true;
                break;
            }
            page.data.push(object);
            page.first_id.get_or_insert_with(|| id.clone());
            page.last_id = Some(id);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lengths: &[usize], has_more: bool) -> (usize, bool, Option<String>) {
        let objects = lengths
            .iter()
            .enumerate()
            .map(|(index, length)| (index.to_string(), "x".repeat(*length)));
        let page = Page::new(objects, has_more);
        (page.data.len(), page.has_more, page.last_id)
    }

    #[test]
    fn a_page_is_cut_before_its_bytes_bound() {
        let half = LIST_PAGE_BYTES_MAX / 2;
        assert_eq!(
            check(&[half - 2, half - 2], false),
            (2, false, Some("1".to_owned()))
        );
        assert_eq!(
            check(&[half, half, 1], false),
            (1, true, Some("0".to_owned()))
        );
        assert_eq!(
            check(&[3 * half, 1], false),
            (1, true, Some("0".to_owned()))
        );
        assert_eq!(check(&[], false), (0, false, None));
    }
}
