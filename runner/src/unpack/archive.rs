//! The archive as a sequence of members, each with all that its extensions say about it.
//!
//! Where readers of tar differ it follows the stricter one, except that links and directories have no
//! body whatever their size says, as in GNU tar and Docker.

use super::failure::{limit, malformed, show, Outcome};
use super::input::{stops_early, Input};
use super::pax::{self, Overrides, Time};
use super::sparse::{self, Extent};
use crate::tar::{self, padding, BLOCK};
use std::io::Read;

/// A name must fit, and so must a few extended attributes.
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

#[derive(Debug)]
pub struct Member {
    pub kind: Kind,
    pub name: Vec<u8>,
    pub target: Vec<u8>,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub mtime: Time,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The length of the file, holes included.
    pub size: u64,
    pub sparse: Option<Vec<Extent>>,
}

/// Every field of a header block.
struct Header {
    flag: u8,
    name: Vec<u8>,
    target: Vec<u8>,
    size: u64,
    mode: u32,
    uid: u64,
    gid: u64,
    mtime: i64,
}

impl Header {
    fn read(block: &[u8; BLOCK]) -> Result<Header, tar::Invalid> {
        let header = tar::Header::new(block)?;
        Ok(Header {
            flag: header.flag(),
            name: header.name(),
            target: header.target(),
            size: header.size()?,
            mode: header.mode()?,
            uid: header.uid()?,
            gid: header.gid()?,
            mtime: header.mtime()?,
        })
    }
}

pub struct Archive<R> {
    input: Input<R>,
    globals: Overrides,
    /// Bytes of the member's body that were not read yet, and the padding of its last block.
    left: u64,
    padding: u64,
    first: bool,
}

impl<R: Read> Archive<R> {
    pub fn new(input: Input<R>) -> Archive<R> {
        Archive {
            input,
            globals: Overrides::default(),
            left: 0,
            padding: 0,
            first: true,
        }
    }

    /// Return the next member; `None` once the end marker and everything after it was read.
    pub fn next(&mut self) -> Outcome<Option<Member>> {
        self.input.skip(self.left + self.padding)?;
        self.left = 0;
        self.padding = 0;
        let mut overrides = Overrides::default();
        let mut extensions = 0;
        loop {
            let first = std::mem::replace(&mut self.first, false);
            let block = match self.input.block()? {
                Some(block) => block,
                None if first => return Err(malformed("the archive is empty")),
                None => return Err(stops_early()),
            };
            if block.iter().all(|&c| c == 0) {
                if extensions > 0 {
                    return Err(malformed("an extended header without a member"));
                }
                self.input.drain()?;
                return Ok(None);
            }
            let header = match Header::read(&block) {
                Err(reason) if first => {
                    return Err(malformed(format!("this is not a tar archive: {}", reason)));
                }
                read => read?,
            };
            if !matches!(header.flag, b'x' | b'g' | b'L' | b'K' | b'V') {
                return self.member(&block, header, overrides).map(Some);
            }
            extensions += 1;
            if header.size > MOST_EXTENSION || extensions > MOST_EXTENSIONS {
                return Err(limit("too large or too many extended headers"));
            }
            let data = self.collect(header.size)?;
            self.extend(header.flag, &data, &mut overrides)?;
        }
    }

    /// Return some bytes of the member's body, `most` at most; `None` at its end.
    pub fn body(&mut self, most: u64) -> Outcome<Option<&[u8]>> {
        let most = most.min(self.left);
        if most == 0 {
            return Ok(None);
        }
        let piece = self.input.piece(most)?;
        self.left -= piece.len() as u64;
        Ok(Some(piece))
    }

    fn collect(&mut self, size: u64) -> Outcome<Vec<u8>> {
        let mut data = Vec::new();
        while (data.len() as u64) < size {
            let piece = self.input.piece(size - data.len() as u64)?;
            data.extend_from_slice(piece);
        }
        self.input.skip(padding(size))?;
        Ok(data)
    }

    fn extend(&mut self, flag: u8, data: &[u8], overrides: &mut Overrides) -> Outcome<()> {
        match flag {
            b'L' | b'K' => {
                let name = tar::until_nul(data).to_vec();
                if name.is_empty() {
                    return Err(malformed("an empty long name"));
                }
                if flag == b'L' {
                    overrides.name = Some(name);
                } else {
                    overrides.target = Some(name);
                }
            }
            b'x' => pax::read(data, overrides)?,
            b'g' => {
                pax::read(data, &mut self.globals)?;
                let globals = &self.globals;
                if globals.name.is_some()
                    || globals.target.is_some()
                    || globals.size.is_some()
                    || globals.sparse.any()
                    || !globals.xattrs.is_empty()
                {
                    return Err(malformed("a global header that names or measures members"));
                }
            }
            // The label of a volume.
            _ => {}
        }
        Ok(())
    }

    fn member(
        &mut self,
        block: &[u8; BLOCK],
        header: Header,
        overrides: Overrides,
    ) -> Outcome<Member> {
        let stored = overrides.size.unwrap_or(header.size);
        let words = overrides.sparse;
        let name = words.name.clone().or(overrides.name).unwrap_or(header.name);
        if name.is_empty() {
            return Err(malformed("a member without a name"));
        }
        let kind = match header.flag {
            // Old archives have no type for directories.
            0 | b'0' | b'7' if name.ends_with(b"/") && stored == 0 => Kind::Directory,
            0 | b'0' | b'7' | b'S' if !name.ends_with(b"/") => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                let (name, other) = (show(&name), char::from(other));
                return Err(malformed(format!("{}: a member of type {:?}", name, other)));
            }
        };
        let target = overrides.target.unwrap_or(header.target);
        if matches!(kind, Kind::Symlink | Kind::HardLink) && target.is_empty() {
            return Err(malformed(format!("{} is a link to nothing", show(&name))));
        }
        let mut size = 0;
        let mut map = None;
        if kind == Kind::File {
            self.left = stored;
            self.padding = padding(stored);
            size = stored;
            if header.flag == b'S' {
                let (extents, real) = sparse::read_old_map(block, &mut self.input)?;
                map = Some(extents);
                size = real;
            } else if words.any() {
                let real = words.size;
                size = real.ok_or_else(|| malformed("a sparse file without its size"))?;
                map = Some(match words.version {
                    (Some(1), Some(0)) if words.map.is_empty() => {
                        let (extents, taken) =
                            sparse::read_map_before_data(&mut self.input, stored)?;
                        self.left -= taken;
                        extents
                    }
                    (None | Some(0), _) => words.map,
                    _ => return Err(malformed("a sparse file of an unknown version")),
                });
            }
            if let Some(map) = &map {
                sparse::check(map, size, self.left)?;
            }
        }
        let global = &self.globals;
        Ok(Member {
            kind,
            name,
            target,
            mode: header.mode,
            uid: overrides.uid.or(global.uid).unwrap_or(header.uid),
            gid: overrides.gid.or(global.gid).unwrap_or(header.gid),
            mtime: overrides.mtime.or(global.mtime).unwrap_or(Time {
                seconds: header.mtime,
                nanoseconds: 0,
            }),
            xattrs: overrides.xattrs,
            size,
            sparse: map,
        })
    }
}
