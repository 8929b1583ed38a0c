//! A reader of tar archives: ustar, pax and GNU long names.
//!
//! It takes an archive in pieces of any size and returns members and their bytes. It trusts nothing: a
//! wrong checksum, a size below zero or above 2⁶³, an extension larger than `MOST_EXTENSION` or an
//! archive that stops early is `invalid`; sparse and multi-volume members are `unsupported`; devices
//! and FIFOs are `blocked`. Where two readers of tar could differ about what follows (a link or
//! directory with a body) it is `invalid` too.

use crate::fs::names;
use crate::fs::tar::pax::{read_pax, Overrides};
use crate::tar::{padding, until_nul, Header, BLOCK};
use crate::wire::handler::Failure;

/// A name must fit, however deep; 5,000 levels of long names do.
const MOST_EXTENSION: u64 = 1024 * 1024;
/// A member has at most a pax header, a GNU long name and a GNU long link before it.
const MOST_EXTENSIONS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub kind: Kind,
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    pub size: u64,
    pub mode: u32,
    pub mtime: i64,
}

pub enum Item<'a> {
    Member(Member),
    /// Bytes of the last member, which is a file.
    Bytes(&'a [u8]),
    /// The file is complete.
    MemberEnd,
    /// The input is used up.
    More,
}

enum State {
    Header,
    Extension {
        flag: u8,
        data: Vec<u8>,
        left: u64,
        padding: u64,
    },
    Body {
        left: u64,
        padding: u64,
    },
    Padding {
        left: u64,
    },
    Ended,
}

pub struct Reader {
    state: State,
    block: [u8; BLOCK],
    /// How much of the block has been read.
    filled: usize,
    overrides: Overrides,
}

pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::invalid(format!("archive: {}", message.into()))
}

fn malformed(reason: crate::tar::Invalid) -> Failure {
    invalid(reason.to_string())
}

pub fn unsupported(message: impl Into<String>) -> Failure {
    Failure::new("unsupported", format!("archive: {}", message.into()))
}

impl Reader {
    pub fn new() -> Reader {
        Reader {
            state: State::Header,
            block: [0; BLOCK],
            filled: 0,
            overrides: Overrides::default(),
        }
    }

