//! How long the sandbox may live without anybody asking for it, and without work.
//!
//! Idle time counts on the work clock, which stands still while the sandbox is frozen; the lifetime counts
//! on the boot clock, whatever happens. What counts as work is gathered in `work`; here it is judged.

use crate::activity::Signs;

/// The idle time is measured in this many looks: what ends between two of them counts up to the second.
const LOOKS: u64 = 10;
const SHORTEST_LOOK: u64 = 100_000_000;
const LONGEST_LOOK: u64 = 60_000_000_000;

/// Processor time is work when it is more than a hundredth of the time since the last look, and more than
/// two ticks of the kernel's count: one tick is also what a clock interrupt at a bad moment costs.
const CPU_SHARE: u64 = 100;
const CPU_TICKS: u64 = 2;

#[derive(Default)]
pub struct Lease {
    idle_ns: Option<u64>,
    /// Boot clock.
    ends_at: Option<u64>,
    last_use: u64,
    /// Processor time at the last look, and when that was.
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

    /// Whether work would make a difference.
    pub fn counts_idle(&self) -> bool {
        self.idle_ns.is_some()
    }

    /// Takes note of what was seen.
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
        if grew || signs.asked || signs.children > 0 || signs.connections > 0 {
            self.last_use = now;
        }
    }

    /// Which of its two ends has come, when one has.
    pub fn reason(&self, boot: u64) -> &'static str {
        match self.ends_at {
            Some(end) if end <= boot => "lifetime",
            _ => "idle",
        }
    }

    /// When to look again, in ns; 0 when it is over; `None` when there is no lease.
    pub fn next(&self, now: u64, boot: u64) -> Option<u64> {
        let idle = self.idle_ns.map(|ns| {
            let left = self.last_use.saturating_add(ns).saturating_sub(now);
            left.min((ns / LOOKS).clamp(SHORTEST_LOOK, LONGEST_LOOK))
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
    fn work_and_requests_push_the_idle_end_away_but_not_the_lifetime() {
        let mut lease = Lease::default();
        assert_eq!(lease.next(5, 5), None);
        lease.set(0, 0, Some(100), Some(250));
        assert_eq!(lease.next(40 * MS, 40 * MS), Some(60 * MS));
        lease.touch(80 * MS);
        assert_eq!(lease.next(100 * MS, 100 * MS), Some(80 * MS));
        let signs = [
            Signs {
                asked: true,
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
    fn a_pause_stops_the_idle_clock_and_not_the_lifetime() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(60), Some(1000));
        assert_eq!(lease.next(10 * MS, 990 * MS), Some(10 * MS));
        assert_eq!(lease.next(10 * MS, 1000 * MS), Some(0));
    }

    #[test]
    fn processor_time_counts_when_it_is_a_share_of_the_time() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(100_000), None);
        lease.look(SECOND, &used(500));
        assert_eq!(lease.last_use, 0, "the first look has nothing to compare");
        lease.look(2 * SECOND, &used(502));
        assert_eq!(lease.last_use, 0, "two ticks are noise");
        lease.look(3 * SECOND, &used(510));
        assert_eq!(lease.last_use, 3 * SECOND);
        lease.look(20 * SECOND, &used(515));
        assert_eq!(lease.last_use, 3 * SECOND, "five ticks in 17 s are rest");
        lease.look(21 * SECOND, &used(400));
        assert_eq!(lease.last_use, 21 * SECOND, "somebody died uncounted");
    }

    #[test]
    fn it_looks_often_enough_and_not_too_often() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(1_800_000), None);
        assert_eq!(lease.next(0, 0), Some(LONGEST_LOOK));
        lease.set(0, 0, Some(20_000), None);
        assert_eq!(lease.next(0, 0), Some(2 * SECOND));
        lease.set(0, 0, Some(500), None);
        assert_eq!(lease.next(0, 0), Some(SHORTEST_LOOK));
    }

    #[test]
    fn null_clears() {
        let mut lease = Lease::default();
        lease.set(0, 0, Some(10), Some(10));
        lease.set(0, 0, None, None);
        assert_eq!(lease.next(100 * MS, 100 * MS), None);
    }
}
