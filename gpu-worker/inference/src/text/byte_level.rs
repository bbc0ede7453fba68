//! The byte alphabet of GPT-2: each byte is a printable character, so that a vocabulary can be text.
//!
//! Source: `bytes_to_unicode` in the encoder of GPT-2.

/// Returns the character that stands for a byte.
pub(super) fn char_of(byte: u8) -> char {
    let code = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        // The other 68, in order, from U+0100 on.
        0..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
    };
    char::from_u32(code).expect("codes up to U+0143 are characters")
}

/// Returns the byte for which a character stands.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Returns the bytes of a token's text; its own UTF-8 if a character stands for no byte.
pub(super) fn bytes_of(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_of)
        .collect::<Option<_>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(
            (char_of(b' '), char_of(b'\n'), char_of(0x7F), char_of(0xAD)),
            ('Ġ', 'Ċ', 'ġ', 'Ń')
        );
    }
}
