//! Hides values in what a host sends. Pure but for one random number.
//!
//! Neither what is held back of a stream nor the work for it depends on the values, but only on how long
//! they are, for the work on whether they have escapes, and on what can be read by the receiver anyway:
//! otherwise a host that sends a text of the receiver's choice would let it find out a value character by
//! character. Therefore values are not compared with the text. A sum over as many bytes as the value has
//! moves along the text, and only where it is that of the value, the bytes are compared.

use super::escapes::{is_left_out, left_out_after, left_out_before, reads, Plain, LONGEST_ESCAPE};
use super::secrets::wipe_bytes;
use ring::rand::{SecureRandom, SystemRandom};
use std::ops::Range;
use std::rc::Rc;

const MASK: u8 = b'*';
/// A value that is shorter without its escapes would be found by chance.
const SHORTEST: usize = 8;
/// What code inside could write before a value so that an escape takes in its first characters, and behind
/// it so that one takes in its last.
const BEFORE: [&str; 20] = [
    "%", "%0", "%2", "%25", "%2525", "\\", "\\x", "\\x0", "\\u", "\\u0", "\\u00", "\\u000", "&",
    "&#", "&#x", "&#6", "&#x3", "&l", "&am", "&amp",
];
const BEHIND: [&str; 11] = [
    "0", "00", "000", "0000", ";", "0;", "60;", "t;", "p;", "lt;", "#60;",
];
const NO_DIGIT: u8 = 0xff;

/// Bytes that are looked for.
struct Needle {
    bytes: Vec<u8>,
    sum: u64,
    /// What each byte adds to the sum, and what is left of that when it leaves.
    enters: Box<[u64; 256]>,
    leaves: Box<[u64; 256]>,
}

/// A value in each of the forms that are looked for.
struct Value {
    exact: Needle,
    /// What a text without escapes has of it. Escapes that the value has itself are read like those of the
    /// text, unless their own characters were escaped.
    readings: Vec<Reading>,
    /// Its hexadecimal digits.
    hex: Needle,
    /// The digits of base64 that belong only to it, with the bits of it before them. Which they are
    /// depends on how many bytes precede it.
    base64: Vec<(Needle, usize)>,
    /// Whether it begins, and ends, with what is left out of a text without escapes.
    open: (bool, bool),
}

/// A value as a text without escapes has it.
struct Reading {
    /// Without what is at its ends.
    middle: Needle,
    /// The first and the last characters, which an escape beside the value could take in.
    ends: (Vec<u8>, Vec<u8>),
}

#[derive(Default)]
pub struct Mask {
    /// Shared by the streams of a connection.
    values: Rc<[Value]>,
    /// How many bytes are held back.
    hold: usize,
    shortest: usize,
    /// The last bytes as they came, as many as a form may have.
    text: Vec<u8>,
    /// The same with values hidden, and how many of them were released.
    shown: Vec<u8>,
    released: usize,
    /// How often the text was searched.
    #[cfg(test)]
    pub passes: usize,
}

impl Mask {
    pub fn new(values: &[String]) -> Mask {
        let mut random = [0u8; 8];
        // If it fails, the sums of a text could be foreseen, which by itself is of no use.
        let _ = SystemRandom::new().fill(&mut random);
        let seed = u64::from_le_bytes(random);
        let values: Rc<[Value]> = values.iter().map(|one| Value::new(one, seed)).collect();
        let lengths = || values.iter().map(|value| value.exact.bytes.len());
        let (longest, shortest) = (lengths().max().unwrap_or(0), lengths().min().unwrap_or(0));
        let mut mask = Mask::default();
        mask.hold = (longest * LONGEST_ESCAPE).saturating_sub(1);
        mask.shortest = shortest;
        mask.values = values;
        mask
    }

    /// Return one for another stream, with the same values.
    pub fn again(&self) -> Mask {
        let mut mask = Mask::default();
        mask.values = self.values.clone();
        mask.hold = self.hold;
        mask.shortest = self.shortest;
        mask
    }

