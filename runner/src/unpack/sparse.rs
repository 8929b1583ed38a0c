//! Sparse files: where the stored bytes of a member belong. Old GNU headers and pax 0.0, 0.1, 1.0.

use super::failure::{limit, malformed, Failure, Outcome};
use super::input::{stops_early, Input};
use super::pax::decimal;
use crate::tar::{count, BLOCK};
use std::io::Read;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

/// A map of sixteen megabytes; no file of a real layer has more pieces.
pub const MOST_EXTENTS: usize = 1_000_000;

/// Check that the extents are ordered, do not overlap, end inside the file, and add up to the stored
/// bytes.
pub fn check(map: &[Extent], real_size: u64, stored: u64) -> Outcome<()> {
    let (mut end, mut sum) = (0u64, 0u64);
    for extent in map {
        let next = extent.offset.checked_add(extent.length);
        match next {
            Some(next) if extent.offset >= end && next <= real_size => end = next,
            _ => return Err(malformed("a sparse map out of order or past the end")),
        }
        // Below `real_size`, because extents do not overlap.
        sum += extent.length;
    }
    if sum != stored {
        return Err(malformed("a sparse map of another length than its data"));
    }
    Ok(())
}

/// Read the map and the real size from a header of type `S` and the blocks after it.
pub fn read_old_map<R: Read>(
    block: &[u8; BLOCK],
    input: &mut Input<R>,
) -> Outcome<(Vec<Extent>, u64)> {
    let real_size = count(&block[483..495], "sparse size")?;
    let mut map = Vec::new();
    extents(&block[386..482], &mut map)?;
    let mut more = block[482] != 0;
    while more {
        let block = input.block()?.ok_or_else(stops_early)?;
        extents(&block[..504], &mut map)?;
        more = block[504] != 0;
        if map.len() > MOST_EXTENTS {
            return Err(too_many());
        }
        // Blocks that add nothing would make an endless map.
        if more && block[..24].iter().all(|&c| c == 0) {
            return Err(malformed("an empty block of a sparse map"));
        }
    }
    Ok((map, real_size))
}

fn extents(fields: &[u8], map: &mut Vec<Extent>) -> Outcome<()> {
    for field in fields.chunks_exact(24) {
        if field.iter().all(|&c| c == 0) {
            break;
        }
        map.push(Extent {
            offset: count(&field[..12], "sparse offset")?,
            length: count(&field[12..], "sparse length")?,
        });
    }
    Ok(())
}

/// Read the map before the data of version 1.0. Return it, and how many bytes it took: whole blocks of
/// decimal lines, the first with the number of pairs that follow.
pub fn read_map_before_data<R: Read>(
    input: &mut Input<R>,
    stored: u64,
) -> Outcome<(Vec<Extent>, u64)> {
    let mut lines = Lines {
        input,
        block: [0; BLOCK],
        at: BLOCK,
        taken: 0,
        stored,
    };
    let count = lines.next()?;
    if count > MOST_EXTENTS as u64 {
        return Err(too_many());
    }
    let mut map = Vec::new();
    for _ in 0..count {
        map.push(Extent {
            offset: lines.next()?,
            length: lines.next()?,
        });
    }
    Ok((map, lines.taken))
}

struct Lines<'a, R> {
    input: &'a mut Input<R>,
    block: [u8; BLOCK],
    at: usize,
    taken: u64,
    stored: u64,
}

impl<R: Read> Lines<'_, R> {
    fn next(&mut self) -> Outcome<u64> {
        let mut line = Vec::new();
        loop {
            if self.at == BLOCK {
                self.taken += BLOCK as u64;
                if self.taken > self.stored {
                    return Err(malformed("a sparse map longer than its member"));
                }
                self.block = self.input.block()?.ok_or_else(stops_early)?;
                self.at = 0;
            }
            let c = self.block[self.at];
            self.at += 1;
            if c == b'\n' {
                return decimal(&line).ok_or_else(invalid_number);
            }
            line.push(c);
            if line.len() > 20 {
                return Err(invalid_number());
            }
        }
    }
}

fn invalid_number() -> Failure {
    malformed("a sparse map is not a list of numbers")
}

fn too_many() -> Failure {
    limit("a sparse file in too many pieces")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_valid(map: &[(u64, u64)], real: u64, stored: u64) -> bool {
        let map: Vec<Extent> = map
            .iter()
            .map(|&(offset, length)| Extent { offset, length })
            .collect();
        check(&map, real, stored).is_ok()
    }

    #[test]
    fn map_must_be_ordered_without_overlap_and_inside_the_file() {
        assert!(is_valid(&[], 10, 0));
        assert!(is_valid(&[(0, 4), (4, 2), (10, 0)], 10, 6));
        assert!(!is_valid(&[(0, 4), (3, 2)], 10, 6));
        assert!(!is_valid(&[(4, 2), (0, 4)], 10, 6));
        assert!(!is_valid(&[(8, 4)], 10, 4));
        assert!(!is_valid(&[(0, 4)], 10, 5));
        assert!(!is_valid(
            &[(i64::MAX as u64, i64::MAX as u64), (2, 2)],
            u64::MAX,
            4
        ));
        assert!(!is_valid(&[(u64::MAX, 2)], u64::MAX, 2));
    }
}
