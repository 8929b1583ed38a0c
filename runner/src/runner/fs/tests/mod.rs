//! The verbs driven through `open` and a recording `Out`, on real files.

mod attributes;
mod hostile_tar;
mod innocent_tar;
mod large;
mod passing;
mod permissions;
mod races;
mod reading;
mod tar_round_trip;
mod tars;
mod watching;
mod writing;

use super::{open, Directories};
use crate::wire::bytes;
use crate::wire::handler::{Failure, Handler, Out, Step, Stepped};
use serde_json::{json, Value};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::io::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Everything that a handler sent. `credit` is what it may still send.
pub struct Recorder {
    pub credit: usize,
    pub data: Vec<u8>,
    pub keep_data: bool,
    pub sent: u64,
    pub events: Vec<Value>,
    pub descriptors: Vec<OwnedFd>,
    pub granted: u64,
    pub outcome: Option<Result<Value, Failure>>,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder {
            credit: usize::MAX,
            data: Vec::new(),
            keep_data: true,
            sent: 0,
            events: Vec::new(),
            descriptors: Vec::new(),
            granted: 0,
            outcome: None,
        }
    }
}

impl Out for Recorder {
    fn credit(&self) -> usize {
        self.credit
    }

    fn data(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.credit, "more DATA than credit");
        assert!(
            !bytes.is_empty() && bytes.len() <= 1 << 20,
            "a frame of {}",
            bytes.len()
        );
        if self.credit != usize::MAX {
            self.credit -= bytes.len();
        }
        self.sent += bytes.len() as u64;
        if self.keep_data {
            self.data.extend_from_slice(bytes);
        }
    }

    fn event(&mut self, body: Value) {
        self.events.push(body);
    }

    fn descriptor(&mut self, body: Value, descriptor: OwnedFd) {
        self.events.push(body);
        self.descriptors.push(descriptor);
    }

    fn grant(&mut self, n: u32) {
        self.granted += u64::from(n);
    }

    fn result(&mut self, body: Value) {
        assert!(self.outcome.is_none(), "a second answer");
        assert!(body.to_string().len() <= 1 << 20, "a RESULT over its limit");
        self.outcome = Some(Ok(body));
    }

    fn error(&mut self, failure: Failure) {
        assert!(self.outcome.is_none(), "a second answer");
        self.outcome = Some(Err(failure));
    }
}

