//! How long the sandbox may live without requests and without activity.
//!
//! Idle time counts on the work clock, which stands still while the sandbox is frozen; the lifetime
//! counts on the boot clock, whatever happens. `activity` collects the signs, this file decides, and
//! `server/mod.rs` ends the sandbox.

use crate::activity::Signs;

/// The idle time is divided into this many checks: activity that ends between two of them counts up to
/// the second.
const CHECKS: u64 = 10;
const SHORTEST_CHECK: u64 = 100_000_000;
const LONGEST_CHECK: u64 = 60_000_000_000;

/// Processor time is activity when it is more than a hundredth of the time since the last check, and
/// more than two ticks of the kernel's count: a single clock interrupt can cost one tick.
const CPU_SHARE: u64 = 100;
const CPU_TICKS: u64 = 2;

#[derive(Default)]
pub struct Lease {
    idle_ns: Option<u64>,
    /// Boot clock.
    ends_at: Option<u64>,
    last_use: u64,
    /// Processor time at the last check, and when that was.
    cpu: Option<(u64, u64)>,
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
        let grew = match (signs.cpu, self.cpu) {
            (Some(cpu), Some((before, at))) => {
                // It can also fall: a process whose parent ignores its death takes its count along.
                let ticks = cpu.ticks.abs_diff(before);
                let ns = ticks.saturating_mul(cpu.tick_ns);
                ticks > CPU_TICKS && ns.saturating_mul(CPU_SHARE) > now.saturating_sub(at)
            }
            _ => false,
        };
        if let Some(cpu) = signs.cpu {
            self.cpu = Some((cpu.ticks, now));
        }
        if grew || signs.requested || signs.children > 0 || signs.connections > 0 {
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
    use crate::activity::Cpu;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    fn quiet() -> Signs {
        Signs::default()
    }

    fn used(ticks: u64) -> Signs {
        let cpu = Some(Cpu {
            ticks,
            tick_ns: 10 * MS,
        });
        Signs { cpu, ..quiet() }
    }

    #[test]
    fn activity_and_requests_extend_the_idle_time_but_not_the_lifetime() {
        let mut lease = Lease::default();
        assert_eq!(lease.next(5, 5), None);
        lease.set(0, 0, Some(100), Some(250));
        assert_eq!(lease.next(40 * MS, 40 * MS), Some(60 * MS));
        lease.touch(80 * MS);
        assert_eq!(lease.next(100 * MS, 100 * MS), Some(80 * MS));
        let signs = [
            Signs {
                requested: true,
                ..quiet()
            },
            Signs {
                children: 1,
                ..quiet()
            },
            Signs {
                connections: 1,
                ..quiet()
            },
        ];
        for (at, sign) in [170 * MS, 171 * MS, 172 * MS].iter().zip(&signs) {
            lease.look(*at, &quiet());
            assert_eq!(lease.next(*at, 0), Some(lease.last_use + 100 * MS - at));
            lease.look(*at, sign);
            assert_eq!(lease.last_use, *at);
        }
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
    fn processor_time_counts_as_a_share_of_the_elapsed_time() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(100_000), None);
        lease.look(SECOND, &used(500));
        assert_eq!(
            lease.last_use, 0,
            "the first check has nothing to compare with"
        );
        lease.look(2 * SECOND, &used(502));
        assert_eq!(lease.last_use, 0, "two ticks are noise");
        lease.look(3 * SECOND, &used(510));
        assert_eq!(lease.last_use, 3 * SECOND);
        lease.look(20 * SECOND, &used(515));
        assert_eq!(
            lease.last_use,
            3 * SECOND,
            "five ticks in 17 s do not count"
        );
        lease.look(21 * SECOND, &used(400));
        assert_eq!(lease.last_use, 21 * SECOND, "the count fell");
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