    /// Whether something is held back.
    pub fn holds(&self) -> bool {
        self.released < self.shown.len()
    }

    /// Hide values in something that is complete.
    pub fn whole(&self, text: &mut [u8]) {
        for (start, end) in self.places(text) {
            hide(&mut text[start..end]);
        }
    }

    /// Take the next bytes of a stream and return what can be shown.
    pub fn pass(&mut self, data: &[u8]) -> Vec<u8> {
        // What is held back was searched when it came.
        if self.values.is_empty() || data.is_empty() {
            return data.to_vec();
        }
        #[cfg(test)]
        {
            self.passes += 1;
        }
        self.text.extend_from_slice(data);
        self.shown.extend_from_slice(data);
        for (start, end) in self.places(&self.text) {
            hide(&mut self.shown[start..end]);
        }
        let past = self.shown.len().saturating_sub(self.hold);
        let out = self.shown[self.released.min(past)..past].to_vec();
        // What was released early is kept: the rest of a value that begins in it is hidden.
        self.text.drain(..past);
        self.shown.drain(..past);
        self.released = self.released.saturating_sub(past);
        out
    }

    /// Return what was held back: the stream has ended, or has paused for long.
    pub fn rest(&mut self) -> Vec<u8> {
        self.release(u64::MAX)
    }

    /// Return so many bytes of what was held back, or all if that is less.
    pub fn release(&mut self, most: u64) -> Vec<u8> {
        let held = self.shown.len() - self.released;
        let end = self.released + held.min(usize::try_from(most).unwrap_or(usize::MAX));
        let out = self.shown[self.released..end].to_vec();
        self.released = end;
        out
    }

    /// Return where values are in a text.
    fn places(&self, text: &[u8]) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        if self.values.is_empty() || text.len() < self.shortest {
            return places;
        }
        for value in self.values.iter() {
            let length = value.exact.bytes.len();
            each(text, &value.exact, |at| places.push((at, at + length)));
        }
        self.in_hex(text, &mut places);
        let plain = Plain::of(text);
        for value in self.values.iter() {
            for reading in &value.readings {
                each(&plain.bytes, &reading.middle, |at| {
                    let middle = at..at + reading.middle.bytes.len();
                    places.extend(value.whole(reading, text, &plain, middle));
                });
            }
        }
        self.in_base64(text, &Plain::of_base64(text), &mut places);
        places
    }

    /// Look for values in hexadecimal digits.
    fn in_hex(&self, text: &[u8], found: &mut Vec<(usize, usize)>) {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        for run in runs(text, 2 * self.shortest, |byte| hex(byte).is_some()) {
            let digits = text[run.clone()].iter();
            let digits: Vec<u8> = digits.map(|&b| hex(b).unwrap_or(0) as u8).collect();
            for value in self.values.iter() {
                each(&digits, &value.hex, |at| {
                    let start = run.start + at;
                    found.push((start, start + value.hex.bytes.len()));
                });
            }
        }
    }

    /// Look for values in base64, standard or for URLs.
    fn in_base64(&self, text: &[u8], plain: &Plain, found: &mut Vec<(usize, usize)>) {
        let least = (8 * self.shortest).div_ceil(6);
        let is_digit = |byte: u8| digit(byte) != NO_DIGIT || b"\r\n".contains(&byte);
        for run in runs(&plain.bytes, least, is_digit) {
            let in_run = || plain.without_line_ends(run.clone());
            let mut digits = Vec::with_capacity(run.len());
            digits.extend(in_run().map(|(_, byte)| digit(byte)));
            // Where each digit is; made once, because a value may be there very often.
            let mut places = Vec::new();
            for value in self.values.iter() {
                let bytes = &value.exact.bytes;
                for (needle, before) in &value.base64 {
                    each(&digits, needle, |at| {
                        // The digits at both ends have bits of what is beside the value.
                        let count = (6 - before + 8 * bytes.len()).div_ceil(6);
                        let rest = &digits[at..digits.len().min(at + count - 1)];
                        if places.is_empty() {
                            places.extend(in_run().map(|(at, _)| at));
                        }
                        let second = plain.start(places[at]);
                        // An escape before it may have taken in the first one.
                        let mut firsts = vec![second.wrapping_sub(1)];
                        firsts.extend(at.checked_sub(1).map(|at| plain.start(places[at])));
                        for start in firsts.into_iter().rev() {
                            let first = match text.get(start) {
                                Some(_) if start + 1 < second => digits[at - 1],
                                Some(&byte) => digit(byte),
                                None => continue,
                            };
                            let whole = [&[first], rest].concat();
                            let enough = 6 * whole.len() >= 6 - before + 8 * bytes.len();
                            let mut read =
                                (0..bytes.len()).map(|n| eight_bits(&whole, 6 - before + 8 * n));
                            if enough
                                && first != NO_DIGIT
                                && bytes.iter().all(|&byte| read.next() == Some(byte))
                            {
                                let last = at + (6 - before + 8 * bytes.len() - 1) / 6 - 1;
                                found.push((start, plain.end(places[last], text)));
                                break;
                            }
                        }
                    });
                }
            }
        }
    }
}

