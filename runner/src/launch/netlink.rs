//! Messages to the kernel's network configuration: devices, addresses, routes and address translation.
//!
//! No program of the host is used, because a sandbox must also start where `ip` and `nft` are missing.
//! Every request is acknowledged; the first refusal is the error.

use crate::sys::{self, plain, Result};
use rustix::net::netdevice::name_to_index;
use rustix::net::{self, netlink, AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};
use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Its number is 0, which rustix leaves out.
const ROUTE: Option<Protocol> = None;
const LO: u32 = 1;
const ALIGN: usize = 4;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLA_F_NESTED: u16 = 0x8000;
const NLMSG_ERROR: u16 = 2;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const PROTOCOL_BOOT: u8 = 3;
const IFLA_IFNAME: u16 = 3;

const NFTABLES: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = NFTABLES;
const NEW_CHAIN: u16 = NFTABLES | 3;
const NEW_RULE: u16 = NFTABLES | 6;
const TABLE: &[u8] = b"sandkasten\0";
const CHAIN: &[u8] = b"redirect\0";
const PRIORITY_RAW: i32 = -300;
const PRIORITY_DSTNAT: i32 = -100;
const META_L4PROTO: u32 = 16;
pub const META_IIF: u32 = 4;
pub const META_OIF: u32 = 5;
/// The user id of the socket's owner.
pub const META_SKUID: u32 = 10;
pub const NETWORK_HEADER: u32 = 1;
pub const TRANSPORT_HEADER: u32 = 2;
pub const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// Where connections are redirected.
#[derive(Clone, Copy)]
pub enum Hook {
    /// When they arrive from a device.
    Prerouting = 0,
    /// When they are for this namespace.
    Input = 1,
    /// When they are passed on from one device to another.
    Forward = 2,
    /// When a program of the same namespace makes them.
    Output = 3,
    /// When they leave by a device, which is known for certain only then.
    Postrouting = 4,
}

/// Bytes of one or more messages.
#[derive(Default)]
struct Messages {
    bytes: Vec<u8>,
    acknowledged: u32,
    sequence: u32,
}

impl Messages {
    fn message(&mut self, kind: u16, flags: u16, head: &[u8], body: &[u8]) {
        self.sequence += 1;
        if flags & NLM_F_ACK != 0 {
            self.acknowledged += 1;
        }
        let length = (16 + padded(head.len()) + body.len()) as u32;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        let flags = flags | NLM_F_REQUEST;
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&self.sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(head);
        let padding = padded(head.len()) - head.len();
        self.bytes.resize(self.bytes.len() + padding, 0);
        self.bytes.extend_from_slice(body);
    }

    /// Send all messages at once and wait for every acknowledgement.
    fn send(self, protocol: Option<Protocol>) -> Result<()> {
        let fd = socket(AddressFamily::NETLINK, SocketType::RAW, protocol)?;
        sys::write_all(fd.as_raw_fd(), &self.bytes)?;
        let mut left = self.acknowledged;
        let mut buffer = vec![0u8; 1 << 16];
        while left > 0 {
            left = left.saturating_sub(acknowledgements(&fd, &mut buffer)?);
        }
        Ok(())
    }
}

fn acknowledgements(fd: &OwnedFd, buffer: &mut [u8]) -> Result<u32> {
    let (n, _) = plain(net::recv(fd, &mut *buffer, RecvFlags::empty()))?;
    let mut rest = &buffer[..n];
    let mut seen = 0;
    while let Some(head) = rest.first_chunk::<20>() {
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(4) as u16 == NLMSG_ERROR {
            match word(16) as i32 {
                0 => seen += 1,
                code => return Err(-code),
            }
        }
        let length = padded(word(0).max(16) as usize);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(seen)
}

fn socket(family: AddressFamily, kind: SocketType, protocol: Option<Protocol>) -> Result<OwnedFd> {
    plain(net::socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        protocol,
    ))
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGN)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + padded(value.len()));
    out.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(padded(out.len()), 0);
    out
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &parts.concat())
}

/// Numbers of nftables are big-endian.
pub fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

/// Set the loopback device up.
pub fn loopback_up() -> Result<()> {
    device_up(LO)
}

/// Make a device `name` here that is joined to a device `peer` in another namespace.
pub fn veth(name: &CStr, peer: &CStr, namespace: &OwnedFd) -> Result<()> {
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_NET_NS_FD: u16 = 28;
    const INFO_KIND: u16 = 1;
    const INFO_DATA: u16 = 2;
    const VETH_INFO_PEER: u16 = 1;
    let head = [0u8; 16];
    let other = [
        head.to_vec(),
        attribute(IFLA_IFNAME, peer.to_bytes_with_nul()),
        attribute(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes()),
    ];
    let body = [
        attribute(IFLA_IFNAME, name.to_bytes_with_nul()),
        nested(
            IFLA_LINKINFO,
            &[
                attribute(INFO_KIND, b"veth"),
                nested(INFO_DATA, &[nested(VETH_INFO_PEER, &other)]),
            ],
        ),
    ];
    let create = NLM_F_CREATE | NLM_F_EXCL;
    configure(RTM_NEWLINK, create, &head, &body.concat())
}

