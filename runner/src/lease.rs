//! How long the sandbox may live without anybody asking for it. Times are on the work clock (ns).

#[derive(Default)]
pub struct Lease {
    idle_ns: Option<u64>,
    ends_at: Option<u64>,
    last_use: u64,
}

impl Lease {
    pub fn set(&mut self, now: u64, idle_ms: Option<u64>, lifetime_ms: Option<u64>) {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        self.idle_ns = idle_ms.map(ns);
        self.ends_at = lifetime_ms.map(|ms| now.saturating_add(ns(ms)));
        self.last_use = now;
    }

    pub fn touch(&mut self, now: u64) {
        self.last_use = now;
    }

    /// When to look again, in ns; 0 when it is over; `None` when there is no lease.
    pub fn next(&mut self, now: u64, busy: bool) -> Option<u64> {
        if busy {
            self.last_use = now;
        }
        let idle = self.idle_ns.map(|ns| self.last_use.saturating_add(ns));
        let end = match (idle, self.ends_at) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(end.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn work_and_requests_push_the_idle_end_away_but_not_the_lifetime() {
        let mut lease = Lease::default();
        assert_eq!(lease.next(5, false), None);
        lease.set(0, Some(10), Some(25));
        assert_eq!(lease.next(4 * MS, false), Some(6 * MS));
        lease.touch(8 * MS);
        assert_eq!(lease.next(10 * MS, false), Some(8 * MS));
        assert_eq!(lease.next(17 * MS, true), Some(8 * MS));
        assert_eq!(lease.next(25 * MS, true), Some(0));
    }

    #[test]
    fn null_clears() {
        let mut lease = Lease::default();
        lease.set(0, Some(10), Some(10));
        lease.set(0, None, None);
        assert_eq!(lease.next(100 * MS, false), None);
    }
}
