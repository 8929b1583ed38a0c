//! Certificates for the hosts that a sandbox connects to, signed by the authority of this sandbox.
//!
//! The authority's key was made for this sandbox; programs inside trust it, and nothing else does. All
//! certificates share one key, which is made here and never leaves this process.

use ring::digest::{digest, SHA1_FOR_LEGACY_USE_ONLY};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{EcdsaKeyPair, KeyPair, ECDSA_P256_SHA256_ASN1_SIGNING};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::ServerConfig;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The names of the protocols in TLS.
pub const HTTP1: &[u8] = b"http/1.1";
pub const HTTP2: &[u8] = b"h2";

const HOUR: u64 = 3600;
const VALID: u64 = 30 * 24 * HOUR;
/// A certificate is made again long before it expires.
const FRESH: Duration = Duration::from_secs(24 * HOUR);
const MOST_NAMES: usize = 256;

/// What a TLS server uses that offers HTTP/1.1, and one that offers HTTP/2.
#[derive(Clone)]
pub struct Settings {
    pub http1: Arc<ServerConfig>,
    pub http2: Arc<ServerConfig>,
}

pub struct Authority {
    certificate: Vec<u8>,
    subject: Vec<u8>,
    signer: EcdsaKeyPair,
    leaf_key: Vec<u8>,
    leaf_point: Vec<u8>,
    random: SystemRandom,
    made: HashMap<String, (Instant, Settings)>,
}

impl Authority {
    /// `certificate` is DER, `key` its PKCS#8.
    pub fn new(certificate: Vec<u8>, key: &[u8]) -> Option<Authority> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let leaf_key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).ok()?;
        let leaf = EcdsaKeyPair::from_pkcs8(algorithm, leaf_key.as_ref(), &random).ok()?;
        Some(Authority {
            subject: subject_of(&certificate)?.to_vec(),
            certificate,
            signer: EcdsaKeyPair::from_pkcs8(algorithm, key, &random).ok()?,
            leaf_key: leaf_key.as_ref().to_vec(),
            leaf_point: leaf.public_key().as_ref().to_vec(),
            random,
            made: HashMap::new(),
        })
    }

    /// Return what a TLS server with this name uses.
    pub fn server(&mut self, name: &str) -> Option<Settings> {
        let now = Instant::now();
        if let Some((at, config)) = self.made.get(name) {
            if now.duration_since(*at) < FRESH {
                return Some(config.clone());
            }
        }
        let chain = vec![self.leaf(name)?.into(), self.certificate.clone().into()];
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                chain,
                PrivatePkcs8KeyDer::from(self.leaf_key.clone()).into(),
            )
            .ok()?;
        config.alpn_protocols = vec![HTTP1.to_vec()];
        let mut http2 = config.clone();
        http2.alpn_protocols = vec![HTTP2.to_vec()];
        let config = Settings {
            http1: Arc::new(config),
            http2: Arc::new(http2),
        };
        if self.made.len() >= MOST_NAMES {
            self.made.clear();
        }
        self.made.insert(name.to_owned(), (now, config.clone()));
        Some(config)
    }

    fn leaf(&self, name: &str) -> Option<Vec<u8>> {
        let mut serial = [0u8; 16];
        self.random.fill(&mut serial).ok()?;
        serial[0] = serial[0] & 0x7f | 0x40;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let signer = digest(&SHA1_FOR_LEGACY_USE_ONLY, self.signer.public_key().as_ref());
        let extensions = [
            extension(
                &[0x55, 29, 17],
                false,
                &sequence(&tlv(0x82, name.as_bytes())),
            ),
            extension(&[0x55, 29, 19], true, &sequence(&[])),
            extension(&[0x55, 29, 15], true, &[3, 2, 7, 0x80]),
            // Server authentication.
            extension(
                &[0x55, 29, 37],
                false,
                &sequence(&tlv(6, &[0x2b, 6, 1, 5, 5, 7, 3, 1])),
            ),
            extension(
                &[0x55, 29, 35],
                false,
                &sequence(&tlv(0x80, signer.as_ref())),
            ),
        ]
        .concat();
        let common_name = sequence(&[tlv(6, &[0x55, 4, 3]), tlv(12, b"sandkasten")].concat());
        let mut point = vec![0];
        point.extend_from_slice(&self.leaf_point);
        let key = [
            sequence(
                &[
                    tlv(6, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]),
                    tlv(6, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]),
                ]
                .concat(),
            ),
            tlv(3, &point),
        ]
        .concat();
        let algorithm = sequence(&tlv(6, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]));
        let body = sequence(
            &[
                tlv(0xa0, &tlv(2, &[2])),
                tlv(2, &serial),
                algorithm.clone(),
                sequence(&self.subject),
                sequence(&[time(now.saturating_sub(HOUR)), time(now + VALID)].concat()),
                sequence(&tlv(0x31, &common_name)),
                sequence(&key),
                tlv(0xa3, &sequence(&extensions)),
            ]
            .concat(),
        );
        let signature = self.signer.sign(&self.random, &body).ok()?;
        let mut bits = vec![0];
        bits.extend_from_slice(signature.as_ref());
        Some(sequence(&[body, algorithm, tlv(3, &bits)].concat()))
    }
}

