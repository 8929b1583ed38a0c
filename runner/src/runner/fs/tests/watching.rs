//! `fs.watch`: what is reported, in what order, and what is never left out.

use super::{settle, Place, Recorder};
use crate::wire::handler::{Handler, Step};
use serde_json::{json, Value};
use std::fs;

struct Watcher {
    handler: Box<dyn Handler>,
    out: Recorder,
}

impl Watcher {
    fn new(place: &Place, request: Value) -> Watcher {
        let handler = place.open("fs.watch", &request).unwrap();
        let mut watcher = Watcher {
            handler,
            out: Recorder::new(),
        };
        assert_eq!(
            settle(watcher.handler.as_mut(), &mut watcher.out),
            Step::Idle
        );
        assert_eq!(watcher.out.events, [json!({ "event": "watching" })]);
        watcher.out.events.clear();
        watcher
    }

    /// Return the events since the last call, as "change path" with `/` after directories.
    fn reported(&mut self, place: &Place) -> Vec<String> {
        assert_eq!(settle(self.handler.as_mut(), &mut self.out), Step::Idle);
        let base = format!("{}/", place.root.to_str().unwrap());
        let show = |event: &Value| {
            if event["event"] == "overflow" {
                return "overflow".to_owned();
            }
            let path = event["path"].as_str().unwrap().replacen(&base, "", 1);
            let slash = if event["is_dir"].as_bool().unwrap() {
                "/"
            } else {
                ""
            };
            format!("{} {}{}", event["change"].as_str().unwrap(), path, slash)
        };
        self.out
            .events
            .drain(..)
            .map(|event| show(&event))
            .collect()
    }
}

#[test]
fn changes_are_reported_with_their_paths() {
    let place = Place::new();
    place.put("sub/old", b"");
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    fs::write(place.path("a"), b"1").unwrap();
    fs::rename(place.path("a"), place.path("sub/b")).unwrap();
    fs::remove_file(place.path("sub/old")).unwrap();
    assert_eq!(
        watcher.reported(&place),
        [
            "created a",
            "modified a",
            "moved a",
            "created sub/b",
            "deleted sub/old"
        ]
    );
    assert!(watcher.handler.interest().is_some());
    assert_eq!(watcher.reported(&place), [""; 0]);
}

#[test]
fn new_directories_are_watched_and_their_content_is_reported() {
    let place = Place::new();
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    place.put("x/y/z/file", b"1");
    let mut reported = watcher.reported(&place);
    reported.dedup();
    assert_eq!(
        reported,
        [
            "created x/",
            "created x/y/",
            "created x/y/z/",
            "created x/y/z/file"
        ]
    );
    fs::write(place.path("x/y/z/more"), b"").unwrap();
    assert_eq!(watcher.reported(&place), ["created x/y/z/more"]);
}

#[test]
fn moved_directory_is_reported_under_its_new_path() {
    let place = Place::new();
    place.put("a/in/file", b"");
    place.put("b/x", b"");
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    fs::rename(place.path("a"), place.path("b/moved")).unwrap();
    assert_eq!(watcher.reported(&place), ["moved a/", "created b/moved/"]);
    fs::write(place.path("b/moved/in/new"), b"").unwrap();
    assert_eq!(watcher.reported(&place), ["created b/moved/in/new"]);
    // Moved out of the tree, it is not reported any more; a new one of its name is.
    let other = Place::new();
    fs::rename(place.path("b/moved"), other.path("gone")).unwrap();
    assert_eq!(watcher.reported(&place), ["moved b/moved/"]);
    fs::write(other.path("gone/in/quiet"), b"").unwrap();
    assert_eq!(watcher.reported(&place), [""; 0]);
    fs::rename(other.path("gone"), place.path("back")).unwrap();
    let reported = watcher.reported(&place);
    assert_eq!(reported[0], "created back/");
    assert!(
        reported.contains(&"created back/in/quiet".to_owned()),
        "{:?}",
        reported
    );
}

