//! Attach an image file to a loop device that frees itself when its last user is gone.
//!
//! A file that several sandboxes may use at once is attached once: two devices over one file would be
//! two file systems that do not know of each other, and would corrupt it.

use crate::failure::{failed, open, Failure, Outcome};
use crate::sys;
use rustix::fs::{flock, FlockOperation};
use std::os::unix::io::{AsRawFd, OwnedFd};

const STEP: &str = "loop";
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const BLOCK_SIZE: u32 = 4096;
/// Other processes take free devices at the same time; each lost race costs one try.
const TRIES: usize = 64;

/// struct loop_config of <linux/loop.h>; the same layout on every 64-bit architecture.
#[repr(C)]
#[derive(Default)]
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
    /// Two names, a key, initial values and what is reserved.
    rest: [u64; 8 + 8 + 4 + 2 + 8],
}

/// struct loop_info64 of <linux/loop.h>, of which two fields are used.
#[repr(C)]
#[derive(Default)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rest: [u64; 27],
}

pub struct Attached {
    pub path: String,
    /// Held until the device is mounted: the last close of an unmounted device frees it.
    _device: OwnedFd,
    /// The lock on the file's device.
    _lock: Option<OwnedFd>,
}

impl Attached {
    fn new(path: String, device: OwnedFd) -> Attached {
        Attached {
            path,
            _device: device,
            _lock: None,
        }
    }
}

/// Return the device that this file has already, or a new one. The lock keeps other processes from
/// deciding at the same time.
pub fn attach_shared(image: &str) -> Outcome<Attached> {
    // Opened only for the lock: a lock lives as long as its open file, and the device keeps its own.
    let lock = open_rw(image)?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(failed(STEP, "wait for others that attach the image"))?;
    let attached = match find(&lock)? {
        Some(attached) => attached,
        None => attach(image)?,
    };
    Ok(Attached {
        _lock: Some(lock),
        ..attached
    })
}

fn find(file: &OwnedFd) -> Outcome<Option<Attached>> {
    let stat = sys::stat_fd(file.as_raw_fd()).map_err(failed(STEP, "look at the image"))?;
    let names = std::fs::read_dir("/dev").map_err(failed(STEP, "list /dev"))?;
    for entry in names.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("loop").unwrap_or("");
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let path = format!("/dev/{}", name);
        // A node without a device behind it is not a match.
        let Ok(device) = open_rw(&path) else {
            continue;
        };
        // An open device cannot be freed meanwhile; a free one answers ENXIO.
        let mut info = LoopInfo::default();
        let is_attached = control(&device, LOOP_GET_STATUS64, &mut info).is_ok();
        if is_attached && (info.device, info.inode) == (stat.st_dev, stat.st_ino) {
            return Ok(Some(Attached::new(path, device)));
        }
    }
    Ok(None)
}

pub fn attach(image: &str) -> Outcome<Attached> {
    let file = open_rw(image)?;
    let all = open_rw("/dev/loop-control")?;
    for _ in 0..TRIES {
        let number = control(&all, LOOP_CTL_GET_FREE, &mut ())
            .map_err(failed(STEP, "find a free loop device"))?;
        let path = format!("/dev/loop{}", number);
        let device = open_rw(&path)?;
        let mut config = LoopConfig {
            fd: file.as_raw_fd() as u32,
            block_size: BLOCK_SIZE,
            flags: LO_FLAGS_AUTOCLEAR,
            ..LoopConfig::default()
        };
        match control(&device, LOOP_CONFIGURE, &mut config) {
            Ok(_) => return Ok(Attached::new(path, device)),
            Err(libc::EBUSY) => {}
            Err(errno) => return Err(Failure::new(STEP, format!("configure {}", path), errno)),
        }
    }
    let message = "every free loop device was taken by others";
    Err(Failure::new(STEP, message, libc::EBUSY))
}

fn control<T>(fd: &OwnedFd, request: libc::c_ulong, argument: &mut T) -> sys::Result<i32> {
    // SAFETY: the requests of this file read or write one value of the type that is passed with them.
    sys::check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) })
}

fn open_rw(path: &str) -> Outcome<OwnedFd> {
    open(STEP, path, libc::O_RDWR, 0)
}
