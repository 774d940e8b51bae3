//! A real Prometheus, which scrapes what a test runs and evaluates rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lab::{Port, Process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait::{DEADLINE, until};

/// How long a value counts that is not scraped any more. Prometheus' own is 5 minutes.
const LOOKBACK: &str = "--query.lookback-delta=10s";

/// The token that it shows to whoever asks for one.
pub const SCRAPER: &str = "scraper-s3cret";

/// A running Prometheus that scrapes and evaluates twice a second. It is gone when this is dropped.
pub struct Prometheus {
    process: Process,
    port: Port,
    started: Instant,
    _folder: TempDir,
}

/// `promtool`.
///
/// # Panics
///
/// When there is none.
pub fn promtool() -> PathBuf {
    binaries().join("promtool")
}

fn binaries() -> PathBuf {
    lab::prometheus_binaries().expect("Prometheus is there")
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("write a file for Prometheus");
}

impl Prometheus {
    /// Starts one that scrapes these jobs and evaluates `rules`; returns when it answers. `flags`
    /// are its own.
    ///
    /// # Panics
    ///
    /// When there is none, or it does not start.
    pub async fn start(jobs: &[(&str, SocketAddr)], rules: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for Prometheus");
        let mut config = "global: { scrape_interval: 500ms, evaluation_interval: 500ms }\n\
                          rule_files: [rules.yml]\nscrape_configs:\n"
            .to_owned();
        for (job, address) in jobs {
            let target = format!("static_configs: [{{ targets: [\"{address}\"] }}]");
            let target = format!("authorization: {{ credentials: {SCRAPER} }}, {target}");
            let _ = writeln!(config, "  - {{ job_name: {job}, {target} }}");
        }
        write(folder.path(), "prometheus.yml", &config);
        write(folder.path(), "rules.yml", rules);
        let port = Port::reserve().expect("a free port");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let own = [
            format!("--config.file={}", path("prometheus.yml")),
            format!("--storage.tsdb.path={}", path("data")),
            format!("--web.listen-address={}", port.addr()),
            LOOKBACK.to_owned(),
        ];
        let own = own.iter().map(String::as_str);
        let args: Vec<&str> = own.chain(flags.iter().copied()).collect();
        let process = Process::start(&binaries().join("prometheus"), &args, &[]);
        let process = process.expect("start Prometheus");
        let started = Instant::now();
        let prometheus = Self { process, port, started, _folder: folder };
        until(DEADLINE, "Prometheus is ready", async || {
            prometheus.ask("GET", "/-/ready", "").await.is_some_and(|it| it.contains("200 OK"))
        })
        .await;
        prometheus
    }

    /// What an instant query gives: the labels and the value of each sample.
    ///
    /// # Panics
    ///
    /// When Prometheus refuses the query.
    pub async fn query(&self, expression: &str) -> Vec<(BTreeMap<String, String>, f64)> {
        let body = format!("query={}", escaped(expression));
        let answer = self.json("POST", "/api/v1/query", &body).await;
        assert_eq!(answer["status"], "success", "{expression}\n{answer}");
        let Value::Array(samples) = &answer["data"]["result"] else {
            panic!("{expression} gives no vector:\n{answer}");
        };
        let sample = |it: &Value| {
            let value = it["value"][1].as_str().expect("a value").parse().expect("a number");
            (labels(&it["metric"]), value)
        };
        samples.iter().map(sample).collect()
    }

    /// The alerts that fire: for each the labels, with its name, and the annotations.
    pub async fn firing(&self) -> Vec<(BTreeMap<String, String>, BTreeMap<String, String>)> {
        let answer = self.json("GET", "/api/v1/alerts", "").await;
        let Value::Array(alerts) = &answer["data"]["alerts"] else { panic!("no alerts: {answer}") };
        let firing = alerts.iter().filter(|it| it["state"] == "firing");
        firing.map(|it| (labels(&it["labels"]), labels(&it["annotations"]))).collect()
    }

    /// The names of those.
    pub async fn names_firing(&self) -> BTreeSet<String> {
        let firing = self.firing().await;
        firing
            .into_iter()
            .map(|(mut labels, _)| labels.remove("alertname").expect("a name"))
            .collect()
    }

    /// Waits until all of these fire.
    ///
    /// # Panics
    ///
    /// When they do not, or an annotation of theirs is broken.
    pub async fn wait_firing(&self, names: &[&str]) {
        let mut missing = Vec::new();
        until(DEADLINE, &format!("{names:?} fire"), async || {
            let firing = self.names_firing().await;
            let now: Vec<_> = names.iter().filter(|it| !firing.contains(**it)).collect();
            if now != missing {
                eprintln!("{:.1?}: firing {firing:?}, missing {now:?}", self.started.elapsed());
                missing = now;
            }
            missing.is_empty()
        })
        .await;
        for (labels, annotations) in self.firing().await {
            for (name, text) in annotations {
                let broken = text.contains("<error") || text.contains("<no value>");
                assert!(!broken, "{name} of {labels:?}: {text}");
            }
        }
    }

    /// Waits until none of these fires.
    ///
    /// # Panics
    ///
    /// When one does all the time.
    pub async fn wait_ended(&self, names: &[&str]) {
        let mut left = Vec::new();
        until(DEADLINE, &format!("{names:?} end"), async || {
            let firing = self.names_firing().await;
            let now: Vec<_> = names.iter().filter(|it| firing.contains(**it)).collect();
            if now != left {
                eprintln!("{:.1?}: still firing {now:?}", self.started.elapsed());
                left = now;
            }
            left.is_empty()
        })
        .await;
    }

    async fn json(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.ask(method, path, body).await.expect("Prometheus answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}:\n{body}"))
    }

    /// HTTP/1.0, so that answers come in one piece.
    async fn ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.port.addr()).await.ok()?;
        let form = "Content-Type: application/x-www-form-urlencoded";
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.0\r\n{form}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.process.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(10)..];
            eprintln!("--- log of Prometheus\n{}", tail.join("\n"));
        }
    }
}

fn labels(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.map(|(name, it)| (name.clone(), it.as_str().unwrap_or_default().to_owned())).collect()
}

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        let _ = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => write!(escaped, "{}", char::from(byte)),
            _ => write!(escaped, "%{byte:02X}"),
        };
        escaped
    })
}
