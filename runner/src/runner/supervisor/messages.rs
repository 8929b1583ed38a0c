//! Messages between the runner and a supervisor: packets of a few words on a separate socket.

use crate::sys::{self, Errno};
use rustix::net::{self, RecvFlags, SendFlags};
use std::os::unix::io::RawFd;

/// Runner → supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A shell's command is about to begin: processes that exist now are not part of it.
    RecordProcesses,
    /// Signal every process of the command.
    Signal(i32),
    /// Signal every process of the command, or the shell itself if it has none.
    SignalShell(i32),
    /// Signal only the first process of the command.
    SignalRoot(i32),
    /// Kill every process of the command (a shell itself survives).
    Sweep,
    /// Kill everything, a shell included.
    End,
}

/// Supervisor → runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Started {
        pid: i32,
    },
    Failed {
        stage: i64,
        errno: i32,
    },
    /// `last`: no process is left below.
    Exited {
        status: i32,
        usage: Usage,
        last: bool,
    },
    Recorded,
    Swept,
    /// No process is left below; the command itself ended before.
    Free,
}

impl Report {
    /// Report whether the supervisor of a command is idle after this report.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Report::Failed { .. } | Report::Exited { last: true, .. } | Report::Free
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu_ms: u64,
    pub peak_rss_bytes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

const WORDS: usize = 6;
pub(super) type Message = [i64; WORDS];

pub(super) fn send(fd: RawFd, message: Message) -> Result<(), Errno> {
    let bytes = message.map(i64::to_ne_bytes);
    let flags = SendFlags::NOSIGNAL;
    sys::plain(net::send(sys::borrow(&fd), bytes.as_flattened(), flags)).map(drop)
}

/// Return `Ok(None)` when the other side is gone.
pub(super) fn receive(fd: RawFd) -> Result<Option<Message>, Errno> {
    let mut bytes = [[0; 8]; WORDS];
    let mut reset = false;
    loop {
        let buffer = bytes.as_flattened_mut();
        match sys::plain(net::recv(sys::borrow(&fd), buffer, RecvFlags::empty())) {
            Ok((count, _)) => {
                return Ok((count == WORDS * 8).then(|| bytes.map(i64::from_ne_bytes)))
            }
            Err(libc::EINTR) => {}
            // The other side closed with orders unread. Linux reports that once, and before what
            // the other side had sent, which is still to come. gVisor reports it afterwards, for
            // ever.
            Err(libc::ECONNRESET) if !reset => reset = true,
            Err(libc::ECONNRESET) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

pub fn send_order(fd: RawFd, order: Order) -> Result<(), Errno> {
    let message = match order {
        Order::RecordProcesses => [1, 0, 0, 0, 0, 0],
        Order::Signal(signal) => [2, i64::from(signal), 0, 0, 0, 0],
        Order::SignalShell(signal) => [2, i64::from(signal), 1, 0, 0, 0],
        Order::SignalRoot(signal) => [2, i64::from(signal), 2, 0, 0, 0],
        Order::Sweep => [3, 0, 0, 0, 0, 0],
        Order::End => [4, 0, 0, 0, 0, 0],
    };
    send(fd, message)
}

/// Return the next report; `Ok(None)` when the supervisor is gone, EAGAIN when there is none now.
pub fn receive_report(fd: RawFd) -> Result<Option<Report>, Errno> {
    let Some(message) = receive(fd)? else {
        return Ok(None);
    };
    let count = |word: i64| word.max(0) as u64;
    Ok(match message[0] {
        1 => Some(Report::Started {
            pid: message[1] as i32,
        }),
        2 => Some(Report::Failed {
            stage: message[1],
            errno: message[2] as i32,
        }),
        kind @ (3 | 7) => Some(Report::Exited {
            last: kind == 7,
            status: message[1] as i32,
            usage: Usage {
                cpu_ms: count(message[2]),
                peak_rss_bytes: count(message[3]),
                read_bytes: count(message[4]),
                write_bytes: count(message[5]),
            },
        }),
        4 => Some(Report::Recorded),
        5 => Some(Report::Swept),
        6 => Some(Report::Free),
        _ => None,
    })
}
