//! Whether an address is one of this host. The kernel's routes decide, because they have more than the
//! addresses of devices (`ip route add local 203.0.113.0/24 dev lo`).

use crate::addresses::{embedded, plain};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::net::IpAddr;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
/// To another host, directly or through a gateway. Other types are this host, broadcasts, and so on.
const RTN_UNICAST: u8 = 1;
const HEADER: usize = 16;
/// The offset of the type in a route.
const TYPE: usize = HEADER + 7;

/// Return whether a connection to the address would stay on this host. An answer that is not understood
/// counts as yes; an address without a route counts as no, because it cannot be reached.
pub fn is_own(address: IpAddr) -> bool {
    let inner = embedded(address).map(IpAddr::V4);
    std::iter::once(plain(address))
        .chain(inner)
        .any(|one| ask(one).ok().flatten().unwrap_or(true))
}

fn ask(address: IpAddr) -> rustix::io::Result<Option<bool>> {
    // Without a protocol it is that of routes.
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    net::send(&socket, &question(address), SendFlags::empty())?;
    // The kernel answers before `send` returns, so `recv` need not wait.
    let mut buffer = [0u8; 4096];
    let (count, _) = net::recv(&socket, &mut buffer, RecvFlags::DONTWAIT)?;
    Ok(reply(&buffer[..count]))
}

fn question(address: IpAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut out = Vec::new();
    let length = HEADER + 12 + 4 + bytes.len();
    out.extend_from_slice(&(length as u32).to_ne_bytes());
    out.extend_from_slice(&RTM_GETROUTE.to_ne_bytes());
    out.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[family as u8, bytes.len() as u8 * 8]);
    out.extend_from_slice(&[0; 10]);
    out.extend_from_slice(&(4 + bytes.len() as u16).to_ne_bytes());
    out.extend_from_slice(&RTA_DST.to_ne_bytes());
    out.extend_from_slice(&bytes);
    out
}

fn reply(message: &[u8]) -> Option<bool> {
    match u16::from_ne_bytes([*message.get(4)?, *message.get(5)?]) {
        RTM_NEWROUTE => Some(*message.get(TYPE)? != RTN_UNICAST),
        NLMSG_ERROR => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_this_host() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "::ffff:127.0.0.1",
            "2002:7f00:1::",
        ] {
            assert!(is_own(text.parse().unwrap()), "{}", text);
        }
    }

    #[test]
    fn an_answer_that_is_not_understood_is_an_error() {
        assert_eq!((reply(b""), reply(&[0; 40])), (None, None));
        assert_eq!(reply(&[0, 0, 0, 0, 24, 0]), None);
    }
}
