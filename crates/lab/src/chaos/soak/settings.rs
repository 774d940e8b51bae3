//! Somebody changes what both servers set for everybody, and has it read while all is under way.

use anyhow::Result;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Soak;

/// What a session may begin with, and one that there is gets. Not times after which the server ends
/// something: those would end the writers' as well.
const POSTGRES: &[(&str, &str)] = &[
    ("DateStyle", "German"),
    ("IntervalStyle", "sql_standard"),
    ("TimeZone", "Asia/Kathmandu"),
    ("array_nulls", "off"),
    ("bytea_output", "escape"),
    ("cursor_tuple_fraction", "1"),
    ("default_transaction_deferrable", "on"),
    ("enable_hashjoin", "off"),
    ("enable_indexscan", "off"),
    ("enable_partition_pruning", "off"),
    ("escape_string_warning", "on"),
    ("extra_float_digits", "-15"),
    ("from_collapse_limit", "1"),
    ("logical_decoding_work_mem", "64kB"),
    ("plan_cache_mode", "force_generic_plan"),
    ("quote_all_identifiers", "on"),
    ("row_security", "off"),
    ("standard_conforming_strings", "off"),
    ("transform_null_equals", "on"),
    ("wal_sender_timeout", "3s"),
    ("work_mem", "64kB"),
    ("xmlbinary", "hex"),
];

const NATS: &[&str] =
    &["ping_interval: \"1s\"", "write_deadline: \"1s\"", "ping_max: 1", "max_control_line: 8KB"];

impl Soak {
    pub(super) async fn set_postgres(&mut self) -> Result<()> {
        let drawn: Vec<_> = POSTGRES.sample(&mut self.random, 4).collect();
        let told: Vec<String> = drawn.iter().map(|(name, to)| format!("{name} = {to}")).collect();
        self.tell(&format!("PostgreSQL sets {}", told.join(", ")));
        for (name, to) in drawn {
            self.lab.execute(&format!("ALTER SYSTEM SET {name} = '{to}'")).await?;
        }
        self.lab.execute("SELECT pg_reload_conf()").await?;
        match self.random.random_range(0..3) {
            0 => self.kill_relay().await?,
            1 => self.kill_inbox().await?,
            _ => {}
        }
        tokio::time::sleep(self.up_to(3_000)).await;
        self.lab.execute("ALTER SYSTEM RESET ALL").await?;
        self.lab.execute("SELECT pg_reload_conf()").await
    }

    pub(super) async fn set_broker(&mut self) -> Result<()> {
        let drawn: Vec<String> =
            NATS.sample(&mut self.random, 2).map(|it| (*it).to_owned()).collect();
        self.tell(&format!("NATS reads anew, with {}", drawn.join(", ")));
        self.lab.nats.reload(drawn, None).await?;
        tokio::time::sleep(self.up_to(3_000)).await;
        self.lab.nats.reload(Vec::new(), None).await
    }
}
