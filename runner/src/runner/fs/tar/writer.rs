//! Headers of the archives that we write: ustar, with a pax header where a field does not fit.

use crate::tar::{padding, BLOCK};

const MOST_OCTAL_11: u64 = 0o777_7777_7777;
const MOST_OCTAL_7: u32 = 0o777_7777;

/// What archives that we write contain. A hard link is written as a file.
#[derive(Clone, Copy)]
pub enum Kind {
    File,
    Directory,
    Symlink,
}

pub struct Header<'a> {
    pub kind: Kind,
    pub name: &'a [u8],
    pub target: &'a [u8],
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
}

/// The end marker: two blocks of zeros.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Append the header, preceded by a pax header when a field needs one.
pub fn write_header(into: &mut Vec<u8>, header: &Header<'_>) {
    let records = pax_records(header);
    if !records.is_empty() {
        let block = block(&Block {
            flag: b'x',
            name: b"PaxHeader",
            target: b"",
            size: records.len() as u64,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 0,
        });
        into.extend_from_slice(&block);
        into.extend_from_slice(&records);
        into.resize(into.len() + padding(records.len() as u64) as usize, 0);
    }
    let flag = match header.kind {
        Kind::File => b'0',
        Kind::Symlink => b'2',
        Kind::Directory => b'5',
    };
    into.extend_from_slice(&block(&Block {
        flag,
        name: header.name,
        target: header.target,
        size: header.size.min(MOST_OCTAL_11),
        mode: header.mode,
        uid: if header.uid > MOST_OCTAL_7 {
            0
        } else {
            header.uid
        },
        gid: if header.gid > MOST_OCTAL_7 {
            0
        } else {
            header.gid
        },
        mtime: header.mtime.max(0).min(MOST_OCTAL_11 as i64) as u64,
    }));
}

fn pax_records(header: &Header<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    let long_name = header.name.len() > 100;
    let long_target = header.target.len() > 100;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    if (long_name && !text(header.name)) || (long_target && !text(header.target)) {
        // pax values are UTF-8 unless this record says otherwise.
        record(&mut records, "hdrcharset", b"BINARY");
    }
    if long_name {
        record(&mut records, "path", header.name);
    }
    if long_target {
        record(&mut records, "linkpath", header.target);
    }
    if header.size > MOST_OCTAL_11 {
        record(&mut records, "size", header.size.to_string().as_bytes());
    }
    if header.uid > MOST_OCTAL_7 {
        record(&mut records, "uid", header.uid.to_string().as_bytes());
    }
    if header.gid > MOST_OCTAL_7 {
        record(&mut records, "gid", header.gid.to_string().as_bytes());
    }
    if header.mtime < 0 || header.mtime > MOST_OCTAL_11 as i64 {
        record(&mut records, "mtime", header.mtime.to_string().as_bytes());
    }
    records
}

fn record(into: &mut Vec<u8>, key: &str, value: &[u8]) {
    // The length counts its own digits.
    let rest = 1 + key.len() + 1 + value.len() + 1;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    into.extend_from_slice(format!("{} {}=", length, key).as_bytes());
    into.extend_from_slice(value);
    into.push(b'\n');
}

struct Block<'a> {
    flag: u8,
    name: &'a [u8],
    target: &'a [u8],
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: u64,
}

fn block(header: &Block<'_>) -> [u8; BLOCK] {
    let mut block = [0u8; BLOCK];
    text_field(&mut block[..100], header.name);
    octal(&mut block[100..108], u64::from(header.mode & 0o7777));
    octal(&mut block[108..116], u64::from(header.uid));
    octal(&mut block[116..124], u64::from(header.gid));
    octal(&mut block[124..136], header.size);
    octal(&mut block[136..148], header.mtime);
    block[156] = header.flag;
    text_field(&mut block[157..257], header.target);
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    octal(&mut block[148..155], sum);
    block
}

/// Write a field. A longer value is cut; a pax record then has all of it.
fn text_field(field: &mut [u8], value: &[u8]) {
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value[..length]);
}

/// Write octal digits, zero-padded, with a NUL at the end.
fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let text = format!("{:0width$o}", value, width = digits);
    field[..digits].copy_from_slice(text.as_bytes());
    field[digits] = 0;
}