/// Call for each place where the needle is. The time depends on the length of the text and not on the
/// needle.
fn each(text: &[u8], needle: &Needle, mut call: impl FnMut(usize)) {
    let length = needle.bytes.len();
    if text.len() < length {
        return;
    }
    let (first, rest) = text.split_at(length);
    let mut sum = needle.sum_of(first);
    if sum == needle.sum && same(first, &needle.bytes) {
        call(0);
    }
    for (at, (&new, &old)) in rest.iter().zip(text).enumerate() {
        let change = needle.enters[usize::from(new)] ^ needle.leaves[usize::from(old)];
        sum = sum.rotate_left(1) ^ change;
        if sum == needle.sum && same(&text[at + 1..at + 1 + length], &needle.bytes) {
            call(at + 1);
        }
    }
}

/// Return the runs of bytes of a kind that are at least so long. Not every byte is looked at.
fn runs(text: &[u8], least: usize, is_kind: impl Fn(u8) -> bool) -> Vec<Range<usize>> {
    let (mut found, mut at, mut after) = (Vec::new(), least - 1, 0);
    while at < text.len() {
        if is_kind(text[at]) {
            let before = text[after..at].iter().rev();
            let start = at - before.take_while(|&&byte| is_kind(byte)).count();
            let rest = text[at..].iter();
            after = at + rest.take_while(|&&byte| is_kind(byte)).count();
            if after - start >= least {
                found.push(start..after);
            }
            at = after;
        }
        at += least;
    }
    found
}

/// Return the byte that begins at this bit of digits of base64.
fn eight_bits(digits: &[u8], bit: usize) -> u8 {
    let digit = |n: usize| digits.get(bit / 6 + n).map_or(0, |&digit| u32::from(digit));
    let bits = digit(0) << 12 | digit(1) << 6 | digit(2);
    (bits >> (10 - bit % 6)) as u8
}

impl Value {
    fn new(text: &str, seed: u64) -> Value {
        let bytes = text.as_bytes();
        let readings = readings_of(bytes).into_iter();
        let readings = readings.filter_map(|(read, taken)| Reading::new(read, taken, seed));
        let open = |byte: Option<&u8>| byte.is_some_and(|&byte| is_left_out(byte));
        let hex = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        // The bits of the value in a digit that it shares with 0, 1 or 2 bytes before it.
        let base64 = [6, 4, 2].map(|before| {
            let encoded = digits_of(bytes, before);
            (Needle::new(encoded, seed), before)
        });
        Value {
            exact: Needle::new(bytes.to_vec(), seed),
            readings: readings.collect(),
            hex: Needle::new(hex.collect(), seed),
            base64: base64.into(),
            open: (open(bytes.first()), open(bytes.last())),
        }
    }

