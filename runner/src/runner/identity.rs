//! Ids and capabilities of the runner, its supervisors, and the user's code.
//!
//! With `--user` the three differ. The runner keeps only the capabilities to become the user, and
//! accesses files as the user (fsuid). A supervisor may signal the user's processes (effective uid) but
//! cannot be signalled by them (real and saved uid). User code has no capability in any of the five
//! sets or, where the user is root inside (`--user-capabilities`), exactly the given ones: it may then
//! signal supervisors, and never the runner, which is the first process and which the kernel protects.

use crate::sys::{self, plain, Capabilities, Errno};
use rustix::fs::Mode;
use rustix::process::{
    geteuid, getgid, getgroups, getuid, set_dumpable_behavior, umask, DumpableBehavior, Gid, Uid,
};
use rustix::thread::{
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_keep_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid, CapabilitySet,
};

const CAP_KILL: u32 = 5;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
/// Capabilities that the runner itself needs.
const WANTED: u64 = 1 << CAP_KILL | 1 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_SETPCAP;
/// Above any capability that exists; PR_CAPBSET_DROP answers EINVAL for the first unknown one.
const CAP_END: u32 = 64;
const KEEP: libc::uid_t = libc::uid_t::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// A user for file verbs; the first group is the main one.
#[derive(Debug, Clone)]
pub struct OtherUser {
    pub uid: u32,
    pub groups: Vec<u32>,
}

#[derive(Debug, Clone)]
pub struct Identity {
    pub own: Ids,
    pub user: Option<Ids>,
    /// Capabilities that user code keeps; it can never get more.
    pub kept: u64,
    /// The umask that we were started with; ours is 0, so that modes are exact.
    pub umask: libc::mode_t,
    /// gVisor has no separate ids for files: there the effective ids are changed. Who may signal us
    /// depends on the real and the saved id, which stay ours.
    effective_ids: bool,
}

/// Return sets in which `bits` are effective and permitted, and nothing is inheritable.
fn just(bits: u64) -> Capabilities {
    Capabilities {
        effective: bits,
        permitted: bits,
        inheritable: 0,
    }
}

/// Change the real, the effective and the saved uid; `KEEP` leaves one as it is. It is a call for one
/// thread, and the runner has one.
fn set_uids(real: u32, effective: u32, saved: u32) -> Result<(), Errno> {
    let [real, effective, saved] = [real, effective, saved].map(Uid::from_raw_unchecked);
    plain(set_thread_res_uid(real, effective, saved))
}

/// Change the real, the effective and the saved gid, in the same way.
fn set_gids(real: u32, effective: u32, saved: u32) -> Result<(), Errno> {
    let [real, effective, saved] = [real, effective, saved].map(Gid::from_raw_unchecked);
    plain(set_thread_res_gid(real, effective, saved))
}

fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    let groups = groups.iter().copied().map(Gid::from_raw_unchecked);
    plain(set_thread_groups(&groups.collect::<Vec<_>>()))
}

fn forbid_dumps() -> Result<(), Errno> {
    plain(set_dumpable_behavior(DumpableBehavior::NotDumpable))
}

/// Change from root to the runner's own id, keeping only the capabilities that it needs and those of
/// `kept`. For kernels without ambient capabilities, where a program that is not root would start
/// without any.
pub fn step_down(ids: Ids, kept: u64) -> Result<(), Errno> {
    plain(set_keep_capabilities(true))?;
    set_groups(&[])?;
    set_gids(ids.gid, ids.gid, ids.gid)?;
    set_uids(ids.uid, ids.uid, ids.uid)?;
    keep_only(kept)
}

/// Change to another user and its groups, the first of which is the main one; capabilities go with it.
pub fn become_user(uid: u32, groups: &[u32]) -> Result<(), Errno> {
    set_groups(groups)?;
    set_gids(groups[0], groups[0], groups[0])?;
    set_uids(uid, uid, uid)
}

/// Reduce our capabilities. What the user keeps must be ours to give, and lets us access files as the
/// user would.
fn keep_only(kept: u64) -> Result<(), Errno> {
    let permitted = sys::capabilities()?.permitted & (WANTED | kept);
    // A kernel without ambient sets has none to clear.
    let _cleared = clear_ambient_capability_set();
    sys::set_capabilities(just(permitted))
}

impl Identity {
    pub fn current(user: Option<Ids>, kept: u64) -> Identity {
        Identity {
            own: Ids {
                uid: getuid().as_raw(),
                gid: getgid().as_raw(),
            },
            user,
            kept,
            umask: umask(Mode::empty()).as_raw_mode(),
            effective_ids: file_uid() < 0,
        }
    }

    pub fn user_uid(&self) -> u32 {
        self.user.unwrap_or(self.own).uid
    }

    /// Drop supplementary groups and every capability that is not needed. Called once, when the runner
    /// starts.
    pub fn drop_privileges(&self) -> Result<(), Errno> {
        let Some(user) = self.user else {
            return Ok(());
        };
        drop_groups()?;
        keep_only(self.kept)?;
        self.bound(user)?;
        self.files_as(user.uid, user.gid);
        Ok(())
    }

