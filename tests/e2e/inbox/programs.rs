//! Programs of `examples/`, with the public libraries that they use.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, Relay, until};
use tokio::net::TcpStream;

/// Where `scripts/servers --all` puts the libraries of a folder, below `target`.
fn libraries(folder: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the test has a path");
    let servers = program.ancestors().nth(3).expect("cargo's target folder").join("servers");
    let found = servers.join(folder);
    let missing = "the libraries of the examples are missing: run `make servers-all`";
    assert!(found.exists(), "{missing}; looked in {}", found.display());
    found
}

/// Starts a program of a folder of `examples/`, or of another place with its libraries.
pub(super) fn start(
    folder: &str,
    file: &Path,
    args: &[&str],
    variables: &[(String, String)],
) -> Relay {
    let program = match file.extension().and_then(|it| it.to_str()) {
        Some("py") => "python3",
        Some("js") => "node",
        other => panic!("nothing runs {other:?}"),
    };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder);
    let file = examples.join(file); // or `file` itself, if it is absolute
    let libraries = libraries(folder);
    let mut variables = variables.to_vec();
    variables.push(("PYTHONPATH".to_owned(), libraries.display().to_string()));
    variables.push(("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()));
    let modules = libraries.join("node_modules");
    variables.push(("NODE_PATH".to_owned(), modules.display().to_string()));
    let args = [&[file.to_str().expect("Unicode")], args].concat();
    let process = Relay::spawn_program(Path::new(program), &args, &variables);
    process.announce(""); // what it does tells
    process
}

/// A program that listens, and prints what it took, a JSON object a line.
pub(super) struct Program {
    process: Relay,
    port: Port,
}

impl Program {
    /// Its arguments are a port of its own and `more`.
    pub(super) async fn start(
        folder: &str,
        file: &str,
        more: &[&str],
        variables: &[(String, String)],
    ) -> Self {
        let port = Port::reserve().expect("a free port");
        let number = port.number().to_string();
        let process = start(folder, Path::new(file), &[&[&*number], more].concat(), variables);
        let program = Self { process, port };
        until(DEADLINE, &format!("{file} listens"), async || {
            let ended = program.process.exited();
            assert!(ended.is_none(), "{file} ended: {}", program.process.log());
            TcpStream::connect(program.address()).await.is_ok()
        })
        .await;
        program
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.addr()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address())
    }

    pub(super) fn lines(&self) -> Vec<Value> {
        let stdout = self.process.stdout();
        stdout.lines().filter_map(|it| serde_json::from_str(it).ok()).collect()
    }
}