/// Return the content of the subject of a certificate.
pub(super) fn subject_of(certificate: &[u8]) -> Option<&[u8]> {
    let (_, outer, _) = split(certificate)?;
    let (_, mut body, _) = split(outer)?;
    // Version, serial number, algorithm, issuer, validity.
    for _ in 0..5 {
        body = split(body)?.2;
    }
    Some(split(body)?.1)
}

/// Return tag, content and rest of the first value.
fn split(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, first) = (*der.first()?, *der.get(1)?);
    let (length, start) = match first {
        0..=0x7f => (usize::from(first), 2),
        0x81 => (usize::from(*der.get(2)?), 3),
        0x82 => (
            usize::from(*der.get(2)?) << 8 | usize::from(*der.get(3)?),
            4,
        ),
        _ => return None,
    };
    let content = der.get(start..start + length)?;
    Some((tag, content, &der[start + length..]))
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        n @ 0..=0x7f => out.push(n as u8),
        n @ 0x80..=0xff => out.extend_from_slice(&[0x81, n as u8]),
        n => out.extend_from_slice(&[0x82, (n >> 8) as u8, n as u8]),
    }
    out.extend_from_slice(content);
    out
}

fn sequence(content: &[u8]) -> Vec<u8> {
    tlv(0x30, content)
}

fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let flag = if critical {
        tlv(1, &[0xff])
    } else {
        Vec::new()
    };
    sequence(&[tlv(6, id), flag, tlv(4, value)].concat())
}

/// Return a time as UTCTime until 2049, and as GeneralizedTime afterwards.
fn time(seconds: u64) -> Vec<u8> {
    let (year, month, day) = date(seconds / 86_400);
    let rest = seconds % 86_400;
    let tail = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        month,
        day,
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    );
    if year < 2050 {
        tlv(0x17, format!("{:02}{}", year % 100, tail).as_bytes())
    } else {
        tlv(0x18, format!("{:04}{}", year, tail).as_bytes())
    }
}

/// Return the date of a day since 1970.
fn date(mut day: u64) -> (u64, u64, u64) {
    let leap = |y: u64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, day + 1)
}

/// Return the outline of a certificate, with a serial number and a key of so many bytes.
#[cfg(test)]
pub(super) fn named(subject: &str, serial: u8, key: usize) -> Vec<u8> {
    let body = [
        tlv(0xa0, &tlv(2, &[2])),
        tlv(2, &[serial]),
        sequence(&[]),
        sequence(&[]),
        sequence(&[]),
        sequence(subject.as_bytes()),
        tlv(3, &vec![0; key]),
    ];
    sequence(&sequence(&body.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_certificates_want_them() {
        assert_eq!(time(0)[2..], b"700101000000Z"[..]);
        assert_eq!(time(1_709_210_096)[2..], b"240229123456Z"[..]);
        assert_eq!(time(2_524_608_000)[2..], b"20500101000000Z"[..]);
    }

    #[test]
    fn lengths_of_each_form_come_back() {
        for n in [0, 1, 127, 128, 255, 256, 4000] {
            let content = vec![7; n];
            let der = tlv(4, &content);
            assert_eq!(split(&der).unwrap(), (4, &content[..], &[][..]));
        }
    }
}
