//! Archives assembled by hand, and a directory to unpack them where an escape would show.

use super::{Place, Recorder};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Return a header block with a valid checksum.
pub fn header(name: &[u8], flag: u8, size: &[u8], target: &[u8], mode: &[u8]) -> Vec<u8> {
    let mut block = vec![0u8; 512];
    block[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    block[100..100 + mode.len()].copy_from_slice(mode);
    block[124..124 + size.len()].copy_from_slice(size);
    block[136..147].copy_from_slice(b"00000000001");
    block[156] = flag;
    block[157..157 + target.len()].copy_from_slice(target);
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

pub fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block[..512].iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{:06o}\0 ", sum).as_bytes());
}

pub fn octal(size: usize) -> Vec<u8> {
    format!("{:011o}", size).into_bytes()
}

pub fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    bytes
}

pub fn file(name: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = header(
        name.as_bytes(),
        b'0',
        &octal(content.len()),
        b"",
        b"0000644",
    );
    bytes.extend(padded(content.to_vec()));
    bytes
}

pub fn directory(name: &str) -> Vec<u8> {
    header(name.as_bytes(), b'5', &octal(0), b"", b"0000755")
}

pub fn link(name: &str, flag: u8, target: &str) -> Vec<u8> {
    header(
        name.as_bytes(),
        flag,
        &octal(0),
        target.as_bytes(),
        b"0000777",
    )
}

pub fn extension(flag: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = header(b"ext", flag, &octal(data.len()), b"", b"0000644");
    bytes.extend(padded(data.to_vec()));
    bytes
}

pub fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        data.extend(format!("{} {}={}\n", length, key, value).into_bytes());
    }
    extension(b'x', &data)
}

pub fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = parts.concat();
    bytes.extend([0; 1024]);
    bytes
}

pub fn unpack(place: &Place, bytes: &[u8]) -> Recorder {
    place.run_with("fs.tar_in", &json!({ "path": "in" }), bytes, 1000)
}

pub fn code(place: &Place, bytes: &[u8]) -> &'static str {
    match unpack(place, bytes).outcome.unwrap() {
        Ok(_) => "ok",
        Err(failure) => failure.code,
    }
}

/// Return a directory to unpack into with a canary beside it.
pub fn guarded() -> Place {
    let place = Place::new();
    place.put("out/canary", b"alive");
    place.ok("fs.mkdir", json!({ "path": "in" }));
    place
}

pub fn assert_guarded(place: &Place) {
    assert_eq!(place.names("out"), ["canary"]);
    assert_eq!(place.get("out/canary"), b"alive");
    let meta = fs::metadata(place.path("out/canary")).unwrap();
    assert_eq!(meta.nlink(), 1);
    assert!(!place.path("evil").exists());
    let temporary = |name: &String| name.starts_with(".sandkasten");
    assert!(!place.names("in").iter().any(temporary));
}