    /// Return where the value is whose middle was found, if its ends are there.
    fn whole(
        &self,
        reading: &Reading,
        text: &[u8],
        plain: &Plain,
        middle: Range<usize>,
    ) -> Option<(usize, usize)> {
        let (first, last) = (&reading.ends.0[..], &reading.ends.1[..]);
        let mut start = plain.start(middle.start);
        let mut end = plain.end(middle.end - 1, text);
        if !first.is_empty() {
            let from = middle.start.checked_sub(first.len());
            start = match from.filter(|&from| same(&plain.bytes[from..], first)) {
                Some(from) => plain.start(from),
                None => {
                    let least = start.saturating_sub(first.len() * LONGEST_ESCAPE);
                    let mut starts = least..start;
                    starts.find(|&at| reads(&text[at..start], first, alike))?
                }
            };
        }
        if !last.is_empty() {
            let rest = &plain.bytes[middle.end..];
            end = match rest.len() >= last.len() && same(rest, last) {
                true => plain.end(middle.end + last.len() - 1, text),
                false => {
                    let most = text.len().min(end + last.len() * LONGEST_ESCAPE);
                    (end..=most)
                        .rev()
                        .find(|&to| reads(&text[end..to], last, alike))?
                }
            };
        }
        while let Some(at) = left_out_before(text, start).filter(|_| self.open.0) {
            start = at;
        }
        while let Some(at) = left_out_after(text, end).filter(|_| self.open.1) {
            end = at;
        }
        Some((start, end))
    }

    fn needles(&mut self) -> impl Iterator<Item = &mut Needle> {
        let base64 = self.base64.iter_mut().map(|(needle, _)| needle);
        let readings = self.readings.iter_mut().map(|reading| &mut reading.middle);
        base64
            .chain(readings)
            .chain([&mut self.exact, &mut self.hex])
    }
}

impl Reading {
    /// `taken` is how many characters at both ends escapes beside them could take in. None if it would be
    /// found by chance.
    fn new(mut text: Vec<u8>, taken: (usize, usize), seed: u64) -> Option<Reading> {
        let mut ends = (Vec::new(), Vec::new());
        if taken.0 + SHORTEST + taken.1 <= text.len() {
            ends.1 = text.split_off(text.len() - taken.1);
            let rest = text.split_off(taken.0);
            ends.0 = std::mem::replace(&mut text, rest);
        }
        (text.len() >= SHORTEST).then(|| Reading {
            middle: Needle::new(text, seed),
            ends,
        })
    }
}

/// Return what texts without escapes have of a value, each once, with what escapes beside it could take in.
/// A value without an escape has one reading.
fn readings_of(value: &[u8]) -> Vec<(Vec<u8>, (usize, usize))> {
    let writers: [fn(u8) -> String; 3] = [
        |byte| char::from(byte).to_string(),
        |byte| format!("\\x{:02x}", byte),
        |byte| format!("&#{};", byte),
    ];
    let mut readings: Vec<(Vec<u8>, (usize, usize))> = Vec::new();
    for write in writers {
        let each = |&byte: &u8| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => write(byte),
        };
        let mut form = value.iter().map(each).collect::<String>().into_bytes();
        let read = Plain::of(&form).bytes;
        let (first, last) = taken_in(&form, &read);
        wipe_bytes(&mut form);
        match readings.iter_mut().find(|one| one.0 == read) {
            Some((_, taken)) => *taken = (first.max(taken.0), last.max(taken.1)),
            None => readings.push((read, (first, last))),
        }
    }
    readings
}

