//! What a machine needs and its provider does not do: an end of its life, a network that leads nowhere,
//! and directories of the provider that are not for code.

use rustix::net::{socket_with, AddressFamily, SocketFlags, SocketType};
use rustix::thread::{unshare_unsafe, UnshareFlags};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::io::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LO: &[u8] = b"lo\0";

/// `struct ifreq` with its flags.
#[repr(C)]
struct InterfaceFlags {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Enclosure {
    /// After which time the machine ends, whatever happens in it.
    lifetime: Option<Duration>,
    /// Whether the runner has its own network, with only the loopback device.
    pub no_network: bool,
    /// Directories that are made accessible only to root, if they exist.
    hidden: Vec<PathBuf>,
}

impl Enclosure {
    /// Read options up to the first other word; return what follows them.
    pub fn parse(mut words: &[OsString]) -> Result<(Enclosure, &[OsString]), String> {
        let mut found = Enclosure::default();
        loop {
            words = match words {
                [option, rest @ ..] if option == "--no-network" => {
                    found.no_network = true;
                    rest
                }
                [option, value, rest @ ..] if option == "--lifetime" => {
                    let seconds = value.to_str().and_then(|value| value.parse().ok());
                    let seconds = seconds.filter(|seconds| *seconds > 0);
                    let seconds = seconds.ok_or("--lifetime must be a number of seconds")?;
                    found.lifetime = Some(Duration::from_secs(seconds));
                    rest
                }
                [option, path, rest @ ..] if option == "--hide" => {
                    found.hidden.push(path.into());
                    rest
                }
                _ => return Ok((found, words)),
            }
        }
    }

    /// Hide directories, and begin to count the lifetime. With this process the machine ends.
    pub fn begin(&self) -> Result<(), String> {
        for path in self.hidden.iter().filter(|path| path.exists()) {
            hide(path).map_err(|error| format!("cannot hide {}: {}", path.display(), error))?;
        }
        if let Some(lifetime) = self.lifetime {
            std::thread::spawn(move || {
                std::thread::sleep(lifetime);
                eprintln!("sandkasten-gate: the lifetime of this machine is over");
                std::process::exit(0);
            });
        }
        Ok(())
    }
}

fn hide(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// Leave the network of the machine for an own one. May be called between fork and exec: it makes plain
/// system calls and allocates nothing.
pub fn leave_network() -> std::io::Result<()> {
    let mut request = InterfaceFlags {
        name: [0; libc::IFNAMSIZ],
        flags: (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short,
        rest: [0; 22],
    };
    request.name[..LO.len()].copy_from_slice(LO);
    // SAFETY: descriptors stay as they are; `request` is as large as the kernel's structure and outlives
    // the call.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNET)?;
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        match libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &mut request) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn options_end_at_the_runner() {
        let given = words("--lifetime 60 --hide /.fly --no-network /runner --no-set-id");
        let (found, rest) = Enclosure::parse(&given).unwrap();
        assert_eq!(found.lifetime, Some(Duration::from_secs(60)));
        assert_eq!(found.hidden, [PathBuf::from("/.fly")]);
        assert!(found.no_network);
        assert_eq!(rest, &words("/runner --no-set-id")[..]);
    }

    #[test]
    fn without_options_nothing_is_enclosed() {
        let given = words("/runner --lifetime");
        let (found, rest) = Enclosure::parse(&given).unwrap();
        assert_eq!(found, Enclosure::default());
        assert_eq!(rest, &given[..]);
    }

    #[test]
    fn a_lifetime_is_a_number_of_seconds() {
        for text in ["--lifetime 0 x", "--lifetime soon x", "--lifetime -1 x"] {
            assert!(Enclosure::parse(&words(text)).is_err(), "{}", text);
        }
    }
}
