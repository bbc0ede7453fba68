//! Users' values inside messages.

use crate::limits::ECHO_CHARS_MAX;

/// Returns the first 128 characters of `value`, as messages may show them.
#[must_use]
pub fn clip(value: &str) -> &str {
    value
        .char_indices()
        .nth(ECHO_CHARS_MAX)
        .map_or(value, |(end, _)| &value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_at_128_characters_when_they_are_longer() {
        assert_eq!(clip("é"), "é");
        assert_eq!(clip(&"é".repeat(128)), "é".repeat(128));
        assert_eq!(clip(&"é".repeat(129)), "é".repeat(128));
    }
}
