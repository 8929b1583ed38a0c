//! Base64 as in PEM files and in `Authorization: Basic`: read with and without padding. Pure.

use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};

/// Padding and white space are cut off before; the last digit may have bits that nothing needs.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Return the bytes; None if it is not base64. White space is skipped.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().copied().take_while(|&b| b != b'=');
    let digits: Vec<u8> = digits.filter(|b| !b.is_ascii_whitespace()).collect();
    LENIENT.decode(digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_white_space_and_unused_bits_do_not_matter() {
        for text in ["Zm8=", "Zm8", "Zm9", "Z m\n8=\r\n", "Zm8=*"] {
            assert_eq!(decode(text.as_bytes()).unwrap(), b"fo", "{}", text);
        }
        assert!(decode(b"Zm*v").is_none());
    }
}
