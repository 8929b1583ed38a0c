//! `--pod`: the way into a sandbox that is a Pod, in a container beside the sandbox's own.
//!
//! It terminates TLS for the runner. Both containers share a network and one directory, and nothing
//! else: code in the sandbox can neither read the key and the token nor signal this process. At the start
//! the gate gives the runner a listener, over a socket in the shared directory that serves one
//! connection; the listener's own path is visible only to the gate. So no other process in the Pod can
//! reach the runner except over TLS, with the token. Until the network of the Pod is closed, nothing can:
//! the runner gets its listener then.
//!
//! Each of the two programs ends when the other one does: they hold a connection to each other.
//! Whatever connects is untrusted until it has sent the token, and costs bounded memory and time.

use crate::newcomers::{Newcomer, Newcomers};
use crate::proxy::side::Side;
use crate::proxy::{self, reachability};
use crate::sys::{self, keep_alive, pass_at_once, plain, Errno};
use crate::websocket;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{accept_with, shutdown, Shutdown, SocketFlags};
use rustix::process::{set_dumpable_behavior, DumpableBehavior};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::io::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

const USAGE: &str = "usage: sandkasten-gate --pod PORT SECRETS HAND-OVER LISTENER \
    [--network DIRECTORY] [ADDRESS...]";
const TOKEN_BYTES: usize = 32;
const MOST_FILE: usize = 16 << 10;
/// Connections that have sent the token: as many as the runner serves, and some that wait for it.
const MOST_CONNECTIONS: usize = 96;
/// Connections that have not.
const MOST_NEWCOMERS: usize = 32;
/// The sum of both, and of newcomers that were ended and have not left yet.
const MOST_THREADS: usize = MOST_CONNECTIONS + 2 * MOST_NEWCOMERS;
/// For the handshake and the token.
const GREETING: Duration = Duration::from_secs(10);
const RUNNER_MS: i32 = 10_000;
/// For the network to close.
const CLOSING: Duration = Duration::from_secs(20);
/// For that and for the runner to fetch its listener.
const START: Duration = Duration::from_secs(60);
const STACK: usize = 256 << 10;

pub struct Gate {
    port: u16,
    /// The directory with `cert.der`, `key.der` and `token`.
    secrets: PathBuf,
    /// Where the runner fetches its listener.
    hand_over: PathBuf,
    /// The path of that listener, which the sandbox does not see.
    listener: PathBuf,
    /// The directory shared with the egress process, if the sandbox has one; see `proxy`.
    network: Option<PathBuf>,
    /// What must be out of reach before the runner gets it.
    closed_to: Vec<SocketAddr>,
    /// Whether the runner is our child, and another user; clients may then come over a WebSocket.
    machine: bool,
}

struct Entry {
    config: Arc<ServerConfig>,
    token: Vec<u8>,
    listener: PathBuf,
    /// The token with which the egress process is controlled, and where it listens for commands.
    network: Option<(Vec<u8>, PathBuf)>,
    websocket: bool,
    threads: AtomicUsize,
    open: AtomicUsize,
    newcomers: Arc<Newcomers>,
    /// Whether the runner has its listener.
    given: Mutex<bool>,
    is_given: Condvar,
}

impl Gate {
    /// Return the gate that the arguments after `--pod` ask for.
    pub fn parse(arguments: &[OsString]) -> Result<Gate, String> {
        let (port, secrets, hand_over, listener, others) = match arguments {
            [port, secrets, hand_over, listener, others @ ..] => {
                (port, secrets, hand_over, listener, others)
            }
            _ => return Err(USAGE.to_owned()),
        };
        let (network, closed_to) = match others {
            [option, directory, rest @ ..] if option == "--network" => (Some(directory), rest),
            rest => (None, rest),
        };
        let port = port.to_str().and_then(|port| port.parse().ok());
        Ok(Gate {
            port: port.ok_or("the port must be a number")?,
            secrets: secrets.into(),
            hand_over: hand_over.into(),
            listener: listener.into(),
            network: network.map(PathBuf::from),
            closed_to: reachability::parse(closed_to)?,
            machine: false,
        })
    }

    /// Return the gate of a machine whose runner is our child; see `machine`.
    pub fn of_machine(port: u16, secrets: PathBuf, hand_over: PathBuf, listener: PathBuf) -> Gate {
        Gate {
            port,
            secrets,
            hand_over,
            listener,
            network: None,
            closed_to: Vec::new(),
            machine: true,
        }
    }

