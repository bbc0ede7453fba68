//! The outer object of a line: four keys, in any order, once each.

use super::body::BodyFields;
use super::json::{Kind, Malformed, Scanner, unescape};

/// The values of the four keys as written; none if a key is absent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Envelope<'a> {
    pub(super) custom_id: Option<&'a str>,
    pub(super) method: Option<&'a str>,
    pub(super) url: Option<&'a str>,
    pub(super) body: Option<&'a str>,
    /// What matters of the body, if it is an object.
    pub(super) fields: BodyFields<'a>,
}

/// Why a line has no envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoEnvelope {
    NotJson,
    NotAnObject,
    RepeatedKey(&'static str),
}

impl From<Malformed> for NoEnvelope {
    fn from(_: Malformed) -> Self {
        NoEnvelope::NotJson
    }
}

impl<'a> Envelope<'a> {
    /// Reads a line; it is checked to its end.
    pub(super) fn read(text: &'a str) -> Result<Self, NoEnvelope> {
        let mut scanner = Scanner::new(text);
        if scanner.peek() != Some(b'{') {
            scanner.value()?;
            scanner.end()?;
            return Err(NoEnvelope::NotAnObject);
        }
        let mut envelope = Self::default();
        let mut repeated = None;
        scanner.object(|scanner, key| {
            let key = unescape(key);
            let (slot, name) = match &*key {
                b"custom_id" => (&mut envelope.custom_id, "custom_id"),
                b"method" => (&mut envelope.method, "method"),
                b"url" => (&mut envelope.url, "url"),
                b"body" => (&mut envelope.body, "body"),
                _ => return scanner.value().map(drop),
            };
            let value = if name == "body" && scanner.peek() == Some(b'{') {
                let (value, fields) = BodyFields::read(scanner)?;
                envelope.fields = fields;
                value
            } else {
                scanner.value()?
            };
            if slot.replace(value).is_some() {
                repeated = Some(name);
            }
            Ok(())
        })?;
        scanner.end()?;
        repeated.map_or(Ok(envelope), |name| Err(NoEnvelope::RepeatedKey(name)))
    }
}

/// What a worker needs of a line that was checked before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The custom_id as a JSON string, as the user wrote it.
    pub custom_id_json: &'a str,
    /// The body, byte for byte.
    pub body: &'a str,
}

/// Opens a line of a shard; none if it is not one that validation let through.
#[must_use]
pub fn open(raw: &[u8]) -> Option<Request<'_>> {
    let envelope = Envelope::read(std::str::from_utf8(raw).ok()?).ok()?;
    let custom_id_json = envelope
        .custom_id
        .filter(|token| Kind::of(token) == Kind::String)?;
    let body = envelope
        .body
        .filter(|value| Kind::of(value) == Kind::Object)?;
    Some(Request {
        custom_id_json,
        body,
    })
}
