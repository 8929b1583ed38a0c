//! Files of a shell: its private directory, the FIFOs of each command, its environment.
//!
//! The directory belongs to the runner. Where uids differ the user can read the command FIFO and write
//! the output FIFOs, and can neither create nor remove anything. Where they are equal the user could
//! replace anything, so every file that we open must be a FIFO and not a symlink.

use crate::exec::{pty, Exec, What, STDERR, STDOUT};
use crate::identity::Identity;
use crate::poll::Poll;
use crate::shell::script::{self, Body, Standard};
use crate::supervisor::program::{env_set, Env};
use crate::sys::{self, Errno};
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Variables that bash reads at start-up or that change how it behaves; not for the shell itself.
const NOT_AT_START: &[&[u8]] = &[
    b"BASH_ENV",
    b"SHELLOPTS",
    b"BASHOPTS",
    b"POSIXLY_CORRECT",
    b"BASH_XTRACEFD",
    b"OLDPWD",
    b"SHLVL",
    b"_",
];

pub struct Directory {
    path: Vec<u8>,
    /// Files of the current command.
    files: Vec<Vec<u8>>,
    /// What goes into the command FIFO for the current command.
    line: Vec<u8>,
    /// The command FIFO, held open since the shell was found waiting for its next command.
    held: Option<OwnedFd>,
}

impl Directory {
    pub fn make(identity: &Identity, state_dir: &[u8], serial: u64) -> Result<Directory, Errno> {
        let path = [state_dir, format!("/shell-{serial}").as_bytes()].concat();
        identity.as_runner(|| {
            sys::make_dir(&path, 0o711)?;
            sys::make_fifo(&[&path[..], b"/cmd"].concat(), 0o644)
        })?;
        Ok(Directory {
            path,
            files: Vec::new(),
            line: Vec::new(),
            held: None,
        })
    }

    fn file(&self, name: &str) -> Vec<u8> {
        [&self.path[..], b"/", name.as_bytes()].concat()
    }

    /// Prepare what to source, make the FIFOs of its standard descriptors, and open our ends of them.
    pub fn write_command(
        &mut self,
        identity: &Identity,
        poll: &mut Poll,
        number: u64,
        exec: &mut Exec,
        last_code: i32,
        bash: bool,
    ) -> Result<(), Errno> {
        let command = match &exec.start.what {
            What::Shell { command, .. } => command,
            What::Argv { .. } => return Err(libc::EINVAL),
        };
        let parts = |standard| Body {
            env: &exec.start.env,
            cwd: exec.start.cwd.as_deref(),
            last_code,
            command,
            standard,
        };
        if let Some(size) = exec.start.pty {
            let pair = pty::open(size)?;
            let body = script::body(&parts(Standard::Terminal(&pair.slave_path)), bash);
            self.write_body(identity, body)?;
            return exec.offer_terminal(number, pair, poll);
        }
        let (output, error) = (self.file("out"), self.file("err"));
        let mut input = b"/dev/null".to_vec();
        if exec.start.stdin_stream {
            input = self.file("in");
            self.files.push(input.clone());
        }
        let standard = Standard::Files([&input, &output, &error]);
        let body = script::body(&parts(standard), bash);
        self.write_body(identity, body)?;
        for (path, source) in [(&output, STDOUT), (&error, STDERR)] {
            let reader = identity.as_runner(|| output_fifo(path))?;
            exec.watch_output(number, source, reader, poll)?;
        }
        if exec.start.stdin_stream {
            // A FIFO opens for writing only while another descriptor has it open for reading.
            let writer = identity.as_runner(|| {
                sys::make_fifo(&input, 0o644)?;
                let _reader = open_fifo(&input, libc::O_RDWR)?;
                open_fifo(&input, libc::O_WRONLY)
            })?;
            exec.offer_input(writer);
        }
        Ok(())
    }

    /// Take what the shell is to source: the FIFO carries it, or only its path if it is too long for one
    /// write.
    fn write_body(&mut self, identity: &Identity, body: Vec<u8>) -> Result<(), Errno> {
        if body.len() <= libc::PIPE_BUF {
            self.line = body;
            return Ok(());
        }
        let path = self.file("command");
        self.files.push(path.clone());
        self.line = script::source(&path);
        identity.as_runner(|| write_file(&path, &body))
    }

    /// Send the line to the shell; ENXIO while it does not read yet.
    pub fn deliver(&mut self, identity: &Identity) -> Result<(), Errno> {
        let fifo = match self.held.take() {
            Some(fifo) => fifo,
            None => self.open_command_fifo(identity)?,
        };
        // At most PIPE_BUF and into an empty pipe: all or nothing.
        match sys::write(fifo.as_raw_fd(), &self.line) {
            // The shell that waited is gone.
            Err(libc::EPIPE) => Err(libc::ENXIO),
            Err(errno) => Err(errno),
            Ok(count) if count == self.line.len() => Ok(()),
            Ok(_) => Err(libc::EIO),
        }
    }

    /// Open the command FIFO, which works only while a process reads it. If it is closed with nothing
    /// written, a waiting shell sees an empty command.
    pub fn open_command_fifo(&self, identity: &Identity) -> Result<OwnedFd, Errno> {
        let path = self.file("cmd");
        identity.as_runner(|| open_fifo(&path, libc::O_WRONLY))
    }

