//! W3C Trace Context, as an event's headers carry it: `traceparent` and `tracestate`.

use std::fmt;
use std::str::FromStr;

use super::headers::for_each_header;
use crate::{Event, Malformed};

/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// A longer `tracestate` is left out of spans. The specification asks for 512 characters at least.
const STATE_MAX: usize = 512;

/// Which trace. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Which span of a trace. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

/// A `traceparent` that W3C's rules take for one.
///
/// Any other is data like every header: the event is published with it, and no span uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace that the event belongs to.
    pub trace_id: TraceId,
    /// The span that wrote it.
    pub parent_id: SpanId,
    /// Whether that span is recorded.
    pub is_sampled: bool,
}

/// Where an event comes from, in terms of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// From `traceparent`.
    pub parent: TraceParent,
    /// `tracestate`, which only tracing systems understand. Empty if there is none.
    pub state: String,
}

impl TraceId {
    /// The bytes, unless all are zero.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// As OpenTelemetry's messages have it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// The bytes, unless all are zero.
    #[must_use]
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// As OpenTelemetry's messages have it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        self.0
    }
}

impl FromStr for TraceParent {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        parse(text.as_bytes()).ok_or(Malformed::because("not a traceparent"))
    }
}

/// A version that is not known yet may have more behind a dash; what is known of it is the same.
fn parse(text: &[u8]) -> Option<TraceParent> {
    let (known, more) = text.split_at_checked(LENGTH)?;
    let [version] = hex(&known[..2])?;
    let is_framed = [2, 35, 52].iter().all(|&at| known[at] == b'-');
    let may_end_here = more.is_empty() || version > 0 && more[0] == b'-';
    if version == 0xff || !is_framed || !may_end_here {
        return None;
    }
    let [flags] = hex(&known[53..])?;
    Some(TraceParent {
        trace_id: TraceId::new(hex(&known[3..35])?)?,
        parent_id: SpanId::new(hex(&known[36..52])?)?,
        is_sampled: flags & 1 == 1,
    })
}

/// Lower-case digits only.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |it: u8| match it {
        b'0'..=b'9' => Some(it - b'0'),
        b'a'..=b'f' => Some(it - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, parent_id, is_sampled } = self;
        write!(f, "00-{trace_id}-{parent_id}-{:02x}", u8::from(*is_sampled))
    }
}

impl TraceContext {
    /// What the event's headers say. `None` if they have no `traceparent`, several, or one that is
    /// malformed.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        let (mut parents, mut parent, mut state) = (0, None, String::new());
        for_each_header(event.headers.as_ref()?, |name, value| {
            if name.eq_ignore_ascii_case("traceparent") {
                (parents, parent) = (parents + 1, value.parse().ok());
            } else if name.eq_ignore_ascii_case("tracestate") && value.len() <= STATE_MAX {
                state = value.into_owned();
            }
        })
        .ok()?;
        let parent = parent.filter(|_| parents == 1)?;
        Some(Self { parent, state })
    }

    /// The same, if the event's trace is recorded.
    #[must_use]
    pub fn sampled(event: &Event) -> Option<Self> {
        Self::of(event).filter(|it| it.parent.is_sampled)
    }
}

/// The trace that an event belongs to: what a log line about it names.
#[must_use]
pub fn trace_id(event: &Event) -> Option<TraceId> {
    TraceContext::of(event).map(|it| it.parent.trace_id)
}
