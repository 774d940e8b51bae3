//! Shards over a cluster of brokers, each stream in three replicas.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use async_nats::jetstream::{self, Context};
use lab::Port;
use support::{DEADLINE, TestEnv, until};
use tempfile::TempDir;

const STREAMS: [&str; 2] = ["OUTBOX_0", "OUTBOX_1"];

/// How many messages the streams have, if both have a leader.
async fn messages(jetstream: &Context) -> Option<u64> {
    let mut sum = 0;
    for stream in STREAMS {
        sum += jetstream.get_stream(stream).await.ok()?.cached_info().state.messages;
    }
    Some(sum)
}

/// The files in docs/modes.md#several-shards, with addresses and a folder of this machine.
struct Documented {
    folder: TempDir,
    ports: Vec<Port>,
    routes: Vec<Port>,
    servers: Vec<Child>,
}

impl Documented {
    fn start(nats: &Path) -> Self {
        let ports = |_| (0..3).map(|_| Port::reserve().expect("a free port")).collect();
        let [ports, routes] = [0, 1].map(ports);
        let folder = tempfile::tempdir().expect("create a folder");
        let mut documented = Self { folder, ports, routes, servers: Vec::new() };
        for node in 0..3 {
            let server = documented.spawn(nats, node);
            documented.servers.push(server);
        }
        documented
    }

    fn spawn(&self, nats: &Path, node: usize) -> Child {
        let mut text = block("conf", "cluster {");
        for (other, port) in self.routes.iter().enumerate() {
            text = text.replace(&format!("n{}.example:6222", other + 1), &port.addr().to_string());
        }
        let store = self.folder.path().join(format!("store-{node}"));
        let text = text
            .replace("0.0.0.0:4222", &self.ports[node].addr().to_string())
            .replace("0.0.0.0:6222", &self.routes[node].addr().to_string())
            .replace("/var/lib/nats", store.to_str().expect("UTF-8"));
        let path = self.folder.path().join(format!("nats-{node}.conf"));
        fs::write(&path, text).expect("write the configuration");
        let mut command = Command::new(nats);
        command.arg("--config").arg(path).env("NAME", format!("n{}", node + 1));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("start nats-server")
    }

    /// Where `tailpost.toml` is.
    fn relay_config(&self) -> String {
        let mut text = block("toml", "replicas = 3");
        for (node, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("n{}.example:4222", node + 1), &port.addr().to_string());
        }
        let path = self.folder.path().join("tailpost.toml");
        fs::write(&path, text).expect("write the configuration");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Documented {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // Fails only if it has ended.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A block of the page: the one in this language that contains `part`.
fn block(language: &str, part: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/modes.md");
    let page = fs::read_to_string(path).expect("read the page");
    let start = format!("```{language}\n");
    let blocks = page.split(&start).skip(1).filter_map(|it| it.split("\n```").next());
    let mut found = blocks.filter(|it| it.contains(part));
    found.next().expect("the page has such a block").to_owned()
}

/// What the page says about a cluster works as it is written.
#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_that_is_documented_works_and_loses_a_server() {
    let mut env = TestEnv::new().await;
    let mut cluster = Documented::start(env.nats.binary());
    env.set("NATS_URL", ""); // the file says
    let config = cluster.relay_config();
    until(DEADLINE, "the cluster takes streams", async || {
        let setup = env.spawn(&["setup", "--config", &config]);
        setup.announce("");
        setup.wait_exit(DEADLINE).await.success()
    })
    .await;
    let _relay = env.spawn(&["relay", "--config", &config]);
    env.insert(50).await;
    env.wait_marked().await;
    cluster.servers[2].kill().expect("kill a server");
    env.insert(50).await;
    env.wait_marked().await;
    let client = async_nats::connect(cluster.ports[0].addr().to_string()).await.expect("connect");
    let jetstream = jetstream::new(client);
    assert_eq!(messages(&jetstream).await, Some(100));
    for stream in STREAMS {
        let stream = jetstream.get_stream(stream).await.expect("look up the stream");
        assert_eq!(stream.cached_info().config.num_replicas, 3);
    }
}

mod long {
    use super::*;

    /// The server that leads one of the streams, at least, is killed.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_server_of_three_costs_two_shards_nothing() {
        let mut env = TestEnv::replicated().await;
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.set_shards(2);
        env.setup().await;
        let relay = env.relay();
        relay.wait_active_shards(2).await;
        let load = env.load(74, 500.0).await;
        load.wait_committed(200).await;

        let leader = env.nats.leader(STREAMS[0]).await.expect("the stream has a leader");
        env.nats.node_mut(leader).kill().await.expect("kill the leader");
        load.wait_committed(500).await;
        let goal = load.committed();
        let rest = env.nats.node((leader + 1) % 3).jetstream().await.expect("connect to NATS");
        until(DEADLINE, "the others store on", async || messages(&rest).await >= Some(goal)).await;
        env.nats.node_mut(leader).start_again().await.expect("start it again");

        load.wait_committed(200).await;
        for stream in STREAMS {
            env.nats.wait_current(stream).await.expect("all replicas are back");
        }
        let tally = env.finish(load).await;
        assert!(tally.committed > 700, "{tally}");
        assert!(relay.exited().is_none(), "the relay is alive");
    }
}
