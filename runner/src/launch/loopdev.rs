//! Attach an image file to a loop device that frees itself when its last user is gone.
//!
//! A file that several sandboxes may use at once is attached once: two devices over one file would be
//! two file systems that do not know of each other, and would corrupt it.

use crate::failure::{check, open, Failure, Outcome};
use crate::sys;
use std::os::unix::io::RawFd;

const STEP: &str = "loop";
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const BLOCK_SIZE: u32 = 4096;
/// Other processes take free devices at the same time; each lost race costs one try.
const TRIES: usize = 64;

/// struct loop_config of <linux/loop.h>; the same layout on every 64-bit architecture.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// struct loop_info64 of <linux/loop.h>, of which two fields are used.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rest: [u64; 27],
}

const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;

pub struct Attached {
    pub path: String,
    /// Held until the device is mounted: the last close of an unmounted device frees it.
    fd: RawFd,
    /// The lock on the file's device, released by `close`.
    lock: Option<RawFd>,
}

impl Attached {
    /// Release the device, once it is mounted or could not be.
    pub fn close(self) {
        sys::close(self.fd);
        if let Some(lock) = self.lock {
            sys::close(lock);
        }
    }
}

/// Return the device that this file has already, or a new one. The lock keeps other processes from
/// deciding at the same time.
pub fn attach_shared(image: &str) -> Outcome<Attached> {
    // Opened only for the lock: a lock lives as long as its open file, and the device keeps its own.
    let lock = open_rw(image)?;
    check(STEP, "wait for others that attach the image", unsafe {
        libc::flock(lock, libc::LOCK_EX)
    })?;
    let found = match find(lock) {
        Ok(Some((path, fd))) => Ok(Attached {
            path,
            fd,
            lock: None,
        }),
        Ok(None) => attach(image),
        Err(failure) => Err(failure),
    };
    match found {
        Ok(attached) => Ok(Attached {
            lock: Some(lock),
            ..attached
        }),
        Err(failure) => {
            sys::close(lock);
            Err(failure)
        }
    }
}

fn find(file: RawFd) -> Outcome<Option<(String, RawFd)>> {
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    check(STEP, "look at the image", unsafe {
        libc::fstat(file, &mut stat)
    })?;
    let names = match std::fs::read_dir("/dev") {
        Ok(names) => names,
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(0);
            return Err(Failure::new(STEP, "list /dev", errno));
        }
    };
    for entry in names.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("loop").unwrap_or("");
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let path = format!("/dev/{}", name);
        // A node without a device behind it is not a match.
        let fd = match open_rw(&path) {
            Ok(fd) => fd,
            Err(_) => continue,
        };
        // An open device cannot be freed meanwhile; a free one answers ENXIO.
        let mut info: LoopInfo = unsafe { std::mem::zeroed() };
        let attached_to = unsafe { libc::ioctl(fd, LOOP_GET_STATUS64 as _, &mut info) } == 0;
        if attached_to && info.device == stat.st_dev && info.inode == stat.st_ino {
            return Ok(Some((path, fd)));
        }
        sys::close(fd);
    }
    Ok(None)
}

pub fn attach(image: &str) -> Outcome<Attached> {
    let file = open_rw(image)?;
    let control = open_rw("/dev/loop-control")?;
    let outcome = claim(file, control);
    sys::close(control);
    sys::close(file);
    outcome
}

fn claim(file: RawFd, control: RawFd) -> Outcome<Attached> {
    for _ in 0..TRIES {
        let number = check(STEP, "find a free loop device", unsafe {
            libc::ioctl(control, LOOP_CTL_GET_FREE as _)
        })?;
        let path = format!("/dev/loop{}", number);
        let fd = open_rw(&path)?;
        let config = LoopConfig {
            fd: file as u32,
            block_size: BLOCK_SIZE,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            sizelimit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR,
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        if unsafe { libc::ioctl(fd, LOOP_CONFIGURE as _, &config) } == 0 {
            return Ok(Attached {
                path,
                fd,
                lock: None,
            });
        }
        let errno = sys::errno();
        sys::close(fd);
        if errno != libc::EBUSY {
            return Err(Failure::new(STEP, format!("configure {}", path), errno));
        }
    }
    Err(Failure::new(
        STEP,
        "every free loop device was taken by others",
        libc::EBUSY,
    ))
}

fn open_rw(path: &str) -> Outcome<RawFd> {
    open(STEP, path, libc::O_RDWR, 0)
}
