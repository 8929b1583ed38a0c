//! Networks, and the addresses that no sandbox reaches unless the operator names them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        // Addresses are compared in their plain form, so the network has it too.
        match plain(address) {
            _ if bits > most => None,
            v4 if v4 != address && bits >= 96 => Some(Network {
                address: v4,
                bits: bits - 96,
            }),
            _ => Some(Network { address, bits }),
        }
    }

    /// Whether an address, or the IPv4 address that it leads to, is in this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let inner = embedded(address).map(IpAddr::V4);
        self.has(plain(address)) || inner.is_some_and(|inner| self.has(inner))
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(
                u128::from(u32::from(a)) << 96,
                u128::from(u32::from(b)) << 96,
                self.bits,
            ),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(u128::from(a), u128::from(b), self.bits),
            _ => false,
        }
    }
}

fn same(a: u128, b: u128, bits: u8) -> bool {
    bits == 0 || (a ^ b) >> (128 - u32::from(bits)) == 0
}

/// Return the IPv4 address inside an IPv6 address that only wraps one.
pub fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// Return the IPv4 address that a translated address (NAT64, 6to4) leads to.
pub fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let (high, low) = match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
            [0x2002, high, low, ..] => (high, low),
            _ => return None,
        },
        IpAddr::V4(_) => return None,
    };
    Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
}

/// Whether an address is on the public internet: not this host, not its neighbours, not reserved.
pub fn is_public(address: IpAddr) -> bool {
    match plain(address) {
        IpAddr::V4(v4) => public_v4(v4),
        IpAddr::V6(v6) => public_v6(v6),
    }
}

fn public_v4(address: Ipv4Addr) -> bool {
    const CLOSED: [(u32, u8); 16] = [
        (0x0000_0000, 8),  // this network
        (0x0a00_0000, 8),  // private
        (0x6440_0000, 10), // shared by carriers
        (0x7f00_0000, 8),  // loopback
        (0xa83f_8110, 32), // metadata of Azure
        (0xa9fe_0000, 16), // link-local, metadata services
        (0xac10_0000, 12), // private
        (0xc000_0000, 24), // protocol assignments
        (0xc000_0200, 24), // documentation
        (0xc058_6300, 24), // relays of 6to4
        (0xc0a8_0000, 16), // private
        (0xc612_0000, 15), // benchmarks; ours for names
        (0xc633_6400, 24), // documentation
        (0xcb00_7100, 24), // documentation
        (0xe000_0000, 4),  // multicast
        (0xf000_0000, 4),  // reserved, broadcast
    ];
    let value = u32::from(address);
    !CLOSED
        .iter()
        .any(|&(network, bits)| (value ^ network) >> (32 - u32::from(bits)) == 0)
}

fn public_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = embedded(IpAddr::V6(address)) {
        return public_v4(inner);
    }
    match address.segments() {
        // Teredo, documentation, protocol assignments.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        // Documentation.
        [0x3fff, second, ..] if second < 0x1000 => false,
        // Only this part of the space is assigned to the public internet.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.1.2.3",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "100::1",
            "3fff::1",
            "3fff:fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{}", text);
        }
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "168.63.129.17",
            "172.32.0.1",
            "100.128.0.1",
            "198.20.0.1",
            "2606:4700::1111",
            "3fff:1000::1",
            "2001:4860:4860::8888",
            "64:ff9b::808:808",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(text.parse().unwrap()), "{}", text);
        }
    }

    #[test]
    fn a_network_contains_its_addresses() {
        let contains = |network: &str, address: &str| {
            Network::parse(network)
                .unwrap()
                .contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.255.0.1") && !contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(contains("::ffff:127.0.0.0/104", "127.0.0.1"));
        assert!(contains("::ffff:127.0.0.1", "::ffff:127.0.0.1"));
        assert!(!contains("::ffff:127.0.0.0/104", "128.0.0.1"));
        assert!(contains("fd00::/8", "fdff::1"));
        assert!(
            contains("8.8.8.0/24", "64:ff9b::808:808") && contains("64:ff9b::/96", "64:ff9b::1")
        );
        assert!(contains("8.8.8.8", "2002:808:808::1") && !contains("8.8.8.8", "2002:808:809::1"));
        assert!(Network::parse("1.2.3.4/33").is_none() && Network::parse("0x7f.1").is_none());
    }
}
