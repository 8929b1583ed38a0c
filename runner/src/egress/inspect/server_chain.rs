//! The check of a server's certificates, with a bound on what the search for a path may cost.
//!
//! A chain that no ordinary server sends is refused before the TLS library searches it for a path. The
//! library has bounds of its own, for a computer that serves others meanwhile: it gives up after 0.25 s
//! (100 certificates of one subject, 31 kB) or 0.03 s (9 of them), and says only which of its numbers was
//! exceeded. This process serves all connections of a sandbox in turn. The refusal here takes 0.00002 s and
//! says what the server sent. Without it those numbers are the bound.

use super::certificates::subject_of;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::collections::HashSet;

/// Ordinary servers send two to four certificates.
const MOST_CERTIFICATES: usize = 10;
/// A certificate with a hundred names has 4 KB. Names times name constraints are compared on each path.
const MOST_BYTES: usize = 16 << 10;
/// An authority that another one has signed as well is in some chains twice. Each further certificate with
/// the subject of another one multiplies the paths.
const MOST_ALTERNATIVES: usize = 2;

#[derive(Debug)]
pub struct BoundedVerifier {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl BoundedVerifier {
    pub fn new(roots: RootCertStore) -> BoundedVerifier {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        BoundedVerifier { roots, algorithms }
    }
}

impl ServerCertVerifier for BoundedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let intermediates = bounded(end_entity, intermediates).map_err(Error::General)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            &intermediates,
            now,
            self.algorithms.all,
        )?;
        verify_server_name(&certificate, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Return the certificates that can be part of a path, each once; an error is why there are too many.
fn bounded<'a>(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'a>],
) -> Result<Vec<CertificateDer<'a>>, String> {
    let number = 1 + intermediates.len();
    if number > MOST_CERTIFICATES {
        return Err(format!(
            "the server sent {} certificates, and at most {} are read",
            number, MOST_CERTIFICATES
        ));
    }
    let size: usize = intermediates.iter().map(|one| one.len()).sum();
    let size = size + end_entity.len();
    if size > MOST_BYTES {
        return Err(format!(
            "the server sent {} bytes of certificates, and at most {} are read",
            size, MOST_BYTES
        ));
    }
    let mut different: Vec<CertificateDer> = Vec::new();
    let mut subjects = HashSet::new();
    for one in intermediates {
        // The library reads the subject at the same place, and ignores what has none.
        if let Some(subject) = subject_of(one) {
            if !different.contains(one) {
                subjects.insert(subject);
                different.push(one.clone());
            }
        }
    }
    if different.len() - subjects.len() > MOST_ALTERNATIVES {
        return Err("the server sent too many certificates with the same subject".to_owned());
    }
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::super::certificates::named;
    use super::*;

    fn chain(names: &[&str]) -> Vec<CertificateDer<'static>> {
        let one = |(n, name): (usize, &&str)| named(name, n as u8, 200).into();
        names.iter().enumerate().map(one).collect()
    }

    fn refusal(intermediates: &[CertificateDer]) -> Option<String> {
        bounded(&named("server", 0, 0).into(), intermediates).err()
    }

    #[test]
    fn ordinary_chains_are_read_whole() {
        for names in [
            &[][..],
            &["a"],
            &["a", "b", "c", "d"],
            &["a", "b", "b", "c"],
            &["a", "a", "b", "b"],
            &["a", "b", "c", "d", "e", "f", "g", "h", "i"],
        ] {
            let sent = chain(names);
            let read = bounded(&named("server", 0, 0).into(), &sent).unwrap();
            assert_eq!(read, sent);
        }
    }

    #[test]
    fn a_repeated_certificate_is_read_once() {
        let one = chain(&["a"]);
        let sent = vec![one[0].clone(); 9];
        let read = bounded(&named("server", 0, 0).into(), &sent).unwrap();
        assert_eq!(read, one);
    }

    #[test]
    fn what_multiplies_the_paths_is_refused() {
        let why = refusal(&chain(&["a"; 10])).unwrap();
        assert_eq!(
            why,
            "the server sent 11 certificates, and at most 10 are read"
        );
        for names in [&["a", "a", "a", "a"][..], &["a", "a", "b", "b", "c", "c"]] {
            assert!(refusal(&chain(names)).unwrap().contains("the same subject"));
        }
        let large = [named("a", 1, MOST_BYTES).into()];
        assert!(refusal(&large)
            .unwrap()
            .contains("bytes of certificates, and at most 16384"));
    }
}
