//! Attributes of items, read with their types. What cannot be read is corrupt; what a newer version wrote is
//! refused.

use std::str::FromStr;

use batch_core::message::SCHEMA;
use batch_core::time::UnixMs;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::port::{Attr, Item, RecordKey};
use crate::{IoError, IoKind};

/// The version of the record's form, in every record.
const FORM: &str = "schema";

/// An item being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    key: &'a RecordKey,
    item: &'a Item,
}

impl<'a> Fields<'a> {
    /// Refuses an item of a newer version.
    pub(super) fn of(key: &'a RecordKey, item: &'a Item) -> Result<Self, IoError> {
        let fields = Self { key, item };
        let schema = fields.int(FORM)?;
        if schema > i64::from(SCHEMA) {
            let why = format!(
                "the record has version {schema}, and this program knows {SCHEMA}: update it"
            );
            return Err(fields.error(IoKind::Denied, why));
        }
        Ok(fields)
    }

    pub(super) fn opt_text(&self, name: &str) -> Result<Option<&'a str>, IoError> {
        match self.item.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Text(text)) => Ok(Some(text)),
            Some(Attr::Int(_)) => Err(self.corrupt(name)),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, IoError> {
        self.opt_text(name)?.ok_or_else(|| self.corrupt(name))
    }

    pub(super) fn opt_int(&self, name: &str) -> Result<Option<i64>, IoError> {
        match self.item.attrs.get(name) {
            None => Ok(None),
            Some(Attr::Int(number)) => Ok(Some(*number)),
            Some(Attr::Text(_)) => Err(self.corrupt(name)),
        }
    }

    pub(super) fn int(&self, name: &str) -> Result<i64, IoError> {
        self.opt_int(name)?.ok_or_else(|| self.corrupt(name))
    }

    /// Reads a number that fits the unsigned type asked for.
    pub(super) fn count<T: TryFrom<i64>>(&self, name: &str) -> Result<T, IoError> {
        T::try_from(self.int(name)?).map_err(|_| self.corrupt(name))
    }

    pub(super) fn opt_moment(&self, name: &str) -> Result<Option<UnixMs>, IoError> {
        Ok(self.opt_int(name)?.map(UnixMs))
    }

    pub(super) fn moment(&self, name: &str) -> Result<UnixMs, IoError> {
        self.int(name).map(UnixMs)
    }

    pub(super) fn opt_parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, IoError> {
        self.opt_text(name)?
            .map(|text| text.parse().map_err(|_| self.corrupt(name)))
            .transpose()
    }

    pub(super) fn parsed<T: FromStr>(&self, name: &str) -> Result<T, IoError> {
        self.opt_parsed(name)?.ok_or_else(|| self.corrupt(name))
    }

    pub(super) fn opt_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, IoError> {
        let parse = |text| {
            serde_json::from_str(text).map_err(|error| {
                self.error(IoKind::Corrupt, format!("attribute '{name}': {error}"))
            })
        };
        self.opt_text(name)?.map(parse).transpose()
    }

    pub(super) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, IoError> {
        self.opt_json(name)?.ok_or_else(|| self.corrupt(name))
    }

    pub(super) fn corrupt(&self, name: &str) -> IoError {
        self.error(
            IoKind::Corrupt,
            format!("attribute '{name}' is missing or of another form"),
        )
    }

    fn error(&self, kind: IoKind, why: String) -> IoError {
        IoError::new(
            "read record",
            format!("{}/{}", self.key.partition, self.key.sort),
            kind,
        )
        .because(why)
    }
}

/// Attributes being written.
#[derive(Debug, Default)]
pub(super) struct Attrs(Vec<(String, Attr)>);

impl Attrs {
    /// Begins the attributes of a whole record.
    pub(super) fn of_record() -> Self {
        Self::default().int(FORM, i64::from(SCHEMA))
    }

    pub(super) fn text(mut self, name: &str, text: impl Into<String>) -> Self {
        self.0.push((name.to_owned(), Attr::Text(text.into())));
        self
    }

    pub(super) fn int(mut self, name: &str, number: i64) -> Self {
        self.0.push((name.to_owned(), Attr::Int(number)));
        self
    }

    pub(super) fn count(self, name: &str, count: u64) -> Self {
        self.int(name, to_int(count))
    }

    pub(super) fn json(self, name: &str, value: &impl Serialize) -> Self {
        self.text(name, to_json(value))
    }

    pub(super) fn opt_moment(self, name: &str, moment: Option<UnixMs>) -> Self {
        match moment {
            Some(moment) => self.int(name, moment.0),
            None => self,
        }
    }

    pub(super) fn opt_text(self, name: &str, text: Option<String>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    pub(super) fn into_vec(self) -> Vec<(String, Attr)> {
        self.0
    }

    pub(super) fn into_item(self) -> Item {
        Item {
            attrs: self.0.into_iter().collect(),
            due: None,
        }
    }
}

/// Numbers of ours stay far below 2^63.
pub(super) fn to_int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("records have text keys and finite numbers")
}
