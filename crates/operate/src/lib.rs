//! What operators do beside a running relay and inbox: `setup`, `status`, `doctor`, `verify`,
//! replays, dead letters, retention. Nothing here is on the way of an event.

pub mod audit;
pub mod checks;
pub mod consumers;
mod day_partitions;
pub mod dead_letters;
mod doctor;
pub mod event_search;
pub mod explain;
mod horizon;
mod inspect;
mod maintain;
mod partitioning;
mod prepare_upgrade;
mod repair;
mod replay_plan;
mod replay_target;
pub mod replays;
mod report;
mod retire;
mod rewind_holds;
pub mod rewind_slot;
mod setup;
mod slots;
mod spill_files;
mod sql;
mod start_position;
mod upgrade_steps;
pub mod upkeep;
mod verification;
pub mod verify_rules;
pub mod waiting;
mod whole_stream;

pub use self::doctor::{
    Canary, Inspected, Legs, canaries, doctor, doctor_checks, doctor_of_consumers, exclusive_lock,
};
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
pub use self::rewind_slot::RewindStatus;
pub use self::setup::{SetupPlan, SetupReport, SetupStep, Storage, plan, setup};
pub use self::slots::{OpenTransaction, SlotEntry, Slots, create_slot, drop_slot, slots};
pub use self::sql::{PartitionEntry, RewindNotes, inbox_partitions, outbox_partitions};
pub use self::start_position::check_start;
pub use self::upgrade_steps::UpgradeStep;
pub use self::upkeep::RetentionStatus;
pub use self::verification::{StreamRead, VerifyOptions, VerifyProgress, VerifyReport, verify};
