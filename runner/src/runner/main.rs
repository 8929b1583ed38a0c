//! The first process of a sandbox: it serves commands, shells and files to clients over byte streams.
//!
//! This file reads the command line and prepares the process (descriptors, signals, limits, identity);
//! `server` is the event loop. A wrong command line ends it with status 2 and a line on stderr.

#![cfg_attr(fuzzing, no_main, allow(dead_code))]

mod activity;
mod context;
mod exec;
mod fs;
#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/runner.rs"]
mod fuzz;
mod identity;
mod lease;
mod poll;
mod port;
mod posture;
mod processes;
mod python_alias;
mod relay;
mod ring;
mod script;
mod server;
mod set_id_filter;
mod shell;
mod stats;
mod supervisor;
mod timers;
mod wire;

use context::Config;
use identity::{Identity, Ids};
use rustix::process::{
    chdir, set_child_subreaper, set_dumpable_behavior, setrlimit, DumpableBehavior, Pid, Resource,
    Rlimit,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use sandkasten_runner::sys::{self, plain};
use sandkasten_runner::tar;
use server::{Listen, Server};
use shell::files;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{set_permissions, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use supervisor::program;
use wire::{handler, protocol};

const USAGE: &str = "sandkasten-runner (--listen-fd N | --listen PATH | --receive PATH | --stdio) \
[--ready-fd N] [--run-as UID:GID] [--user UID:GID] [--user-capabilities HEX] [--own DIR]... [--guard PATH]... \
[--state-dir DIR] [--workspace DIR] [--home DIR] [--shell PROGRAM] [--no-set-id] [--open-files N] \
[--gate-port N]
       sandkasten-runner --as UID:GID[,GID]... PROGRAM [ARGUMENT]...
       sandkasten-runner --script FILE ANSWERS MAX_BYTES [NAME=VALUE]... -- [OPTION]...
       sandkasten-runner --copy DIR DIR | --relay PATH|PORT | --erase PATH | --install PATH | --posture | --describe | --version";

#[derive(Default)]
struct Options {
    listen_fd: Option<RawFd>,
    listen: Option<Vec<u8>>,
    /// Where a process outside waits to give us a listener.
    receive: Option<Vec<u8>>,
    gate_port: Option<u16>,
    stdio: bool,
    /// Whether no file may get a set-user-id or set-group-id bit.
    no_set_id: bool,
    ready_fd: Option<RawFd>,
    /// How many descriptors a process may have open.
    open_files: Option<u64>,
    run_as: Option<Ids>,
    user: Option<Ids>,
    user_capabilities: u64,
    /// Directories that are given to the user.
    own: Vec<Vec<u8>>,
    /// Paths that only root must be able to replace.
    guard: Vec<Vec<u8>>,
    state_dir: Option<Vec<u8>>,
    workspace: Option<Vec<u8>>,
    home: Option<Vec<u8>>,
    shell: Option<Vec<u8>>,
}

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments == ["--describe"] {
        println!("{}", protocol::describe());
        return;
    }
    if arguments == ["--rest"] {
        // A process to look at from outside, whatever programs the image has.
        std::thread::sleep(std::time::Duration::from_secs(20));
        return;
    }
    if arguments == ["--version"] {
        println!("{}", env!("CARGO_PKG_VERSION"));
        return;
    }
    if arguments == ["--posture"] {
        let found = posture::describe()
            .unwrap_or_else(|error| fail(1, &format!("cannot look at this process: {error}")));
        if sys::write_all(1, format!("{found}\n").as_bytes()).is_err() {
            std::process::exit(1);
        }
        return;
    }
    if let [mode, path] = arguments.as_slice() {
        if mode == "--relay" {
            return relay(path.as_bytes());
        }
        if mode == "--install" {
            return install(path).unwrap_or_else(|error| fail(1, &error.to_string()));
        }
        if mode == "--erase" {
            return fs::erase(path.as_bytes()).unwrap_or_else(|error| fail(1, &error.message));
        }
    }
    if let [mode, from, to] = arguments.as_slice() {
        if mode == "--copy" {
            return fs::copy_tree(from.as_bytes(), to.as_bytes())
                .unwrap_or_else(|error| fail(1, &error.message));
        }
    }
    if let [mode, ids, program, rest @ ..] = arguments.as_slice() {
        if mode == "--as" {
            let (code, message) = run_as(&ids.to_string_lossy(), program, rest);
            fail(code, &message);
        }
    }
    if let [mode, input, output, most, rest @ ..] = arguments.as_slice() {
        if mode == "--script" {
            return script(input, output, most, rest);
        }
    }
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(message) => fail(2, &format!("{message}\nusage: {USAGE}")),
    };
    match run(options) {
        Ok(code) => std::process::exit(code),
        Err((what, errno)) => fail(1, &handler::Failure::from_errno(errno, what).message),
    }
}

