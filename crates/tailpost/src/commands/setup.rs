use anyhow::Context;
use operate::{SetupPlan, Storage};

use super::setup_report::print;
use crate::cli::SetupArgs;
use crate::config::Settings;
use crate::output;

pub(super) async fn run(args: &SetupArgs, settings: &Settings) -> anyhow::Result<()> {
    let storage = Storage { partitioned: args.partitioned };
    if args.print {
        let mut plan = operate::plan(&settings.plan_config()?, storage);
        if !settings.consumers()?.is_empty() {
            let schema = settings.postgres.table.schema();
            plan.sql += "\n";
            plan.sql += &inbox::render_tables(schema);
        }
        return if args.json { output::json(&plan) } else { output::text(&plan_text(&plan)?) };
    }
    let mut report = operate::setup(&settings.relay_config()?, storage).await?;
    if !settings.consumers()?.is_empty() {
        report.steps.extend(super::inbox::inbox_setup::steps(settings).await?);
    }
    print(&report, args.json)
}

fn plan_text(plan: &SetupPlan) -> anyhow::Result<String> {
    let mut text = format!("{}\n", plan.sql.trim_end());
    for stream in plan.stream.iter().chain(&plan.streams) {
        let stream = serde_json::to_string_pretty(stream).context("could not write JSON")?;
        text +=
            if plan.stream.is_some() { "\n-- The stream:\n" } else { "\n-- A shard's stream:\n" };
        // Still valid input for psql.
        text.extend(stream.lines().map(|line| format!("--   {line}\n")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_stays_valid_sql() {
        let plan = SetupPlan {
            sql: "CREATE TABLE a ();\n".into(),
            stream: Some(serde_json::json!({ "name": "OUTBOX" })),
            streams: Vec::new(),
        };
        let text = plan_text(&plan).expect("valid");
        for line in text.lines().skip(1) {
            assert!(line.is_empty() || line.starts_with("--"), "{line}");
        }
        assert!(text.contains("OUTBOX"), "{text}");
    }
}
