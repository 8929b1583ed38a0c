//! The output of a command: for each source the first and the last bytes, exactly, and their order.
//!
//! Each source has two stores (head, never dropped; tail, oldest bytes dropped first). Chunks are only
//! *marks* into them, so many tiny writes cost a few bytes each and the number of marks is bounded.

use std::collections::VecDeque;

pub const SOURCES: usize = 3;
pub const MAX_CHUNK: usize = 64 * 1024;
/// Above this, older marks are merged: arrival order becomes coarser, the bytes stay exact.
const MAX_MARKS: usize = 8192;
const MERGE_WINDOW: usize = 64;

#[derive(Default)]
struct Store {
    head_cap: usize,
    tail_cap: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Offset of the first byte of `tail`.
    tail_start: u64,
    written: u64,
}

#[derive(Clone, Copy)]
struct Mark {
    seq: u64,
    start: u64,
    len: u32,
    source: u8,
}

impl Mark {
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// A chunk as a reader sees it; its bytes may be in two pieces.
pub struct Chunk<'a> {
    pub seq: u64,
    pub offset: u64,
    pub source: u8,
    pub pieces: (&'a [u8], &'a [u8]),
}

impl Chunk<'_> {
    pub fn len(&self) -> usize {
        self.pieces.0.len() + self.pieces.1.len()
    }
}

pub struct Ring {
    stores: [Store; SOURCES],
    marks: VecDeque<Mark>,
    last_seq: u64,
    /// The newest chunk that a reader has received; it may not grow any more.
    seen: u64,
}

impl Ring {
    pub fn new(caps: [usize; SOURCES]) -> Ring {
        let mut stores: [Store; SOURCES] = Default::default();
        for (store, cap) in stores.iter_mut().zip(caps) {
            store.head_cap = cap - cap / 2;
            store.tail_cap = cap / 2;
        }
        Ring {
            stores,
            marks: VecDeque::new(),
            last_seq: 0,
            seen: 0,
        }
    }

    pub fn append(&mut self, source: u8, mut bytes: &[u8]) {
        let index = usize::from(source);
        while !bytes.is_empty() {
            let store = &mut self.stores[index];
            let start = store.written;
            let head_room = store.head_cap - store.head.len();
            let part = if head_room > 0 {
                let (now, later) = bytes.split_at(head_room.min(MAX_CHUNK).min(bytes.len()));
                store.head.extend_from_slice(now);
                store.tail_start = start + now.len() as u64;
                bytes = later;
                now
            } else {
                let (now, later) = bytes.split_at(MAX_CHUNK.min(bytes.len()));
                store.push_tail(now);
                bytes = later;
                now
            };
            store.written += part.len() as u64;
            let in_head = head_room > 0;
            self.mark(source, start, part.len(), in_head);
        }
        if self.marks.len() > MAX_MARKS {
            self.tidy();
        }
    }

    fn mark(&mut self, source: u8, start: u64, len: usize, in_head: bool) {
        let head_end = self.stores[usize::from(source)].head_cap as u64;
        if let Some(last) = self.marks.back_mut() {
            let same_store = (last.start < head_end) == in_head;
            let grows = last.source == source && last.end() == start && same_store;
            if grows && last.seq > self.seen && last.len as usize + len <= MAX_CHUNK {
                last.len += len as u32;
                return;
            }
        }
        self.last_seq += 1;
        self.marks.push_back(Mark {
            seq: self.last_seq,
            start,
            len: len as u32,
            source,
        });
    }