/// Become another user and run a program; return why that failed, with the exit code that a shell gives
/// to it. For commands inside a sandbox whose user is root: an image need not have `su`.
fn run_as(ids: &str, program: &OsString, arguments: &[OsString]) -> (i32, String) {
    let mut numbers = ids.split([':', ',']).map(str::parse);
    let (uid, groups) = match (numbers.next(), numbers.collect::<Result<Vec<u32>, _>>()) {
        (Some(Ok(uid)), Ok(groups)) if !groups.is_empty() => (uid, groups),
        _ => return (2, "--as must be UID:GID[,GID]...".to_owned()),
    };
    if let Err(errno) = identity::become_user(uid, &groups) {
        let what = format!("cannot become user {ids}");
        return (2, handler::Failure::from_errno(errno, what).message);
    }
    let error = std::process::Command::new(program).args(arguments).exec();
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    (
        code,
        format!("cannot run {}: {error}", program.to_string_lossy()),
    )
}

/// Run a script. Like a relay, it runs beside user code.
fn script(input: &OsString, output: &OsString, most: &OsString, rest: &[OsString]) {
    forbid_dumps();
    let split = rest.iter().position(|word| word == "--");
    let split =
        split.unwrap_or_else(|| fail(2, "--script requires -- before the runner's options"));
    let number = most.to_string_lossy().parse();
    let most_bytes = number.unwrap_or_else(|_| fail(2, "--script requires a number of bytes"));
    let script = script::Script {
        input,
        output,
        most_bytes,
        env: &rest[..split],
        options: &rest[split + 1..],
    };
    if let Err(message) = script::run(&script) {
        fail(1, &message);
    }
}

/// Copy this program, for a Pod whose image does not have it. The copy appears whole.
fn install(path: &OsString) -> std::io::Result<()> {
    let mut partial = path.clone();
    partial.push(".new");
    std::fs::copy("/proc/self/exe", &partial)?;
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&partial, path)
}

/// Run the relay. It runs beside user code, which must not be able to use its descriptors or memory.
fn relay(path: &[u8]) {
    forbid_dumps();
    sys::close_from(3);
    if let Err(errno) = relay::run(path) {
        let what = format!("cannot reach {}", String::from_utf8_lossy(path));
        fail(1, &handler::Failure::from_errno(errno, what).message);
    }
}

fn fail(code: i32, message: &str) -> ! {
    let _unread = sys::write_all(2, format!("sandkasten-runner: {message}\n").as_bytes());
    std::process::exit(code)
}

