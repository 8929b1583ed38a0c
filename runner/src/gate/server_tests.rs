//! Tests of the gate: what a client without the token leaves behind.

use super::*;
use crate::websocket::tests::{masked, REQUEST};
use rustix::net::sockopt::set_socket_send_buffer_size;
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

// promise: P115
#[test]
fn a_websocket_without_a_token_leaves_nothing_behind() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let far = Arc::new(OwnedFd::from(far));
    // Almost nothing of what is sent waits in the kernel.
    set_socket_send_buffer_size(&far, 1).unwrap();
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
