//! A reader of tar archives, for `fs.tar_in` of the runner and for `sandkasten-unpack`: ustar, pax, GNU
//! long names, sparse files.
//!
//! It takes an archive in pieces of any size and returns members, each with all that its extended headers
//! say about it, and their bytes. It trusts nothing and keeps little: a wrong checksum, a size below zero
//! or above 2⁶³, or an extension larger than `MOST_EXTENSION` ends the archive. Where readers of tar
//! differ it follows the stricter one, except that links and directories have no body whatever their size
//! says, as in GNU tar and Docker. Which kinds are accepted, and where names and links may lead, is the
//! decision of the program.

use super::pax::{self, Overrides, Time};
use super::sparse::{self, Extent, MapReader};
use super::{padding, show, until_nul, Header, Invalid, BLOCK};

/// A name must fit, however deep, and so must a few extended attributes.
const MOST_EXTENSION: u64 = 1024 * 1024;
/// A member has at most a pax header, a GNU long name, a GNU long link and a global header before it.
const MOST_EXTENSIONS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Device,
    Fifo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub kind: Kind,
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    pub mode: u32,
    /// A wrong number here is an error only for a program that sets owners.
    pub uid: Result<u64, Invalid>,
    pub gid: Result<u64, Invalid>,
    pub mtime: Time,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The length of a file, holes included. Other kinds have no body, and this is what their header says.
    pub size: u64,
    pub sparse: Option<Vec<Extent>>,
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

/// Why an archive is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The first block is not a header.
    NotTar,
    Malformed,
    /// Larger than any archive needs to be.
    Limit,
    Unsupported,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
}

pub type Outcome<T> = Result<T, Refusal>;

impl Refusal {
    fn new(reason: Reason, message: impl Into<String>) -> Refusal {
        let message = message.into();
        Refusal { reason, message }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        malformed(invalid.to_string())
    }
}

pub fn malformed(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::Malformed, message)
}

pub fn limit(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::Limit, message)
}

pub fn unsupported(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::Unsupported, message)
}

enum State {
    Header,
    Extension {
        flag: u8,
        data: Vec<u8>,
        left: u64,
        padding: u64,
    },
    /// The map of a sparse file; the file itself follows.
    Map(Box<Sparse>),
    Body {
        left: u64,
        padding: u64,
    },
    Padding {
        left: u64,
    },
    Ended,
}

struct Sparse {
    member: Member,
    map: MapReader,
    left: u64,
    padding: u64,
}

pub struct Reader {
    state: State,
    block: Block,
    /// Whether sparse files and attributes are read.
    sparse: bool,
    /// Whether nothing but a part of the first block was read.
    first: bool,
    globals: Overrides,
    overrides: Overrides,
    /// How many extended headers came since the last member, and whether one of them is about the next.
    extensions: usize,
    pending: bool,
}

