//! The network of a Pod whose sandbox gets one by rule: what each user id in it may send.
//!
//! All containers of a Pod share one network namespace, so the kernel distinguishes them by user
//! id. TCP connections and lookups of the sandbox's user lead to the egress process on loopback,
//! and nothing else of it leaves the Pod, whatever device, mark or address its sockets are bound
//! to. The egress process has its own id and reaches the outside. From outside, only the gate can
//! be reached.
//!
//! The rules are matched before a packet leaves, not when its route is chosen: a socket that is bound to a
//! device ignores routes by user id.

use crate::failure::{failed, Failure, Outcome};
use crate::netlink::{
    self, accept, drop, equals, established, expression, is_protocol, meta, number, payload_of,
    redirect, Batch, Hook, META_IIF, META_OIF, META_SKUID, TRANSPORT_HEADER,
};
use serde_json::Value;

const STEP: &str = "network";
const DNS_PORT: u16 = 53;
const LO: u32 = 1;
const PRIORITY_FILTER: i32 = 0;
const PRIORITY_DSTNAT: i32 = -100;
/// Neighbours and routers of IPv6.
const ICMPV6: u8 = 58;

pub struct Pod {
    /// The user id of the sandbox and the gate.
    user: u32,
    /// The user id of the egress process.
    egress: u32,
    /// Where the egress process listens on loopback, over TCP and UDP.
    port: u16,
    /// Where the gate listens.
    gate: u16,
}

/// Return `None` if the plan describes something else.
pub fn parse(source: &Value) -> Outcome<Option<Pod>> {
    let plan = &source["pod"];
    if plan.is_null() {
        return Ok(None);
    }
    let number = |name: &str| {
        plan[name]
            .as_u64()
            .ok_or_else(|| Failure::new("plan", format!("pod: no {}", name), 0))
    };
    Ok(Some(Pod {
        user: number("user")? as u32,
        egress: number("egress")? as u32,
        port: number("port")? as u16,
        gate: number("gate")? as u16,
    }))
}

impl Pod {
    /// Set the rules in the network namespace of this process.
    pub fn close(&self) -> Outcome<()> {
        self.close_family(libc::AF_INET)
            .map_err(failed(STEP, "set the rules of the Pod"))?;
        match self.close_family(libc::AF_INET6) {
            // A kernel without IPv6 has nothing to close there.
            Ok(()) | Err(libc::EAFNOSUPPORT) | Err(libc::EOPNOTSUPP) => Ok(()),
            Err(errno) => Err(Failure::new(STEP, "set the rules of the Pod (IPv6)", errno)),
        }
    }

    fn close_family(&self, family: libc::c_int) -> Result<(), sandkasten_runner::sys::Errno> {
        let mut batch = Batch::new(family);
        if family == libc::AF_INET {
            self.redirect(&mut batch);
        }
        self.outgoing(&mut batch, family);
        self.incoming(&mut batch, family);
        // A socket that is bound to the loopback device sends everything there.
        batch.chain(b"passing\0", b"filter\0", Hook::Forward, PRIORITY_FILTER);
        batch.rule(b"passing\0", &[drop()]);
        batch.send()
    }

    /// Lead TCP connections and lookups of the sandbox to the egress process.
    fn redirect(&self, batch: &mut Batch) {
        const CHAIN: &[u8] = b"redirect\0";
        batch.chain(CHAIN, b"nat\0", Hook::Output, PRIORITY_DSTNAT);
        // Loopback, and the address of the Pod itself.
        let inside = [meta(META_OIF), equals(&LO.to_ne_bytes()), accept()];
        batch.rule(CHAIN, &inside);
        let user = || [meta(META_SKUID), equals(&self.user.to_ne_bytes())];
        let mut tcp = user().to_vec();
        tcp.extend(is_protocol(libc::IPPROTO_TCP as u8));
        tcp.extend(redirect(self.port));
        batch.rule(CHAIN, &tcp);
        let mut names = user().to_vec();
        names.extend(is_protocol(libc::IPPROTO_UDP as u8));
        names.extend(port_is(2, DNS_PORT));
        names.extend(redirect(self.port));
        batch.rule(CHAIN, &names);
    }

    fn outgoing(&self, batch: &mut Batch, family: libc::c_int) {
        const CHAIN: &[u8] = b"outgoing\0";
        // Not where they are made: there, what was redirected still seems to leave by its old device.
        batch.chain(CHAIN, b"filter\0", Hook::Postrouting, PRIORITY_FILTER);
        let inside = [meta(META_OIF), equals(&LO.to_ne_bytes()), accept()];
        batch.rule(CHAIN, &inside);
        // Answers of the gate, which has the user id of the sandbox. No other socket can have its port.
        let mut answers = is_protocol(libc::IPPROTO_TCP as u8).to_vec();
        answers.extend(port_is(0, self.gate));
        answers.extend(is_reply());
        answers.extend(established());
        answers.push(accept());
        batch.rule(CHAIN, &answers);
        // Before what is established: a port that the egress used may be bound by the sandbox next.
        let user = [meta(META_SKUID), equals(&self.user.to_ne_bytes()), drop()];
        batch.rule(CHAIN, &user);
        let mut known = established();
        known.push(accept());
        batch.rule(CHAIN, &known);
        let egress = [
            meta(META_SKUID),
            equals(&self.egress.to_ne_bytes()),
            accept(),
        ];
        batch.rule(CHAIN, &egress);
        neighbours(batch, CHAIN, family);
        // Also packets that belong to no socket any more.
        batch.rule(CHAIN, &[drop()]);
    }

    fn incoming(&self, batch: &mut Batch, family: libc::c_int) {
        const CHAIN: &[u8] = b"incoming\0";
        batch.chain(CHAIN, b"filter\0", Hook::Input, PRIORITY_FILTER);
        let inside = [meta(META_IIF), equals(&LO.to_ne_bytes()), accept()];
        batch.rule(CHAIN, &inside);
        let mut known = established();
        known.push(accept());
        batch.rule(CHAIN, &known);
        let mut gate = is_protocol(libc::IPPROTO_TCP as u8).to_vec();
        gate.extend(port_is(2, self.gate));
        gate.push(accept());
        batch.rule(CHAIN, &gate);
        neighbours(batch, CHAIN, family);
        batch.rule(CHAIN, &[drop()]);
    }
}

fn neighbours(batch: &mut Batch, chain: &[u8], family: libc::c_int) {
    if family == libc::AF_INET6 {
        let mut rule = is_protocol(ICMPV6).to_vec();
        rule.push(accept());
        batch.rule(chain, &rule);
    }
}

/// Compare a port of the transport header: the source at 0, the destination at 2.
fn port_is(offset: u32, port: u16) -> [Vec<u8>; 2] {
    [
        payload_of(TRANSPORT_HEADER, offset, 2),
        equals(&port.to_be_bytes()),
    ]
}

/// Packets against the direction of the first one of their connection.
fn is_reply() -> [Vec<u8>; 2] {
    const CT_DIRECTION: u32 = 1;
    const REPLY: u8 = 1;
    let load = [number(1, netlink::REGISTER), number(2, CT_DIRECTION)];
    [expression(b"ct\0", &load), equals(&[REPLY])]
}