#[test]
fn flat_watch_does_not_look_into_directories() {
    let place = Place::new();
    place.put("sub/x", b"");
    let mut watcher = Watcher::new(&place, json!({ "path": ".", "recursive": false }));
    fs::write(place.path("sub/y"), b"").unwrap();
    fs::create_dir(place.path("new")).unwrap();
    fs::write(place.path("new/z"), b"").unwrap();
    assert_eq!(watcher.reported(&place), ["created new/"]);
}

#[test]
fn writes_of_the_runner_itself_are_one_change() {
    let place = Place::new();
    place.put("old", b"");
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    place.write("new", b"1");
    place.write("old", b"2");
    assert_eq!(watcher.reported(&place), ["created new", "modified old"]);
}

#[test]
fn denied_directories_are_not_reported() {
    let place = Place::new();
    place.put("no/x", b"");
    place.put("yes/x", b"");
    let deny = json!([place.text("no")]);
    let mut watcher = Watcher::new(&place, json!({ "path": ".", "deny": deny }));
    fs::write(place.path("no/y"), b"").unwrap();
    fs::write(place.path("yes/y"), b"").unwrap();
    assert_eq!(watcher.reported(&place), ["created yes/y"]);
    assert_eq!(
        place.code("fs.watch", json!({ "path": "no", "deny": deny })),
        "blocked"
    );
}

#[test]
fn removal_of_the_watched_directory_is_reported() {
    let place = Place::new();
    place.put("w/x", b"");
    let mut watcher = Watcher::new(&place, json!({ "path": "w" }));
    fs::remove_dir_all(place.path("w")).unwrap();
    let reported = watcher.reported(&place);
    assert_eq!(reported.last().unwrap(), "deleted w");
    place.put("w/again", b"");
    assert_eq!(watcher.reported(&place), [""; 0]);
}

#[test]
fn file_can_be_watched() {
    let place = Place::new();
    place.put("f", b"");
    let mut watcher = Watcher::new(&place, json!({ "path": "f" }));
    fs::write(place.path("f"), b"x").unwrap();
    assert_eq!(watcher.reported(&place), ["modified f"]);
}

#[test]
fn full_queue_is_reported_and_new_directories_are_still_found() {
    let place = Place::new();
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    for number in 0..limit {
        let path = place.path(&format!("f{}", number % 100));
        fs::write(&path, b"x").unwrap();
        fs::remove_file(&path).unwrap();
    }
    fs::create_dir(place.path("unseen")).unwrap();
    let reported = watcher.reported(&place);
    assert!(reported.contains(&"overflow".to_owned()));
    fs::write(place.path("unseen/file"), b"").unwrap();
    assert_eq!(watcher.reported(&place), ["created unseen/file"]);
}

#[test]
fn more_directories_than_can_be_watched_are_reported() {
    let place = Place::new();
    for number in 0..9000 {
        fs::create_dir(place.path(&format!("d{}", number))).unwrap();
    }
    assert_eq!(place.code("fs.watch", json!({ "path": "." })), "too_large");
    for number in 0..1000 {
        fs::remove_dir(place.path(&format!("d{}", number))).unwrap();
    }
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    for number in 0..1000 {
        fs::create_dir(place.path(&format!("e{}", number))).unwrap();
    }
    assert!(watcher.reported(&place).contains(&"overflow".to_owned()));
}

#[test]
fn client_that_does_not_read_stops_the_events() {
    let place = Place::new();
    let mut watcher = Watcher::new(&place, json!({ "path": "." }));
    watcher.out.credit = 0;
    fs::write(place.path("a"), b"").unwrap();
    assert_eq!(watcher.reported(&place), [""; 0]);
    assert!(matches!(
        watcher.handler.interest(),
        Some((_, false, false))
    ));
    watcher.out.credit = 1;
    assert_eq!(watcher.reported(&place), ["created a"]);
}