fn parse(arguments: Vec<OsString>) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        let name = word.to_string_lossy().into_owned();
        if name == "--stdio" {
            options.stdio = true;
            continue;
        }
        if name == "--no-set-id" {
            options.no_set_id = true;
            continue;
        }
        let value = words
            .next()
            .ok_or_else(|| format!("{name} requires a value"))?
            .into_vec();
        let text = String::from_utf8_lossy(&value).into_owned();
        let number = |text: &str| {
            text.parse()
                .map_err(|_| format!("{name} must be a number, got {text}"))
        };
        match name.as_str() {
            "--listen-fd" => options.listen_fd = Some(number(&text)?),
            "--ready-fd" => options.ready_fd = Some(number(&text)?),
            "--listen" => options.listen = Some(value),
            "--receive" => options.receive = Some(value),
            "--gate-port" => options.gate_port = Some(number(&text)? as u16),
            "--open-files" => options.open_files = Some(number(&text)? as u64),
            "--state-dir" => options.state_dir = Some(value),
            "--workspace" => options.workspace = Some(value),
            "--own" => options.own.push(value),
            "--guard" => options.guard.push(value),
            "--home" => options.home = Some(value),
            "--shell" => options.shell = Some(value),
            "--run-as" => options.run_as = Some(parse_ids(&name, &text)?),
            "--user" => options.user = Some(parse_ids(&name, &text)?),
            "--user-capabilities" => {
                options.user_capabilities = u64::from_str_radix(&text, 16)
                    .map_err(|_| format!("{name} must be a hexadecimal number, got {text}"))?;
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    let ways = usize::from(options.listen_fd.is_some())
        + usize::from(options.listen.is_some())
        + usize::from(options.receive.is_some())
        + usize::from(options.stdio);
    if options.user_capabilities != 0 && options.user.is_none() {
        return Err("--user-capabilities requires --user".to_owned());
    }
    if !options.own.is_empty() && options.user.is_none() {
        return Err("--own requires --user".to_owned());
    }
    if ways != 1 {
        return Err("give exactly one of --listen-fd, --listen, --receive and --stdio".to_owned());
    }
    Ok(options)
}

fn parse_ids(name: &str, text: &str) -> Result<Ids, String> {
    let ids = text.split_once(':').and_then(|(uid, gid)| {
        Some(Ids {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    });
    ids.ok_or_else(|| format!("{name} must be UID:GID"))
}

/// What was attempted, and the errno.
type StartError = (Cow<'static, str>, sys::Errno);

fn failed_to(what: &'static str) -> impl Fn(sys::Errno) -> StartError {
    move |errno| (Cow::Borrowed(what), errno)
}

fn run(options: Options) -> Result<i32, StartError> {
    let (listen, ready) = take_descriptors(&options)?;
    prepare_process()?;
    if let Some(most) = options.open_files {
        sys::lower_limit(libc::RLIMIT_NOFILE, most)
            .map_err(failed_to("cannot limit open files"))?;
    }
    let signals = block_signals().map_err(failed_to("cannot take signals"))?;
    if let Some(user) = options.user {
        for path in &options.own {
            sys::own_dir(path, user.uid, user.gid).map_err(|errno| {
                let path = String::from_utf8_lossy(path);
                (format!("cannot give {path} to the user").into(), errno)
            })?;
        }
    }
    // After the owners of directories were changed: a symlink of the image may lead to one of them.
    for path in &options.guard {
        if let Err((place, errno)) = sys::check_only_root_can_replace(path) {
            let place = String::from_utf8_lossy(&place).into_owned();
            return Err((format!("not for root alone: {place}").into(), errno));
        }
    }
    if let Some(ids) = options.run_as {
        identity::step_down(ids, options.user_capabilities)
            .map_err(failed_to("cannot take the runner's id"))?;
    }
    let identity = Identity::current(options.user, options.user_capabilities);
    let state_dir = make_state_dir(options.state_dir, &identity)?;
    identity
        .drop_privileges()
        .map_err(failed_to("cannot set up the identity"))?;
    if options.no_set_id {
        set_id_filter::install().map_err(failed_to("cannot take the filter"))?;
    }
    let mut env: program::Env = std::env::vars_os()
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        // The directory in which we were started means nothing to a command.
        .filter(|(name, _)| name != b"PWD" && name != b"OLDPWD")
        // Kubernetes gives the address of its API server to every container.
        .filter(|(name, _)| options.receive.is_none() || !name.starts_with(b"KUBERNETES_"))
        .collect();
    let unclaimed = Some(env.clone());
    python_alias::offer(&mut env, &state_dir, &identity);
    let home = options
        .home
        .or_else(|| program::env_get(&env, b"HOME").map(<[u8]>::to_vec))
        .unwrap_or_else(|| b"/".to_vec());
    let found = || files::find_shell(program::env_get(&env, b"PATH"));
    let fixed_shell = options.shell.is_some();
    let shell = options.shell.or_else(found);
    let config = Config {
        unclaimed,
        fixed_shell,
        state_dir: state_dir.clone(),
        identity,
        workspace: options.workspace.unwrap_or_else(|| b"/".to_vec()),
        home,
        shell,
        gate_port: options.gate_port,
        env,
    };
    let mut server = Server::new(config, state_dir, signals).map_err(failed_to("cannot poll"))?;
    server.listen(listen).map_err(failed_to("cannot listen"))?;
    if !options.stdio {
        // Until now the caller could read on stderr why we cannot start.
        open_null_as(|null| dup2_stderr(null))?;
    }
    if let Some(ready) = ready {
        let _unread = sys::write_all(ready.as_raw_fd(), b"1");
    }
    let code = server.run();
    server.wait_for_clients();
    server.remove_files();
    Ok(code)
}

fn open_null_as(place: fn(&OwnedFd) -> rustix::io::Result<()>) -> Result<(), StartError> {
    let null = sys::open(b"/dev/null", libc::O_RDWR, 0);
    null.and_then(|null| plain(place(&null)))
        .map_err(failed_to("no /dev/null"))
}

/// Keep the given descriptors, close every other one, and put /dev/null on stdin and stdout.
fn take_descriptors(options: &Options) -> Result<(Listen, Option<OwnedFd>), StartError> {
    let failed = failed_to("cannot take the descriptors");
    // First to high numbers, out of the way, so that everything below can be closed.
    let keep = |fd: RawFd| sys::duplicate_above(fd, 100);
    let ready = match options.ready_fd {
        Some(fd) => Some(keep(fd).map_err(failed_to("--ready-fd is not open"))?),
        None => None,
    };
    let listen = match (options.listen_fd, &options.listen) {
        (Some(fd), _) => Listen::Inherited(keep(fd).map_err(failed_to("--listen-fd is not open"))?),
        (None, Some(path)) => Listen::Path(path.clone()),
        (None, None) if options.receive.is_some() => {
            Listen::Received(options.receive.clone().unwrap_or_default())
        }
        (None, None) => Listen::Stdio(keep(0).map_err(&failed)?, keep(1).map_err(&failed)?),
    };
    let mut kept: Vec<RawFd> = ready.iter().map(|fd| fd.as_raw_fd()).collect();
    match &listen {
        Listen::Inherited(fd) => kept.push(fd.as_raw_fd()),
        Listen::Stdio(input, output) => kept.extend([input.as_raw_fd(), output.as_raw_fd()]),
        Listen::Path(_) | Listen::Received(_) => {}
    }
    kept.sort_unstable();
    let mut next: RawFd = 3;
    for fd in kept {
        sys::close_between(next, fd - 1);
        next = fd + 1;
    }
    sys::close_from(next);
    // Stderr stays open while we may fail to start, and with --stdio for a last message.
    open_null_as(|null| dup2_stdin(null))?;
    open_null_as(|null| dup2_stdout(null))?;
    Ok((listen, ready))
}

/// Keep processes with our id from reading our memory, and write no core dump.
fn forbid_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _done = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _done = setrlimit(Resource::Core, none);
}

fn prepare_process() -> Result<(), StartError> {
    forbid_dumps();
    // Also where we are not the first process: orphans of our commands are reparented to us.
    let _reaper = set_child_subreaper(Some(Pid::INIT));
    // Large buffers go back to the kernel at once, so that an idle runner stays small.
    // SAFETY: takes integers, and no other thread allocates meanwhile.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) };
    plain(chdir("/")).map_err(failed_to("cannot enter /"))
}

/// Block every signal, so that none ends us; children get the defaults back before they exec.
fn block_signals() -> Result<OwnedFd, sys::Errno> {
    // SAFETY: the buffer is as large as the kernel's structure, and the zeroed set is initialised by
    // sigfillset before it is used.
    unsafe {
        // By system call: libc keeps two signals for itself and would not reset them, though we may
        // have inherited them ignored. All zeros is the default action on every architecture.
        let default = [0u64; 8];
        for signal in 1..=64 {
            let old = std::ptr::null::<u64>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                old,
                8usize,
            );
        }
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
    processes::child_signals()
}

/// Make the directory for the files of shells: searchable by the user, writable only by us.
fn make_state_dir(given: Option<Vec<u8>>, identity: &Identity) -> Result<Vec<u8>, StartError> {
    let path = match given {
        Some(path) => path,
        None => format!("/tmp/.sandkasten-{}-{}", std::process::id(), sys::boot_ns()).into_bytes(),
    };
    let made = identity.as_runner(|| match sys::make_dir(&path, 0o711) {
        Err(libc::EEXIST) => Ok(()),
        other => other,
    });
    made.map_err(failed_to("cannot make the state directory"))?;
    let searchable = Permissions::from_mode(0o711);
    // Not ours to change: then it must fit already.
    let _fits = set_permissions(OsStr::from_bytes(&path), searchable);
    Ok(path)
}
