//! Sparse files: where the stored bytes of a member belong. Old GNU headers and pax 0.0, 0.1, 1.0. Pure.

use super::pax::decimal;
use super::reader::{limit, malformed, Outcome, Refusal};
use super::{count, BLOCK};

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

/// Return the real size of a file from its header of type `S`.
pub fn old_size(header: &[u8; BLOCK]) -> Outcome<u64> {
    Ok(count(&header[483..495], "sparse size")?)
}

/// A map that stands before the data of its file, block by block.
pub struct MapReader {
    map: Vec<Extent>,
    missing: Missing,
}

enum Missing {
    Nothing,
    /// Old GNU: blocks like the end of the header.
    Blocks,
    /// Version 1.0: decimal lines, the first with the number of pairs that follow.
    Lines {
        line: Vec<u8>,
        pairs: Option<u64>,
        offset: Option<u64>,
    },
}

impl MapReader {
    pub fn complete(map: Vec<Extent>) -> MapReader {
        let missing = Missing::Nothing;
        MapReader { map, missing }
    }

    /// Begin the map of a header of type `S`.
    pub fn of_header(header: &[u8; BLOCK]) -> Outcome<MapReader> {
        let mut reader = MapReader::complete(Vec::new());
        reader.fields(&header[386..482], header[482] != 0)?;
        Ok(reader)
    }

    pub fn before_data() -> MapReader {
        MapReader {
            map: Vec::new(),
            missing: Missing::Lines {
                line: Vec::new(),
                pairs: None,
                offset: None,
            },
        }
    }

    pub fn is_complete(&self) -> bool {
        matches!(self.missing, Missing::Nothing)
    }

    pub fn extents(self) -> Vec<Extent> {
        self.map
    }

    /// Return by how much the next block shortens the data: lines are a part of it, old blocks are not.
    pub fn block_bytes(&self) -> u64 {
        match self.missing {
            Missing::Lines { .. } => BLOCK as u64,
            _ => 0,
        }
    }

    pub fn take(&mut self, block: &[u8; BLOCK]) -> Outcome<()> {
        if let Missing::Blocks = self.missing {
            // Blocks that add nothing would make an endless map.
            if block[504] != 0 && block[..24].iter().all(|&c| c == 0) {
                return Err(malformed("an empty block of a sparse map"));
            }
            return self.fields(&block[..504], block[504] != 0);
        }
        for &c in block {
            self.character(c)?;
            if self.is_complete() {
                break;
            }
        }
        Ok(())
    }

    fn fields(&mut self, fields: &[u8], more: bool) -> Outcome<()> {
        for field in fields.chunks_exact(24) {
            if field.iter().all(|&c| c == 0) {
                break;
            }
            self.map.push(Extent {
                offset: count(&field[..12], "sparse offset")?,
                length: count(&field[12..], "sparse length")?,
            });
        }
        if self.map.len() > MOST_EXTENTS {
            return Err(too_many());
        }
        self.missing = if more {
            Missing::Blocks
        } else {
            Missing::Nothing
        };
        Ok(())
    }

    fn character(&mut self, c: u8) -> Outcome<()> {
        let invalid = || malformed("a sparse map is not a list of numbers");
        if let Missing::Lines {
            line,
            pairs,
            offset,
        } = &mut self.missing
        {
            if c != b'\n' {
                line.push(c);
                return if line.len() > 20 {
                    Err(invalid())
                } else {
                    Ok(())
                };
            }
            let number = decimal(line).ok_or_else(invalid)?;
            line.clear();
            match (*pairs, offset.take()) {
                (None, _) if number > MOST_EXTENTS as u64 => return Err(too_many()),
                (None, _) => *pairs = Some(number),
                (Some(_), None) => *offset = Some(number),
                (Some(_), Some(offset)) => self.map.push(Extent {
                    offset,
                    length: number,
                }),
            }
            if *pairs == Some(self.map.len() as u64) {
                self.missing = Missing::Nothing;
            }
        }
        Ok(())
    }
}

pub fn too_long() -> Refusal {
    malformed("a sparse map longer than its member")
}

pub fn too_many() -> Refusal {
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
