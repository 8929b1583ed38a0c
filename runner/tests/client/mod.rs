//! A small, blocking client of the runner protocol, and the runner it talks to.
#![allow(dead_code)]

pub mod shells;

use serde_json::{json, Value};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::io::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const OPEN: u8 = 2;
pub const DATA: u8 = 3;
pub const END: u8 = 4;
pub const CREDIT: u8 = 5;
pub const CANCEL: u8 = 6;
pub const EVENT: u8 = 7;
pub const CHUNK: u8 = 8;
pub const RESULT: u8 = 9;
pub const ERROR: u8 = 10;

/// No answer takes longer than this on a busy machine; one that does shows a hang. So a test that
/// something does not wait for a slow command needs no clock of its own.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A shell command that runs until the file `go` is in its workspace, independent of any clock.
pub const UNTIL_GO: &str = "while [ ! -e go ]; do sleep 0.02; done";

static SERIAL: AtomicU64 = AtomicU64::new(0);

pub fn serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

/// The runner that `make setup` built, or the one that SANDKASTEN_RUNNER names.
pub fn program() -> String {
    let built = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../src/sandkasten_runtime/_bin/sandkasten-runner"
    );
    std::env::var("SANDKASTEN_RUNNER").unwrap_or_else(|_| built.to_string())
}

pub fn give(path: &Path, uid: u32, gid: u32) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `path` is NUL-terminated.
    assert_eq!(unsafe { libc::chown(path.as_ptr(), uid, gid) }, 0);
}

/// A runner with its own directories; it and all its processes are ended when this is dropped.
pub struct Runner {
    pub child: Child,
    pub root: PathBuf,
    pub also_remove: Option<PathBuf>,
}

impl Runner {
    pub fn start() -> Runner {
        Runner::with(&[])
    }

    pub fn with(arguments: &[&str]) -> Runner {
        Runner::under(&[], arguments)
    }

    /// Start a runner in a network namespace of its own, where connections of other programs do not count.
    pub fn without_network() -> Runner {
        // SAFETY: geteuid only reads.
        match unsafe { libc::geteuid() } {
            0 => Runner::under(&["unshare", "--net"], &[]),
            _ => Runner::under(&["unshare", "--user", "--map-current-user", "--net"], &[]),
        }
    }