    /// Drop marks whose bytes are gone; if that is not enough, merge neighbours of one source.
    fn tidy(&mut self) {
        let stores = &self.stores;
        self.marks
            .retain(|mark| stores[usize::from(mark.source)].holds(mark.end() - 1));
        if self.marks.len() <= MAX_MARKS / 2 {
            return;
        }
        let old: Vec<Mark> = self.marks.drain(..).collect();
        for window in old.chunks(MERGE_WINDOW) {
            let mut merged: Vec<Mark> = Vec::with_capacity(SOURCES);
            for mark in window {
                let head_end = stores[usize::from(mark.source)].head_cap as u64;
                let partner = merged.iter_mut().rev().find(|m| m.source == mark.source);
                match partner {
                    Some(m)
                        if m.end() == mark.start
                            && (m.start < head_end) == (mark.start < head_end)
                            && (m.len + mark.len) as usize <= MAX_CHUNK =>
                    {
                        m.len += mark.len;
                        m.seq = mark.seq;
                    }
                    _ => merged.push(*mark),
                }
            }
            merged.sort_by_key(|mark| mark.seq);
            self.marks.extend(merged);
        }
    }

    /// Return the first chunk after `seq` of which anything is kept. `sent[source]` is the offset up to
    /// which the reader has the output.
    pub fn next(&self, seq: u64, sent: &[u64; SOURCES]) -> Option<Chunk<'_>> {
        let mut at = self.marks.partition_point(|mark| mark.seq <= seq);
        while let Some(mark) = self.marks.get(at) {
            let index = usize::from(mark.source);
            let store = &self.stores[index];
            let start = mark.start.max(sent[index]);
            let start = if mark.start < store.head_cap as u64 {
                start
            } else {
                start.max(store.tail_start)
            };
            if start < mark.end() {
                return Some(Chunk {
                    seq: mark.seq,
                    offset: start,
                    source: mark.source,
                    pieces: store.slices(start, (mark.end() - start) as usize),
                });
            }
            at += 1;
        }
        None
    }

    /// Note that a reader has received everything up to `seq`.
    pub fn mark_seen(&mut self, seq: u64) {
        self.seen = self.seen.max(seq);
    }

    /// Report whether the first bytes of a source are these.
    pub fn starts_with(&self, source: u8, bytes: &[u8]) -> bool {
        self.stores[usize::from(source)].head.starts_with(bytes)
    }

    pub fn written(&self, source: u8) -> u64 {
        self.stores[usize::from(source)].written
    }

    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    pub fn truncated(&self) -> bool {
        self.stores
            .iter()
            .any(|store| store.tail_start > store.head.len() as u64)
    }

    /// Return roughly how much memory is used.
    pub fn footprint(&self) -> usize {
        let bytes: usize = self
            .stores
            .iter()
            .map(|s| s.head.capacity() + s.tail.capacity())
            .sum();
        bytes + self.marks.capacity() * std::mem::size_of::<Mark>()
    }

    /// Free the memory; counts stay, and later output is counted but not kept.
    pub fn forget(&mut self) {
        for store in &mut self.stores {
            store.head = Vec::new();
            store.tail = VecDeque::new();
            store.head_cap = 0;
            store.tail_cap = 0;
            store.tail_start = store.written;
        }
        self.marks = VecDeque::new();
    }
}

impl Store {
    fn push_tail(&mut self, bytes: &[u8]) {
        let keep = &bytes[bytes.len().saturating_sub(self.tail_cap)..];
        let over = (self.tail.len() + keep.len()).saturating_sub(self.tail_cap);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(keep);
        self.tail_start = self.written + bytes.len() as u64 - self.tail.len() as u64;
    }

    fn holds(&self, offset: u64) -> bool {
        offset < self.head.len() as u64 || offset >= self.tail_start
    }

