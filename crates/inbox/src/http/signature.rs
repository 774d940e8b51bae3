//! Signatures as <https://www.standardwebhooks.com> specifies them: libraries for every language
//! check them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair};

const PREFIX: &str = "whsec_";
/// What begins a private key of Ed25519, and its public key.
const PRIVATE_PREFIX: &str = "whsk_";
const PUBLIC_PREFIX: &str = "whpk_";
/// What the specification asks for.
const BYTES_MIN: usize = 24;
const BYTES_MAX: usize = 64;
const SEED_BYTES: usize = 32;

/// What requests are signed with: a secret that a service and its callers share, `whsec_` and 24 to 64
/// bytes in Base64; or a private key of Ed25519, of which services have the public key alone, `whsk_`
/// and its 32 bytes, which the public key may follow.
///
/// `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(Key);

#[derive(Clone)]
enum Key {
    Shared(hmac::Key),
    Private(Arc<Ed25519KeyPair>),
}

/// Why a text is not a secret. Does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a signing secret is whsec_ followed by 24 to 64 bytes in Base64, or whsk_ followed by an Ed25519 key"
)]
pub struct SecretError;

impl Secret {
    /// What services check the signature with, as `whpk_…`; `None` of a shared secret.
    #[must_use]
    pub fn public_key(&self) -> Option<String> {
        match &self.0 {
            Key::Shared(_) => None,
            Key::Private(pair) => {
                Some(format!("{PUBLIC_PREFIX}{}", STANDARD.encode(pair.public_key())))
            }
        }
    }

    fn sign(&self, text: &[u8]) -> String {
        match &self.0 {
            Key::Shared(key) => format!("v1,{}", STANDARD.encode(hmac::sign(key, text))),
            Key::Private(pair) => format!("v1a,{}", STANDARD.encode(pair.sign(text))),
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        if let Some(text) = text.strip_prefix(PRIVATE_PREFIX) {
            let bytes = STANDARD.decode(text).map_err(|_| SecretError)?;
            let (seed, public) = bytes.split_at_checked(SEED_BYTES).ok_or(SecretError)?;
            let pair = match public {
                [] => Ed25519KeyPair::from_seed_unchecked(seed),
                public => Ed25519KeyPair::from_seed_and_public_key(seed, public),
            };
            return pair.map(|it| Self(Key::Private(Arc::new(it)))).map_err(|_| SecretError);
        }
        let text = text.strip_prefix(PREFIX).ok_or(SecretError)?;
        let bytes = STANDARD.decode(text).map_err(|_| SecretError)?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError);
        }
        Ok(Self(Key::Shared(hmac::Key::new(hmac::HMAC_SHA256, &bytes))))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The value of `webhook-signature`: one signature for each secret, separated by spaces.
///
/// `timestamp` is in seconds since 1970, as in `webhook-timestamp`.
pub(super) fn sign(secrets: &[Secret], id: &str, timestamp: i64, payload: &[u8]) -> String {
    let mut text = format!("{id}.{timestamp}.").into_bytes();
    text.extend(payload);
    secrets.iter().map(|it| it.sign(&text)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn secret(text: &str) -> Secret {
        text.parse().expect("a secret")
    }

    /// The vector of the specification's reference libraries.
    #[test]
    fn it_signs_as_the_reference_does() {
        let signature = sign(
            &[secret(SECRET)],
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_signs_while_one_replaces_the_other() {
        let other = secret("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        let both = sign(&[secret(SECRET), other.clone()], "a", 1, b"{}");
        let each = [secret(SECRET), other].map(|it| sign(&[it], "a", 1, b"{}"));
        assert_eq!(both, each.join(" "));
        assert_ne!(each[0], each[1]);
    }

    /// The first vector of RFC 8032, 7.1, whose message is empty, gives the keys.
    #[test]
    fn a_private_key_signs_for_who_has_the_public_one() {
        let bytes = |hex: &str| -> Vec<u8> {
            let pairs = hex.as_bytes().chunks(2).map(|it| std::str::from_utf8(it).expect("hex"));
            pairs.map(|it| u8::from_str_radix(it, 16).expect("hex")).collect()
        };
        let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = bytes("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let key = |bytes: &[u8]| format!("whsk_{}", STANDARD.encode(bytes));
        let (short, long) = (secret(&key(&seed)), secret(&key(&[&*seed, &public].concat())));
        assert_eq!(short.public_key(), Some(format!("whpk_{}", STANDARD.encode(&public))));
        let signed = sign(&[short, secret(SECRET), long], "a", 1, b"{}");
        let signatures: Vec<_> = signed.split(' ').collect();
        assert_eq!(signatures[0], signatures[2]);
        assert!(signatures[1].starts_with("v1,"), "{signed}");
        let signature = STANDARD.decode(signatures[0].strip_prefix("v1a,").expect("asymmetric"));
        let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, &public);
        let signature = signature.expect("Base64");
        assert!(key.verify(b"a.1.{}", &signature).is_ok());
        assert!(key.verify(b"a.2.{}", &signature).is_err());
    }

    #[test]
    fn what_is_no_secret_is_refused_and_none_is_shown() {
        for text in [
            "",
            "whsec_",
            "whsec_!",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
            "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            // Its public key is another's.
            "whsk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==",
        ] {
            assert_eq!(text.parse::<Secret>().err(), Some(SecretError), "{text}");
        }
        let long = format!("whsec_{}", STANDARD.encode([0; 65]));
        assert!(long.parse::<Secret>().is_err());
        assert_eq!(format!("{:?}", secret(SECRET)), "Secret");
    }
}
