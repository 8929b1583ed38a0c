//! How long the sandbox may live without requests and without activity.
//!
//! Idle time counts on the work clock, which stands still while the sandbox is frozen; the lifetime
//! counts on the boot clock, whatever happens. `activity` decides what counts as activity, and
//! `server/mod.rs` ends the sandbox.

use crate::activity::{Activity, Signs};

/// The idle time is divided into this many checks: activity that ends between two of them counts up to
/// the second.
const CHECKS: u64 = 10;
const SHORTEST_CHECK: u64 = 100_000_000;
const LONGEST_CHECK: u64 = 60_000_000_000;

#[derive(Default)]
pub struct Lease {
    idle_ns: Option<u64>,
    /// Boot clock.
    ends_at: Option<u64>,
    last_use: u64,
    activity: Activity,
}

impl Lease {
    pub fn set(&mut self, now: u64, boot: u64, idle_ms: Option<u64>, lifetime_ms: Option<u64>) {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        self.idle_ns = idle_ms.map(ns);
        self.ends_at = lifetime_ms.map(|ms| boot.saturating_add(ns(ms)));
        self.last_use = now;
    }

    pub fn touch(&mut self, now: u64) {
        self.last_use = now;
    }

    /// Report whether activity matters for this lease.
    pub fn counts_idle(&self) -> bool {
        self.idle_ns.is_some()
    }

    /// Record the result of a check.
    pub fn look(&mut self, now: u64, signs: &Signs) {
        if self.activity.is_shown_by(signs, now) {
            self.last_use = now;
        }
    }

    /// Return which of the two limits ended the lease.
    pub fn reason(&self, boot: u64) -> &'static str {
        match self.ends_at {
            Some(end) if end <= boot => "lifetime",
            _ => "idle",
        }
    }

    /// Return when to check again, in ns; 0 when the lease is over; `None` when there is none.
    pub fn next(&self, now: u64, boot: u64) -> Option<u64> {
        let idle = self.idle_ns.map(|ns| {
            let left = self.last_use.saturating_add(ns).saturating_sub(now);
            left.min((ns / CHECKS).clamp(SHORTEST_CHECK, LONGEST_CHECK))
        });
        let life = self.ends_at.map(|end| end.saturating_sub(boot));
        match (idle, life) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    #[test]
    fn activity_and_requests_extend_the_idle_time_but_not_the_lifetime() {
        let mut lease = Lease::default();
        assert_eq!(lease.next(5, 5), None);
        lease.set(0, 0, Some(100), Some(250));
        assert_eq!(lease.next(40 * MS, 40 * MS), Some(60 * MS));
        lease.touch(80 * MS);
        assert_eq!(lease.next(100 * MS, 100 * MS), Some(80 * MS));
        lease.look(170 * MS, &Signs::default());
        assert_eq!(lease.next(170 * MS, 0), Some(10 * MS));
        lease.look(170 * MS, &Signs::requested());
        assert_eq!(lease.last_use, 170 * MS);
        assert_eq!(lease.next(172 * MS, 250 * MS), Some(0));
        assert_eq!(
            (lease.reason(249 * MS), lease.reason(250 * MS)),
            ("idle", "lifetime")
        );
    }

    #[test]
    fn pause_stops_the_idle_clock_but_not_the_lifetime() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(60), Some(1000));
        assert_eq!(lease.next(10 * MS, 990 * MS), Some(10 * MS));
        assert_eq!(lease.next(10 * MS, 1000 * MS), Some(0));
    }

    #[test]
    fn checks_are_neither_too_rare_nor_too_frequent() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(1_800_000), None);
        assert_eq!(lease.next(0, 0), Some(LONGEST_CHECK));
        lease.set(0, 0, Some(20_000), None);
        assert_eq!(lease.next(0, 0), Some(2 * SECOND));
        lease.set(0, 0, Some(500), None);
        assert_eq!(lease.next(0, 0), Some(SHORTEST_CHECK));
    }

    #[test]
    fn null_clears_the_lease() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(10), Some(10));
        lease.set(0, 0, None, None);
        assert_eq!(lease.next(100 * MS, 100 * MS), None);
    }
}
