//! The head of a WebSocket frame (RFC 6455), of a client or of a server. Pure.

pub const CONTINUATION: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;
/// The longest payload of a control frame.
pub const MOST_CONTROL: u64 = 125;

pub struct FrameHead {
    /// The end of a message, reserved bits, and the kind.
    pub first: u8,
    /// What the payload is combined with; only a client has one.
    pub key: Option<[u8; 4]>,
    pub length: u64,
    /// How long the head is.
    pub bytes: usize,
}

impl FrameHead {
    /// Return the head of a frame; None if it has not arrived.
    pub fn parse(input: &[u8]) -> Option<FrameHead> {
        let (&first, &second) = (input.first()?, input.get(1)?);
        let wide = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let long = input.get(2..2 + wide)?.iter();
        let length = match wide {
            0 => u64::from(second & 0x7f),
            _ => long.fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)),
        };
        let (mut bytes, mut key) = (2 + wide, None);
        if second & 0x80 != 0 {
            let mut found = [0u8; 4];
            found.copy_from_slice(input.get(bytes..bytes + 4)?);
            key = Some(found);
            bytes += 4;
        }
        Some(FrameHead {
            first,
            key,
            length,
            bytes,
        })
    }

    pub fn kind(&self) -> u8 {
        self.first & 0x0f
    }

    pub fn is_control(&self) -> bool {
        self.kind() >= CLOSE
    }

    /// Whether it is the last frame of its message.
    pub fn is_last(&self) -> bool {
        self.first & 0x80 != 0
    }

    /// Whether it is a frame of a known kind, without an extension and with a length that it may have.
    pub fn is_valid(&self) -> bool {
        let whole = self.is_last() && self.length <= MOST_CONTROL;
        self.first & 0x70 == 0
            && match self.kind() {
                CONTINUATION | TEXT | BINARY => self.length >> 63 == 0,
                CLOSE | PING | PONG => whole,
                _ => false,
            }
    }
}
