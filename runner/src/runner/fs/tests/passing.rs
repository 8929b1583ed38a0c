//! `fs.read` with `descriptor`: when a file is passed, and that the rules are those of its content.

use super::{make_fifo, Place, Recorder};
use crate::wire::handler::Step;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{symlink, MetadataExt};

// promise: P96
#[test]
fn descriptor_is_passed_for_a_large_file_and_ends_the_stream_or_holds_it() {
    let place = Place::new();
    place.put("large", &[7; 100_000]);
    place.put("small", b"small");
    let request = json!({ "path": "large", "offset": 10, "descriptor": true });
    let out = place.run("fs.read", request.clone());
    if out.descriptors.is_empty() {
        // The directory of the tests is on a file system that is always streamed.
        assert_eq!(out.data.len(), 99_990);
        return;
    }
    assert_eq!(out.data, b"");
    assert_eq!(out.events[0]["entry"]["size"], json!(100_000));
    let meta = fs::metadata(place.path("large")).unwrap();
    assert_eq!(
        out.events[0]["descriptor"],
        json!({ "device": meta.dev(), "inode": meta.ino() })
    );
    assert_eq!(out.outcome.unwrap().unwrap()["size"], json!(100_000));
    let mut file = fs::File::from(out.descriptors.into_iter().next().unwrap());
    assert!(
        file.write(b"x").is_err(),
        "it must be open for reading alone"
    );

    let small = place.run("fs.read", json!({ "path": "small", "descriptor": true }));
    assert_eq!(
        (small.data.as_slice(), small.descriptors.len()),
        (&b"small"[..], 0)
    );
    let part = json!({ "path": "large", "limit": 10, "descriptor": true });
    assert_eq!(place.run("fs.read", part).data.len(), 10);

    let mut out = Recorder::new();
    let mut request = request;
    request["hold"] = json!(true);
    let mut handler = place.open("fs.read", &request).unwrap();
    assert_eq!(handler.step(&mut out).unwrap(), Step::Idle);
    assert_eq!(handler.step(&mut out).unwrap(), Step::Idle);
    assert_eq!((out.descriptors.len(), out.outcome.is_none()), (1, true));
    assert_eq!(handler.end(&mut out).unwrap(), Step::Done);
    assert!(out.outcome.unwrap().is_ok());
}

// promise: P96
#[test]
fn descriptor_is_refused_as_the_content_is() {
    let place = Place::new();
    place.put("secret/large", &[7; 100_000]);
    symlink("secret/large", place.path("link")).unwrap();
    make_fifo(&place.path("fifo"));
    for (path, code) in [
        ("link", "blocked"),
        ("secret/large", "blocked"),
        ("fifo", "not_regular"),
        ("/dev/zero", "not_regular"),
        ("/proc/self/status", "not_regular"),
        ("missing", "not_found"),
    ] {
        let request = json!({ "path": path, "deny": [place.text("secret")], "descriptor": true });
        let out = place.run("fs.read", request);
        assert_eq!(out.outcome.unwrap().unwrap_err().code, code, "{path}");
        assert!(out.descriptors.is_empty());
    }
    let over = json!({ "path": "secret/large", "max": 1000, "descriptor": true });
    let out = place.run("fs.read", over);
    assert_eq!(out.outcome.unwrap().unwrap_err().code, "too_large");
}