    /// `wrapper` is a command line that runs the rest of its arguments.
    pub fn under(wrapper: &[&str], arguments: &[&str]) -> Runner {
        let name = format!("sk-test-{}-{}", std::process::id(), serial());
        let root = std::env::temp_dir().join(name);
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(root.join("workspace")).unwrap();
        let listener = UnixListener::bind(root.join("socket")).unwrap();
        let fd = listener.as_raw_fd();
        let mut line: Vec<String> = wrapper.iter().map(|word| word.to_string()).collect();
        line.push(program());
        line.extend(["--listen-fd".to_owned(), "7".to_owned()]);
        for (option, directory) in [("--state-dir", "state"), ("--workspace", "workspace")] {
            line.push(option.to_owned());
            line.push(root.join(directory).to_str().unwrap().to_owned());
        }
        line.extend(arguments.iter().map(|word| word.to_string()));
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", &root)
            .env("LANG", "C.UTF-8")
            .env("BASE", "base")
            .stdin(Stdio::null());
        // SAFETY: dup2 is async-signal-safe and gives the child its listener as 7.
        unsafe {
            command.pre_exec(move || {
                // If it is 7 already, dup2 would leave it to be closed on exec.
                let rc = if fd == 7 {
                    libc::fcntl(7, libc::F_SETFD, 0)
                } else {
                    libc::dup2(fd, 7)
                };
                if rc < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Runner {
            child,
            root,
            also_remove: None,
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    /// End every `UNTIL_GO`.
    pub fn go(&self) {
        std::fs::write(self.workspace().join("go"), b"").unwrap();
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.root.join("socket"))
    }

    pub fn assert_alive(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the runner has died");
        let mut fresh = self.connect();
        assert_eq!(fresh.call("ping", json!({})), Ok(json!({})));
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.root);
        if let Some(path) = &self.also_remove {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Value);

impl Refused {
    pub fn code(&self) -> &str {
        self.0["code"].as_str().unwrap()
    }
}

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub stream: u32,
    pub body: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub seq: u64,
    pub offset: u64,
    pub source: u8,
    pub bytes: Vec<u8>,
}

/// Everything that a command's stream sent.
#[derive(Debug)]
pub struct Outcome {
    pub events: Vec<Value>,
    pub chunks: Vec<Chunk>,
    pub data: Vec<u8>,
    pub end: Result<Value, Refused>,
}

impl Outcome {
    pub fn exec(&self) -> &Value {
        self.end.as_ref().expect("an Exec, not an error")
    }

    pub fn code(&self) -> &str {
        self.end
            .as_ref()
            .expect_err("an error, not a result")
            .code()
    }

    pub fn bytes(&self, source: u8) -> Vec<u8> {
        let of = self.chunks.iter().filter(|chunk| chunk.source == source);
        of.flat_map(|chunk| chunk.bytes.clone()).collect()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.bytes(1)).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.bytes(2)).into_owned()
    }

    /// `(exit_code, shell_reset)` with -1 for null.
    pub fn verdict(&self) -> (i64, bool) {
        let exec = self.exec();
        let code = exec["exit_code"].as_i64().unwrap_or(-1);
        (code, exec["shell_reset"].as_bool().unwrap())
    }
}

pub struct Client {
    pub socket: UnixStream,
    pub hello: Value,
    last: u32,
    other: HashMap<u32, Vec<Frame>>,
}

impl Client {
    pub fn connect(path: &Path) -> Client {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client {
            socket,
            hello: Value::Null,
            last: 0,
            other: HashMap::new(),
        };
        let hello = client.read_frame().expect("hello");
        assert_eq!((hello.kind, hello.stream), (1, 0));
        client.hello = serde_json::from_slice(&hello.body).unwrap();
        client
    }

    pub fn read_frame(&mut self) -> std::io::Result<Frame> {
        let mut header = [0u8; 9];
        self.socket.read_exact(&mut header)?;
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        assert!((5..=(1 << 20) + 5).contains(&length), "length {length}");
        let mut body = vec![0u8; length - 5];
        self.socket.read_exact(&mut body)?;
        Ok(Frame {
            kind: header[4],
            stream: u32::from_be_bytes([header[5], header[6], header[7], header[8]]),
            body,
        })
    }

    /// Return the next frame of one stream; frames of others are kept for later.
    pub fn next(&mut self, stream: u32) -> Frame {
        if let Some(queue) = self.other.get_mut(&stream) {
            if !queue.is_empty() {
                return queue.remove(0);
            }
        }
        loop {
            let frame = self.read_frame().expect("a frame before the patience ends");
            if frame.stream == stream {
                return frame;
            }
            self.other.entry(frame.stream).or_default().push(frame);
        }
    }

    pub fn send(&mut self, kind: u8, stream: u32, body: &[u8]) {
        self.try_send(kind, stream, body).unwrap();
    }

    pub fn try_send(&mut self, kind: u8, stream: u32, body: &[u8]) -> std::io::Result<()> {
        let mut frame = ((body.len() + 5) as u32).to_be_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(body);
        self.socket.write_all(&frame)
    }

    pub fn open(&mut self, verb: &str, mut request: Value) -> u32 {
        request["verb"] = json!(verb);
        self.last += 1;
        let stream = self.last;
        self.send(OPEN, stream, &serde_json::to_vec(&request).unwrap());
        stream
    }

    pub fn grant(&mut self, stream: u32, amount: usize) {
        self.send(CREDIT, stream, &(amount as u32).to_be_bytes());
    }

    /// Collect a stream to its end, granting credit.
    pub fn finish(&mut self, stream: u32) -> Outcome {
        let mut outcome = Outcome {
            events: Vec::new(),
            chunks: Vec::new(),
            data: Vec::new(),
            end: Ok(Value::Null),
        };
        loop {
            let frame = self.next(stream);
            let value = || serde_json::from_slice::<Value>(&frame.body).unwrap();
            match frame.kind {
                DATA => {
                    outcome.data.extend_from_slice(&frame.body);
                    let _ended = self.try_send(CREDIT, stream, &length(&frame.body));
                }
                CREDIT => {}
                EVENT => outcome.events.push(value()),
                CHUNK => {
                    outcome.chunks.push(chunk(&frame.body));
                    let _ended = self.try_send(CREDIT, stream, &length(&frame.body));
                }
                RESULT => {
                    outcome.end = Ok(value());
                    return outcome;
                }
                ERROR => {
                    outcome.end = Err(Refused(value()));
                    return outcome;
                }
                kind => panic!("frame of kind {kind}"),
            }
        }
    }

    pub fn call(&mut self, verb: &str, request: Value) -> Result<Value, Refused> {
        let stream = self.open(verb, request);
        self.finish(stream).end
    }

    pub fn refused(&mut self, verb: &str, request: Value) -> String {
        let refused = self.call(verb, request.clone());
        match refused {
            Err(refused) => refused.code().to_owned(),
            Ok(value) => panic!("{verb} {request} answered {value}"),
        }
    }

    /// Start a command with these fields and follow it to its end.
    pub fn exec(&mut self, fields: Value) -> Outcome {
        let stream = self.start(fields);
        self.finish(stream)
    }

    pub fn start(&mut self, mut fields: Value) -> u32 {
        if fields.get("exec_id").is_none() {
            fields["exec_id"] = json!(format!("x{}", serial()));
        }
        self.open("exec.start", fields)
    }

    pub fn argv(&mut self, argv: &[&str]) -> Outcome {
        self.exec(json!({ "argv": argv }))
    }

    pub fn script(&mut self, script: &str) -> Outcome {
        self.argv(&["sh", "-c", script])
    }

    pub fn shell(&mut self, command: &str) -> Outcome {
        self.exec(json!({"shell": "main", "command": command}))
    }

    /// Wait for the `started` event of a command's stream. Return the pid.
    pub fn started(&mut self, stream: u32) -> i64 {
        let frame = self.next(stream);
        let body: Value = serde_json::from_slice(&frame.body).unwrap();
        assert_eq!(
            (frame.kind, &body["event"]),
            (EVENT, &json!("started")),
            "{body}"
        );
        body["pid"].as_i64().unwrap()
    }
}

fn length(body: &[u8]) -> [u8; 4] {
    (body.len() as u32).to_be_bytes()
}

pub fn chunk(body: &[u8]) -> Chunk {
    let number = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().unwrap());
    Chunk {
        seq: number(0),
        offset: number(8),
        source: body[16],
        bytes: body[17..].to_vec(),
    }
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: plain system call on integers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Poll until `check` returns a value; panic with the last error.
pub fn eventually<T, S: std::fmt::Debug>(mut check: impl FnMut() -> Result<T, S>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match check() {
            Ok(value) => return value,
            Err(seen) if Instant::now() > end => panic!("last seen: {seen:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Return the pids of living processes whose environment contains `MARK=<mark>`.
pub fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("MARK={mark}").into_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid: i32 = match entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            Some(pid) => pid,
            None => continue,
        };
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let zombie = stat
            .rsplit(')')
            .next()
            .is_none_or(|rest| rest.starts_with(" Z"));
        if !zombie && environ.split(|&c| c == 0).any(|pair| pair == wanted) {
            found.push(pid);
        }
    }
    found
}

pub fn assert_nobody(mark: &str) {
    eventually(|| match marked(mark) {
        list if list.is_empty() => Ok(()),
        list => Err(list),
    });
}

/// Written by another process: a descriptor of ours would be inherited by processes that other tests
/// start at that moment, and a program that is open for writing cannot be run.
#[allow(dead_code)]
pub fn copy_program(target: &std::path::Path) {
    let done = std::process::Command::new("cp")
        .arg(program())
        .arg(target)
        .status()
        .unwrap();
    assert!(done.success());
}
