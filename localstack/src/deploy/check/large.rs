//! A file that no gateway takes in one request: two parts of 8 MiB, put together and compared.

use anyhow::Context as _;
use serde_json::json;
use ureq::http::Method;

use super::api::Payload;
use super::batch::id;
use super::{Check, FILES_LIVE_S};

/// Bytes of a part, as the documentation tells users.
const PART_BYTES: usize = 8 << 20;

impl Check {
    /// Uploads 16 MiB in two parts, downloads the file, and compares.
    pub(super) fn send_large(&mut self) -> anyhow::Result<((), String)> {
        let sent = content(2 * PART_BYTES);
        let wish = json!({
            "purpose": "batch",
            "filename": "nightshift-check-large.jsonl",
            "bytes": sent.len(),
            "mime_type": "application/jsonl",
            "expires_after": { "anchor": "created_at", "seconds": FILES_LIVE_S },
        });
        let post = |path: &str, payload: Payload<'_>| {
            self.api
                .call(&self.key, &Method::POST, path, payload)?
                .json(200)
        };
        let upload = id(&post("/uploads", Payload::Json(&wish))?)?;
        let mut parts = Vec::new();
        for part in sent.chunks(PART_BYTES) {
            let path = format!("/uploads/{upload}/parts");
            let part = post(&path, Payload::Form(&[], "data", part)).context(
                "send a part of 8 MiB; look for a proxy or a firewall rule that limits requests",
            )?;
            parts.push(id(&part)?);
        }
        let path = format!("/uploads/{upload}/complete");
        let whole = post(&path, Payload::Json(&json!({ "part_ids": parts })))
            .context("put the parts together")?;
        let file = id(&whole["file"])?;
        self.made.files.push(file.clone());
        let (came, host) = self.api.content(&self.key, &file)?;
        if let Some(at) = first_difference(&sent, &came) {
            anyhow::bail!(
                "{} bytes were sent and {} came back; they differ from byte {at} on",
                sent.len(),
                came.len()
            );
        }
        let from = host
            .map(|host| format!(", from {host}"))
            .unwrap_or_default();
        Ok(((), format!("{} bytes, equal{from}", came.len())))
    }
}

/// Makes lines that are all different, so that a part that is lost, doubled or out of place shows.
fn content(bytes: usize) -> Vec<u8> {
    let mut content = Vec::with_capacity(bytes + 64);
    while content.len() < bytes {
        let line = format!("{{\"at\":{}}}\n", content.len());
        content.extend_from_slice(line.as_bytes());
    }
    content.truncate(bytes);
    content
}

fn first_difference(sent: &[u8], came: &[u8]) -> Option<usize> {
    let same = sent.iter().zip(came).take_while(|(a, b)| a == b).count();
    (same < sent.len().max(came.len())).then_some(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_has_its_length_and_no_period_of_a_part() {
        let whole = content(3000);
        assert_eq!(whole.len(), 3000);
        assert_ne!(whole[..1000], whole[1000..2000]);
    }

    #[test]
    fn first_difference_is_found() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"abd"), Some(2));
        assert_eq!(first_difference(b"abc", b"ab"), Some(2));
        assert_eq!(first_difference(b"", b"a"), Some(0));
    }
}