/// A directory of its own that is removed afterwards.
pub struct Place {
    pub root: PathBuf,
    directories: Directories,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Place {
    pub fn new() -> Place {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Place::at(&std::env::temp_dir(), count)
    }

    pub fn at(parent: &Path, count: usize) -> Place {
        let name = format!("sandkasten-fs-{}-{}", std::process::id(), count);
        let root = fs::canonicalize(parent).unwrap().join(name);
        fs::create_dir(&root).unwrap();
        Place {
            directories: Directories {
                workspace: root.as_os_str().as_bytes().to_vec(),
                home: b"/".to_vec(),
            },
            root,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Begin a verb, without a flush unless the request asks for it: the disk of the tests is slow.
    pub fn open(&self, verb: &str, request: &Value) -> Result<Box<dyn Handler>, Failure> {
        let mut request = request.clone();
        if let Value::Object(fields) = &mut request {
            fields.entry("flush").or_insert(json!(false));
        }
        open(verb, &request, &self.directories)
    }

    /// Run a verb to its end with `data` as the client's DATA, in pieces of `piece`.
    pub fn run_with(&self, verb: &str, request: &Value, data: &[u8], piece: usize) -> Recorder {
        let mut out = Recorder::new();
        match self.open(verb, request) {
            Ok(mut handler) => drive(handler.as_mut(), data, piece, &mut out),
            Err(failure) => out.error(failure),
        }
        out
    }

    pub fn run(&self, verb: &str, request: Value) -> Recorder {
        self.run_with(verb, &request, b"", 1)
    }

    pub fn ok(&self, verb: &str, request: Value) -> Value {
        match self.run(verb, request).outcome.unwrap() {
            Ok(value) => value,
            Err(failure) => panic!("{}: {:?}", verb, failure),
        }
    }

    pub fn code(&self, verb: &str, request: Value) -> &'static str {
        match self.run(verb, request.clone()).outcome.unwrap() {
            Ok(value) => panic!("{} {} answered {}", verb, request, value),
            Err(failure) => failure.code,
        }
    }

    pub fn write(&self, path: &str, content: &[u8]) -> Value {
        let out = self.run_with("fs.write", &json!({ "path": path }), content, 1 << 16);
        out.outcome.unwrap().unwrap()
    }

    pub fn write_code(&self, request: Value, content: &[u8]) -> &'static str {
        let out = self.run_with("fs.write", &request, content, 1 << 16);
        out.outcome.unwrap().unwrap_err().code
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        let out = self.run("fs.read", json!({ "path": path }));
        out.outcome.unwrap().unwrap();
        out.data
    }

    /// Return the names in a directory, sorted.
    pub fn names(&self, name: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(name))
            .unwrap()
            .map(|entry| {
                String::from_utf8_lossy(&entry.unwrap().file_name().into_vec()).into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let path = bytes::to_json(self.root.as_os_str().as_bytes());
        let out = self.run("fs.remove", json!({ "path": path, "recursive": true }));
        if !std::thread::panicking() {
            out.outcome.unwrap().unwrap();
        }
    }
}

/// Call `step` until the verb is over; send no more DATA than was granted beyond the first MiB.
pub fn drive(handler: &mut dyn Handler, data: &[u8], piece: usize, out: &mut Recorder) {
    let mut step = recorded(handler.step(out), out);
    let (mut rest, mut sent, mut ended) = (data, 0u64, false);
    for _ in 0..50_000_000u64 {
        match step {
            Step::Done => {
                assert!(out.outcome.is_some(), "done without an answer");
                return;
            }
            Step::Again => step = recorded(handler.step(out), out),
            Step::Idle => {
                let window = (1u64 << 20) + out.granted - sent;
                let count = rest.len().min(piece).min(window as usize);
                if count > 0 {
                    sent += count as u64;
                    step = recorded(handler.data(&rest[..count], out), out);
                    rest = &rest[count..];
                } else if rest.is_empty() && !ended {
                    ended = true;
                    step = recorded(handler.end(out), out);
                } else {
                    panic!("waits for ever: {} of {} bytes sent", sent, data.len());
                }
            }
        }
    }
    panic!("never ends");
}

/// Record a failure as the end of the stream.
fn recorded(stepped: Stepped, out: &mut Recorder) -> Step {
    stepped.unwrap_or_else(|failure| {
        out.error(failure);
        Step::Done
    })
}

/// Call `step` until the verb is idle or done.
pub fn settle(handler: &mut dyn Handler, out: &mut Recorder) -> Step {
    loop {
        match recorded(handler.step(out), out) {
            Step::Again => {}
            step => return step,
        }
    }
}

pub fn make_fifo(path: &Path) {
    crate::sys::make_fifo(path.as_os_str().as_bytes(), 0o600).unwrap();
}

/// Run `work` in a thread that accesses files as an ordinary user, as the runner does.
pub fn as_user<T: Send + 'static>(place: Place, work: fn(&Place) -> T) -> T {
    let run = move || {
        let user = 65534;
        std::os::unix::fs::chown(&place.root, Some(user), Some(user)).unwrap();
        // SAFETY: a thread has its own ids for files, and the calls do not change the other threads.
        unsafe {
            libc::setfsgid(user);
            libc::setfsuid(user);
            let answer = work(&place);
            libc::setfsuid(0);
            answer
        }
    };
    match std::thread::spawn(run).join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Return this count, or the one in the environment: the full counts take minutes.
pub fn count_of(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

pub fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
