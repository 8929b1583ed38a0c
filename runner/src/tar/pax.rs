//! Extended headers: what they contain about the member that follows. Pure.
//!
//! A malformed record ends the archive; unknown keys are ignored.

use super::reader::{malformed, unsupported, Outcome, Refusal};
use super::show;
use super::sparse::{too_many, Extent, MOST_EXTENTS};
use crate::sys::{self, Times};

/// Values from extended headers that override those of the next header.
#[derive(Default)]
pub struct Overrides {
    pub name: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub mtime: Option<Time>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub sparse: SparseRecords,
}

impl Overrides {
    /// Whether these values can only be about one member.
    pub fn concern_one_member(&self) -> bool {
        self.name.is_some()
            || self.target.is_some()
            || self.size.is_some()
            || self.sparse.any
            || !self.xattrs.is_empty()
    }
}

/// GNU's sparse records of all three versions, as they are written.
#[derive(Default)]
pub struct SparseRecords {
    /// Whether there is at least one record.
    pub any: bool,
    pub version: (Option<u64>, Option<u64>),
    pub name: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub map: Vec<Extent>,
    /// An offset of version 0.0 whose length has not come yet.
    offset: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: i64,
}

impl Time {
    pub fn whole(seconds: i64) -> Time {
        let nanoseconds = 0;
        Time {
            seconds,
            nanoseconds,
        }
    }
}

impl From<Time> for Times {
    fn from(time: Time) -> Times {
        Times::modified(sys::timespec(time.seconds, time.nanoseconds))
    }
}

/// Parse records `"<length> <key>=<value>
/// "`, where the length counts the whole record. Without `sparse`, attributes are ignored, and a record of
/// a sparse file is refused: what a reader does not use must not fill its memory.
pub fn read(mut data: &[u8], sparse: bool, into: &mut Overrides) -> Outcome<()> {
    while !data.is_empty() && data[0] != 0 {
        let space = data.iter().take(20).position(|&c| c == b' ');
        let space = space.ok_or_else(wrong)?;
        let length = decimal(&data[..space]).ok_or_else(wrong)?;
        if length <= space as u64 + 1 || length > data.len() as u64 {
            return Err(wrong());
        }
        let (record, rest) = data.split_at(length as usize);
        data = rest;
        let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|&c| c == b'=').ok_or_else(wrong)?;
        take(&record[..equals], &record[equals + 1..], sparse, into)?;
    }
    if into.sparse.offset.is_some() {
        return Err(malformed("a sparse offset without its length"));
    }
    Ok(())
}

fn take(key: &[u8], value: &[u8], sparse: bool, into: &mut Overrides) -> Outcome<()> {
    let whole = || decimal(value).ok_or_else(wrong);
    match key {
        b"path" => into.name = Some(name(value)?),
        b"linkpath" => into.target = Some(name(value)?),
        b"size" => into.size = Some(whole()?),
        b"uid" => into.uid = Some(whole()?),
        b"gid" => into.gid = Some(whole()?),
        b"mtime" => into.mtime = Some(time(value).ok_or_else(wrong)?),
        _ => {
            if let Some(key) = key.strip_prefix(b"SCHILY.xattr.").filter(|_| sparse) {
                into.xattrs.push((name(key)?, value.to_vec()));
            } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                if !sparse {
                    return Err(unsupported("a sparse file"));
                }
                take_sparse(key, value, &mut into.sparse)?;
            }
        }
    }
    Ok(())
}

