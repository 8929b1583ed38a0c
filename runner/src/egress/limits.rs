//! Limits of a sandbox: connections, bytes, bandwidth, lookups and idle time, and the rest of its tenant's
//! quota. Pure.

use serde_json::Value;
use std::time::{Duration, Instant};

/// A bucket holds this part of a second, and always enough for one reasonable piece.
const BURST: u64 = 8;
const SMALLEST_BURST: u64 = 16 << 10;
const SMALLEST_SHARE: u64 = 2 << 10;
pub const TENANT_RULE: &str = "limit:tenant_bytes";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub connections: usize,
    pub bytes_in: Option<u64>,
    pub bytes_out: Option<u64>,
    /// Bits per second, each way.
    pub bandwidth_bps: Option<u64>,
    pub names_per_minute: u32,
    pub idle: Duration,
}

impl Limits {
    pub fn parse(v: &Value) -> Option<Limits> {
        Some(Limits {
            connections: v["connections"].as_u64()? as usize,
            bytes_in: optional(v, "bytes_in")?,
            bytes_out: optional(v, "bytes_out")?,
            bandwidth_bps: optional(v, "bandwidth_bps")?,
            names_per_minute: u32::try_from(v["names_per_minute"].as_u64()?).ok()?,
            idle: Duration::from_secs(v["idle_seconds"].as_u64()?),
        })
    }
}

/// The byte counts at which the quota of the tenant is used up, as the daemon last sent them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowance {
    pub bytes_in: Option<u64>,
    pub bytes_out: Option<u64>,
}

impl Allowance {
    pub fn parse(v: &Value) -> Option<Allowance> {
        v.as_object()?;
        Some(Allowance {
            bytes_in: optional(v, "bytes_in")?,
            bytes_out: optional(v, "bytes_out")?,
        })
    }
}

/// Return a number that may be absent.
fn optional(v: &Value, key: &str) -> Option<Option<u64>> {
    match &v[key] {
        Value::Null => Some(None),
        found => found.as_u64().map(Some),
    }
}

/// How much may be moved now.
#[derive(Debug, PartialEq, Eq)]
pub enum Room {
    Bytes(u64),
    /// Nothing until the bucket has filled a little.
    Later,
    /// Nothing more: the limit is reached.
    Never,
}

/// The bytes of all connections in one direction.
pub struct Meter {
    pub total: u64,
    most: Option<u64>,
    /// The total that the quota of the tenant allows.
    allowance: Option<u64>,
    /// Bytes per second.
    rate: Option<u64>,
    level: u64,
    filled: Instant,
}

impl Meter {
    pub fn new(most: Option<u64>, bandwidth_bps: Option<u64>, now: Instant) -> Meter {
        let mut meter = Meter {
            total: 0,
            most: None,
            allowance: None,
            rate: None,
            level: 0,
            filled: now,
        };
        meter.change(most, bandwidth_bps);
        meter
    }

    /// Use other limits; what was counted stays. A bucket is not filled by a change, or many changes
    /// would exceed any rate.
    pub fn change(&mut self, most: Option<u64>, bandwidth_bps: Option<u64>) {
        self.most = most;
        let before = self.rate;
        self.rate = bandwidth_bps.map(|bits| (bits / 8).max(1));
        let full = self.rate.map_or(0, burst);
        self.level = match before {
            Some(_) => self.level.min(full),
            None => full,
        };
    }

    pub fn allow(&mut self, allowance: Option<u64>) {
        self.allowance = allowance;
    }

