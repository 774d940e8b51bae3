//! What operators ask for from outside of a running relay.

pub mod dead_letters;
pub mod explain;
mod inspect;
mod maintain;
pub(crate) mod repair;
mod replay_plan;
mod replay_target;
pub mod replays;
mod report;
mod rewind_holds;
pub(crate) mod setup;
mod slots;
mod spill_files;
mod start_position;
mod verification;

pub use self::inspect::inspect;
pub(crate) use self::maintain::pass;
pub use self::maintain::{MaintainProgress, MaintainReport, maintain};
pub use self::repair::{Repair, repair};
pub use self::report::{
    OutboxReport, RetentionReport, RewindReport, ShardReport, SlotReport, StatusReport,
    StreamReport,
};
pub use self::setup::{SetupPlan, SetupReport, SetupStep, plan, setup};
pub use self::slots::{SlotEntry, create_slot, drop_slot, slots};
pub use self::start_position::check_start;
pub use self::verification::{StreamRead, VerifyOptions, VerifyProgress, VerifyReport, verify};