/// Give a device an address in a network of four, and set it up. Returns its index.
pub fn address(name: &CStr, address: Ipv4Addr) -> Result<u32> {
    const PREFIX: u8 = 30;
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let index = plain(name_to_index(any, &name.to_string_lossy()))?;
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut head = vec![libc::AF_INET as u8, PREFIX, 0, 0];
    head.extend_from_slice(&index.to_ne_bytes());
    let octets = address.octets();
    let body = [
        attribute(IFA_LOCAL, &octets),
        attribute(IFA_ADDRESS, &octets),
    ];
    let create = NLM_F_CREATE | NLM_F_EXCL;
    configure(RTM_NEWADDR, create, &head, &body.concat())?;
    device_up(index)?;
    Ok(index)
}

/// Send everything that is not in the network of a device to a gateway there.
pub fn default_route(device: u32, gateway: Ipv4Addr) -> Result<()> {
    const TABLE_MAIN: u8 = 254;
    const SCOPE_UNIVERSE: u8 = 0;
    const TYPE_UNICAST: u8 = 1;
    let kind = [TABLE_MAIN, PROTOCOL_BOOT, SCOPE_UNIVERSE, TYPE_UNICAST];
    let gateway = attribute(RTA_GATEWAY, &gateway.octets());
    route(libc::AF_INET, kind, device, gateway)
}

/// Deliver packets for any address of the family to this namespace itself.
pub fn everything_is_local(family: libc::c_int) -> Result<()> {
    const TABLE_LOCAL: u8 = 255;
    const SCOPE_HOST: u8 = 254;
    const TYPE_LOCAL: u8 = 2;
    let kind = [TABLE_LOCAL, PROTOCOL_BOOT, SCOPE_HOST, TYPE_LOCAL];
    route(family, kind, LO, Vec::new())
}

fn route(family: libc::c_int, kind: [u8; 4], device: u32, mut body: Vec<u8>) -> Result<()> {
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let head = [&[family as u8, 0, 0, 0], &kind[..], &[0; 4]].concat();
    body.extend(attribute(RTA_OIF, &device.to_ne_bytes()));
    configure(RTM_NEWROUTE, NLM_F_CREATE, &head, &body)
}

/// Send one message about devices, addresses or routes.
fn configure(kind: u16, flags: u16, head: &[u8], body: &[u8]) -> Result<()> {
    let mut messages = Messages::default();
    messages.message(kind, NLM_F_ACK | flags, head, body);
    messages.send(ROUTE)
}

fn device_up(index: u32) -> Result<()> {
    let up = libc::IFF_UP as u32;
    // struct ifinfomsg: family, pad, type, index, flags, change.
    let mut head = vec![0u8; 4];
    for word in [index, up, up] {
        head.extend_from_slice(&word.to_ne_bytes());
    }
    configure(RTM_NEWLINK, 0, &head, &[])
}

/// Redirect TCP connections to anything but loopback to `port`: on loopback, or at the device on which
/// they arrive.
pub fn redirect_tcp(family: libc::c_int, port: u16, hook: Hook) -> Result<()> {
    let v4 = family == libc::AF_INET;
    let mut batch = Batch::new(family);
    batch.chain(CHAIN, b"nat\0", hook, PRIORITY_DSTNAT);
    let loopback = if v4 {
        [payload_of(NETWORK_HEADER, 16, 1), equals(&[127])]
    } else {
        [
            payload_of(NETWORK_HEADER, 24, 16),
            equals(&std::net::Ipv6Addr::LOCALHOST.octets()),
        ]
    };
    let [load, compare] = loopback;
    batch.rule(CHAIN, &[load, compare, accept()]);
    let mut tcp = is_tcp().to_vec();
    tcp.extend(redirect(port));
    batch.rule(CHAIN, &tcp);
    batch.send()
}

/// Track only TCP connections, which the redirection needs. The kernel would keep an entry for every
/// address that a program sends a datagram to, in memory that no limit of the sandbox counts.
pub fn track_only_tcp(family: libc::c_int) -> Result<()> {
    let chains: [(&[u8], Hook); 2] = [
        (b"arriving\0", Hook::Prerouting),
        (b"leaving\0", Hook::Output),
    ];
    let mut batch = Batch::new(family);
    for (chain, hook) in chains {
        batch.chain(chain, b"filter\0", hook, PRIORITY_RAW);
        let [protocol, tcp] = is_tcp();
        batch.rule(chain, &[protocol, tcp, accept()]);
        batch.rule(chain, &[expression(b"notrack\0", &[])]);
    }
    batch.send()
}

