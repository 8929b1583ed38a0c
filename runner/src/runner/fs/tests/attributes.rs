//! `fs.attributes`, and the attributes that `fs.write` sets.

use super::{make_fifo, Place};
use serde_json::json;
use std::os::unix::fs::symlink;

#[test]
fn a_written_file_has_the_given_attributes_and_no_older_ones() {
    let place = Place::new();
    let of = |path: &str| {
        place.ok(
            "fs.attributes",
            json!({ "paths": [path], "prefix": "note." }),
        )["attributes"][0]
            .clone()
    };
    let given = json!({ "note.a": "1", "note.b": "ü", "other": "x" });
    let request = json!({ "path": "a", "attributes": given });
    place.run_with("fs.write", &request, b"1", 1);
    assert_eq!(of("a"), json!({ "note.a": "1", "note.b": "ü" }));
    place.ok("fs.move", json!({ "source": "a", "destination": "b" }));
    assert_eq!(of("b"), json!({ "note.a": "1", "note.b": "ü" }));
    place.write("b", b"2");
    assert_eq!(of("b"), json!({}));
}

#[test]
fn attributes_of_what_is_not_a_file_are_none_and_wrong_ones_are_invalid() {
    let place = Place::new();
    let request = json!({ "path": "a", "attributes": { "x": "1" } });
    place.run_with("fs.write", &request, b"1", 1);
    symlink("a", place.path("link")).unwrap();
    make_fifo(&place.path("fifo"));
    place.ok("fs.mkdir", json!({ "path": "dir" }));
    let found = place.ok(
        "fs.attributes",
        json!({ "paths": ["a", "link", "fifo", "dir", "missing"] }),
    );
    assert_eq!(found["attributes"], json!([{ "x": "1" }, {}, {}, {}, {}]));
    for wrong in [
        json!({ "": "1" }),
        json!({ "a\u{0}": "1" }),
        json!({ "a": "b\u{0}" }),
        json!({ "a": 1 }),
        json!([]),
        json!({ "n".repeat(251): "1" }),
        json!({ "a": "v".repeat((64 << 10) + 1) }),
    ] {
        let request = json!({ "path": "new", "attributes": wrong });
        let out = place.run_with("fs.write", &request, b"1", 1);
        assert_eq!(out.outcome.unwrap().unwrap_err().code, "invalid", "{wrong}");
        assert!(!place.path("new").exists());
    }
}

#[test]
fn a_long_answer_about_attributes_has_only_the_first_files() {
    let place = Place::new();
    let value = "v".repeat(3000);
    let mut paths = Vec::new();
    for number in 0..400 {
        let path = format!("f{number}");
        let request = json!({ "path": path, "flush": false, "attributes": { "x": value } });
        place.run_with("fs.write", &request, b"1", 1);
        paths.push(path);
    }
    let found = place.ok("fs.attributes", json!({ "paths": paths }));
    let count = found["attributes"].as_array().unwrap().len();
    assert!(count > 100 && count < 400, "{count}");
}