    /// Keep the FIFO open, so that the shell goes on waiting; its next command goes in here.
    pub fn hold(&mut self, fifo: OwnedFd) {
        self.held = Some(fifo);
    }

    /// Remove the files of the current command. An output FIFO that a process still holds open is
    /// removed too, so that the next command gets a new one; the others are reused.
    pub fn clean(&mut self, identity: &Identity, exec: Option<&Exec>) {
        let mut files = std::mem::take(&mut self.files);
        for (name, source) in [("out", STDOUT), ("err", STDERR)] {
            if exec.is_none_or(|exec| exec.has_output(source)) {
                files.push(self.file(name));
            }
        }
        identity.as_runner(|| files.iter().for_each(|path| sys::unlink(path)));
    }

    pub fn remove(mut self, identity: &Identity) {
        self.clean(identity, None);
        let cmd = self.file("cmd");
        identity.as_runner(|| {
            sys::unlink(&cmd);
            sys::remove_dir(&self.path);
        });
    }
}

fn write_file(path: &[u8], content: &[u8]) -> Result<(), Errno> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let file = sys::open(path, flags, 0o444)?;
    sys::write_all(file.as_raw_fd(), content)
}

/// Open our end of a command's output. The FIFO is created if it is missing or not a FIFO.
fn output_fifo(path: &[u8]) -> Result<OwnedFd, Errno> {
    if let Ok(fd) = open_fifo(path, libc::O_RDONLY) {
        // gVisor remembers the writers of earlier commands, and would report at once that all have
        // left.
        if !sys::is_hung_up(fd.as_raw_fd()) {
            return Ok(fd);
        }
    }
    sys::unlink(path);
    sys::make_fifo(path, 0o622)?;
    open_fifo(path, libc::O_RDONLY)
}

fn open_fifo(path: &[u8], access: i32) -> Result<OwnedFd, Errno> {
    let fd = sys::open(path, access | libc::O_NONBLOCK | libc::O_NOFOLLOW, 0)?;
    if sys::is_fifo(&sys::stat_fd(fd.as_raw_fd())?) {
        Ok(fd)
    } else {
        Err(libc::EINVAL)
    }
}

pub fn is_directory(path: &[u8]) -> bool {
    sys::stat(path).is_ok_and(|stat| sys::is_dir(&stat))
}

pub fn is_bash(program: &[u8]) -> bool {
    program.ends_with(b"/bash")
}

/// Return the shell of the image: bash if there is one, otherwise the POSIX shell.
pub fn find_shell(path: Option<&[u8]>) -> Option<Vec<u8>> {
    let searched = path.unwrap_or(b"").split(|&c| c == b':');
    let directories: Vec<&[u8]> = [&b"/bin"[..], b"/usr/bin"]
        .into_iter()
        .chain(searched.filter(|directory| directory.starts_with(b"/")))
        .collect();
    let named = |name: &[u8]| {
        let mut candidates = directories.iter().map(|at| [at, name].concat());
        candidates.find(|path| sys::is_executable(path))
    };
    named(b"/bash").or_else(|| named(b"/sh"))
}

pub fn start_argv(program: &[u8], directory: &Directory) -> Vec<Vec<u8>> {
    let mut argv = vec![program.to_vec()];
    if is_bash(program) {
        argv.extend([b"--norc".to_vec(), b"--noprofile".to_vec()]);
    }
    argv.push(b"-c".to_vec());
    argv.push(script::main_loop(&directory.path, is_bash(program)));
    // `$0`, the name in messages of the shell itself.
    argv.push(if is_bash(program) {
        b"bash".to_vec()
    } else {
        b"sh".to_vec()
    });
    argv
}

/// Return the environment that a shell starts with: the base, or what its predecessor had exported.
pub fn start_env(base: &Env, saved: Option<&Env>, cwd: &[u8]) -> Env {
    let mut env: Env = saved.unwrap_or(base).clone();
    env.retain(|(name, _)| !NOT_AT_START.contains(&&name[..]) && !name.starts_with(b"BASH_FUNC_"));
    env_set(&mut env, b"PWD", cwd.to_vec());
    env
}

/// Return the directory as the shell names it if that is true, otherwise as the kernel does.
pub fn current_directory(pid: i32, reported: Option<Vec<u8>>) -> Vec<u8> {
    let link = format!("/proc/{pid}/cwd").into_bytes();
    let real = sys::read_link(&link);
    match (reported, real) {
        (Some(reported), Ok(real)) => {
            let same = match (sys::stat(&reported), sys::stat(&link)) {
                (Ok(a), Ok(b)) => sys::identity(&a) == sys::identity(&b),
                _ => false,
            };
            if reported.starts_with(b"/") && (same || real.ends_with(b" (deleted)")) {
                reported
            } else {
                real
            }
        }
        (Some(reported), Err(_)) => reported,
        (None, Ok(real)) => real,
        (None, Err(_)) => b"/".to_vec(),
    }
}

/// Return how many bytes the shell and its waited-for children have read from and written to disks.
pub fn io_counts(pid: i32) -> (u64, u64) {
    let path = format!("/proc/{pid}/io");
    let text = sys::read_file(path.as_bytes(), 1024).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok())
            .unwrap_or(0)
    };
    (field("read_bytes:"), field("write_bytes:"))
}
