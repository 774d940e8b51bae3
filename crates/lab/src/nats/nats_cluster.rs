//! A throw-away cluster of NATS servers, and the network between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use async_nats::jetstream;
use futures_util::future::try_join_all;
use serde_json::Value;

use super::{Nats, NatsOptions};
use crate::port::Port;
use crate::proxy::Proxy;

const NODES: usize = 3;

/// An election takes 4 to 9 seconds after a leader has died.
const LEADER_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// The JetStream error of a stream that does not exist.
const NOT_FOUND: u32 = 10059;

/// A port on which nobody listens.
const NOBODY: u16 = 1;

/// An answer of a server that is cut off does not come: another one is asked then.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Three NATS servers with JetStream that keep streams in up to three replicas.
///
/// Clients reach every server directly. Each pair of servers talks through a [`Proxy`], so that one
/// of them can be isolated: [`NatsCluster::isolate`].
pub struct NatsCluster {
    nodes: Vec<Nats>,
    links: Vec<Link>,
    // Hold the servers' route ports.
    _ports: Vec<Port>,
}

/// The way between two servers. The second one connects: if both did, they would spend the first
/// seconds on closing connections that they do not need.
struct Link {
    between: [usize; 2],
    proxy: Proxy,
}

impl NatsCluster {
    /// Starts three servers alike; returns when JetStream has a leader and takes streams of three
    /// replicas.
    ///
    /// # Errors
    ///
    /// As for [`Nats::start`].
    pub async fn start(options: NatsOptions) -> Result<Self> {
        Self::of([options.clone(), options.clone(), options]).await
    }

    /// Starts three servers, each in its own way, such as in another version.
    ///
    /// # Errors
    ///
    /// As for [`Nats::start`].
    pub async fn of(options: [NatsOptions; NODES]) -> Result<Self> {
        let ports: Vec<Port> = (0..NODES).map(|_| Port::reserve()).collect::<Result<_>>()?;
        let mut links = Vec::new();
        for second in 1..NODES {
            for (first, port) in ports.iter().enumerate().take(second) {
                let proxy = Proxy::start(port.addr()).await?;
                links.push(Link { between: [first, second], proxy });
            }
        }
        let prepare = |node: usize| {
            let routes = links.iter().filter(|link| link.between[1] == node);
            let routes = routes.map(|link| link.proxy.addr()).collect();
            let mut options = options[node].clone();
            options.config.extend(membership(ports[node].addr(), routes));
            Nats::prepare(&options)
        };
        let nodes: Vec<Nats> = (0..NODES).map(prepare).collect::<Result<_>>()?;
        let mut cluster = Self { nodes, links, _ports: ports };
        try_join_all(cluster.nodes.iter_mut().map(Nats::start_again)).await?;
        cluster.whole().await.context("wait for the cluster")?;
        Ok(cluster)
    }

