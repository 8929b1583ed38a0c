//! sandkasten-unpack: unpacks one layer of an image, from a tar on stdin into one directory.
//!
//! The target is an open descriptor of an empty directory. The answer is one JSON object on stdout:
//! `{bytes, files, skipped}`, or `{error: {kind, message, errno}}`; the caller removes what was created
//! until then. The program knows nothing of compression, digests or images.

#![cfg_attr(fuzzing, no_main, allow(dead_code))]

mod archive;
mod confine;
mod failure;
#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/unpack.rs"]
mod fuzz;
mod layer;
mod names;
mod tree;

use archive::Archive;
use failure::{Failure, Kind, Outcome};
use layer::{Layer, Limits, Report};
use sandkasten_runner::{sys, tar};
use serde_json::json;
use std::io::Write;
use std::os::unix::io::RawFd;

const USAGE: &str = "sandkasten-unpack --target-fd N --max-bytes N --max-entries N";
/// How many bytes of headers, extensions and padding an entry may cost on average in addition to its
/// content.
const OVERHEAD: u64 = 4096;

struct Options {
    target: RawFd,
    limits: Limits,
}

fn parse(arguments: &[String]) -> Option<Options> {
    let (mut target, mut bytes, mut entries) = (None, None, None);
    for pair in arguments.chunks(2) {
        let value: u64 = pair.get(1)?.parse().ok()?;
        match pair[0].as_str() {
            "--target-fd" => target = Some(RawFd::try_from(value).ok()?),
            "--max-bytes" => bytes = Some(value),
            "--max-entries" => entries = Some(value),
            _ => return None,
        }
    }
    Some(Options {
        target: target.filter(|&fd| fd > 2)?,
        limits: Limits {
            bytes: bytes?,
            entries: entries?,
        },
    })
}

fn run() -> Outcome<Report> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = parse(&arguments).ok_or_else(|| Failure::new(Kind::Usage, USAGE))?;
    let root = rustix::process::geteuid().is_root();
    // The caller passed it to us, and nothing else here uses that number.
    let target = sys::own(options.target);
    confine::confine(&target, root)?;
    let entries = options.limits.entries.saturating_mul(OVERHEAD);
    let allowed = options.limits.bytes.saturating_add(entries);
    let layer = Layer::new(target, root, options.limits)?;
    // Nothing else here reads standard input.
    let stdin = std::fs::File::from(sys::own(0));
    layer.unpack(&mut Archive::new(stdin, allowed))
}

fn main() {
    let (answer, code) = match run() {
        Ok(report) => (
            json!({"bytes": report.bytes, "files": report.files, "skipped": report.skipped}),
            0,
        ),
        Err(f) => (
            json!({"error": {"kind": f.kind.name(), "message": f.message, "errno": f.errno}}),
            1,
        ),
    };
    // If the reader has gone, that is the caller's concern.
    let _ = std::io::stdout().write_all(answer.to_string().as_bytes());
    std::process::exit(code);
}
