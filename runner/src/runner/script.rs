//! `--script`: plays the client of a runner from a file, and writes the runner's answers to another.
//!
//! For an engine that runs a command to its end and passes nothing in or out meanwhile. The file has the
//! frames of a client. A frame of the kind `WAIT`, which no client sends, stands for a pause: what follows
//! is sent when every stream opened before has ended. Credit is paid in both directions here, so the file
//! need not know any. The answers are written as they come, without CREDIT, up to a limit.
//!
//! One thread reads the answers and never waits for anything else, so the runner can always write.

use crate::wire::frame;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::io::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Wait for the streams that are open.
const WAIT: u8 = 0;
const HEADER: usize = 9;
/// More than any body of the protocol.
const MAX_BODY: usize = 16 << 20;
const INITIAL_CREDIT: u64 = 1 << 20;

pub struct Script<'a> {
    pub input: &'a OsStr,
    pub output: &'a OsStr,
    pub most_bytes: u64,
    /// `NAME=VALUE`, the whole environment of the runner.
    pub env: &'a [OsString],
    /// The runner's own options, without the way to reach it.
    pub options: &'a [OsString],
}

/// The streams that are open, with the bytes that may still be sent on each.
#[derive(Default)]
struct Streams {
    open: HashMap<u32, u64>,
    /// No more answers will come.
    over: bool,
    failure: Option<String>,
}

#[derive(Default)]
struct Shared {
    streams: Mutex<Streams>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// Wait until `ready` is true, or no more answers will come.
    fn wait(&self, ready: impl Fn(&Streams) -> bool) -> MutexGuard<'_, Streams> {
        let mut streams = self.lock();
        while !streams.over && !ready(&streams) {
            streams = self
                .changed
                .wait(streams)
                .unwrap_or_else(|held| held.into_inner());
        }
        streams
    }
}

pub fn run(script: &Script) -> Result<(), String> {
    let said = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| format!("{what}: {error}")
    };
    let input = File::open(script.input).map_err(said("cannot read the script"))?;
    let output = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(script.output)
        .map_err(said("cannot write the answers"))?;
    let (ours, theirs) = UnixStream::pair().map_err(said("no socket"))?;
    let mut runner = start(script, theirs).map_err(said("cannot start the runner"))?;
    let shared = Arc::new(Shared::default());
    let (sender, queue) = channel::<Vec<u8>>();
    let mut writing = ours.try_clone().map_err(said("no socket"))?;
    std::thread::spawn(move || {
        // A runner that is gone is noticed by the reader.
        for bytes in queue {
            if writing.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let answers = {
        let (shared, sender, most) = (Arc::clone(&shared), sender.clone(), script.most_bytes);
        std::thread::spawn(move || {
            let failure = collect(ours, BufWriter::new(output), most, &shared, &sender).err();
            let mut streams = shared.lock();
            streams.over = true;
            streams.failure = failure;
            drop(streams);
            shared.changed.notify_all();
        })
    };
    let sent = send(BufReader::new(input), &shared, &sender);
    let ended = shared.wait(|streams| streams.open.is_empty()).over;
    let _gone = runner.kill();
    let _status = runner.wait();
    // The reader flushes the answers when the socket ends.
    let _joined = answers.join();
    sent?;
    if let Some(failure) = shared.lock().failure.take() {
        return Err(failure);
    }
    if ended {
        return Err("the runner ended before it answered".to_owned());
    }
    Ok(())
}

fn start(script: &Script, socket: UnixStream) -> io::Result<Child> {
    let again = socket.try_clone()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(script.options)
        .arg("--stdio")
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stdout(Stdio::from(OwnedFd::from(again)));
    for pair in script.env {
        let mut parts = pair.as_bytes().splitn(2, |&byte| byte == b'=');
        if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
        }
    }
    command.spawn()
}

/// Send the frames of the file, each when its stream may have it.
fn send(mut input: impl Read, shared: &Shared, sender: &Sender<Vec<u8>>) -> Result<(), String> {
    while let Some(bytes) =
        read_frame(&mut input).map_err(|error| format!("the script: {error}"))?
    {
        let (kind, stream, body) = (bytes[4], stream_of(&bytes), (bytes.len() - HEADER) as u64);
        match kind {
            WAIT => drop(shared.wait(|streams| streams.open.is_empty())),
            frame::OPEN => {
                shared.lock().open.insert(stream, INITIAL_CREDIT);
                let _gone = sender.send(bytes);
            }
            _ => {
                let need = if kind == frame::DATA { body } else { 0 };
                let has_room = |streams: &Streams| match streams.open.get(&stream) {
                    Some(&credit) => credit >= need,
                    None => true,
                };
                let mut streams = shared.wait(has_room);
                // What a stream that has ended does not read is not sent.
                if let Some(credit) = streams.open.get_mut(&stream) {
                    *credit = credit.saturating_sub(need);
                    let _gone = sender.send(bytes);
                }
            }
        }
    }
    Ok(())
}

/// Write the answers to the end of the stream.
fn collect(
    socket: UnixStream,
    mut output: BufWriter<File>,
    most_bytes: u64,
    shared: &Shared,
    sender: &Sender<Vec<u8>>,
) -> Result<(), String> {
    let mut input = BufReader::new(socket);
    let mut written = 0u64;
    // A runner that is killed ends the stream anywhere: what came before is the answer.
    while let Ok(Some(bytes)) = read_frame(&mut input) {
        let (kind, stream) = (bytes[4], stream_of(&bytes));
        let body = &bytes[HEADER..];
        match kind {
            frame::CREDIT => {
                let amount = body.try_into().map_or(0, u32::from_be_bytes);
                if let Some(credit) = shared.lock().open.get_mut(&stream) {
                    *credit += u64::from(amount);
                }
                shared.changed.notify_all();
                continue;
            }
            frame::DATA | frame::CHUNK => {
                let _gone = sender.send(credit_frame(stream, body.len() as u32));
            }
            _ => {}
        }
        written += bytes.len() as u64;
        if written > most_bytes {
            return Err(format!("there are more than {most_bytes} bytes of answers"));
        }
        output
            .write_all(&bytes)
            .map_err(|error| format!("cannot write the answers: {error}"))?;
        if kind == frame::RESULT || kind == frame::ERROR {
            shared.lock().open.remove(&stream);
            shared.changed.notify_all();
        }
    }
    output
        .flush()
        .map_err(|error| format!("cannot write the answers: {error}"))
}

fn credit_frame(stream: u32, amount: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + 4);
    bytes.extend_from_slice(&9u32.to_be_bytes());
    bytes.push(frame::CREDIT);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(&amount.to_be_bytes());
    bytes
}

fn stream_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]])
}

/// Return one whole frame with its header; `None` at the end.
fn read_frame(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0u8; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        match input.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if !(5..=5 + MAX_BODY).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = header.to_vec();
    bytes.resize(HEADER + length - 5, 0);
    input.read_exact(&mut bytes[HEADER..])?;
    Ok(Some(bytes))
}