    /// Remove from the bounding set what user code may never get. Every child inherits ours, so none
    /// has to do it again; we ourselves exec nothing and lose nothing by it.
    fn bound(&self, user: Ids) -> Result<(), Errno> {
        for cap in (0..CAP_END).filter(|cap| self.kept >> cap & 1 == 0) {
            let cap_bit = CapabilitySet::from_bits_retain(1 << cap);
            match plain(remove_capability_from_bounding_set(cap_bit)) {
                Ok(_) => {}
                Err(libc::EINVAL) if cap > 0 => break,
                // Already the user, with nothing to drop and no capability to do so: no_new_privs
                // holds.
                Err(libc::EPERM) if user.uid == self.own.uid => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn files_as(&self, uid: u32, gid: u32) {
        if self.effective_ids {
            let _unchanged = set_gids(KEEP, gid, KEEP);
            let _unchanged = set_uids(KEEP, uid, KEEP);
            let _unchanged = forbid_dumps();
            // Leaving the effective id 0 makes every capability ineffective.
            let _unchanged = sys::raise_permitted();
            return;
        }
        // SAFETY: these calls only change how this thread is seen by file systems.
        unsafe {
            libc::setfsgid(gid);
            libc::setfsuid(uid);
        }
    }

    /// Run `work` with the runner's own file identity (the state directory does not belong to the
    /// user).
    pub fn as_runner<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.user {
            None => work(),
            Some(user) => {
                self.files_as(self.own.uid, self.own.gid);
                let value = work();
                self.files_as(user.uid, user.gid);
                value
            }
        }
    }

    /// Run `work` with the file identity of another user, who has none of our capabilities over files.
    /// Only a runner whose own user can do without groups has the ids to come back to.
    pub fn as_other<T>(&self, other: &OtherUser, work: impl FnOnce() -> T) -> Result<T, Errno> {
        let user = self.user.ok_or(libc::EPERM)?;
        let sets = sys::capabilities()?;
        set_groups(&other.groups)?;
        self.files_as(other.uid, other.groups[0]);
        let done = self.check_other(other.uid, sets).map(|()| work());
        self.files_as(user.uid, user.gid);
        let alone = set_groups(&[]).is_ok();
        if !alone || self.file_uid() != user.uid || sys::set_capabilities(sets).is_err() {
            // Every later verb would have the ids of another user.
            std::process::abort();
        }
        done
    }

    /// Check that the ids changed: the calls report nothing, and an id may have no mapping. The
    /// kernel takes the capabilities over files with a uid for files, and not with an effective
    /// one.
    fn check_other(&self, uid: u32, sets: Capabilities) -> Result<(), Errno> {
        if self.file_uid() != uid {
            return Err(libc::EPERM);
        }
        sys::set_capabilities(Capabilities {
            effective: sets.effective & WANTED,
            ..sets
        })
    }

    fn file_uid(&self) -> u32 {
        match self.effective_ids {
            true => geteuid().as_raw(),
            false => file_uid() as u32,
        }
    }

    /// Run `work` as the owner of our process's files in /proc, which a dumpable process has.
    pub fn as_owner<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.effective_ids {
            return work();
        }
        self.as_runner(work)
    }

    /// In a supervisor, after its child was started: become able to signal the user, and not the other
    /// way round.
    pub fn become_supervisor(&self) {
        if let Some(user) = self.user.filter(|user| user.uid != self.own.uid) {
            // A failure leaves us as we were, with CAP_KILL if we had it.
            let _unchanged = set_gids(KEEP, user.gid, KEEP);
            let _unchanged = set_uids(KEEP, user.uid, KEEP);
            let _unchanged = forbid_dumps();
        }
    }

    /// In the child of a reused supervisor: get the ids of a child of the runner itself.
    pub fn leave_supervisor(&self) -> Result<(), Errno> {
        // Where effective ids replace those for files, the runner's are the user's as well.
        let differs = |user: &Ids| user.uid != self.own.uid && !self.effective_ids;
        if self.user.filter(differs).is_some() {
            // Where the user is root, none of our ids is root afterwards, and that would drop all
            // capabilities.
            plain(set_keep_capabilities(true))?;
            set_uids(KEEP, self.own.uid, KEEP)?;
            plain(set_keep_capabilities(false))?;
            set_gids(KEEP, self.own.gid, KEEP)?;
            forbid_dumps()?;
            sys::raise_permitted()?;
        }
        Ok(())
    }

    /// In a child that is about to exec the user's program: become the user. Every step must succeed.
    pub fn become_user(&self) -> Result<(), Errno> {
        if let Some(user) = self.user {
            set_gids(user.gid, user.gid, user.gid)?;
            set_uids(user.uid, user.uid, user.uid)?;
            sys::set_capabilities(just(self.kept))?;
        }
        sys::no_new_privileges()?;
        umask(Mode::from_raw_mode(self.umask));
        Ok(())
    }
}

/// A user namespace whose gid map was written without privilege forbids setgroups for good. Then the
/// groups are unmapped and have no effect inside; that is the one case we accept.
fn drop_groups() -> Result<(), Errno> {
    set_groups(&[]).or_else(|errno| {
        let none = getgroups().is_ok_and(|groups| groups.is_empty());
        let denied =
            sys::read_file(b"/proc/self/setgroups", 16).is_ok_and(|text| text.starts_with(b"deny"));
        (none || denied).then_some(()).ok_or(errno)
    })
}

/// Return the uid of this thread for files; negative where there is none.
fn file_uid() -> i32 {
    // SAFETY: an id that does not exist changes nothing, and the present one is answered.
    unsafe { libc::setfsuid(KEEP) }
}