fn take_sparse(key: &[u8], value: &[u8], into: &mut SparseRecords) -> Outcome<()> {
    let whole = || decimal(value).ok_or_else(wrong);
    into.any = true;
    match key {
        b"major" => into.version.0 = Some(whole()?),
        b"minor" => into.version.1 = Some(whole()?),
        b"name" => into.name = Some(name(value)?),
        b"size" | b"realsize" => into.size = Some(whole()?),
        b"offset" => {
            if into.offset.replace(whole()?).is_some() {
                return Err(malformed("a sparse offset without its length"));
            }
        }
        b"numbytes" => {
            let offset = into.offset.take();
            let offset = offset.ok_or_else(|| malformed("a sparse length without its offset"))?;
            into.map.push(Extent {
                offset,
                length: whole()?,
            });
        }
        b"map" => {
            let mut numbers = value.split(|&c| c == b',');
            while let Some(offset) = numbers.next() {
                let length = numbers.next().ok_or_else(wrong)?;
                into.map.push(Extent {
                    offset: decimal(offset).ok_or_else(wrong)?,
                    length: decimal(length).ok_or_else(wrong)?,
                });
            }
        }
        // The count of versions 0.0 and 0.1 repeats the map.
        b"numblocks" => {}
        other => return Err(malformed(format!("a sparse record {}", show(other)))),
    }
    if into.map.len() > MOST_EXTENTS {
        return Err(too_many());
    }
    Ok(())
}

fn wrong() -> Refusal {
    malformed("a malformed pax header")
}

fn name(value: &[u8]) -> Outcome<Vec<u8>> {
    if value.is_empty() || value.contains(&0) {
        return Err(malformed(
            "a name in a pax header is empty or contains a NUL byte",
        ));
    }
    Ok(value.to_vec())
}

/// Parse decimal digits without sign or space; the value is below 2⁶³.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    let mut value = 0u64;
    for &c in text {
        if !c.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(c - b'0'))?;
    }
    Some(value).filter(|&value| value <= i64::MAX as u64)
}

fn time(text: &[u8]) -> Option<Time> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut halves = text.splitn(2, |&c| c == b'.');
    let seconds = decimal(halves.next()?)? as i64;
    let fraction = halves.next().unwrap_or(b"");
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0'));
    let nanoseconds = digits
        .take(9)
        .fold(0, |sum, c| sum * 10 + i64::from(c - b'0'));
    // The kernel counts nanoseconds upwards from the previous second.
    Some(match (negative, nanoseconds) {
        (false, _) => Time {
            seconds,
            nanoseconds,
        },
        (true, 0) => Time::whole(-seconds),
        (true, _) => Time {
            seconds: -seconds - 1,
            nanoseconds: 1_000_000_000 - nanoseconds,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_keep_their_fraction() {
        let parsed = |text: &str| time(text.as_bytes()).map(|t| (t.seconds, t.nanoseconds));
        assert_eq!(parsed("12.5"), Some((12, 500_000_000)));
        assert_eq!(parsed("12.1234567891"), Some((12, 123_456_789)));
        assert_eq!(parsed("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parsed("-3"), Some((-3, 0)));
        for bad in ["", "-", "1.x", "1e3", "+1", "99999999999999999999"] {
            assert_eq!(parsed(bad), None, "{}", bad);
        }
    }

    #[test]
    fn record_with_a_wrong_length_is_refused() {
        for bad in [
            "5 a=b\n",
            "7 a=b\n",
            "3 a=b\n",
            "0 a=b\n",
            "99999999999999999999 a=b\n",
            "6 a b\n",
            "6 a=b",
            "a=b\n",
            "-6 a=b\n",
            "6 a=bx",
        ] {
            assert!(
                read(bad.as_bytes(), true, &mut Overrides::default()).is_err(),
                "{:?}",
                bad
            );
        }
        assert!(read(b"6 a=b\n", true, &mut Overrides::default()).is_ok());
    }

    #[test]
    fn attributes_are_kept_only_for_a_reader_that_uses_them() {
        let kept = |sparse| {
            let mut overrides = Overrides::default();
            assert!(read(b"19 SCHILY.xattr.a=\n", sparse, &mut overrides).is_ok());
            overrides.xattrs.len()
        };
        assert_eq!((kept(true), kept(false)), (1, 0));
    }
}
