//! `--relay`: every byte in both directions, and no relay that outlives its purpose.

use crate::client::{self, eventually, program, Runner};
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::io::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;

/// A socket of our own, and a relay to it.
struct Pair {
    relay: Child,
    peer: UnixStream,
    place: PathBuf,
}

fn place() -> PathBuf {
    let name = format!("sk-relay-{}-{}", std::process::id(), client::serial());
    std::env::temp_dir().join(name)
}

fn relay_to(path: &std::path::Path) -> Command {
    let mut command = Command::new(program());
    command
        .arg("--relay")
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Pair {
    fn new() -> Pair {
        let place = place();
        let listener = UnixListener::bind(&place).unwrap();
        let relay = relay_to(&place).spawn().unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(client::PATIENCE)).unwrap();
        peer.set_write_timeout(Some(client::PATIENCE)).unwrap();
        Pair { relay, peer, place }
    }

    fn input(&mut self) -> ChildStdin {
        self.relay.stdin.take().unwrap()
    }

    fn output(&mut self) -> ChildStdout {
        self.relay.stdout.take().unwrap()
    }

    /// Check that it wrote nothing to stderr.
    fn ends(&mut self) -> ExitStatus {
        let status = eventually(|| {
            self.relay
                .try_wait()
                .unwrap()
                .ok_or("the relay still lives")
        });
        let mut stderr_text = String::new();
        let mut stderr = self.relay.stderr.take().unwrap();
        stderr.read_to_string(&mut stderr_text).unwrap();
        assert_eq!(stderr_text, "");
        status
    }

    fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.relay.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
        fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.relay.kill();
        let _ = self.relay.wait();
        let _ = std::fs::remove_file(&self.place);
    }
}

fn noise(length: usize, mut seed: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    for _ in 0..length {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((seed >> 24) as u8);
    }
    bytes
}

const LARGE: usize = 10 << 20;

// promise: P09
#[test]
fn every_byte_arrives_in_both_directions_in_pieces_of_any_size() {
    let mut pair = Pair::new();
    let (up, down) = (noise(LARGE, 1), noise(LARGE, 2));
    let send = |mut to: Box<dyn Write + Send>, bytes: Vec<u8>| {
        thread::spawn(move || {
            let (mut rest, mut size) = (&bytes[..], 1);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(size.min(rest.len()));
                to.write_all(piece).unwrap();
                rest = after;
                size = if size > 3_000_000 { 1 } else { size * 3 };
            }
        })
    };
    let receive = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = vec![0; LARGE];
            from.read_exact(&mut bytes).unwrap();
            bytes
        })
    };
    let senders = [
        send(Box::new(pair.input()), up.clone()),
        send(Box::new(pair.peer.try_clone().unwrap()), down.clone()),
    ];
    let at_peer = receive(Box::new(pair.peer.try_clone().unwrap()));
    let mut output = pair.output();
    let mut at_output = vec![0; LARGE];
    output.read_exact(&mut at_output).unwrap();
    assert!(at_peer.join().unwrap() == up, "stdin to socket");
    assert!(at_output == down, "socket to stdout");
    for sender in senders {
        sender.join().unwrap();
    }
}

