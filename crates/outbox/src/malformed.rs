use std::borrow::Cow;

/// Why a text or a message is not what it should be. Says what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(Cow<'static, str>);

impl Malformed {
    pub(crate) const fn because(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }
}

impl From<String> for Malformed {
    fn from(reason: String) -> Self {
        Self(Cow::Owned(reason))
    }
}