    /// The servers' URLs, separated by commas.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Nats::url).collect();
        urls.join(",")
    }

    /// One of the servers, from 0 to 2.
    ///
    /// # Panics
    ///
    /// When there is no such server.
    pub fn node(&self, node: usize) -> &Nats {
        &self.nodes[node]
    }

    /// One of the servers, to be killed, stopped, paused or started again.
    ///
    /// # Panics
    ///
    /// When there is no such server.
    pub fn node_mut(&mut self, node: usize) -> &mut Nats {
        &mut self.nodes[node]
    }

    /// What the servers logged so far, one after the other.
    pub fn log(&self) -> String {
        self.nodes.iter().map(Nats::log).collect()
    }

    /// Connects to any of the servers that is there, for JetStream. The client goes to another one
    /// when its own is gone.
    ///
    /// # Errors
    ///
    /// When no server takes the connection.
    pub async fn jetstream(&self) -> Result<jetstream::Context> {
        let client = async_nats::connect(self.urls().split(',').collect::<Vec<_>>()).await;
        Ok(jetstream::new(client.context("connect to the NATS cluster")?))
    }

    /// Waits until the stream has a leader that a server which is up and not isolated can name;
    /// returns which server it is.
    ///
    /// # Errors
    ///
    /// When there is none within a minute, or no such stream.
    pub async fn leader(&self, stream: &str) -> Result<usize> {
        let subject = format!("$JS.API.STREAM.INFO.{stream}");
        let named = |answer: &Value| {
            let name = answer.pointer("/cluster/leader")?.as_str()?;
            self.nodes.iter().position(|node| node.name() == name)
        };
        self.ask_until(&subject, named).await.with_context(|| format!("find {stream}'s leader"))
    }

    /// Waits until all servers are there, and the stream's replicas have all of it.
    ///
    /// # Errors
    ///
    /// When they are not within a minute.
    pub async fn wait_current(&self, stream: &str) -> Result<()> {
        self.whole().await.context("wait for the cluster")?;
        let subject = format!("$JS.API.STREAM.INFO.{stream}");
        let current = |answer: &Value| {
            let replicas = answer.pointer("/cluster/replicas")?.as_array()?;
            let current = |it: &&Value| it["current"] == true && it["offline"] != true;
            let count = replicas.iter().filter(current).count();
            (count + 1 == NODES && answer.pointer("/cluster/leader").is_some()).then_some(())
        };
        self.ask_until(&subject, current).await.with_context(|| format!("wait for {stream}"))
    }

    /// Asks the stream's leader to hand over to another server. Whether it has is not waited for.
    ///
    /// # Errors
    ///
    /// When it does not agree within a minute.
    pub async fn step_down(&self, stream: &str) -> Result<()> {
        let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
        let agreed = |answer: &Value| (answer["success"] == true).then_some(());
        self.ask_until(&subject, agreed).await.with_context(|| format!("depose {stream}'s leader"))
    }

    /// Cuts a server off from the other two, until [`NatsCluster::rejoin`]. Clients still reach it.
    ///
    /// # Panics
    ///
    /// When there is no such server.
    pub async fn isolate(&mut self, node: usize) {
        assert!(node < NODES, "server {node} of {NODES}");
        for link in self.links.iter_mut().filter(|link| link.between.contains(&node)) {
            link.proxy.cut().await;
        }
    }

    /// Ends every isolation.
    ///
    /// # Errors
    ///
    /// When a proxy cannot listen on its port again.
    pub async fn rejoin(&mut self) -> Result<()> {
        for link in &mut self.links {
            link.proxy.restore().await?;
        }
        Ok(())
    }

    /// Waits until the leader of the cluster sees all servers: until then there is no place for
    /// three replicas.
    async fn whole(&self) -> Result<()> {
        const PROBE: &str = "TESTBED_PROBE";
        let config = serde_json::json!({ "name": PROBE, "storage": "memory", "num_replicas": 3 });
        let created = |answer: &Value| answer.get("config").map(|_| ());
        let create = format!("$JS.API.STREAM.CREATE.{PROBE}");
        self.request_until(&create, &config.to_string(), created).await?;
        // Gone already, if the answer to an earlier attempt was lost.
        let is_gone = |it: &Value| it["success"] == true || it["error"]["err_code"] == NOT_FOUND;
        let deleted = |answer: &Value| is_gone(answer).then_some(());
        self.ask_until(&format!("$JS.API.STREAM.DELETE.{PROBE}"), deleted).await
    }

    async fn ask_until<T>(&self, subject: &str, wanted: impl Fn(&Value) -> Option<T>) -> Result<T> {
        self.request_until(subject, "", wanted).await
    }

    /// Asks one server after the other until one gives the wanted answer.
    async fn request_until<T>(
        &self,
        subject: &str,
        payload: &str,
        wanted: impl Fn(&Value) -> Option<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let mut last = String::from("no server answers");
        for node in self.nodes.iter().cycle() {
            let asked = tokio::time::timeout(ANSWER_MAX, request(node, subject, payload)).await;
            if let Ok(Ok(answer)) = asked {
                if let Some(wanted) = wanted(&answer) {
                    return Ok(wanted);
                }
                last = answer.to_string();
            }
            if started.elapsed() > LEADER_DEADLINE {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("not within {LEADER_DEADLINE:?}; the last answer was: {last}")
    }
}

async fn request(node: &Nats, subject: &str, payload: &str) -> Result<Value> {
    let client = node.client().await?;
    let answer = client.request(subject.to_owned(), payload.to_owned().into()).await?;
    Ok(serde_json::from_slice(&answer.payload)?)
}

/// The lines that make a server one of the cluster.
fn membership(listen: SocketAddr, mut routes: Vec<SocketAddr>) -> Vec<String> {
    // A server without any route refuses to be one of a cluster. One to itself it drops.
    if routes.is_empty() {
        routes.push(listen);
    }
    let routes: Vec<String> = routes.iter().map(|it| format!("\"nats://{it}\"")).collect();
    vec![
        "cluster {".to_owned(),
        "name: \"lab\"".to_owned(),
        format!("listen: \"{listen}\""),
        // Servers tell each other where the others are, and would go past the proxies.
        format!("advertise: \"{}\"", SocketAddr::from((Ipv4Addr::LOCALHOST, NOBODY))),
        // Clients keep to the servers that they were told of.
        "no_advertise: true".to_owned(),
        format!("routes: [{}]", routes.join(", ")),
        "}".to_owned(),
    ]
}
