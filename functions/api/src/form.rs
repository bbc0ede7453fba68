//! Reads multipart forms field by field, in bounded memory, whatever their framing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use batch_core::wire::WireError;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::intake::{Intake, IntakeFault};
use crate::reply::ApiError;

/// Content type of a form.
const FORM: &str = "multipart/form-data";

/// Bytes that may go in without anything coming out: 1 MiB. The longest headers of a part must fit; without
/// a bound, a form without line ends would be held in memory as a whole.
const HELD_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of a text field that counts.
const TEXT_BYTES_MAX: usize = 1024;

/// Bytes beyond the file that a form may have: 1 MiB.
const FRAMING_BYTES_MAX: u64 = 1024 * 1024;

/// A form while it arrives.
pub(crate) struct Form {
    multipart: multer::Multipart<'static>,
    meter: Arc<Meter>,
}

/// One field of a form. It must be read or dropped before the next one.
pub(crate) struct Field {
    field: multer::Field<'static>,
    meter: Arc<Meter>,
}

/// What flows in, and why it stopped.
#[derive(Default)]
struct Meter {
    held: AtomicU64,
    total: AtomicU64,
    fault: Mutex<Option<FormFault>>,
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
enum FormFault {
    #[error("the body stopped")]
    Intake(#[source] IntakeFault),
    #[error("a part has endless headers")]
    Held,
    #[error("the form has more than {0} bytes")]
    Total(u64),
}

impl Form {
    /// Begins to read a form whose file has at most `file_bytes_max` bytes.
    pub(crate) fn new(
        headers: &HeaderMap,
        intake: Intake,
        file_bytes_max: u64,
    ) -> Result<Self, ApiError> {
        let content_type = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("");
        if !is_form(content_type) {
            return Err(WireError::unsupported_media_type(FORM, content_type).into());
        }
        let boundary = boundary(content_type).ok_or_else(|| {
            WireError::invalid("We could not read the form: its content type has no boundary.")
        })?;
        let meter = Arc::new(Meter::default());
        let total_max = file_bytes_max.saturating_add(FRAMING_BYTES_MAX);
        let stream = metered(intake, Arc::clone(&meter), total_max);
        Ok(Self {
            multipart: multer::Multipart::new(stream, boundary),
            meter,
        })
    }

    /// Returns the next field; none after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Field>, ApiError> {
        let field = self
            .multipart
            .next_field()
            .await
            .map_err(|fault| self.meter.explain(&fault))?;
        self.meter.held.store(0, Ordering::Relaxed);
        Ok(field.map(|field| Field {
            field,
            meter: Arc::clone(&self.meter),
        }))
    }
}

impl Field {
    pub(crate) fn name(&self) -> &str {
        self.field.name().unwrap_or("")
    }

    pub(crate) fn filename(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// Returns the next bytes; none after the last.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        let chunk = self
            .field
            .chunk()
            .await
            .map_err(|fault| self.meter.explain(&fault))?;
        self.meter.held.store(0, Ordering::Relaxed);
        Ok(chunk)
    }

    /// Reads a short text.
    pub(crate) async fn text(mut self) -> Result<String, ApiError> {
        let name = self.name().to_owned();
        let mut text = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            text.extend_from_slice(&chunk);
            if text.len() > TEXT_BYTES_MAX {
                return Err(WireError::text_too_long(&name, text.len(), TEXT_BYTES_MAX).into());
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Reads to the end, and drops what comes.
    pub(crate) async fn skip(mut self) -> Result<(), ApiError> {
        while self.chunk().await?.is_some() {}
        Ok(())
    }
}

impl Meter {
    fn explain(&self, fault: &multer::Error) -> ApiError {
        let wire = match *self.fault.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(FormFault::Intake(fault)) => fault.into(),
            Some(FormFault::Total(bytes_max)) => WireError::too_large("The form", bytes_max),
            Some(fault @ FormFault::Held) => {
                WireError::invalid(format!("We could not read the form: {fault}."))
            }
            None => {
                let why = fault.to_string();
                WireError::invalid(format!(
                    "We could not read the form: {}.",
                    batch_core::wire::error::clip(&why)
                ))
            }
        };
        wire.into()
    }

    fn admit(&self, chunk: Result<Bytes, IntakeFault>, total_max: u64) -> Result<Bytes, FormFault> {
        let admitted = chunk.map_err(FormFault::Intake).and_then(|chunk| {
            let bytes = chunk.len() as u64;
            let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
            let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
            match () {
                () if total > total_max => Err(FormFault::Total(total_max)),
                // One chunk alone may be larger than the bound; it is in memory already.
                () if held > HELD_BYTES_MAX && held > bytes => Err(FormFault::Held),
                () => Ok(chunk),
            }
        });
        if let Err(fault) = admitted {
            *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        }
        admitted
    }
}

/// Counts what flows, and yields after every chunk: the parser takes all that is ready before it looks at it.
fn metered(
    mut intake: Intake,
    meter: Arc<Meter>,
    total_max: u64,
) -> impl Stream<Item = Result<Bytes, FormFault>> + Send + 'static {
    let mut rest = false;
    futures::stream::poll_fn(move |cx| {
        if std::mem::take(&mut rest) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let chunk = intake.poll_next_unpin(cx);
        chunk.map(|chunk| {
            rest = chunk.is_some();
            chunk.map(|chunk| meter.admit(chunk, total_max))
        })
    })
}

/// Returns whether a content type is that of a form, whatever its parameters.
fn is_form(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case(FORM)
}

/// Finds the boundary in a content type. Quoted or not, it may hold any character.
fn boundary(content_type: &str) -> Option<String> {
    let (_, parameters) = content_type.split_once(';')?;
    let start = parameters.to_ascii_lowercase().find("boundary=")? + "boundary=".len();
    let value = parameters[start..].trim_start();
    let boundary = match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => value.split(';').next()?.trim_end(),
    };
    (1..=256)
        .contains(&boundary.len())
        .then(|| boundary.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_found_in_any_spelling() {
        let check = |content_type: &str, expected: Option<&str>| {
            assert_eq!(
                boundary(content_type).as_deref(),
                expected,
                "{content_type}"
            );
        };
        check("multipart/form-data; boundary=abc", Some("abc"));
        check(
            "Multipart/Form-Data; charset=utf-8; Boundary=\"a b;c\"; x=y",
            Some("a b;c"),
        );
        check(
            "multipart/form-data;boundary=----formdata-undici-0123",
            Some("----formdata-undici-0123"),
        );
        check(
            "multipart/form-data; boundary=a/b=c+d'(e) ; x=y",
            Some("a/b=c+d'(e)"),
        );
        check("multipart/form-data; boundary=", None);
        check("multipart/form-data", None);
        check("application/json", None);
        check("", None);
    }

    #[test]
    fn forms_are_told_from_other_bodies() {
        for content_type in [
            "multipart/form-data",
            "Multipart/Form-Data ; boundary=",
            "multipart/form-data;",
        ] {
            assert!(is_form(content_type), "{content_type}");
        }
        for content_type in ["", "application/json", "multipart/mixed; boundary=a"] {
            assert!(!is_form(content_type), "{content_type}");
        }
    }
}