impl Reader {
    /// Return a reader that refuses sparse files, and ignores attributes.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Reader {
        Reader {
            state: State::Header,
            block: Block::new(),
            sparse: false,
            first: true,
            globals: Overrides::default(),
            overrides: Overrides::default(),
            extensions: 0,
            pending: false,
        }
    }

    pub fn with_sparse_files() -> Reader {
        Reader {
            sparse: true,
            ..Reader::new()
        }
    }

    /// Whether the end marker was read. Input after it is ignored.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Return how many stored bytes of the last member were not returned yet.
    pub fn left(&self) -> u64 {
        match self.state {
            State::Body { left, .. } => left,
            _ => 0,
        }
    }

    /// Take what is needed from the front of `input` and return what it was.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Outcome<Item<'a>> {
        loop {
            match &mut self.state {
                State::Ended => {
                    *input = &[];
                    return Ok(Item::More);
                }
                State::Header => {
                    let block = match self.block.fill(input) {
                        Some(block) => *block,
                        None => return Ok(Item::More),
                    };
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
                    let piece = take(input, *left);
                    data.extend_from_slice(piece);
                    *left -= piece.len() as u64;
                    if *left > 0 {
                        return Ok(Item::More);
                    }
                    let (flag, data, padding) = (*flag, std::mem::take(data), *padding);
                    self.state = State::Padding { left: padding };
                    self.extension(flag, data)?;
                }
                State::Map(sparse) if !sparse.map.is_complete() => {
                    let left = sparse.left.checked_sub(sparse.map.block_bytes());
                    let left = left.ok_or_else(sparse::too_long)?;
                    match self.block.fill(input) {
                        Some(block) => sparse.map.take(block)?,
                        None => return Ok(Item::More),
                    }
                    sparse.left = left;
                }
                State::Map(_) => {
                    if let State::Map(sparse) = std::mem::replace(&mut self.state, State::Ended) {
                        let (mut member, left, padding) =
                            (sparse.member, sparse.left, sparse.padding);
                        let map = sparse.map.extents();
                        sparse::check(&map, member.size, left)?;
                        member.sparse = Some(map);
                        self.state = State::Body { left, padding };
                        return Ok(Item::Member(member));
                    }
                }
                State::Body { left: 0, padding } => {
                    self.state = State::Padding { left: *padding };
                    return Ok(Item::MemberEnd);
                }
                State::Body { left, .. } => {
                    let piece = take(input, *left);
                    if piece.is_empty() {
                        return Ok(Item::More);
                    }
                    *left -= piece.len() as u64;
                    return Ok(Item::Bytes(piece));
                }
                State::Padding { left: 0 } => self.state = State::Header,
                State::Padding { left } => {
                    let piece = take(input, *left);
                    if piece.is_empty() {
                        return Ok(Item::More);
                    }
                    *left -= piece.len() as u64;
                }
            }
        }
    }

    /// Return `None` for blocks that are not a member: extensions, volume labels, the end.
    fn header(&mut self, block: &[u8; BLOCK]) -> Outcome<Option<Member>> {
        let first = std::mem::replace(&mut self.first, false);
        if block.iter().all(|&c| c == 0) {
            self.state = State::Ended;
            if self.pending {
                return Err(malformed("an extended header without a member"));
            }
            return Ok(None);
        }
        let checked = Header::new(block).and_then(|header| Ok((header.size()?, header)));
        let (size, header) = checked.map_err(|invalid| match first {
            true => Refusal::new(Reason::NotTar, invalid.to_string()),
            false => invalid.into(),
        })?;
        let flag = header.flag();
        if !matches!(flag, b'x' | b'g' | b'L' | b'K' | b'V') {
            self.extensions = 0;
            self.pending = false;
            return self.member(block, &header, size);
        }
        self.extensions += 1;
        if size > MOST_EXTENSION || self.extensions > MOST_EXTENSIONS {
            return Err(limit("too large or too many extended headers"));
        }
        self.state = State::Extension {
            flag,
            data: Vec::new(),
            left: size,
            padding: padding(size),
        };
        Ok(None)
    }

    fn extension(&mut self, flag: u8, mut data: Vec<u8>) -> Outcome<()> {
        self.pending |= !matches!(flag, b'g' | b'V');
        match flag {
            b'L' | b'K' => {
                data.truncate(until_nul(&data).len());
                if data.is_empty() {
                    return Err(malformed("an empty long name"));
                }
                if flag == b'L' {
                    self.overrides.name = Some(data);
                } else {
                    self.overrides.target = Some(data);
                }
            }
            b'x' => pax::read(&data, self.sparse, &mut self.overrides)?,
            b'g' => {
                pax::read(&data, self.sparse, &mut self.globals)?;
                if self.globals.concern_one_member() {
                    return Err(unsupported(
                        "a global header that names or measures members",
                    ));
                }
            }
            // The label of a volume.
            _ => {}
        }
        Ok(())
    }

    /// Return the member; `None` if the map of a sparse file comes first.
    fn member(
        &mut self,
        block: &[u8; BLOCK],
        header: &Header,
        size: u64,
    ) -> Outcome<Option<Member>> {
        let (flag, overrides) = (header.flag(), std::mem::take(&mut self.overrides));
        let stored = overrides.size.unwrap_or(size);
        let records = overrides.sparse;
        let name = records.name.or(overrides.name);
        let name = name.unwrap_or_else(|| header.name());
        if name.is_empty() {
            return Err(malformed("a member without a name"));
        }
        let of_type = || format!("{}: a member of type {:?}", show(&name), char::from(flag));
        let kind = match flag {
            // Old archives have no type for directories.
            0 | b'0' | b'7' if name.ends_with(b"/") && stored == 0 => Kind::Directory,
            0 | b'0' | b'7' | b'S' if name.ends_with(b"/") => return Err(malformed(of_type())),
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            _ => return Err(unsupported(of_type())),
        };
        let target = overrides.target.unwrap_or_else(|| header.target());
        if matches!(kind, Kind::Symlink | Kind::HardLink) && target.is_empty() {
            return Err(malformed(format!("{} is a link to nothing", show(&name))));
        }
        let global = &self.globals;
        let mtime = match overrides.mtime.or(global.mtime) {
            Some(mtime) => mtime,
            None => Time::whole(header.mtime()?),
        };
        let mut member = Member {
            kind,
            name,
            target,
            mode: header.mode()?,
            uid: overrides
                .uid
                .or(global.uid)
                .map_or_else(|| header.uid(), Ok),
            gid: overrides
                .gid
                .or(global.gid)
                .map_or_else(|| header.gid(), Ok),
            mtime,
            xattrs: overrides.xattrs,
            size: stored,
            sparse: None,
        };
        if kind != Kind::File {
            self.state = State::Header;
            return Ok(Some(member));
        }
        let (left, padding) = (stored, padding(stored));
        if flag != b'S' && !records.any {
            self.state = State::Body { left, padding };
            return Ok(Some(member));
        }
        if !self.sparse {
            return Err(unsupported(format!("{} is sparse", show(&member.name))));
        }
        let map = if flag == b'S' {
            member.size = sparse::old_size(block)?;
            MapReader::of_header(block)?
        } else {
            let real = records.size;
            member.size = real.ok_or_else(|| malformed("a sparse file without its size"))?;
            match records.version {
                (Some(1), Some(0)) if records.map.is_empty() => MapReader::before_data(),
                (None | Some(0), _) => MapReader::complete(records.map),
                _ => return Err(malformed("a sparse file of an unknown version")),
            }
        };
        self.state = State::Map(Box::new(Sparse {
            member,
            map,
            left,
            padding,
        }));
        Ok(None)
    }
}

/// A block that may arrive in pieces.
struct Block {
    bytes: [u8; BLOCK],
    filled: usize,
}

impl Block {
    fn new() -> Block {
        Block {
            bytes: [0; BLOCK],
            filled: 0,
        }
    }

    /// Return the block once it is complete.
    fn fill(&mut self, input: &mut &[u8]) -> Option<&[u8; BLOCK]> {
        let piece = take(input, (BLOCK - self.filled) as u64);
        self.bytes[self.filled..self.filled + piece.len()].copy_from_slice(piece);
        self.filled += piece.len();
        if self.filled < BLOCK {
            return None;
        }
        self.filled = 0;
        Some(&self.bytes)
    }
}

fn take<'a>(input: &mut &'a [u8], most: u64) -> &'a [u8] {
    let count = most.min(input.len() as u64) as usize;
    let (piece, rest) = input.split_at(count);
    *input = rest;
    piece
}