/// Return how many characters at the beginning of a value, and at its end, escapes beside it could take in.
fn taken_in(value: &[u8], plain: &[u8]) -> (usize, usize) {
    let missing = |texts: &[[&[u8]; 2]], from_end: bool| -> usize {
        let left = texts.iter().map(|text| {
            let read = Plain::of(&text.concat()).bytes;
            let alike = |(a, b): &(&u8, &u8)| a == b;
            match from_end {
                true => read
                    .iter()
                    .rev()
                    .zip(plain.iter().rev())
                    .take_while(alike)
                    .count(),
                false => read.iter().zip(plain).take_while(alike).count(),
            }
        });
        // The next one too: it may be the same by chance, and end elsewhere.
        match plain.len() - left.min().unwrap_or(0) {
            0 => 0,
            missing => plain.len().min(missing + 1),
        }
    };
    let before: Vec<[&[u8]; 2]> = BEFORE.iter().map(|text| [text.as_bytes(), value]).collect();
    let behind: Vec<[&[u8]; 2]> = BEHIND.iter().map(|text| [value, text.as_bytes()]).collect();
    (missing(&before, true), missing(&behind, false))
}

/// Return the whole digits of base64 after some bits.
fn digits_of(bytes: &[u8], before: usize) -> Vec<u8> {
    let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let starts = (before..).step_by(6).take((8 * bytes.len() - before) / 6);
    starts
        .map(|start| (start..start + 6).fold(0, |digit, at| digit << 1 | bit(at)))
        .collect()
}

impl Needle {
    fn new(bytes: Vec<u8>, seed: u64) -> Needle {
        let mut needle = Needle {
            sum: 0,
            enters: Box::new([0; 256]),
            leaves: Box::new([0; 256]),
            bytes,
        };
        let turns = (needle.bytes.len() % 64) as u32;
        for byte in 0..=255 {
            let enters = mixed(seed, folded(byte));
            needle.enters[usize::from(byte)] = enters;
            needle.leaves[usize::from(byte)] = enters.rotate_left(turns);
        }
        needle.sum = needle.sum_of(&needle.bytes);
        needle
    }

    fn sum_of(&self, text: &[u8]) -> u64 {
        text.iter().fold(0u64, |sum, &byte| {
            sum.rotate_left(1) ^ self.enters[usize::from(byte)]
        })
    }
}

/// Return a number for a byte that looks random (SplitMix64).
fn mixed(seed: u64, byte: u8) -> u64 {
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let mut value = seed.wrapping_add(step.wrapping_mul(u64::from(byte) + 1));
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// In a form, a space is written as `+`: they are the same here.
fn folded(byte: u8) -> u8 {
    match byte {
        b'+' => b' ',
        byte => byte,
    }
}

fn same(text: &[u8], needle: &[u8]) -> bool {
    text.iter().zip(needle).all(|(a, b)| alike(*a, *b))
}

fn alike(a: u8, b: u8) -> bool {
    folded(a) == folded(b)
}

/// Replace everything but the ends of lines, which heads are divided by.
fn hide(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|byte| !b"\r\n".contains(byte)) {
        *byte = MASK;
    }
}

fn digit(byte: u8) -> u8 {
    DIGITS[usize::from(byte)]
}

/// The digits of base64, standard and for URLs.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let standard = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut n = 0;
    while n < standard.len() {
        digits[standard[n] as usize] = n as u8;
        n += 1;
    }
    digits[b'-' as usize] = 62;
    digits[b'_' as usize] = 63;
    digits
};

impl Drop for Value {
    fn drop(&mut self) {
        for reading in &mut self.readings {
            wipe_bytes(&mut reading.ends.0);
            wipe_bytes(&mut reading.ends.1);
        }
        self.needles()
            .for_each(|needle| wipe_bytes(&mut needle.bytes));
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        wipe_bytes(&mut self.text);
        wipe_bytes(&mut self.shown);
    }
}

#[cfg(test)]
#[path = "mask_tests.rs"]
mod tests;
