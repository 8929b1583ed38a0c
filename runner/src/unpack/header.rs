//! One header block of ustar, GNU's or the old format, as values. Pure.

use super::failure::{malformed, Outcome};
use super::input::BLOCK;

pub struct Header {
    pub flag: u8,
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    pub size: u64,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub mtime: i64,
}

/// Only the checksum tells a header from anything else.
pub fn read(block: &[u8; BLOCK]) -> Outcome<Header> {
    if !checksum_holds(block) {
        return Err(malformed("a header with a wrong checksum"));
    }
    Ok(Header {
        flag: block[156],
        name: name(block),
        target: until_nul(&block[157..257]).to_vec(),
        size: count(&block[124..136], "size")?,
        mode: (number(&block[100..108], "mode")? & 0o7777) as u32,
        uid: count(&block[108..116], "owner")?,
        gid: count(&block[116..124], "group")?,
        mtime: number(&block[136..148], "time")?,
    })
}

fn name(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    let prefix = until_nul(&block[345..500]);
    // GNU's old format has other things where ustar has the prefix.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        let mut whole = prefix.to_vec();
        whole.push(b'/');
        whole.extend_from_slice(name);
        return whole;
    }
    name.to_vec()
}

pub fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&c| c == 0).unwrap_or(field.len());
    &field[..end]
}

/// Some old writers added the bytes as signed numbers; both sums are taken, as by every reader.
fn checksum_holds(block: &[u8; BLOCK]) -> bool {
    let field = &block[148..156];
    let unsigned: i64 = block.iter().map(|&c| i64::from(c)).sum::<i64>()
        - field.iter().map(|&c| i64::from(c)).sum::<i64>()
        + 8 * i64::from(b' ');
    match number(field, "checksum") {
        Ok(told) if told == unsigned => true,
        Ok(told) => {
            let high = block.iter().filter(|&&c| c >= 0x80).count() as i64;
            let in_field = field.iter().filter(|&&c| c >= 0x80).count() as i64;
            told == unsigned - 256 * (high - in_field)
        }
        Err(_) => false,
    }
}

pub fn count(field: &[u8], what: &str) -> Outcome<u64> {
    let value = number(field, what)?;
    u64::try_from(value).map_err(|_| malformed(format!("a negative {}", what)))
}

/// Octal text, or GNU's base-256 when the first bit is set.
fn number(field: &[u8], what: &str) -> Outcome<i64> {
    let wrong = || malformed(format!("a {} that is no number, or too large a one", what));
    if field[0] & 0x80 != 0 {
        // Two's complement over the whole field, whose marker bit is not part of it.
        let mut value = if field[0] & 0x40 != 0 {
            i128::from(field[0] as i8)
        } else {
            i128::from(field[0] & 0x7f)
        };
        for &byte in &field[1..] {
            value = value << 8 | i128::from(byte);
        }
        return i64::try_from(value).map_err(|_| wrong());
    }
    let mut value = 0i64;
    let digits = field.iter().skip_while(|&&c| c == b' ');
    for &c in digits.take_while(|&&c| c != b' ' && c != 0) {
        if !(b'0'..=b'7').contains(&c) {
            return Err(wrong());
        }
        // At most twelve digits: 36 bits.
        value = value << 3 | i64::from(c - b'0');
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256_and_never_wrap() {
        let told = |field: &[u8]| number(field, "size").ok();
        assert_eq!(told(b"00000000644\0"), Some(0o644));
        assert_eq!(told(b"        644 "), Some(0o644));
        assert_eq!(told(b"777777777777"), Some(0o777_777_777_777));
        assert_eq!(told(&[0; 12]), Some(0));
        assert_eq!(told(b"0000008\0\0\0\0\0"), None);
        assert_eq!(told(b"-1\0\0\0\0\0\0\0\0\0\0"), None);
        assert_eq!(told(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(told(&[0xff; 12]), Some(-1));
        let mut most = [0u8; 12];
        most[0] = 0x80;
        most[4..].copy_from_slice(&i64::MAX.to_be_bytes());
        assert_eq!(told(&most), Some(i64::MAX));
        most[4..].copy_from_slice(&(1u64 << 63).to_be_bytes());
        assert_eq!(told(&most), None);
        assert_eq!(told(&[0xbf; 12]), None);
        assert_eq!(
            told(&[0x80, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..8]),
            Some(0x80 << 48)
        );
    }

    #[test]
    fn both_ways_to_add_a_header_up_are_known() {
        let mut block = [0u8; BLOCK];
        block[0] = 0xe9;
        for sum in [0xe9 + 256, 0xe9 - 256 + 256] {
            block[148..156].copy_from_slice(format!("{:06o}\0 ", sum).as_bytes());
            assert!(checksum_holds(&block), "{}", sum);
        }
        block[1] = 1;
        assert!(!checksum_holds(&block));
    }
}
