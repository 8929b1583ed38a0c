//! Archives: what a registry or a user sends to `sandkasten-unpack`.

mod archives;
mod targets;

use crate::archive::Archive;
use crate::failure;
use crate::layer::{Layer, Limits};
use crate::tar::reader::{Item, Kind, Member, Reader};
use archives::expanded;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use targets::targets;

targets!(tar, layer);

/// An input that arrives in pieces.
struct Pieces<'a>(std::slice::Chunks<'a, u8>);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.next().unwrap_or(&[]).read(buffer)
    }
}

/// Return the members before the end or the first error, each with its bytes, and whether it was the end.
fn members(archive: &[u8], piece: usize) -> (Vec<(Member, Vec<u8>)>, bool) {
    let mut archive = Archive::new(Pieces(archive.chunks(piece)), 1 << 20);
    let mut members = Vec::new();
    loop {
        match archive.next() {
            Ok(Some(member)) => {
                assert!(!member.name.is_empty());
                let mut body = Vec::new();
                while let Ok(Some(bytes)) = archive.body(u64::MAX) {
                    body.extend_from_slice(bytes);
                }
                assert!(
                    body.len() as u64 <= member.size,
                    "more data than the file is long"
                );
                assert!(member.kind == Kind::File || body.is_empty());
                members.push((member, body));
            }
            Ok(None) => return (members, true),
            Err(_) => return (members, false),
        }
    }
}

/// An archive means the same in pieces of any size, and neither reader repeats itself.
fn tar(data: &[u8]) {
    let archive = expanded(data);
    let whole = members(&archive, archive.len().max(1));
    for piece in [1 + data.len() % 7, 511, 513] {
        assert_eq!(members(&archive, piece), whole);
    }
    // The reader of `fs.tar_in`.
    let (mut reader, mut rest) = (Reader::new(), &archive[..]);
    for _ in 0..=4 * archive.len() {
        match reader.next(&mut rest) {
            Ok(Item::More) | Err(_) => return,
            Ok(_) => {}
        }
    }
    panic!("no end");
}

/// A layer stays in its directory, whatever its names and links say.
fn layer(data: &[u8]) {
    let place = std::env::temp_dir().join(format!("sandkasten-layer-{}", std::process::id()));
    let target = place.join("target");
    fs::create_dir_all(&target).unwrap();
    fs::write(place.join("canary"), "alive").unwrap();
    let limits = Limits {
        bytes: 1 << 20,
        entries: 100,
    };
    let opened = fs::File::open(&target).unwrap();
    let unpacked = Layer::new(opened.into(), false, limits)
        .and_then(|layer| layer.unpack(&mut Archive::new(&expanded(data)[..], 1 << 20)));
    if let Err(failure) = unpacked {
        // What an archive contains is no reason for an error of the system.
        assert!(
            !matches!(failure.kind, failure::Kind::Space | failure::Kind::System),
            "{failure:?}"
        );
    }
    let canary = place.join("canary");
    assert_eq!(fs::read(&canary).unwrap(), b"alive");
    assert_eq!(fs::metadata(&canary).unwrap().nlink(), 1);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 2);
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn archive_with_every_kind_of_member_is_read_to_its_end() {
    let stored = targets::inputs("tar");
    let (_, data) = stored
        .iter()
        .find(|(path, _)| path.ends_with("every-kind-of-member"))
        .unwrap();
    let (members, ended) = members(&expanded(data), 511);
    assert_eq!((members.len(), ended), (7, true));
}

#[test]
fn endless_input_is_refused() {
    let mut archive = Archive::new(std::io::repeat(0).take(u64::MAX), 1 << 30);
    assert!(archive.next().is_err());
}
