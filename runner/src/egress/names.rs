//! The address that stands for each name inside the sandbox, and the addresses it has outside.
//!
//! Programs inside get an address of 198.18.0.0/15 for a name; a connection to that address has
//! the name as its destination, for any protocol. The real addresses were found by one lookup, and only those are
//! dialled, so a name that changes its answer between check and use gains nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// The first four are the resolver's network.
const FIRST: u32 = 0xc612_0004;
const COUNT: u32 = (1 << 17) - 5;
/// Names that are remembered; the one that was used longest ago is forgotten first.
const MOST: usize = 4096;
/// After this, a new question makes a new lookup.
const FRESH: Duration = Duration::from_secs(60);

pub struct Known {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    looked_up: Option<Instant>,
    used: Instant,
}

#[derive(Default)]
pub struct Names {
    by_address: HashMap<Ipv4Addr, Known>,
    by_name: HashMap<String, Ipv4Addr>,
    next: u32,
}

impl Names {
    /// Return the address that stands for a name; it gets one if it has none.
    pub fn stand_in(&mut self, name: &str, now: Instant) -> Ipv4Addr {
        if let Some(&address) = self.by_name.get(name) {
            if let Some(known) = self.by_address.get_mut(&address) {
                known.used = now;
            }
            return address;
        }
        if self.by_name.len() >= MOST {
            self.forget_oldest();
        }
        let address = loop {
            let address = Ipv4Addr::from(FIRST + self.next % COUNT);
            self.next = self.next.wrapping_add(1);
            if !self.by_address.contains_key(&address) {
                break address;
            }
        };
        self.by_name.insert(name.to_owned(), address);
        let known = Known {
            name: name.to_owned(),
            addresses: Vec::new(),
            looked_up: None,
            used: now,
        };
        self.by_address.insert(address, known);
        address
    }

    pub fn found(&mut self, name: &str, addresses: Vec<IpAddr>, now: Instant) {
        let address = self.stand_in(name, now);
        if let Some(known) = self.by_address.get_mut(&address) {
            known.addresses = addresses;
            known.looked_up = Some(now);
        }
    }

    /// Return the name that an address stands for.
    pub fn known(&mut self, address: IpAddr, now: Instant) -> Option<&Known> {
        match address {
            IpAddr::V4(v4) => {
                let known = self.by_address.get_mut(&v4)?;
                known.used = now;
                Some(known)
            }
            IpAddr::V6(_) => None,
        }
    }

    /// Return the addresses of a name, if they were looked up recently.
    pub fn fresh(&self, name: &str, now: Instant) -> Option<&[IpAddr]> {
        let known = self.by_address.get(self.by_name.get(name)?)?;
        known
            .looked_up
            .filter(|at| now.duration_since(*at) < FRESH)
            .map(|_| known.addresses.as_slice())
    }

    fn forget_oldest(&mut self) {
        let oldest = self
            .by_address
            .iter()
            .min_by_key(|(_, known)| known.used)
            .map(|(address, _)| *address);
        if let Some(known) = oldest.and_then(|address| self.by_address.remove(&address)) {
            self.by_name.remove(&known.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address() {
        let now = Instant::now();
        let mut names = Names::default();
        let one = names.stand_in("a.example", now);
        assert_ne!(one, names.stand_in("b.example", now));
        assert_eq!(one, names.stand_in("a.example", now));
        assert_eq!(names.known(IpAddr::V4(one), now).unwrap().name, "a.example");
        assert!(names.fresh("a.example", now).is_none());
        names.found("a.example", vec![IpAddr::from([8, 8, 8, 8])], now);
        assert_eq!(names.fresh("a.example", now).unwrap().len(), 1);
        assert!(names.fresh("a.example", now + FRESH).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut names = Names::default();
        for i in 0..MOST + 300 {
            names.stand_in(
                &format!("n{}.example", i),
                now + Duration::from_millis(i as u64),
            );
        }
        assert_eq!((names.by_name.len(), names.by_address.len()), (MOST, MOST));
    }
}