/// Changes of nftables in our table of one family, which apply together.
pub struct Batch {
    messages: Messages,
    head: [u8; 4],
}

impl Batch {
    const CREATE: u16 = NLM_F_ACK | NLM_F_CREATE;
    const LIMITS: [u8; 4] = [0, 0, (NFTABLES >> 8 >> 8) as u8, (NFTABLES >> 8) as u8];

    pub fn new(family: libc::c_int) -> Batch {
        const IPV4: u8 = 2;
        const IPV6: u8 = 10;
        let v4 = family == libc::AF_INET;
        let head = [if v4 { IPV4 } else { IPV6 }, 0, 0, 0];
        let mut messages = Messages::default();
        messages.message(BATCH_BEGIN, 0, &Batch::LIMITS, &[]);
        messages.message(NEW_TABLE, Batch::CREATE, &head, &attribute(1, TABLE));
        Batch { messages, head }
    }

    pub fn chain(&mut self, name: &[u8], kind: &[u8], hook: Hook, priority: i32) {
        let hook = [number(1, hook as u32), number(2, priority as u32)];
        let chain = [
            attribute(1, TABLE),
            attribute(3, name),
            nested(4, &hook),
            attribute(7, kind),
        ];
        self.messages
            .message(NEW_CHAIN, Batch::CREATE, &self.head, &chain.concat());
    }

    pub fn rule(&mut self, chain: &[u8], expressions: &[Vec<u8>]) {
        let rule = [
            attribute(1, TABLE),
            attribute(2, chain),
            nested(4, expressions),
        ];
        let add = Batch::CREATE | NLM_F_APPEND;
        self.messages
            .message(NEW_RULE, add, &self.head, &rule.concat());
    }

    pub fn send(mut self) -> Result<()> {
        self.messages.message(BATCH_END, 0, &Batch::LIMITS, &[]);
        self.messages.send(Some(netlink::NETFILTER))
    }
}

fn is_tcp() -> [Vec<u8>; 2] {
    is_protocol(libc::IPPROTO_TCP as u8)
}

pub fn is_protocol(protocol: u8) -> [Vec<u8>; 2] {
    [meta(META_L4PROTO), equals(&[protocol])]
}

/// Load what the kernel knows about a packet.
pub fn meta(key: u32) -> Vec<u8> {
    expression(b"meta\0", &[number(1, REGISTER), number(2, key)])
}

/// Redirect to a port of loopback, or of the device on which the packet arrives.
pub fn redirect(port: u16) -> [Vec<u8>; 2] {
    let load = [
        number(1, REGISTER),
        nested(2, &[attribute(1, &port.to_be_bytes())]),
    ];
    [
        expression(b"immediate\0", &load),
        expression(b"redir\0", &[number(1, REGISTER)]),
    ]
}

/// Match packets of connections that the kernel has seen in both directions.
pub fn established() -> Vec<Vec<u8>> {
    const CT_STATE: u32 = 0;
    const ESTABLISHED: u32 = 2;
    const NOT_EQUAL: u32 = 1;
    let load = [number(1, REGISTER), number(2, CT_STATE)];
    let value = |kind: u16, bits: u32| nested(kind, &[attribute(1, &bits.to_ne_bytes())]);
    let mask = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, 4),
        value(4, ESTABLISHED),
        value(5, 0),
    ];
    let compare = [number(1, REGISTER), number(2, NOT_EQUAL), value(3, 0)];
    vec![
        expression(b"ct\0", &load),
        expression(b"bitwise\0", &mask),
        expression(b"cmp\0", &compare),
    ]
}

pub fn expression(name: &[u8], parts: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[attribute(1, name), nested(2, parts)])
}

/// Load bytes of a header of the packet.
pub fn payload_of(header: u32, offset: u32, length: u32) -> Vec<u8> {
    let parts = [
        number(1, REGISTER),
        number(2, header),
        number(3, offset),
        number(4, length),
    ];
    expression(b"payload\0", &parts)
}

pub fn equals(value: &[u8]) -> Vec<u8> {
    let parts = [
        number(1, REGISTER),
        number(2, 0),
        nested(3, &[attribute(1, value)]),
    ];
    expression(b"cmp\0", &parts)
}

pub fn accept() -> Vec<u8> {
    verdict(ACCEPT)
}

pub fn drop() -> Vec<u8> {
    verdict(DROP)
}

fn verdict(code: u32) -> Vec<u8> {
    let parts = [
        number(1, VERDICT_REGISTER),
        nested(2, &[nested(2, &[number(1, code)])]),
    ];
    expression(b"immediate\0", &parts)
}
