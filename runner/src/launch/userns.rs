//! User namespaces: a new one mapped to an id range (as root), or one with the caller's own id
//! (ordinary user).

use crate::failure::{failed, open, write_file, Failure, Outcome};
use crate::plan::{IdMap, Owner};
use crate::{network, spawn, sys};
use rustix::process::{getgid, getuid, waitpid, Pid, WaitOptions, WaitStatus};
use rustix::thread::{self, LinkNameSpaceType, UnshareFlags};
use std::io::{Read, Write};
use std::os::unix::io::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

const STEP: &str = "userns";

/// Return a descriptor of a new user namespace with this map, in which no further one can be made.
///
/// A child makes the namespace and waits; we write its maps, because only a process outside may map a
/// range, and keep the namespace alive through its descriptor.
pub fn mapped(map: IdMap) -> Outcome<OwnedFd> {
    let line = format!("0 {} {}", map.base, map.count);
    with_maps(map, &line, &line)
}

/// Do the same, and begin to make a network namespace that belongs to it and has only a loopback
/// device. The kernel takes about as long for that as for the mounts, which are prepared meanwhile.
pub fn mapped_with_network(map: IdMap) -> Outcome<(OwnedFd, OwnNetwork)> {
    let line = format!("0 {} {}", map.base, map.count);
    let helper = Helper::fork(map, true)?;
    match helper.write_maps(&line, &line) {
        Ok(userns) => Ok((userns, OwnNetwork(helper))),
        Err(failure) => Err(helper.end(failure, MADE)),
    }
}

/// A network namespace that is still being made.
pub struct OwnNetwork(Helper);

impl OwnNetwork {
    /// Enter the namespace. Every process that is started from now on is in it.
    pub fn enter(self) -> Outcome<()> {
        let helper = self.0;
        let entered = wait_byte(&helper.channel).and_then(|()| {
            let path = format!("/proc/{}/ns/net", helper.pid);
            let namespace = open(STEP, &path, libc::O_RDONLY, 0)?;
            let kind = Some(LinkNameSpaceType::Network);
            thread::move_into_link_name_space(namespace.as_fd(), kind)
                .map_err(failed(STEP, "enter the network namespace"))
        });
        match entered {
            Ok(_) => {
                helper.reap();
                Ok(())
            }
            Err(failure) => Err(helper.end(failure, "make a network namespace")),
        }
    }
}

/// Return a descriptor of a user namespace that only a mount uses: files of `owner` on disk are files of
/// the sandbox's `user`, and all other ids are unmapped.
pub fn of_one_owner(map: IdMap, owner: Owner, user: u32) -> Outcome<OwnedFd> {
    let seen = map.base + user;
    let (uids, gids) = (
        format!("{} {} 1", owner.uid, seen),
        format!("{} {} 1", owner.gid, seen),
    );
    with_maps(map, &uids, &gids)
}

/// Return a descriptor of a user namespace that only a mount uses: the ids from `first` on disk are those
/// of the sandbox. Id 0 stays what it is, because the overlay on the mount works as root.
pub fn of_other_range(map: IdMap, first: u32) -> Outcome<OwnedFd> {
    let range = format!("{} {} {}\n", first, map.base, map.count);
    // A volume with the ids inside has its own id 0.
    let line = match first {
        0 => range,
        _ => format!("0 0 1\n{}", range),
    };
    with_maps(map, &line, &line)
}

fn with_maps(map: IdMap, uids: &str, gids: &str) -> Outcome<OwnedFd> {
    let helper = Helper::fork(map, false)?;
    match helper.write_maps(uids, gids) {
        Ok(userns) => {
            helper.reap();
            Ok(userns)
        }
        Err(failure) => Err(helper.end(failure, MADE)),
    }
}

const MADE: &str = "make a user namespace";

/// The child that makes namespaces. It ends when we close our end, or end.
struct Helper {
    pid: Pid,
    channel: UnixStream,
}

