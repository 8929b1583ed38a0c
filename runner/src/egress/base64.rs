//! Base64 with padding, as in PEM files and in `Authorization: Basic`. Pure.

pub const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity((bytes.len() + 2) / 3 * 4);
    for piece in bytes.chunks(3) {
        let value =
            piece.iter().fold(0u32, |sum, &b| sum << 8 | u32::from(b)) << (8 * (3 - piece.len()));
        for at in 0..4 {
            if at <= piece.len() {
                let index = value >> (18 - 6 * at) & 63;
                out.push(char::from(ALPHABET[index as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// Return the bytes; None if it is not base64. White space is skipped.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held, mut padded) = (0u32, 0, false);
    for &b in text {
        if b == b'=' {
            padded = true;
        }
        if padded || b.is_ascii_whitespace() {
            continue;
        }
        let value = ALPHABET.iter().position(|&one| one == b)? as u32;
        bits = bits << 6 | value;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for (plain, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text.as_bytes()).unwrap(), plain.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(encode(&all).as_bytes()).unwrap(), all);
        assert!(decode(b"a*b").is_none());
    }
}
