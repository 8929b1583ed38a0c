//! `--script`: a conversation from a file is played in order and with every byte, and a failure of it is
//! told apart from a failure of the code.

use crate::client::{self, chunk, program, CHUNK, CREDIT, DATA, END, ERROR, OPEN, RESULT};
use serde_json::{json, Value};
use std::path::PathBuf;
use std::process::{Command, Output};

const WAIT: u8 = 0;
/// More than the credit of a stream that was just opened.
const LARGE: usize = 5 << 20;
const PLENTY: u64 = 64 << 20;

/// A script, and the directory in which it is played.
struct Script {
    root: PathBuf,
    frames: Vec<u8>,
    streams: u32,
}

struct Frame {
    kind: u8,
    stream: u32,
    body: Vec<u8>,
}

impl Script {
    fn new() -> Script {
        let name = format!("sk-script-{}-{}", std::process::id(), client::serial());
        let root = std::env::temp_dir().join(name);
        std::fs::create_dir_all(root.join("workspace")).unwrap();
        Script {
            root,
            frames: Vec::new(),
            streams: 0,
        }
    }

    fn frame(&mut self, kind: u8, stream: u32, body: &[u8]) {
        self.frames
            .extend_from_slice(&(body.len() as u32 + 5).to_be_bytes());
        self.frames.push(kind);
        self.frames.extend_from_slice(&stream.to_be_bytes());
        self.frames.extend_from_slice(body);
    }

    fn call(&mut self, verb: &str, mut request: Value) -> u32 {
        request["verb"] = json!(verb);
        self.streams += 1;
        self.frame(OPEN, self.streams, &serde_json::to_vec(&request).unwrap());
        self.streams
    }

    fn run(&mut self, id: &str, code: &str) -> u32 {
        let argv = ["/bin/sh", "-c", code];
        let stream = self.call("exec.start", json!({ "exec_id": id, "argv": argv }));
        self.wait();
        stream
    }

    fn wait(&mut self) {
        self.frame(WAIT, 0, b"");
    }

    fn play(&self, most_bytes: u64, options: &[&str]) -> Output {
        let [input, answers] = ["script", "answers"].map(|name| self.root.join(name));
        std::fs::write(&input, &self.frames).unwrap();
        Command::new(program())
            .arg("--script")
            .args([input, answers])
            .arg(most_bytes.to_string())
            .args(["PATH=/usr/bin:/bin", "--", "--state-dir"])
            .arg(self.root.join("state"))
            .arg("--workspace")
            .arg(self.root.join("workspace"))
            .args(options)
            .output()
            .unwrap()
    }

    /// Play it to its end, which must be a good one.
    fn answers(&self) -> Vec<Frame> {
        let done = self.play(PLENTY, &[]);
        assert_eq!(
            (done.status.code(), String::from_utf8_lossy(&done.stderr)),
            (Some(0), "".into())
        );
        let bytes = std::fs::read(self.root.join("answers")).unwrap();
        let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
            let end = number(0) as usize + 4;
            frames.push(Frame {
                kind: rest[4],
                stream: number(5),
                body: rest[9..end].to_vec(),
            });
            rest = &rest[end..];
        }
        frames
    }

    /// Play it; return the message with which it fails.
    fn failure(&self, most_bytes: u64, options: &[&str]) -> String {
        let done = self.play(most_bytes, options);
        assert_eq!(done.status.code(), Some(1));
        String::from_utf8_lossy(&done.stderr).into_owned()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn end_of(frames: &[Frame], stream: u32) -> (u8, Value) {
    let ends = |one: &&Frame| one.stream == stream && [RESULT, ERROR].contains(&one.kind);
    let found: Vec<&Frame> = frames.iter().filter(ends).collect();
    assert_eq!(found.len(), 1);
    (
        found[0].kind,
        serde_json::from_slice(&found[0].body).unwrap(),
    )
}

fn output_of(frames: &[Frame], stream: u32) -> Vec<u8> {
    let of = |one: &&Frame| one.stream == stream && one.kind == CHUNK;
    let chunks = frames.iter().filter(of);
    chunks.flat_map(|one| chunk(&one.body).bytes).collect()
}

// promise: P114
#[test]
fn what_follows_a_wait_is_sent_when_everything_before_has_ended() {
    let mut script = Script::new();
    let slow = script.run("one", "sleep 0.2; echo first > order; exit 3");
    let fast = script.run("two", "cat order; echo second >> order");
    let output = script.call("exec.output", json!({ "exec_id": "two" }));
    let frames = script.answers();
    assert_eq!(end_of(&frames, slow).1["exit_code"], json!(3));
    assert_eq!(end_of(&frames, fast).1["exit_code"], json!(0));
    assert_eq!(output_of(&frames, output), b"first\n");
}

// promise: P114
#[test]
fn more_than_the_credit_of_a_stream_goes_in_and_comes_out() {
    let content: Vec<u8> = (0..LARGE).map(|at| (at % 251) as u8).collect();
    let mut script = Script::new();
    let size = content.len();
    let written = script.call("fs.write", json!({ "path": "large", "size": size }));
    for piece in content.chunks(256 << 10) {
        script.frame(DATA, written, piece);
    }
    script.frame(END, written, b"");
    script.wait();
    let read = script.call("fs.read", json!({ "path": "large" }));
    let frames = script.answers();
    assert_eq!(end_of(&frames, written).1["size"], json!(size));
    let data = frames
        .iter()
        .filter(|one| one.stream == read && one.kind == DATA);
    let back: Vec<u8> = data.flat_map(|one| one.body.clone()).collect();
    assert!(back == content, "{} bytes came back", back.len());
    assert!(frames.iter().all(|one| one.kind != CREDIT));
}

// promise: P114
#[test]
fn a_request_that_fails_is_an_answer_and_the_script_goes_on() {
    let mut script = Script::new();
    let wrong = script.call("fs.read", json!({ "path": "missing" }));
    // What a stream that has ended does not read.
    script.wait();
    script.frame(DATA, wrong, b"late");
    let right = script.call("ping", json!({}));
    let frames = script.answers();
    assert_eq!(end_of(&frames, wrong).0, ERROR);
    assert_eq!(end_of(&frames, right).0, RESULT);
}

// promise: P114
#[test]
fn nothing_that_was_started_is_left_at_the_end() {
    let mark = format!("script-{}", client::serial());
    let mut script = Script::new();
    script.run(
        "one",
        &format!("MARK={mark} setsid sleep 1000 >/dev/null 2>&1 & echo x"),
    );
    script.answers();
    client::assert_nobody(&mark);
}

// promise: P114
#[test]
fn a_script_that_is_not_played_to_its_end_is_a_failure_with_its_reason() {
    let mut script = Script::new();
    script.call("ping", json!({}));
    assert!(script.failure(20, &[]).contains("more than 20 bytes"));
    // Answers are never written over.
    assert!(script.failure(PLENTY, &[]).contains("cannot write"));
    std::fs::remove_file(script.root.join("answers")).unwrap();
    let of_runner = script.failure(PLENTY, &["--nonsense"]);
    assert!(of_runner.contains("the runner ended before it answered"));

    let mut cut = Script::new();
    cut.call("ping", json!({}));
    cut.frames.truncate(cut.frames.len() - 1);
    assert!(cut.failure(PLENTY, &[]).contains("the script:"));
    let mut wrong = Script::new();
    wrong.frames = vec![0, 0, 0, 1, OPEN, 0, 0, 0, 1];
    assert!(wrong.failure(PLENTY, &[]).contains("the script:"));
}
