//! `tailpost top` in a real terminal, and without one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use lab::Port;
use rustix::process::{Pid, Signal, kill_process};
use support::{DEADLINE, Relay, TestEnv, binary, get, until};
use tempfile::TempDir;

/// A terminal of its own, in which one command runs.
struct Terminal {
    folder: TempDir,
}

/// Where `scripts/servers --all` puts tmux if the machine has none.
fn fetched() -> Option<PathBuf> {
    let program = std::env::current_exe().expect("the test has a path");
    let target = program.ancestors().nth(3).expect("cargo's target folder");
    Some(target.join("servers/tmux")).filter(|it| it.join("tmux").exists())
}

impl Terminal {
    /// Runs `tailpost` with these arguments, and then says how it ended and how it left the terminal.
    fn open(args: &str, variables: &str) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let command = format!(
            "sh -c 'echo $$ > pid; exec env {variables} {} {args}' 2> errors; \
             echo \"exit=$?\"; cat errors; stty -a | tr ';' '\\n' | tail -n 4; exec cat",
            binary().display()
        );
        let terminal = Self { folder };
        let path = terminal.folder.path().display().to_string();
        terminal.tmux(&["new-session", "-d", "-x", "100", "-y", "30", "-c", &path, &command]);
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut tmux = match fetched() {
            Some(folder) => {
                let mut tmux = Command::new(folder.join("tmux"));
                tmux.env("LD_LIBRARY_PATH", folder.join("lib"));
                tmux
            }
            None => Command::new("tmux"),
        };
        tmux.args(["-f", "/dev/null", "-S"]).arg(self.folder.path().join("socket")).args(args);
        tmux.env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        let done = tmux.output().expect("tmux is missing: run `make servers-all`");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "tmux {args:?}: {said}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn resize(&self, width: &str, height: &str) {
        self.tmux(&["resize-window", "-x", width, "-y", height]);
    }

    /// Waits until the screen is so.
    async fn wait(&self, what: &str, mut is_so: impl AsyncFnMut(&str) -> bool) {
        until(DEADLINE, what, async || is_so(&self.screen()).await).await;
    }

    /// That it ended with this code, and that the terminal is as it was.
    async fn wait_restored(&self, code: i32) {
        let ended = format!("exit={code}");
        self.wait("it has ended", async |it| it.contains(&ended) && it.contains("icanon")).await;
        let screen = self.screen();
        for mode in ["icanon", "echo", "isig", "opost"] {
            assert!(screen.split_whitespace().any(|it| it == mode), "{mode}\n{screen}");
        }
        let state = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(state.trim(), "0 1", "the other screen, the cursor\n{screen}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- screen\n{}", self.screen());
        }
        self.tmux(&["kill-server"]);
    }
}

/// The events a second that a screen shows.
fn rate(screen: &str) -> Option<f64> {
    let line = screen.lines().find_map(|it| it.strip_prefix("rate "))?;
    line.split_whitespace().next()?.strip_suffix("/s")?.parse().ok()
}

async fn listening(env: &mut TestEnv) -> (Port, SocketAddr, Relay) {
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    let relay = env.relay();
    until(DEADLINE, "it listens", async || get(port.addr(), "/livez").await.is_some()).await;
    let address = port.addr();
    (port, address, relay)
}

/// One that shows rates, loses the relay, finds it again, and is left with `q`.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_what_the_relay_does_and_when_it_is_gone() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let (_port, relay_at, relay) = listening(&mut env).await;
    let inbox_port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox_port.addr().to_string());
    let run = ["inbox", "run", "--consumer", "billing", "--handler", "http://127.0.0.1:1/"];
    let _inbox = env.spawn(&run);
    let inbox_at = inbox_port.addr();
    let args =
        format!("top --interval 200ms --relay-url http://{relay_at} --inbox-url http://{inbox_at}");
    let terminal = Terminal::open(&args, "");
    let is_busy = async |screen: &str| {
        env.insert(20).await;
        rate(screen).is_some_and(|it| it > 0.0)
    };
    terminal.wait("it shows a rate", is_busy).await;
    terminal
        .wait("it shows the slot and the consumer", async |it| {
            let has = |start: &str, text: &str| {
                it.lines().any(|line| line.starts_with(start) && line.contains(text))
            };
            let all = [("relay", "active"), ("slot", "reserved"), ("dead", "0")];
            all.iter().all(|(start, text)| has(start, text)) && has("billing", "paused") // nobody listens where its handler should be
        })
        .await;
    eprintln!("{}", terminal.screen());

    terminal.resize("40", "10");
    terminal
        .wait("it fits a small terminal", async |it| {
            it.lines().all(|line| line.chars().count() <= 40)
                && it.contains("relay")
                && !it.contains("billing")
        })
        .await;
    terminal.resize("100", "30");

    relay.kill9().await;
    terminal
        .wait("it says that the relay is gone", async |it| {
            it.contains("relay unreachable for")
                && it.to_lowercase().contains("connection refused")
                && it.contains("start `tailpost relay`")
                && it.contains("relay")
        })
        .await;
    eprintln!("{}", terminal.screen());
    let _relay = env.relay();
    terminal
        .wait("it finds the relay again", async |it| {
            env.insert(20).await;
            !it.contains("unreachable") && rate(it).is_some_and(|it| it > 0.0)
        })
        .await;
    terminal.press("q");
    terminal.wait_restored(0).await;
}

/// Whoever stops it gets the terminal back, and a terminal that is to have no colours has none.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_when_it_is_stopped() {
    let port = Port::reserve().expect("a free port");
    let args = format!("top --relay-url http://{}", port.addr());
    for (variables, has_colors) in [("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        let terminal = Terminal::open(&args, variables);
        terminal.wait("it is there", async |it| it.contains("relay unreachable")).await;
        let colored = terminal.tmux(&["capture-pane", "-p", "-e"]);
        // Red, in either of the two ways to say so.
        let is_red =
            colored.contains("38;5;1m") || colored.contains("[31m") || colored.contains(";31m");
        assert_eq!(is_red, has_colors, "{colored:?}");
        let pid = std::fs::read_to_string(terminal.folder.path().join("pid")).expect("its pid");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, Signal::TERM).expect("send a signal");
        terminal.wait_restored(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_one_screen_is_text() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let (_, log) = env.ends_with(4, &["top"]).await;
    assert!(log.contains("status --json") && log.contains("--once"), "{log}");
    let (_port, address, relay) = listening(&mut env).await;
    env.insert(20).await;
    env.wait_marked().await;
    let url = format!("http://{address}");
    let once = ["top", "--once", "--interval", "200ms", "--relay-url", &url];
    let (screen, _) = env.ends_with(0, &once).await;
    assert!(screen.contains("20 stored") && rate(&screen).is_some(), "{screen}");
    assert!(!screen.contains('\u{1b}'), "{screen:?}");
    drop(relay);
    let (screen, log) = env.ends_with(5, &once).await;
    assert!(screen.contains("relay unreachable"), "{screen}");
    assert!(log.contains("could not reach a relay at"), "{log}");
}
