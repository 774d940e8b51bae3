mod upgrade_plan;

use std::fmt::Write;

use operate::SlotEntry;
use relay::Config;

use super::status::bytes;
use crate::cli::SlotCommand;
use crate::config::Settings;
use crate::output;

pub(super) async fn run(command: &SlotCommand, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.relay_config()?;
    match command {
        SlotCommand::List(args) => {
            let shown = operate::slots(&config).await?;
            output::show(args.json, &shown, || table(&shown.slots))
        }
        SlotCommand::Create => {
            for shard in config.each_shard() {
                let state = if operate::create_slot(&shard).await? { "created" } else { "exists" };
                output::text(&format!("{state:<8} slot {}", shard.slot))?;
            }
            Ok(())
        }
        SlotCommand::Drop(args) => drop_slots(&config.each_shard(), args.force).await,
        SlotCommand::PrepareUpgrade(args) => upgrade_plan::run(args, &config).await,
    }
}

/// Of several, some may be gone.
async fn drop_slots(shards: &[Config], force: bool) -> anyhow::Result<()> {
    let mut dropped = 0;
    let mut missing = None;
    for shard in shards {
        match operate::drop_slot(shard, force).await {
            Ok(()) => {
                dropped += 1;
                output::text(&format!("dropped  slot {}", shard.slot))?;
            }
            Err(error @ relay::Error::NotSetUp { .. }) => missing = missing.or(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
    missing.filter(|_| dropped == 0).map_or(Ok(()), |error| Err(error.into()))
}

fn table(slots: &[SlotEntry]) -> String {
    let mut text = String::new();
    for slot in slots {
        let mark = if slot.is_configured { '*' } else { ' ' };
        let database = slot.database.as_deref().unwrap_or("(physical)");
        let state = if slot.active { "active" } else { "not active" };
        let wal = slot.wal_status.as_deref().unwrap_or("unknown");
        let kept = bytes(slot.retained_bytes);
        writeln!(text, "{mark} {:<24} {database:<16} {state:<10} WAL {wal}, {kept}", slot.name)
            .expect("writing to a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_slot_is_marked() {
        let slot = |name: &str, database: Option<&str>, is_configured| SlotEntry {
            name: name.into(),
            is_configured,
            database: database.map(str::to_owned),
            active: is_configured,
            wal_status: Some("reserved".into()),
            retained_bytes: 2048,
        };
        let slots = [slot("standby_1", None, false), slot("tailpost", Some("shop"), true)];
        let expected = [
            "  standby_1                (physical)       not active WAL reserved, 2.0 KiB\n",
            "* tailpost                 shop             active     WAL reserved, 2.0 KiB\n",
        ];
        assert_eq!(table(&slots), expected.concat());
    }
}