    fn slices(&self, start: u64, len: usize) -> (&[u8], &[u8]) {
        if start < self.head.len() as u64 {
            let start = start as usize;
            return (self.head.get(start..start + len).unwrap_or(&[]), &[]);
        }
        let from = start.saturating_sub(self.tail_start) as usize;
        let to = (from + len).min(self.tail.len());
        let (front, back) = self.tail.as_slices();
        let middle = front.len();
        (
            front.get(from.min(middle)..to.min(middle)).unwrap_or(&[]),
            back.get(from.max(middle) - middle..to.max(middle) - middle)
                .unwrap_or(&[]),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(ring: &Ring, source: u8) -> Vec<(u64, Vec<u8>)> {
        let mut seq = 0;
        let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
        while let Some(chunk) = ring.next(seq, &[0; SOURCES]) {
            assert!(chunk.seq > seq && chunk.len() <= MAX_CHUNK);
            seq = chunk.seq;
            if chunk.source == source {
                let mut bytes = chunk.pieces.0.to_vec();
                bytes.extend_from_slice(chunk.pieces.1);
                match all.last_mut() {
                    Some((start, run)) if *start + run.len() as u64 == chunk.offset => {
                        run.extend_from_slice(&bytes)
                    }
                    _ => all.push((chunk.offset, bytes)),
                }
            }
        }
        all
    }

    fn pattern(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn head_and_tail_are_exact_for_any_size_of_writes() {
        for cap in [0usize, 1, 2, 3, 10, 101, 4096, 200_000] {
            for total in [0usize, 1, 2, 5, 9, 10, 11, 12, 100, 5000, 300_000] {
                let data = pattern(total);
                for size in [1usize, 3, 64, 4096, 100_000] {
                    if total / size > 20_000 {
                        continue;
                    }
                    let mut ring = Ring::new([0, cap, 0]);
                    for block in data.chunks(size) {
                        ring.append(1, block);
                    }
                    let head = total.min(cap - cap / 2);
                    let tail_from = head.max(total.saturating_sub(cap / 2));
                    let mut want: Vec<(u64, Vec<u8>)> = Vec::new();
                    if tail_from == head {
                        want.push((0, data.clone()));
                    } else {
                        want.push((0, data[..head].to_vec()));
                        want.push((tail_from as u64, data[tail_from..].to_vec()));
                    }
                    want.retain(|(_, bytes)| !bytes.is_empty());
                    assert_eq!(kept(&ring, 1), want, "cap {cap} total {total} size {size}");
                    assert_eq!(ring.written(1), total as u64);
                    assert_eq!(ring.truncated(), total > cap);
                }
            }
        }
    }

    #[test]
    fn chunks_grow_only_while_no_reader_has_seen_them() {
        let mut ring = Ring::new([0, 100, 100]);
        ring.append(1, b"a");
        ring.append(1, b"b");
        assert_eq!(ring.last_seq(), 1);
        ring.mark_seen(1);
        ring.append(1, b"c");
        ring.append(2, b"d");
        ring.append(1, b"e");
        assert_eq!(ring.last_seq(), 4);
        let chunk = ring
            .next(1, &[0; SOURCES])
            .map(|c| (c.seq, c.offset, c.pieces.0.to_vec()));
        assert_eq!(chunk, Some((2, 2, b"c".to_vec())));
    }

    #[test]
    fn million_alternating_bytes_stay_exact_in_bounded_memory() {
        let mut ring = Ring::new([0, 200_000, 200_000]);
        for i in 0..500_000u64 {
            ring.append(1, &[(i % 251) as u8]);
            ring.append(2, &[(i % 13) as u8]);
            ring.mark_seen(ring.last_seq());
        }
        assert!(ring.footprint() < 1_500_000, "{}", ring.footprint());
        let out = kept(&ring, 1);
        assert_eq!(out.len(), 2);
        assert_eq!((out[0].0, out[0].1.len()), (0, 100_000));
        assert_eq!((out[1].0, out[1].1.len()), (400_000, 100_000));
        assert!(out[1]
            .1
            .iter()
            .enumerate()
            .all(|(i, &b)| b == ((400_000 + i) % 251) as u8));
    }

    #[test]
    fn cleared_ring_still_counts() {
        let mut ring = Ring::new([0, 100, 100]);
        ring.append(1, b"abc");
        ring.forget();
        ring.append(1, b"de");
        assert_eq!(ring.written(1), 5);
        assert!(ring.next(0, &[0; SOURCES]).is_none());
        assert!(ring.truncated());
    }
}
