//! Signatures as <https://www.standardwebhooks.com> specifies them: libraries for every language
//! check them.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

const PREFIX: &str = "whsec_";
/// What the specification asks for.
const BYTES_MIN: usize = 24;
const BYTES_MAX: usize = 64;

/// What a service and its callers share: `whsec_` and 24 to 64 bytes in Base64.
///
/// `Debug` does not show it.
#[derive(Clone)]
pub struct Secret {
    key: hmac::Key,
}

/// Why a text is not a secret. Does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a signing secret is whsec_ followed by 24 to 64 bytes in Base64")]
pub struct SecretError;

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let text = text.strip_prefix(PREFIX).ok_or(SecretError)?;
        let bytes = STANDARD.decode(text).map_err(|_| SecretError)?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError);
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) })
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
    let signatures = secrets.iter().map(|secret| {
        let mut context = hmac::Context::with_key(&secret.key);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(payload);
        format!("v1,{}", STANDARD.encode(context.sign()))
    });
    signatures.collect::<Vec<_>>().join(" ")
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

    #[test]
    fn what_is_no_secret_is_refused_and_none_is_shown() {
        for text in [
            "",
            "whsec_",
            "whsec_!",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        ] {
            assert_eq!(text.parse::<Secret>().err(), Some(SecretError), "{text}");
        }
        let long = format!("whsec_{}", STANDARD.encode([0; 65]));
        assert!(long.parse::<Secret>().is_err());
        assert_eq!(format!("{:?}", secret(SECRET)), "Secret");
    }
}