// promise: P09
#[test]
fn side_that_does_not_read_neither_stops_the_other_nor_fills_memory() {
    let mut pair = Pair::new();
    let mut input = pair.input();
    // The output is not read, so the peer is stopped after what the buffers take.
    pair.peer.set_nonblocking(true).unwrap();
    let mut taken = 0;
    let mut quiet = 0;
    while quiet < 20 {
        match pair.peer.write(&[7; 65536]) {
            Ok(count) => {
                taken += count;
                quiet = 0;
            }
            Err(_) => {
                quiet += 1;
                thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        assert!(taken < 8 << 20, "nothing holds the peer back");
    }
    let before = pair.processor_ticks();
    pair.peer.set_nonblocking(false).unwrap();
    for round in 0..100u8 {
        input.write_all(&[round; 5000]).unwrap();
        let mut got = [0; 5000];
        pair.peer.read_exact(&mut got).unwrap();
        assert_eq!(got, [round; 5000]);
    }
    thread::sleep(std::time::Duration::from_millis(300));
    assert!(pair.processor_ticks() - before < 20, "it spins");
    let mut got = vec![0; taken];
    pair.output().read_exact(&mut got).unwrap();
    assert!(got.iter().all(|&byte| byte == 7));
}

// promise: P09
#[test]
fn end_of_input_is_passed_on_and_the_answer_still_arrives() {
    let mut pair = Pair::new();
    let mut input = pair.input();
    input.write_all(b"question").unwrap();
    drop(input);
    let mut question = String::new();
    pair.peer.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    let answer = noise(LARGE, 3);
    let mut peer = pair.peer.try_clone().unwrap();
    let sent = answer.clone();
    let sender = thread::spawn(move || {
        peer.write_all(&sent).unwrap();
        peer.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let mut got = Vec::new();
    pair.output().read_to_end(&mut got).unwrap();
    sender.join().unwrap();
    assert!(got == answer);
    assert!(pair.ends().success());
}

// promise: P09
#[test]
fn peer_that_goes_away_ends_it_after_its_last_data_was_written() {
    for unread in [false, true] {
        let mut pair = Pair::new();
        let mut input = pair.input();
        let mut output = pair.output();
        if unread {
            input.write_all(b"never read by the peer").unwrap();
            eventually(|| match pair.peer.peek_length() {
                0 => Err("not there yet"),
                _ => Ok(()),
            });
        }
        pair.peer.write_all(&[9; 100_000]).unwrap();
        pair.peer = UnixStream::pair().unwrap().0;
        let mut got = Vec::new();
        output.read_to_end(&mut got).unwrap();
        assert!(got == [9; 100_000], "{} bytes", got.len());
        // The input is still open.
        assert!(pair.ends().success());
        drop(input);
    }
}

trait PeekLength {
    fn peek_length(&self) -> usize;
}

impl PeekLength for UnixStream {
    fn peek_length(&self) -> usize {
        let mut count: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int.
        unsafe { libc::ioctl(self.as_raw_fd(), libc::FIONREAD, &mut count) };
        count as usize
    }
}

// promise: P09
#[test]
fn it_ends_without_a_reader_of_its_output() {
    let mut pair = Pair::new();
    let input = pair.input();
    drop(pair.output());
    assert!(pair.ends().success());
    let mut rest = Vec::new();
    assert_eq!(pair.peer.read_to_end(&mut rest).unwrap(), 0);
    drop(input);
}

// promise: P09
#[test]
fn it_does_not_wait_for_ever_after_the_end_of_its_input() {
    // One peer sends nothing and does not close; the other sent more than is read.
    let mut silent = Pair::new();
    drop(silent.input());
    let mut stuck = Pair::new();
    stuck.peer.set_nonblocking(true).unwrap();
    while stuck.peer.write(&[1; 65536]).is_ok() {}
    drop(stuck.input());
    // Here the input ended with more in it than the peer takes.
    let mut full = Pair::new();
    let mut input = full.input();
    // SAFETY: plain fcntl on a descriptor we own.
    unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let mut quiet = 0;
    while quiet < 20 {
        match input.write(&[1; 65536]) {
            Ok(_some) => quiet = 0,
            Err(_) => {
                quiet += 1;
                thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
    drop(input);
    for pair in [&mut silent, &mut stuck, &mut full] {
        assert!(pair.ends().success());
    }
}

// promise: P09
#[test]
fn number_is_a_port_of_this_machine() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut relay = relay_to(port.as_ref()).spawn().unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(client::PATIENCE)).unwrap();
    let question = noise(LARGE, 4);
    let mut input = relay.stdin.take().unwrap();
    let sent = question.clone();
    let sender = thread::spawn(move || input.write_all(&sent).unwrap());
    let mut got = vec![0; LARGE];
    peer.read_exact(&mut got).unwrap();
    assert!(got == question);
    sender.join().unwrap();
    peer.write_all(b"answer").unwrap();
    drop(peer);
    let output = relay.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(0), b"answer".to_vec())
    );
    drop(listener);
    // Not the port of before, which another program may have by now. None listens at port 1.
    let refused = relay_to("1".as_ref()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("Connection refused"), "{told}");
}

#[test]
fn unreachable_socket_is_status_1_and_wrong_arguments_are_status_2() {
    let unused = place();
    drop(UnixListener::bind(&unused).unwrap());
    let long = "x".repeat(200);
    for (path, why) in [
        ("/nonexistent/socket", "No such file"),
        (unused.to_str().unwrap(), "Connection refused"),
        (long.as_str(), "too long"),
        ("", "Connection refused"),
    ] {
        let output = relay_to(path.as_ref()).output().unwrap();
        let stderr_text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr_text}");
        assert!(
            stderr_text.contains(why) && stderr_text.lines().count() == 1,
            "{stderr_text}"
        );
        assert_eq!(output.stdout, b"");
    }
    std::fs::remove_file(&unused).unwrap();
    for words in [
        &["--relay"][..],
        &["--relay", "/a", "/b"],
        &["--stdio", "--relay", "/a"],
    ] {
        let output = Command::new(program()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn it_has_no_other_descriptors_and_cannot_be_inspected() {
    let pair = Pair::new();
    eventually(|| {
        let list = std::fs::read_dir(format!("/proc/{}/fd", pair.relay.id())).unwrap();
        // stdin, stdout, stderr and the socket.
        match list.count() {
            4 => Ok(()),
            other => Err(other),
        }
    });
    // Root may look at everything: that its files in /proc belong to root shows that it is not
    // dumpable.
    let path = place();
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let copy = path.with_extension("program");
    client::copy_program(&copy);
    let mut relay = Command::new("setpriv")
        .args(["--reuid", "12999", "--regid", "12999", "--clear-groups"])
        .arg(&copy)
        .arg("--relay")
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (peer, _) = listener.accept().unwrap();
    let about = std::fs::metadata(format!("/proc/{}/environ", relay.id())).unwrap();
    drop(peer);
    relay.wait().unwrap();
    std::fs::remove_file(&copy).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&about), 0);
}

#[test]
fn runner_behind_it_answers_and_closes_when_the_client_does() {
    let runner = Runner::start();
    let mut relay = relay_to(&runner.root.join("socket")).spawn().unwrap();
    let mut output = relay.stdout.take().unwrap();
    let mut header = [0; 9];
    output.read_exact(&mut header).unwrap();
    let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let mut hello = vec![0; length - 5];
    output.read_exact(&mut hello).unwrap();
    let hello: serde_json::Value = serde_json::from_slice(&hello).unwrap();
    assert_eq!(hello["uid"], json!(0));
    let request = br#"{"verb":"ping"}"#;
    let mut frame = ((request.len() + 5) as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&[client::OPEN, 0, 0, 0, 1]);
    frame.extend_from_slice(request);
    let mut input = relay.stdin.take().unwrap();
    input.write_all(&frame).unwrap();
    output.read_exact(&mut header).unwrap();
    assert_eq!(header[4], client::RESULT);
    drop(input);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"{}");
    assert!(relay.wait().unwrap().success());
}
