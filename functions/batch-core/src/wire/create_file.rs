//! The form of `POST /files`, without the file's bytes.

use crate::file::{ExpiresAfter, Purpose};
use crate::wire::{WireError, expiry, purpose};

/// Characters of a file's name. Longer ones are refused, so that records and pages stay small.
pub const FILENAME_CHARS_MAX: usize = 8_192;

/// The text fields that count. Others are ignored; of a repeated one the last counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileForm {
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
}

/// What a new file is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileParams {
    /// What it is for.
    pub purpose: Purpose,
    /// How long it lives, if the user said so.
    pub expires_after: Option<ExpiresAfter>,
}

impl FileForm {
    /// Returns where a field's text belongs; none if the field does not count.
    pub fn field(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "purpose" => Some(&mut self.purpose),
            "expires_after[anchor]" => Some(&mut self.anchor),
            "expires_after[seconds]" => Some(&mut self.seconds),
            _ => None,
        }
    }

    /// Checks the fields.
    ///
    /// # Errors
    ///
    /// A 400 that names the field at fault.
    pub fn finish(&self) -> Result<FileParams, WireError> {
        let purpose = self
            .purpose
            .as_deref()
            .ok_or_else(|| WireError::missing("purpose"))?;
        Ok(FileParams {
            purpose: purpose::parse_given(purpose)?,
            expires_after: expiry::from_form(self.anchor.as_deref(), self.seconds.as_deref())?,
        })
    }
}

/// Checks a file's name. For batches an extension must be `.jsonl` or `.ndjson`; a name without one passes,
/// as SDKs call bytes `upload`.
///
/// # Errors
///
/// A 400 that names `param`.
pub fn check_filename(param: &str, filename: &str, purpose: Purpose) -> Result<(), WireError> {
    let chars = filename.chars().count();
    if chars > FILENAME_CHARS_MAX {
        return Err(WireError::text_too_long(param, chars, FILENAME_CHARS_MAX));
    }
    let base = filename.rsplit(['/', '\\']).next().unwrap_or(filename);
    let extension = match base.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() && !extension.is_empty() => extension,
        _ => return Ok(()),
    };
    let fits = ["jsonl", "ndjson"]
        .iter()
        .any(|known| extension.eq_ignore_ascii_case(known));
    if purpose != Purpose::Batch || fits {
        return Ok(());
    }
    Err(
        WireError::invalid("Invalid file format for Batch API. Must be .jsonl")
            .with_param(param)
            .with_code("invalid_file_format"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_pass_unless_they_have_another_extension() {
        for name in [
            "upload",
            "a.jsonl",
            "A.JSONL",
            "b.ndjson",
            ".hidden",
            "dir.d/upload",
            "end.",
            "",
            "../../x.jsonl",
            "🌙\r\n.jsonl",
        ] {
            assert_eq!(
                check_filename("file", name, Purpose::Batch),
                Ok(()),
                "{name}"
            );
        }
        for name in ["a.txt", "a.jsonl.gz", "a.json", "C:\\a\\b.csv"] {
            assert!(
                check_filename("file", name, Purpose::Batch).is_err(),
                "{name}"
            );
            assert_eq!(
                check_filename("file", name, Purpose::UserData),
                Ok(()),
                "{name}"
            );
        }
    }

    #[test]
    fn names_are_refused_when_they_are_endless() {
        let name = "n".repeat(FILENAME_CHARS_MAX + 1);
        let error = check_filename("file", &name, Purpose::Evals).unwrap_err();
        assert_eq!(error.code, Some("string_above_max_length"));
        assert!(check_filename("file", &"n".repeat(5_000), Purpose::Batch).is_ok());
    }
}
