//! Tests of the gate: what a client without the token leaves behind.

use super::*;
use crate::websocket::tests::{masked, REQUEST};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;

const PING: u8 = 0x89;
const BINARY: u8 = 0x82;

#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello) -> Option<Arc<CertifiedKey>> {
        None
    }
}

fn entry() -> Arc<Entry> {
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(NoCertificate));
    Arc::new(Entry {
        config: Arc::new(config),
        token: vec![1; TOKEN_BYTES],
        listener: PathBuf::new(),
        network: None,
        websocket: true,
        threads: AtomicUsize::new(0),
        open: AtomicUsize::new(0),
        newcomers: Newcomers::new(MOST_NEWCOMERS),
        given: Mutex::new(true),
        is_given: Condvar::new(),
    })
}

/// Let almost nothing of what is sent wait in the kernel.
fn narrow(fd: RawFd) {
    let least: libc::c_int = 1;
    // SAFETY: the option value is one int.
    let done = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&least as *const libc::c_int).cast(),
            std::mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

// promise: P115
#[test]
fn a_websocket_without_a_token_leaves_nothing_behind() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let far = sys::own(far.into_raw_fd());
    narrow(far.as_raw_fd());
    let mut sent = REQUEST.as_bytes().to_vec();
    // Their answers are never read.
    sent.extend(masked(PING, &[0; 125]).repeat(500));
    sent.extend(masked(BINARY, b"this is not TLS"));
    near.write_all(&sent).unwrap();
    let entry = entry();
    let newcomer = entry.newcomers.admit(&far);
    assert!(serve_client(&far, &entry, newcomer).is_err());
    drop(far);
    near.set_nonblocking(true).unwrap();
    let refused = near.write(b"more").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
}