    /// Return the rule that refuses when nothing is left: the tenant's quota, or else `own`.
    pub fn rule(&self, own: &'static str) -> &'static str {
        match self.allowance {
            Some(most) if self.total >= most => TENANT_RULE,
            _ => own,
        }
    }

    /// Return what one of `waiting` connections may move.
    pub fn room(&mut self, now: Instant, waiting: usize) -> Room {
        let least = self
            .most
            .unwrap_or(u64::MAX)
            .min(self.allowance.unwrap_or(u64::MAX));
        let left = least.saturating_sub(self.total);
        if left == 0 {
            return Room::Never;
        }
        let Some(rate) = self.rate else {
            return Room::Bytes(left);
        };
        let passed = now.duration_since(self.filled).as_micros() as u64;
        let gained = rate.saturating_mul(passed) / 1_000_000;
        if gained > 0 {
            self.level = self.level.saturating_add(gained).min(burst(rate));
            self.filled = now;
        }
        // Not byte by byte.
        if self.level < SMALLEST_SHARE.min(burst(rate)) {
            return Room::Later;
        }
        let share = (self.level / waiting.max(1) as u64).max(SMALLEST_SHARE);
        Room::Bytes(share.min(self.level).min(left))
    }

    pub fn moved(&mut self, bytes: u64) {
        self.total += bytes;
        self.level = self.level.saturating_sub(bytes);
    }
}

fn burst(rate: u64) -> u64 {
    (rate / BURST).max(SMALLEST_BURST.min(rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_total_is_never_passed() {
        let now = Instant::now();
        let mut meter = Meter::new(Some(100), None, now);
        assert_eq!(meter.room(now, 1), Room::Bytes(100));
        meter.moved(100);
        assert_eq!(meter.room(now, 1), Room::Never);
        meter.change(Some(150), None);
        assert_eq!((meter.room(now, 1), meter.total), (Room::Bytes(50), 100));
    }

    #[test]
    fn a_quota_of_the_tenant_ends_it_too_and_is_named() {
        let now = Instant::now();
        let mut meter = Meter::new(Some(100), None, now);
        meter.allow(Some(40));
        assert_eq!(meter.room(now, 1), Room::Bytes(40));
        assert_eq!(meter.rule("limit:bytes_in"), "limit:bytes_in");
        meter.moved(40);
        assert_eq!(meter.room(now, 1), Room::Never);
        assert_eq!(meter.rule("limit:bytes_in"), TENANT_RULE);
        meter.allow(None);
        assert_eq!(meter.room(now, 1), Room::Bytes(60));
        assert_eq!(
            Allowance::parse(&json!({"bytes_in": 7})).unwrap(),
            Allowance {
                bytes_in: Some(7),
                bytes_out: None
            }
        );
        assert!(Allowance::parse(&json!(7)).is_none());
    }

    #[test]
    fn a_rate_is_kept_over_time() {
        let mut now = Instant::now();
        let mut meter = Meter::new(None, Some(8_000_000), now);
        let mut moved = 0;
        for _ in 0..1000 {
            if let Room::Bytes(n) = meter.room(now, 1) {
                meter.moved(n);
                moved += n;
            }
            now += Duration::from_millis(10);
        }
        // One million bytes per second for ten seconds, and one burst.
        assert!((10_000_000..10_200_000).contains(&moved), "{}", moved);
    }

    #[test]
    fn a_change_does_not_fill_a_bucket() {
        let now = Instant::now();
        let mut meter = Meter::new(None, Some(8_000_000), now);
        meter.moved(125_000);
        meter.change(None, Some(8_000_000));
        assert_eq!(meter.room(now, 1), Room::Later);
        // Another rate holds from now on.
        meter.change(None, Some(80_000_000));
        assert_eq!(meter.room(now, 1), Room::Later);
        let later = now + Duration::from_millis(10);
        assert_eq!(meter.room(later, 1), Room::Bytes(100_000));
    }

    #[test]
    fn connections_share_what_there_is() {
        let now = Instant::now();
        let mut meter = Meter::new(None, Some(8_000_000), now);
        assert_eq!(meter.room(now, 5), Room::Bytes(25_000));
        meter.moved(125_000);
        assert_eq!(meter.room(now, 5), Room::Later);
    }

    #[test]
    fn limits_are_read() {
        let v = json!({"connections": 3, "names_per_minute": 4, "idle_seconds": 5, "bytes_in": 6});
        let found = Limits::parse(&v).unwrap();
        assert_eq!((found.bytes_in, found.bytes_out), (Some(6), None));
        assert!(Limits::parse(&json!({})).is_none());
    }
}