    /// Take what is needed from the front of `input` and return what it was.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Item<'a>, Failure> {
        loop {
            match &mut self.state {
                State::Ended => {
                    *input = &[];
                    return Ok(Item::More);
                }
                State::Header => {
                    let piece = take(input, BLOCK - self.filled);
                    self.block[self.filled..self.filled + piece.len()].copy_from_slice(piece);
                    self.filled += piece.len();
                    if self.filled < BLOCK {
                        return Ok(Item::More);
                    }
                    let block = self.block;
                    self.filled = 0;
                    if let Some(member) = self.header(&block)? {
                        return Ok(Item::Member(member));
                    }
                }
                State::Extension {
                    flag,
                    data,
                    left,
                    padding,
                } => {
                    let piece = take(input, (*left).min(usize::MAX as u64) as usize);
                    data.extend_from_slice(piece);
                    *left -= piece.len() as u64;
                    if *left > 0 {
                        return Ok(Item::More);
                    }
                    let (flag, data, padding) = (*flag, std::mem::take(data), *padding);
                    self.state = State::Padding { left: padding };
                    self.extension(flag, data)?;
                }
                State::Body { left: 0, padding } => {
                    self.state = State::Padding { left: *padding };
                    return Ok(Item::MemberEnd);
                }
                State::Body { left, .. } => {
                    let piece = take(input, (*left).min(usize::MAX as u64) as usize);
                    if piece.is_empty() {
                        return Ok(Item::More);
                    }
                    *left -= piece.len() as u64;
                    return Ok(Item::Bytes(piece));
                }
                State::Padding { left: 0 } => self.state = State::Header,
                State::Padding { left } => {
                    let piece = take(input, *left as usize);
                    if piece.is_empty() {
                        return Ok(Item::More);
                    }
                    *left -= piece.len() as u64;
                }
            }
        }
    }

    /// The archive has no more bytes: an error unless its end marker was read.
    pub fn finish(&self) -> Result<(), Failure> {
        match self.state {
            State::Ended => Ok(()),
            _ => Err(invalid("it stops before its end marker")),
        }
    }

    /// Return `None` for blocks that are not a member: extensions, volume labels, the end.
    fn header(&mut self, block: &[u8; BLOCK]) -> Result<Option<Member>, Failure> {
        if block.iter().all(|&c| c == 0) {
            self.state = State::Ended;
            if self.overrides.count > 0 {
                return Err(invalid("an extended header without a member"));
            }
            return Ok(None);
        }
        let header = Header::new(block).map_err(malformed)?;
        let size = header.size().map_err(malformed)?;
        let flag = header.flag();
        if matches!(flag, b'x' | b'g' | b'L' | b'K') {
            self.overrides.count += 1;
            if size > MOST_EXTENSION || self.overrides.count > MOST_EXTENSIONS {
                return Err(invalid("too large or too many extended headers"));
            }
            self.state = State::Extension {
                flag,
                data: Vec::new(),
                left: size,
                padding: padding(size),
            };
            return Ok(None);
        }
        if flag == b'V' {
            self.state = State::Padding {
                left: size.min(MOST_EXTENSION) + padding(size),
            };
            if size > MOST_EXTENSION {
                return Err(invalid("a volume label of that size"));
            }
            return Ok(None);
        }
        let overrides = std::mem::take(&mut self.overrides);
        let member = member(&header, overrides, size)?;
        let size = member.size;
        self.state = if member.kind == Kind::File {
            State::Body {
                left: size,
                padding: padding(size),
            }
        } else {
            State::Header
        };
        Ok(Some(member))
    }

    fn extension(&mut self, flag: u8, mut data: Vec<u8>) -> Result<(), Failure> {
        match flag {
            b'L' | b'K' => {
                data.truncate(until_nul(&data).len());
                if data.is_empty() {
                    return Err(invalid("an empty long name"));
                }
                if flag == b'L' {
                    self.overrides.name = Some(data);
                } else {
                    self.overrides.target = Some(data);
                }
                Ok(())
            }
            b'g' => {
                self.overrides.count -= 1;
                let mut globals = Overrides::default();
                read_pax(&data, &mut globals)?;
                if globals.name.is_some() || globals.target.is_some() || globals.size.is_some() {
                    return Err(unsupported("names or sizes in a global header"));
                }
                Ok(())
            }
            _ => read_pax(&data, &mut self.overrides),
        }
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (piece, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    piece
}

fn member(header: &Header, overrides: Overrides, size: u64) -> Result<Member, Failure> {
    let name = match overrides.name {
        Some(name) => name,
        None => header.name(),
    };
    let kind = match header.flag() {
        0 if name.ends_with(b"/") => Kind::Directory,
        0 | b'0' | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'5' => Kind::Directory,
        b'3' | b'4' | b'6' => {
            return Err(Failure::new(
                "blocked",
                format!("archive: {} is a device or a FIFO", names::show(&name)),
            ))
        }
        b'S' | b'M' | b'D' => {
            return Err(unsupported("a sparse, multi-volume or dump member"));
        }
        other => {
            return Err(unsupported(format!(
                "a member of type {:?}",
                char::from(other)
            )))
        }
    };
    let size = overrides.size.unwrap_or(size);
    if kind != Kind::File && size != 0 {
        return Err(invalid(format!(
            "{} is not a file and has a size",
            names::show(&name)
        )));
    }
    if name.is_empty() {
        return Err(invalid("a member without a name"));
    }
    let target = match overrides.target {
        Some(target) => target,
        None => header.target(),
    };
    if matches!(kind, Kind::Symlink | Kind::HardLink) && target.is_empty() {
        return Err(invalid(format!(
            "{} is a link to nothing",
            names::show(&name)
        )));
    }
    let mtime = match overrides.mtime {
        Some(mtime) => mtime,
        None => header.mtime().map_err(malformed)?,
    };
    let mode = header.mode().map_err(malformed)?;
    Ok(Member {
        kind,
        name,
        target,
        size,
        mode,
        mtime,
    })
}
