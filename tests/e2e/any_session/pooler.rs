//! A pooler as PgBouncer is: it knows few start-up parameters, and lends the server's sessions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Requests for encryption have these numbers in the place of a version.
const ENCRYPTIONS: [u32; 2] = [80_877_103, 80_877_104];

/// For how long a client has a session of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lends {
    /// As long as it is connected.
    Sessions,
    /// For a transaction.
    Transactions,
}

/// Listens until it is dropped.
pub(super) struct Pooler {
    pub(super) addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Pooler {
    pub(super) async fn start(server: SocketAddr, lends: Lends) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let addr = listener.local_addr().expect("an address");
        let idle = Arc::default();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, server, lends, Arc::clone(&idle)));
            }
        });
        Self { addr, task }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sessions of the server that nobody has, and what the server says when one begins.
#[derive(Default)]
struct Idle {
    /// The last one is lent first.
    sessions: Mutex<Vec<TcpStream>>,
    greeting: OnceLock<Vec<u8>>,
}

impl Idle {
    fn put(&self, session: TcpStream) {
        self.sessions.lock().expect("not poisoned").push(session);
    }

    /// Opens one if there is none. Trust: the server asks nothing.
    async fn take(&self, server: SocketAddr, startup: &[u8]) -> Option<TcpStream> {
        let idle = self.sessions.lock().expect("not poisoned").pop();
        if idle.is_some() {
            return idle;
        }
        let mut session = TcpStream::connect(server).await.ok()?;
        session.write_all(startup).await.ok()?;
        let mut greeting = Vec::new();
        answer(&mut session, &mut greeting).await?;
        let _ = self.greeting.set(greeting);
        Some(session)
    }
}

/// `None` when either side has gone.
async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    lends: Lends,
    idle: Arc<Idle>,
) -> Option<()> {
    let startup = startup(&mut client).await?;
    let parameters: Vec<_> = startup[8..].split(|it| *it == 0).step_by(2).collect();
    for unknown in ["options", "replication"] {
        if parameters.contains(&unknown.as_bytes()) {
            return refuse(&mut client, unknown).await;
        }
    }
    match lends {
        Lends::Sessions => {
            let mut server = TcpStream::connect(server).await.ok()?;
            server.write_all(&startup).await.ok()?;
            let mut greeting = Vec::new();
            answer(&mut server, &mut greeting).await?;
            client.write_all(&with_own_key(&greeting)).await.ok()?;
            copy_bidirectional(&mut client, &mut server).await.ok().map(|_| ())
        }
        Lends::Transactions => {
            idle.put(idle.take(server, &startup).await?);
            client.write_all(&with_own_key(idle.greeting.get()?)).await.ok()?;
            lend(client, server, &startup, &idle).await
        }
    }
}

/// What cancels is the pooler's, since it may have lent the session to another client by then.
fn with_own_key(greeting: &[u8]) -> Vec<u8> {
    let mut told = greeting.to_vec();
    let key = told.windows(5).position(|it| it == b"K\0\0\0\x0c").expect("a key to cancel with");
    told[key + 5..key + 13].copy_from_slice(b"a client");
    told
}

async fn startup(client: &mut TcpStream) -> Option<Vec<u8>> {
    loop {
        let length = client.read_u32().await.ok()?;
        let mut message = length.to_be_bytes().to_vec();
        message.resize(length as usize, 0);
        client.read_exact(&mut message[4..]).await.ok()?;
        let code = u32::from_be_bytes(message.get(4..8)?.try_into().ok()?);
        if !ENCRYPTIONS.contains(&code) {
            return Some(message);
        }
        client.write_all(b"N").await.ok()?;
    }
}

async fn refuse(client: &mut TcpStream, parameter: &str) -> Option<()> {
    let fields = format!("SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: {parameter}\0\0");
    client.write_all(b"E").await.ok()?;
    client.write_u32(u32::try_from(fields.len() + 4).ok()?).await.ok()?;
    client.write_all(fields.as_bytes()).await.ok()
}

/// A message with its type.
async fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let kind = from.read_u8().await.ok()?;
    let length = from.read_u32().await.ok()?;
    let mut message = vec![kind];
    message.extend(length.to_be_bytes());
    message.resize(1 + length as usize, 0);
    from.read_exact(&mut message[5..]).await.ok()?;
    Some(message)
}

/// Passes on what the server says until it is ready for more; returns whether a transaction is open.
async fn answer(server: &mut TcpStream, client: &mut (impl AsyncWrite + Unpin)) -> Option<bool> {
    loop {
        let message = message(server).await?;
        client.write_all(&message).await.ok()?;
        if message[0] == b'Z' {
            return Some(message[5] != b'I');
        }
    }
}

async fn lend(
    mut client: TcpStream,
    server: SocketAddr,
    startup: &[u8],
    idle: &Idle,
) -> Option<()> {
    let mut lent: Option<TcpStream> = None;
    loop {
        let message = message(&mut client).await?;
        if message[0] == b'X' {
            return lent.map(|it| idle.put(it));
        }
        let mut session = match lent.take() {
            Some(session) => session,
            None => idle.take(server, startup).await?,
        };
        session.write_all(&message).await.ok()?;
        // A query, or the end of a request that has several messages.
        let is_over =
            matches!(message[0], b'Q' | b'S') && !answer(&mut session, &mut client).await?;
        if is_over {
            idle.put(session);
        } else {
            lent = Some(session);
        }
    }
}
