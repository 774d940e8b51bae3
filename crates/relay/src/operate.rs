//! What operators ask for from outside of a running relay.

pub mod dead_letters;
mod doctor;
pub mod event_search;
pub mod explain;
mod inspect;
mod maintain;
mod partitioning;
mod prepare_upgrade;
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
mod upgrade_steps;
mod verification;

pub use self::doctor::{Canary, Legs, canaries, doctor, doctor_checks};
pub use self::inspect::inspect;
pub use self::maintain::{
    HeldPartition, MaintainProgress, MaintainReport, PartitionsReport, maintain,
};
pub(crate) use self::maintain::{covered_until, is_short, make_ahead, pass};
pub use self::prepare_upgrade::{UpgradeReport, UpgradeSlot, prepare_upgrade};
pub use self::repair::{Repair, repair};
pub use self::report::{
    LostReport, OutboxReport, PartitionsStatus, RetentionReport, RewindReport, ShardReport,
    SlotReport, StatusReport, StreamReport,
};
pub use self::setup::{SetupPlan, SetupReport, SetupStep, Storage, plan, setup};
pub use self::slots::{SlotEntry, create_slot, drop_slot, slots};
pub use self::start_position::check_start;
pub use self::upgrade_steps::UpgradeStep;
pub use self::verification::{StreamRead, VerifyOptions, VerifyProgress, VerifyReport, verify};
