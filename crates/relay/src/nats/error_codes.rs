//! JetStream's error codes, named as in nats-server's errors.json.

pub(super) const ACCOUNT_RESOURCES_EXCEEDED: u32 = 10_002;
pub(super) const STREAM_MESSAGE_EXCEEDS_MAXIMUM: u32 = 10_054;
pub(super) const STREAM_NOT_FOUND: u32 = 10_059;
pub(super) const STREAM_NOT_MATCH: u32 = 10_060;
pub(super) const STREAM_WRONG_LAST_MESSAGE_ID: u32 = 10_070;
pub(super) const STREAM_WRONG_LAST_SEQUENCE: u32 = 10_071;
pub(super) const STREAM_STORE_FAILED: u32 = 10_077;
pub(super) const STREAM_HEADER_EXCEEDS_MAXIMUM: u32 = 10_097;
pub(super) const STREAM_SEALED: u32 = 10_109;
pub(super) const STREAM_ROLLUP_FAILED: u32 = 10_111;
pub(super) const NO_LIMITS: u32 = 10_120;
pub(super) const STREAM_WRONG_LAST_SEQUENCE_CONSTANT: u32 = 10_164;
pub(super) const MESSAGE_TTL_INVALID: u32 = 10_165;
pub(super) const MESSAGE_TTL_DISABLED: u32 = 10_166;
/// The first of five about counters, and the last.
pub(super) const MESSAGE_INCR_DISABLED: u32 = 10_168;
pub(super) const MESSAGE_COUNTER_BROKEN: u32 = 10_172;
pub(super) const ATOMIC_PUBLISH_DISABLED: u32 = 10_174;
pub(super) const REQUIRED_API_LEVEL: u32 = 10_185;
/// The first of five about schedules.
pub(super) const MESSAGE_SCHEDULES_DISABLED: u32 = 10_188;
/// Behind the last of them.
pub(super) const STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID: u32 = 10_193;
pub(super) const MESSAGE_SCHEDULES_SOURCE_INVALID: u32 = 10_203;
pub(super) const BATCH_PUBLISH_DISABLED: u32 = 10_205;
pub(super) const BATCH_PUBLISH_INVALID_PATTERN: u32 = 10_206;
pub(super) const BATCH_PUBLISH_INVALID_BATCH_ID: u32 = 10_207;
pub(super) const BATCH_PUBLISH_UNKNOWN_BATCH_ID: u32 = 10_208;
pub(super) const BATCH_PUBLISH_TOO_MANY_INFLIGHT: u32 = 10_211;
pub(super) const MESSAGE_SCHEDULES_SCHEDULE_INVALID: u32 = 10_212;
pub(super) const MESSAGE_SCHEDULES_TIME_ZONE_INVALID: u32 = 10_223;
pub(super) const STREAM_SOURCE_HEADER_NOT_ALLOWED: u32 = 10_227;
