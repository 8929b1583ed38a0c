//! How an idle supervisor gets its next command: one packet with the strings of the program, and the
//! three descriptors of the command.
//!
//! Nothing is passed through memory, because the supervisor was forked before the command was
//! requested. A command that does not fit into the packet gets a newly forked supervisor, which shares
//! the runner's memory.

use crate::supervisor::program::Program;
use crate::sys::{self, Errno};
use rustix::net::{
    recv, recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::ffi::{CStr, CString};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::io::{OwnedFd, RawFd};

/// Far below what a socket takes at once, far above what commands usually need.
pub const MOST: usize = 32 << 10;
/// The first word; it distinguishes the packet from orders, which are shorter.
pub const KIND: i64 = 7;
const WORDS: usize = 6;
const HEAD: usize = WORDS * 8;
const FDS: usize = 3;

pub struct Handover {
    pub command: u64,
    pub terminal: bool,
    pub program: Program,
}

/// Return the packet; `None` when the program is too large for one.
pub fn pack(command: u64, terminal: bool, program: &Program) -> Option<Vec<u8>> {
    let lists = [&program.argv.own, &program.env.own, &program.candidates];
    let strings = || std::iter::once(&program.cwd).chain(lists.into_iter().flatten());
    let size = |string: &CString| string.as_bytes_with_nul().len();
    if HEAD + strings().map(size).sum::<usize>() > MOST {
        return None;
    }
    let counts = lists.map(|list| list.len() as i64);
    let head = [KIND, command as i64, i64::from(terminal)];
    let mut packet = Vec::with_capacity(MOST / 8);
    for word in head.into_iter().chain(counts) {
        packet.extend_from_slice(&word.to_ne_bytes());
    }
    for string in strings() {
        packet.extend_from_slice(string.as_bytes_with_nul());
    }
    Some(packet)
}

pub fn unpack(packet: &[u8]) -> Option<Handover> {
    let mut words = packet.get(..HEAD)?.chunks_exact(8).map(|word| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(word);
        i64::from_ne_bytes(bytes)
    });
    let mut word = || words.next();
    let kind = word()?;
    let (command, terminal) = (word()? as u64, word()? != 0);
    let counts = [word()?, word()?, word()?];
    let mut rest = packet.get(HEAD..).filter(|_| kind == KIND)?;
    let mut string = || {
        let end = rest.iter().position(|&byte| byte == 0)? + 1;
        let string = CStr::from_bytes_with_nul(rest.get(..end)?).ok()?.to_owned();
        rest = rest.get(end..)?;
        Some(string)
    };
    let cwd = string()?;
    let mut list = |count: i64| (0..count).map(|_| string()).collect::<Option<Vec<_>>>();
    let (argv, env) = (list(counts[0])?, list(counts[1])?);
    let candidates = list(counts[2])?;
    rest.is_empty().then(|| Handover {
        command,
        terminal,
        program: Program {
            argv: argv.into(),
            env: env.into(),
            candidates,
            cwd,
        },
    })
}

pub fn send(socket: RawFd, packet: &[u8], fds: [RawFd; FDS]) -> Result<(), Errno> {
    let fds = fds.each_ref().map(sys::borrow);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let parts = [IoSlice::new(packet)];
    let socket = sys::borrow(&socket);
    sys::plain(sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)).map(drop)
}

/// Receive the next packet into `packet`, with its descriptors; an empty packet when the other side is
/// gone.
pub fn receive(socket: RawFd, packet: &mut Vec<u8>) -> Result<Vec<OwnedFd>, Errno> {
    // Only what a packet needs is touched, so that an idle supervisor stays small. A socket that was closed
    // has one of length 0.
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, length) = sys::retry(|| recv(sys::borrow(&socket), &mut [0u8; 0], flags))?;
    packet.clear();
    packet.reserve_exact(MOST);
    packet.resize(length.min(MOST), 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let parts = &mut [IoSliceMut::new(packet)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(sys::borrow(&socket), parts, &mut control, flags)
    });
    packet.truncate(received.as_ref().map_or(0, |received| received.bytes));
    sys::plain(received)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(fds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::FdFlags;
    use std::os::unix::io::AsRawFd;

    fn program(argv: &[&[u8]]) -> Program {
        let argv: Vec<Vec<u8>> = argv.iter().map(|word| word.to_vec()).collect();
        let env = vec![
            (b"PATH".to_vec(), b"/a:/b".to_vec()),
            (b"E".to_vec(), b"".to_vec()),
        ];
        Program::new(&argv, &env, b"/w \xff").unwrap()
    }

    #[test]
    fn command_arrives_with_its_strings_and_descriptors() {
        let (ours, theirs) = sys::socket_pair().unwrap();
        let packet = pack(9, true, &program(&[b"x", b"", b"\xfe\n"])).unwrap();
        let pipe = sys::pipe().unwrap();
        let fds = [pipe.0.as_raw_fd(), pipe.1.as_raw_fd(), ours.as_raw_fd()];
        send(ours.as_raw_fd(), &packet, fds).unwrap();
        let mut inbox = Vec::new();
        let got = receive(theirs.as_raw_fd(), &mut inbox).unwrap();
        assert_eq!(got.len(), 3);
        sys::write_all(got[1].as_raw_fd(), b"!").unwrap();
        let mut byte = [0u8];
        assert_eq!(sys::read(pipe.0.as_raw_fd(), &mut byte), Ok(1));
        for fd in &got {
            assert_eq!(rustix::io::fcntl_getfd(fd), Ok(FdFlags::CLOEXEC));
        }
        let handover = unpack(&inbox).unwrap();
        assert_eq!((handover.command, handover.terminal), (9, true));
        let bytes = |list: &[CString]| -> Vec<Vec<u8>> {
            list.iter()
                .map(|string| string.to_bytes().to_vec())
                .collect()
        };
        let program = &handover.program;
        assert_eq!(bytes(&program.argv.own), [&b"x"[..], b"", b"\xfe\n"]);
        assert_eq!(bytes(&program.env.own), [&b"PATH=/a:/b"[..], b"E="]);
        assert_eq!(bytes(&program.candidates), [b"/a/x", b"/b/x"]);
        assert_eq!(program.cwd.to_bytes(), b"/w \xff");
        drop((ours, got));
        assert_eq!(
            receive(theirs.as_raw_fd(), &mut inbox).map(|fds| fds.len()),
            Ok(0)
        );
        assert!(inbox.is_empty());
    }

    #[test]
    fn truncated_or_foreign_packet_is_rejected() {
        let packet = pack(1, false, &program(&[b"x"])).unwrap();
        for length in 0..packet.len() {
            assert!(unpack(&packet[..length]).is_none(), "{length}");
        }
        assert!(unpack(&[&packet[..], b"\0"].concat()).is_none());
        let mut other = packet.clone();
        other[0] = 3;
        assert!(unpack(&other).is_none());
        other = packet;
        other[3 * 8] = 200;
        assert!(unpack(&other).is_none());
    }

    #[test]
    fn program_that_is_too_large_is_not_packed() {
        let word = vec![b'x'; MOST];
        assert!(pack(1, false, &program(&[&word])).is_none());
        assert!(pack(1, false, &program(&[&word[..MOST / 4]])).is_some());
    }
}
