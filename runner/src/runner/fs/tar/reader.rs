//! The tar format, both ways, as pure functions of bytes: ustar, pax and GNU long names.
//!
//! The reader takes an archive in pieces of any size and gives back members and their bytes. It
//! trusts nothing: a header whose checksum is wrong, a size below zero or past 2⁶³, an extension
//! larger than `MOST_EXTENSION` or an archive that stops early is `invalid`; sparse and
//! multi-volume members are `unsupported`; devices and FIFOs are `blocked`. Where two readers of
//! tar could differ about what follows (a link or directory with a body) it is `invalid` too.

use crate::fs::names;
use crate::fs::tar::pax::{read_pax, Overrides};
use crate::wire::handler::Failure;

pub const BLOCK: usize = 512;

/// A name has to fit, however deep; 5,000 levels of long names do.
const MOST_EXTENSION: u64 = 1024 * 1024;
/// A member has at most a pax header, a GNU long name and a GNU long link; more says nothing new.
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
    /// The file is whole.
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
    block: Vec<u8>,
    overrides: Overrides,
}

pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::invalid(format!("archive: {}", message.into()))
}

pub fn unsupported(message: impl Into<String>) -> Failure {
    Failure::new("unsupported", format!("archive: {}", message.into()))
}

impl Reader {
    pub fn new() -> Reader {
        Reader {
            state: State::Header,
            block: Vec::with_capacity(BLOCK),
            overrides: Overrides::default(),
        }
    }

    /// Takes what it needs from the front of `input` and says what that was.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Item<'a>, Failure> {
        loop {
            match &mut self.state {
                State::Ended => {
                    *input = &[];
                    return Ok(Item::More);
                }
                State::Header => {
                    let wanted = BLOCK - self.block.len();
                    self.block.extend_from_slice(take(input, wanted));
                    if self.block.len() < BLOCK {
                        return Ok(Item::More);
                    }
                    let block = std::mem::take(&mut self.block);
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

    /// The archive has no more bytes: an error unless its end marker was seen.
    pub fn finish(&self) -> Result<(), Failure> {
        match self.state {
            State::Ended => Ok(()),
            _ => Err(invalid("it stops before its end marker")),
        }
    }

    /// `None` for blocks that are no member: extensions, volume labels, the end.
    fn header(&mut self, block: &[u8]) -> Result<Option<Member>, Failure> {
        if block.iter().all(|&c| c == 0) {
            self.state = State::Ended;
            if self.overrides.count > 0 {
                return Err(invalid("an extended header without a member"));
            }
            return Ok(None);
        }
        if !checksum_holds(block) {
            return Err(invalid("a header with a wrong checksum"));
        }
        let size = count(&block[124..136], "size")?;
        let padding = |size: u64| (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        let flag = block[156];
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
        let member = member(block, overrides, size)?;
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
                if let Some(end) = data.iter().position(|&c| c == 0) {
                    data.truncate(end);
                }
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

fn member(block: &[u8], overrides: Overrides, size: u64) -> Result<Member, Failure> {
    let name = match overrides.name {
        Some(name) => name,
        None => header_name(block),
    };
    let kind = match block[156] {
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
            "{} is no file and has a size",
            names::show(&name)
        )));
    }
    if name.is_empty() {
        return Err(invalid("a member without a name"));
    }
    let target = match overrides.target {
        Some(target) => target,
        None => until_nul(&block[157..257]).to_vec(),
    };
    if matches!(kind, Kind::Symlink | Kind::HardLink) && target.is_empty() {
        return Err(invalid(format!(
            "{} is a link to nothing",
            names::show(&name)
        )));
    }
    let mtime = match overrides.mtime {
        Some(mtime) => mtime,
        None => number(&block[136..148], "mtime")?,
    };
    let mode = number(&block[100..108], "mode")?;
    Ok(Member {
        kind,
        name,
        target,
        size,
        mode: (mode & 0o7777) as u32,
        mtime,
    })
}

fn header_name(block: &[u8]) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    let prefix = until_nul(&block[345..500]);
    // GNU's old format has other things where ustar has the prefix.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        names::join(prefix, name)
    } else {
        name.to_vec()
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&c| c == 0).unwrap_or(field.len());
    &field[..end]
}

/// Some old writers added the bytes as signed numbers; both sums are taken, as by every reader.
fn checksum_holds(block: &[u8]) -> bool {
    let (mut unsigned, mut signed) = (0i64, 0i64);
    for (at, &byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { byte };
        unsigned += i64::from(byte);
        signed += i64::from(byte as i8);
    }
    match number(&block[148..156], "checksum") {
        Ok(told) => told == unsigned || told == signed,
        Err(_) => false,
    }
}

fn count(field: &[u8], what: &str) -> Result<u64, Failure> {
    let value = number(field, what)?;
    u64::try_from(value).map_err(|_| invalid(format!("a negative {}", what)))
}

/// Octal text, or GNU's base-256 when the first bit is set.
fn number(field: &[u8], what: &str) -> Result<i64, Failure> {
    let wrong = || invalid(format!("a {} that is no number", what));
    if field[0] & 0x80 != 0 {
        // Two's complement over the whole field, whose marker bit is not part of it.
        let negative = field[0] & 0x40 != 0;
        let first = if negative { field[0] } else { field[0] & 0x7f };
        let mut value = i128::from(if negative {
            first as i8 as i64
        } else {
            i64::from(first)
        });
        for &byte in &field[1..] {
            value = value << 8 | i128::from(byte);
        }
        return i64::try_from(value).map_err(|_| wrong());
    }
    let mut value = 0i64;
    let digits = field.iter().skip_while(|&&c| c == b' ');
    for &c in digits.take_while(|&&c| c != b' ' && c != 0) {
        if !(b'0'..=b'7').contains(&c) {
            return Err(wrong());
        }
        value = value << 3 | i64::from(c - b'0');
    }
    Ok(value)
}