    /// Serve until the runner ends, or until we are asked to.
    pub fn serve(self) -> Result<(), String> {
        let (entry, outside) = self.open()?;
        self.admit_all(entry, outside)
    }

    /// The same with a runner that `start` starts; it may end before it has its listener.
    pub fn serve_child(self, start: impl FnOnce() -> Result<Child, String>) -> Result<(), String> {
        let (entry, outside) = self.open()?;
        let mut runner = start()?;
        std::thread::spawn(move || {
            let code = runner.wait().ok().and_then(|status| status.code());
            std::process::exit(code.unwrap_or(1))
        });
        self.admit_all(entry, outside)
    }

    fn admit_all(self, entry: Arc<Entry>, outside: TcpListener) -> ! {
        let admits = entry.clone();
        std::thread::spawn(move || {
            if let Err((code, message)) = self.hold_runner(&entry) {
                eprintln!("sandkasten-gate: {}", message);
                std::process::exit(code);
            }
            std::process::exit(0);
        });
        loop {
            match outside.accept() {
                Ok((client, _)) => admit(Arc::new(client.into()), admits.clone()),
                // Out of descriptors or memory: those who are here may leave.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Prepare this process, read the secrets and listen.
    fn open(&self) -> Result<(Arc<Entry>, TcpListener), String> {
        proxy::leave_on_request();
        let _done = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        sys::no_new_privileges().map_err(|errno| message("cannot start", errno))?;
        let entry = Arc::new(self.entry()?);
        let outside = TcpListener::bind(("::", self.port))
            .or_else(|_| TcpListener::bind(("0.0.0.0", self.port)))
            .map_err(|error| format!("cannot listen on port {}: {}", self.port, error))?;
        Ok((entry, outside))
    }

    fn entry(&self) -> Result<Entry, String> {
        let read = |name: &str| {
            sys::read_file(self.secrets.join(name).as_os_str().as_bytes(), MOST_FILE)
                .map_err(|errno| message(&format!("cannot read {}", name), errno))
        };
        let read_token = |name: &str| match read(name)? {
            token if token.len() == TOKEN_BYTES => Ok(token),
            _ => Err(format!("{} must have {} bytes", name, TOKEN_BYTES)),
        };
        let token = read_token("token")?;
        let network = match &self.network {
            Some(directory) => Some((read_token("network-token")?, directory.join(proxy::CONTROL))),
            None => None,
        };
        let chain = vec![read("cert.der")?.into()];
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, PrivatePkcs8KeyDer::from(read("key.der")?).into())
            .map_err(|error| format!("the certificate cannot be used: {}", error))?;
        Ok(Entry {
            config: Arc::new(config),
            token,
            listener: self.listener.clone(),
            network,
            websocket: self.machine,
            threads: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            newcomers: Newcomers::new(MOST_NEWCOMERS),
            given: Mutex::new(false),
            is_given: Condvar::new(),
        })
    }

    /// Give the runner its listener as soon as the network is closed; return when the runner has ended.
    fn hold_runner(&self, entry: &Entry) -> Result<(), (i32, String)> {
        reachability::wait_until_closed(&self.closed_to, CLOSING).map_err(|what| {
            let why = format!("the network of this Pod stays open: {}", what);
            (reachability::STAYED_OPEN, why)
        })?;
        // It ends with this connection.
        let _egress = match &self.network {
            Some(directory) => Some(await_egress(directory).map_err(|why| (1, why))?),
            None => None,
        };
        let runner = self
            .give_listener()
            .map_err(|errno| (1, message("cannot give the runner its listener", errno)))?;
        *entry.given.lock().unwrap_or_else(PoisonError::into_inner) = true;
        entry.is_given.notify_all();
        // The runner sends nothing on this connection.
        let _end = sys::read(runner.as_raw_fd(), &mut [0u8; 1]);
        Ok(())
    }

    /// Listen for a runner that is another user. Its directory is only for the runner's group. The
    /// socket gets its name when it may be used: the runner takes a refusal for final.
    fn listen_for_another_user(&self) -> Result<OwnedFd, Errno> {
        let early = self.hand_over.with_extension("new");
        let once = sys::listen_unix(early.as_os_str().as_bytes())?;
        std::fs::set_permissions(&early, std::fs::Permissions::from_mode(0o666))
            .and_then(|()| std::fs::rename(&early, &self.hand_over))
            .map_err(|error| sys::errno_of(&error))?;
        Ok(once)
    }

    /// Return the connection to the runner. Our own copy of the listener is closed, so that connecting
    /// fails as soon as the runner has ended.
    fn give_listener(&self) -> Result<OwnedFd, Errno> {
        let listener = sys::listen_unix(self.listener.as_os_str().as_bytes())?;
        let path = self.hand_over.as_os_str().as_bytes();
        let once = match self.machine {
            true => self.listen_for_another_user()?,
            false => sys::listen_unix(path)?,
        };
        poll_both(&[(once.as_fd(), PollFlags::IN)], None)?;
        let runner = plain(accept_with(&once, SocketFlags::CLOEXEC))?;
        sys::unlink(path);
        sys::send_descriptors(runner.as_raw_fd(), &[listener.as_raw_fd()])?;
        Ok(runner)
    }
}

/// Return the connection of the egress process, which makes it when it is ready.
fn await_egress(directory: &Path) -> Result<OwnedFd, String> {
    let path = directory.join(proxy::LIFE);
    let once = proxy::listen(&path)?;
    poll_both(&[(once.as_fd(), PollFlags::IN)], Some(START))
        .and_then(|()| sys::accept(once.as_raw_fd()))
        .map_err(|errno| message("the egress process does not start", errno))
}

fn message(what: &str, errno: Errno) -> String {
    format!("{}: {}", what, std::io::Error::from_raw_os_error(errno))
}

/// Serve a client in its own thread, unless there are too many.
fn admit(client: Arc<OwnedFd>, entry: Arc<Entry>) {
    let Some(place) = Counted::below(&entry, MOST_THREADS, |entry| &entry.threads) else {
        return;
    };
    let newcomer = entry.newcomers.admit(&client);
    let thread = std::thread::Builder::new().stack_size(STACK);
    // If no thread can be had, all of this is dropped.
    let _begun = thread.spawn(move || {
        // A client that breaks off is not reported: it may be anything in the cluster.
        let _reason = serve_client(&client, &entry, newcomer);
        drop((client, place));
    });
}

/// One of a limited number, until it is dropped.
struct Counted {
    entry: Arc<Entry>,
    counter: fn(&Entry) -> &AtomicUsize,
}

impl Counted {
    fn below(
        entry: &Arc<Entry>,
        most: usize,
        counter: fn(&Entry) -> &AtomicUsize,
    ) -> Option<Counted> {
        let one = Counted {
            entry: entry.clone(),
            counter,
        };
        (counter(entry).fetch_add(1, Ordering::SeqCst) < most).then_some(one)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.counter)(&self.entry).fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve_client(client: &OwnedFd, entry: &Arc<Entry>, newcomer: Newcomer) -> Result<(), String> {
    sys::set_nonblocking(client.as_raw_fd()).map_err(|errno| message("client", errno))?;
    pass_at_once(client.as_raw_fd());
    keep_alive(client.as_raw_fd());
    let until = Instant::now() + GREETING;
    let wrapped = match entry.websocket && websocket::is_http(client, until)? {
        true => Some(websocket::unwrapped(client, until)?),
        false => None,
    };
    let fd = wrapped.as_ref().map_or(client, |one| &one.stream);
    let served = match greet(fd, entry, until) {
        Ok((outer, target)) => {
            drop(newcomer);
            serve_admitted(outer, fd, target, entry)
        }
        Err(why) => {
            // It gets no time to read what was sent to it, and keeps its place until it has left.
            let _gone = shutdown(client, Shutdown::Both);
            Err(why)
        }
    };
    if let Some(wrapped) = wrapped {
        wrapped.end();
    }
    served
}

/// Return what a client sent after its token, and the socket that the token is for.
fn greet<'a>(fd: &OwnedFd, entry: &'a Entry, until: Instant) -> Result<(Side, &'a Path), String> {
    let failed = |errno: Errno| message("client", errno);
    sys::set_nonblocking(fd.as_raw_fd()).map_err(failed)?;
    let tls = ServerConnection::new(entry.config.clone()).map_err(|error| error.to_string())?;
    let mut outer = Side::new(Some(rustls::Connection::Server(tls)));
    while outer.input.len() < TOKEN_BYTES {
        outer.begin_turn();
        outer.receive(fd.as_raw_fd())?;
        outer.send(fd.as_raw_fd())?;
        if outer.ended || Instant::now() > until {
            return Err("no token".to_owned());
        }
        if outer.input.len() < TOKEN_BYTES {
            let left = until.saturating_duration_since(Instant::now());
            poll_both(&[(fd.as_fd(), events(&outer))], Some(left)).map_err(failed)?;
        }
    }
    let shown: Vec<u8> = outer.input.drain(..TOKEN_BYTES).collect();
    let is = |token: &[u8]| bool::from(shown.ct_eq(token));
    match &entry.network {
        Some((token, control)) if is(token) => Ok((outer, control)),
        _ if is(&entry.token) => Ok((outer, &entry.listener)),
        _ => Err("a wrong token".to_owned()),
    }
}

/// Connect a client that has shown its token.
fn serve_admitted(
    outer: Side,
    fd: &OwnedFd,
    target: &Path,
    entry: &Arc<Entry>,
) -> Result<(), String> {
    let _place = Counted::below(entry, MOST_CONNECTIONS, |entry| &entry.open)
        .ok_or("too many connections")?;
    wait_for_runner(entry)?;
    let inner = connect(target).map_err(|errno| message("runner", errno))?;
    relay(outer, fd, &inner)
}

/// Wait until the runner has its listener.
fn wait_for_runner(entry: &Entry) -> Result<(), String> {
    let given = entry.given.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = entry
        .is_given
        .wait_timeout_while(given, START, |given| !*given)
        .unwrap_or_else(PoisonError::into_inner);
    match *waited.0 {
        true => Ok(()),
        false => Err("the runner has no listener yet".to_owned()),
    }
}

fn connect(listener: &Path) -> Result<OwnedFd, Errno> {
    let runner = sys::connect_unix(listener.as_os_str().as_bytes(), RUNNER_MS)?;
    sys::widen_socket(runner.as_raw_fd());
    sys::set_nonblocking(runner.as_raw_fd())?;
    Ok(runner)
}

/// Copy in both directions until both have ended. A side that does not read slows the other one down.
fn relay(mut outer: Side, client: &OwnedFd, runner: &OwnedFd) -> Result<(), String> {
    let (outside, inside) = (client.as_raw_fd(), runner.as_raw_fd());
    let mut inner = Side::new(None);
    loop {
        outer.begin_turn();
        inner.begin_turn();
        let mut any = outer.receive(outside)? | inner.receive(inside)?;
        any |= pass(&mut outer, &mut inner) | pass(&mut inner, &mut outer);
        any |= inner.send(inside)? | outer.send(outside)?;
        if outer.finished() && (outer.ended || inner.ended) {
            return Ok(());
        }
        if !any {
            let sides = [
                (client.as_fd(), events(&outer)),
                (runner.as_fd(), events(&inner)),
            ];
            poll_both(&sides, None).map_err(|errno| message("poll", errno))?;
        }
    }
}

fn pass(from: &mut Side, to: &mut Side) -> bool {
    if from.input.is_empty() {
        let ends = from.ended && !to.closing;
        to.closing |= ends;
        return ends;
    }
    let room = to.has_room();
    if room {
        to.output.append(&mut from.input);
    }
    room
}

pub fn events(side: &Side) -> PollFlags {
    let mut wanted = PollFlags::empty();
    wanted.set(PollFlags::IN, side.reads());
    wanted.set(PollFlags::OUT, side.pending());
    wanted
}

/// Wait until one of them is ready. One that waits for nothing is left out: its end would be reported
/// again and again.
pub fn poll_both(
    sides: &[(BorrowedFd<'_>, PollFlags)],
    most: Option<Duration>,
) -> Result<(), Errno> {
    let waits = sides.iter().filter(|(_, events)| !events.is_empty());
    let mut polled: Vec<PollFd> = waits.map(|(fd, events)| PollFd::new(fd, *events)).collect();
    let most = most.and_then(|most| most.try_into().ok());
    plain(rustix::io::retry_on_intr(|| {
        poll(&mut polled, most.as_ref())
    }))
    .map(drop)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
