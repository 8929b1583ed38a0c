//! Tar archives: `reader` is for `fs.tar_in` of the runner and for `sandkasten-unpack`. Here is the header:
//! one block of 512 bytes in the ustar, GNU or old format, as values. Pure.

mod pax;
pub mod reader;
mod sparse;

pub use pax::Time;

pub const BLOCK: usize = 512;

/// A header block with a valid checksum. Fields are parsed when they are asked for.
pub struct Header<'a>(&'a [u8; BLOCK]);

/// Why a block is not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    Checksum,
    /// The named field is not a number, or a number that does not fit.
    Number(&'static str),
    /// The named field must not be negative.
    Negative(&'static str),
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Invalid::Checksum => write!(f, "a header has a wrong checksum"),
            Invalid::Number(field) => write!(f, "the {} of a header is not a valid number", field),
            Invalid::Negative(field) => write!(f, "a header has a negative {}", field),
        }
    }
}

impl<'a> Header<'a> {
    /// Check the checksum: nothing else distinguishes a header from other data.
    pub fn new(block: &'a [u8; BLOCK]) -> Result<Header<'a>, Invalid> {
        if checksum_matches(block) {
            Ok(Header(block))
        } else {
            Err(Invalid::Checksum)
        }
    }

    /// Return the type of the member.
    pub fn flag(&self) -> u8 {
        self.0[156]
    }

    pub fn name(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        let prefix = until_nul(&self.0[345..500]);
        // The old GNU format has other fields where ustar has the prefix.
        if &self.0[257..263] == b"ustar\0" && !prefix.is_empty() {
            let slash: &[u8] = if prefix.ends_with(b"/") { b"" } else { b"/" };
            return [prefix, slash, name].concat();
        }
        name.to_vec()
    }

    pub fn target(&self) -> Vec<u8> {
        until_nul(&self.0[157..257]).to_vec()
    }

    pub fn size(&self) -> Result<u64, Invalid> {
        count(&self.0[124..136], "size")
    }

    /// Return the permission bits.
    pub fn mode(&self) -> Result<u32, Invalid> {
        Ok((number(&self.0[100..108], "mode")? & 0o7777) as u32)
    }

    pub fn uid(&self) -> Result<u64, Invalid> {
        count(&self.0[108..116], "owner")
    }

    pub fn gid(&self) -> Result<u64, Invalid> {
        count(&self.0[116..124], "group")
    }

    pub fn mtime(&self) -> Result<i64, Invalid> {
        number(&self.0[136..148], "mtime")
    }
}

/// Return a name for a message: readable, on one line, and short.
pub fn show(name: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &name[..name.len().min(MOST)];
    let mut shown = String::from_utf8_lossy(cut).escape_debug().to_string();
    if name.len() > MOST {
        shown.push('…');
    }
    shown
}

/// Return the part of a field before its first NUL.
fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&c| c == 0).unwrap_or(field.len());
    &field[..end]
}

/// Return how many bytes fill the last block of `size` bytes.
pub fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// Some old writers added the bytes as signed numbers, so both sums are accepted.
fn checksum_matches(block: &[u8; BLOCK]) -> bool {
    let (mut unsigned, mut signed) = (0i64, 0i64);
    for (at, &byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { byte };
        unsigned += i64::from(byte);
        signed += i64::from(byte as i8);
    }
    match number(&block[148..156], "checksum") {
        Ok(stored) => stored == unsigned || stored == signed,
        Err(_) => false,
    }
}

/// Parse a field that must not be negative.
fn count(field: &[u8], what: &'static str) -> Result<u64, Invalid> {
    u64::try_from(number(field, what)?).map_err(|_| Invalid::Negative(what))
}

/// Parse octal digits, or GNU's base-256 when the first bit is set.
fn number(field: &[u8], what: &'static str) -> Result<i64, Invalid> {
    if field[0] & 0x80 != 0 {
        // Two's complement over the whole field, without its marker bit.
        let mut value = if field[0] & 0x40 != 0 {
            i128::from(field[0] as i8)
        } else {
            i128::from(field[0] & 0x7f)
        };
        for &byte in &field[1..] {
            value = value << 8 | i128::from(byte);
        }
        return i64::try_from(value).map_err(|_| Invalid::Number(what));
    }
    let mut value = 0i64;
    let digits = field.iter().skip_while(|&&c| c == b' ');
    for &c in digits.take_while(|&&c| c != b' ' && c != 0) {
        if !(b'0'..=b'7').contains(&c) {
            return Err(Invalid::Number(what));
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
        let parsed = |field: &[u8]| number(field, "size").ok();
        assert_eq!(parsed(b"00000000644\0"), Some(0o644));
        assert_eq!(parsed(b"        644 "), Some(0o644));
        assert_eq!(parsed(b"777777777777"), Some(0o777_777_777_777));
        assert_eq!(parsed(&[0; 12]), Some(0));
        assert_eq!(parsed(b"0000008\0\0\0\0\0"), None);
        assert_eq!(parsed(b"-1\0\0\0\0\0\0\0\0\0\0"), None);
        assert_eq!(parsed(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(parsed(&[0xff; 12]), Some(-1));
        let mut most = [0u8; 12];
        most[0] = 0x80;
        most[4..].copy_from_slice(&i64::MAX.to_be_bytes());
        assert_eq!(parsed(&most), Some(i64::MAX));
        most[4..].copy_from_slice(&(1u64 << 63).to_be_bytes());
        assert_eq!(parsed(&most), None);
        assert_eq!(parsed(&[0xbf; 12]), None);
        assert_eq!(
            parsed(&[0x80, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..8]),
            Some(0x80 << 48)
        );
    }

    #[test]
    fn signed_and_unsigned_checksums_are_accepted() {
        let mut block = [0u8; BLOCK];
        block[0] = 0xe9;
        for sum in [0xe9 + 256, 0xe9 - 256 + 256] {
            block[148..156].copy_from_slice(format!("{:06o}\0 ", sum).as_bytes());
            assert!(checksum_matches(&block), "{}", sum);
        }
        block[1] = 1;
        assert!(!checksum_matches(&block));
    }
}
