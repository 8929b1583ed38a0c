//! Archives from short inputs: a mutation of one byte stays in its block, and headers have their checksum.

use crate::tar::BLOCK;

/// The longest archive: what is tested is the form of headers and not the amount of data.
const MOST: usize = 64 * 1024;

/// Return the archive of an input. `0 0` fills a block, `0 n` is n zeros, and other bytes are themselves.
/// The first byte says whether headers get a valid checksum.
pub fn expanded(input: &[u8]) -> Vec<u8> {
    let (sealed, mut rest) = match input.split_first() {
        Some((first, rest)) => (first % 8 != 0, rest),
        None => return Vec::new(),
    };
    let mut archive = Vec::new();
    while archive.len() < MOST {
        let length = archive.len();
        match rest {
            [0, 0, after @ ..] => {
                archive.resize((length / BLOCK + 1) * BLOCK, 0);
                rest = after;
            }
            [0, count, after @ ..] => {
                archive.resize(length + usize::from(*count), 0);
                rest = after;
            }
            [byte, after @ ..] => {
                archive.push(*byte);
                rest = after;
            }
            [] => break,
        }
    }
    if sealed {
        for block in archive.chunks_exact_mut(BLOCK) {
            if block[257..262] == *b"ustar" {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
    }
    archive
}
