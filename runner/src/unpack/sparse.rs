//! Sparse files: where the stored bytes of a member belong. Old GNU headers and pax 0.0, 0.1, 1.0.

use super::failure::{limit, malformed, Failure, Outcome};
use super::input::{cut, Input};
use super::pax::decimal;
use crate::tar::{count, BLOCK};
use std::io::Read;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

/// Sixteen megabytes of map; a file in more pieces than that is no layer's.
pub const MOST_EXTENTS: usize = 1_000_000;

/// Ordered, apart, inside the file, and as long together as what is stored.
pub fn check(map: &[Extent], real_size: u64, stored: u64) -> Outcome<()> {
    let (mut end, mut sum) = (0u64, 0u64);
    for extent in map {
        let next = extent.offset.checked_add(extent.length);
        match next {
            Some(next) if extent.offset >= end && next <= real_size => end = next,
            _ => return Err(malformed("a sparse map out of order or past the end")),
        }
        // Below `real_size`, as the extents lie apart.
        sum += extent.length;
    }
    if sum != stored {
        return Err(malformed("a sparse map of another length than its data"));
    }
    Ok(())
}

/// The map and the real size in a header of type `S` and the blocks after it.
pub fn old<R: Read>(block: &[u8; BLOCK], input: &mut Input<R>) -> Outcome<(Vec<Extent>, u64)> {
    let real_size = count(&block[483..495], "sparse size")?;
    let mut map = Vec::new();
    extents(&block[386..482], &mut map)?;
    let mut more = block[482] != 0;
    while more {
        let block = input.block()?.ok_or_else(cut)?;
        extents(&block[..504], &mut map)?;
        more = block[504] != 0;
        if map.len() > MOST_EXTENTS {
            return Err(too_many());
        }
        // Blocks that add nothing would be an endless map.
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

/// The map before the data of version 1.0, and how many bytes it took: whole blocks of decimal
/// lines, the first saying how many pairs follow.
pub fn at_the_front<R: Read>(input: &mut Input<R>, stored: u64) -> Outcome<(Vec<Extent>, u64)> {
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
                self.block = self.input.block()?.ok_or_else(cut)?;
                self.at = 0;
            }
            let c = self.block[self.at];
            self.at += 1;
            if c == b'\n' {
                return decimal(&line).ok_or_else(no_number);
            }
            line.push(c);
            if line.len() > 20 {
                return Err(no_number());
            }
        }
    }
}

fn no_number() -> Failure {
    malformed("a sparse map that is no list of numbers")
}

fn too_many() -> Failure {
    limit("a sparse file in too many pieces")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(map: &[(u64, u64)], real: u64, stored: u64) -> bool {
        let map: Vec<Extent> = map
            .iter()
            .map(|&(offset, length)| Extent { offset, length })
            .collect();
        check(&map, real, stored).is_ok()
    }

    #[test]
    fn a_map_is_ordered_apart_and_inside_the_file() {
        assert!(told(&[], 10, 0));
        assert!(told(&[(0, 4), (4, 2), (10, 0)], 10, 6));
        assert!(!told(&[(0, 4), (3, 2)], 10, 6));
        assert!(!told(&[(4, 2), (0, 4)], 10, 6));
        assert!(!told(&[(8, 4)], 10, 4));
        assert!(!told(&[(0, 4)], 10, 5));
        assert!(!told(
            &[(i64::MAX as u64, i64::MAX as u64), (2, 2)],
            u64::MAX,
            4
        ));
        assert!(!told(&[(u64::MAX, 2)], u64::MAX, 2));
    }
}