impl Helper {
    fn fork(map: IdMap, network: bool) -> Outcome<Helper> {
        let (ours, theirs) = UnixStream::pair().map_err(failed(STEP, "socketpair"))?;
        if let Some(pid) = spawn::born_in(None)? {
            return Ok(Helper { pid, channel: ours });
        }
        // Our copy of the parent's end would keep us from seeing that it closes its own.
        drop(ours);
        spawn::exit(match child(map, network, &theirs) {
            Ok(()) => 0,
            Err(t) => t.errno.clamp(1, 254),
        })
    }

    fn write_maps(&self, uids: &str, gids: &str) -> Outcome<OwnedFd> {
        let pid = self.pid;
        wait_byte(&self.channel)?;
        write_file(STEP, &format!("/proc/{}/uid_map", pid), uids.as_bytes())?;
        write_file(STEP, &format!("/proc/{}/gid_map", pid), gids.as_bytes())?;
        send_byte(&self.channel)?;
        wait_byte(&self.channel)?;
        open(STEP, &format!("/proc/{}/ns/user", pid), libc::O_RDONLY, 0)
    }

    /// Let the child end, and return its status.
    fn reap(self) -> Option<WaitStatus> {
        drop(self.channel);
        let ended = waitpid(Some(self.pid), WaitOptions::empty());
        ended.ok().flatten().map(|(_, status)| status)
    }

    /// Return the reason why the child failed at `what`, or `failure` if the child did not fail.
    fn end(self, failure: Failure, what: &str) -> Failure {
        match self.reap().and_then(|status| status.exit_status()) {
            None | Some(0) => failure,
            Some(errno) => Failure::new(STEP, what, errno),
        }
    }
}

fn child(map: IdMap, network: bool, parent: &UnixStream) -> Outcome<()> {
    // Resources that the kernel counts per user (inotify instances, pending signals, …) are also
    // charged to the creator of the namespace. If host root created it, one sandbox could use up what
    // root itself may have; so the creator is an id of the sandbox's own range. Capabilities are kept
    // over the change, because some hosts let only privileged processes make user namespaces.
    thread::set_keep_capabilities(true).map_err(failed(STEP, "keep capabilities"))?;
    network::become_user(STEP, map.base)?;
    sys::raise_permitted().map_err(failed("capabilities", "capset"))?;
    spawn::unshare(STEP, "unshare", UnshareFlags::NEWUSER)?;
    send_byte(parent)?;
    wait_byte(parent)?;
    // This sysctl belongs to the namespace: inside, no process can make another one, with or without
    // seccomp.
    write_file(STEP, "/proc/sys/user/max_user_namespaces", b"0")?;
    send_byte(parent)?;
    if network {
        network::new_namespace()?;
        send_byte(parent)?;
    }
    // Live until the parent has opened the namespaces and closed its end.
    let _ = wait_byte(parent);
    Ok(())
}

/// Enter a user namespace as an ordinary user: our own id, mapped to itself, which is enough to mount
/// in a private mount namespace.
pub fn enter_own() -> Outcome<()> {
    let (uid, gid) = (getuid(), getgid());
    let what = "make a user namespace as an ordinary user";
    spawn::unshare(STEP, what, UnshareFlags::NEWUSER)?;
    write_file(STEP, "/proc/self/setgroups", b"deny")?;
    write_file(
        STEP,
        "/proc/self/uid_map",
        format!("{} {} 1", uid, uid).as_bytes(),
    )?;
    write_file(
        STEP,
        "/proc/self/gid_map",
        format!("{} {} 1", gid, gid).as_bytes(),
    )
}

fn send_byte(mut to: &UnixStream) -> Outcome<()> {
    to.write_all(b"x")
        .map_err(failed(STEP, "signal the other side"))
}

fn wait_byte(mut from: &UnixStream) -> Outcome<()> {
    match from.read(&mut [0]) {
        Ok(1) => Ok(()),
        Ok(_) => {
            let message = "the other side ended early";
            Err(Failure::new(STEP, message, libc::EPIPE))
        }
        Err(error) => Err(failed(STEP, "wait for the other side")(error)),
    }
}
