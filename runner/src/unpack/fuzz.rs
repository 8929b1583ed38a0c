//! Archives with bytes changed, removed and cut off: the parser ends, in bounded memory, and never
//! panics. Members that it still returns are consistent.

use super::archive::Archive;
use crate::tar::reader::Kind;
use crate::tar::BLOCK;
use std::io::Read;

/// Knuth's generator: the same archives on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

fn signed(mut block: [u8; BLOCK]) -> [u8; BLOCK] {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&c| u32::from(c)).sum();
    block[148..156].copy_from_slice(format!("{:06o}\0 ", sum).as_bytes());
    block
}

fn header(name: &[u8], flag: u8, size: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    for (field, value) in [
        (100..108, 0o644),
        (108..116, 0),
        (116..124, 0),
        (124..136, size),
    ] {
        let width = field.len() - 1;
        let text = format!("{:0width$o}\0", value, width = width);
        block[field].copy_from_slice(text.as_bytes());
    }
    block[156] = flag;
    block[157..160].copy_from_slice(b"abc");
    block[257..265].copy_from_slice(b"ustar\x0000");
    signed(block)
}

fn member(into: &mut Vec<u8>, name: &[u8], flag: u8, data: &[u8]) {
    into.extend_from_slice(&header(name, flag, data.len()));
    into.extend_from_slice(data);
    into.resize(into.len().div_ceil(BLOCK) * BLOCK, 0);
}

fn records(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in pairs {
        // Below a hundred bytes: two digits.
        let length = key.len() + value.len() + 5;
        data.extend_from_slice(format!("{} {}={}\n", length, key, value).as_bytes());
    }
    data
}

/// Return an archive with one member of every kind that the parser knows.
fn complete_archive() -> Vec<u8> {
    let mut archive = Vec::new();
    let pax = |archive: &mut Vec<u8>, flag, pairs| member(archive, b"pax", flag, &records(pairs));
    pax(&mut archive, b'g', &[("mtime", "1.5")]);
    member(&mut archive, b"d/", b'5', b"");
    let long = vec![b'n'; 300];
    member(&mut archive, b"long", b'L', &long);
    member(&mut archive, b"long", b'K', &long);
    member(&mut archive, b"s", b'2', b"");
    member(&mut archive, b"f", b'0', &[7; 1300]);
    member(&mut archive, b"h", b'1', b"");
    let version_0 = [
        ("GNU.sparse.size", "20"),
        ("GNU.sparse.map", "0,2,5,3,20,0"),
        ("path", "some/where"),
        ("SCHILY.xattr.user.note", "abc"),
    ];
    pax(&mut archive, b'x', &version_0);
    member(&mut archive, b"p", b'0', b"abcde");
    let version_1 = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.realsize", "20"),
    ];
    pax(&mut archive, b'x', &version_1);
    let mut data = b"2\n0\n2\n5\n3\n".to_vec();
    data.resize(BLOCK, 0);
    data.extend_from_slice(b"abcde");
    member(&mut archive, b"q", b'0', &data);
    let mut old = header(b"o", b'S', 5);
    old[386..410].copy_from_slice(b"00000000000\x0000000000005\0");
    old[482] = 1;
    old[483..495].copy_from_slice(b"00000000024\0");
    archive.extend_from_slice(&signed(old));
    archive.resize(archive.len() + BLOCK, 0);
    member_body(&mut archive, b"abcde");
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn member_body(into: &mut Vec<u8>, data: &[u8]) {
    into.extend_from_slice(data);
    into.resize(into.len().div_ceil(BLOCK) * BLOCK, 0);
}

/// An input that arrives in pieces.
struct Pieces<'a>(std::slice::Chunks<'a, u8>);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.next().unwrap_or(&[]).read(buffer)
    }
}

/// Count the members before the end or the first error.
fn read_through(bytes: &[u8]) -> (usize, bool) {
    read_in_pieces(bytes, 256 * 1024)
}

fn read_in_pieces(bytes: &[u8], most: usize) -> (usize, bool) {
    let mut archive = Archive::new(Pieces(bytes.chunks(most)), 1 << 20);
    let mut count = 0;
    loop {
        match archive.next() {
            Ok(Some(member)) => {
                count += 1;
                assert!(!member.name.is_empty());
                let mut taken = 0;
                while let Ok(Some(piece)) = archive.body(u64::MAX) {
                    taken += piece.len() as u64;
                }
                assert!(taken <= member.size, "more data than the file is long");
                assert!(member.kind == Kind::File || taken == 0);
            }
            Ok(None) => return (count, true),
            Err(_) => return (count, false),
        }
    }
}

#[test]
fn archive_with_every_kind_of_member_is_read_to_its_end_in_pieces_of_any_size() {
    for most in [1, 511, 513, 1 << 20] {
        assert_eq!(
            read_in_pieces(&complete_archive(), most),
            (7, true),
            "{}",
            most
        );
    }
}

#[test]
fn parser_ends_on_any_changed_archive() {
    let good = complete_archive();
    let mut random = Random(7);
    let (mut survived, mut refused) = (0, 0);
    for round in 0..6_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => {
                    bytes[at] = *[b'0', b'9', b'-', 0, 0x80, 0xff, b'\n', b'='][random.below(8)..]
                        .first()
                        .unwrap_or(&0)
                }
                2 => bytes.truncate(at.max(1)),
                _ => {
                    let end = (at + random.below(2 * BLOCK)).min(bytes.len());
                    bytes.drain(at..end);
                    bytes.push(0);
                }
            }
        }
        if round % 2 == 0 {
            // Recompute the checksums of headers, or hardly any change would get past them.
            for start in (0..bytes.len() / BLOCK * BLOCK).step_by(BLOCK) {
                let block: [u8; BLOCK] = bytes[start..start + BLOCK].try_into().unwrap();
                if &block[257..262] == b"ustar" {
                    bytes[start..start + BLOCK].copy_from_slice(&signed(block));
                }
            }
        }
        match read_through(&bytes) {
            (_, true) => survived += 1,
            (_, false) => refused += 1,
        }
    }
    // Both must happen, or the changes are useless.
    assert!(survived > 500 && refused > 500, "{} {}", survived, refused);
}

#[test]
fn random_bytes_are_refused() {
    let mut random = Random(11);
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..3 * BLOCK).map(|_| random.below(256) as u8).collect();
        assert_eq!(read_through(&bytes), (0, false));
    }
}

#[test]
fn endless_input_is_refused() {
    let mut archive = Archive::new(std::io::repeat(0).take(u64::MAX), 1 << 30);
    assert!(archive.next().is_err());
}
