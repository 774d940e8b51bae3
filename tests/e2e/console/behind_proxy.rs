//! The console behind a proxy that knows the users, below a path of the proxy's.

mod long {
    use std::net::SocketAddr;

    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
    use tokio::net::{TcpListener, TcpStream};

    use support::Browser;

    use crate::console::stage::Stage;

    const PREFIX: &str = "/ops/tailpost";

    /// A proxy that knows everybody as ada. It takes the prefix away. A connection has one request.
    async fn proxy(to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A browser may go before it has the answer.
                tokio::spawn(async move { forward(client, to).await.ok() });
            }
        });
        address
    }

    async fn forward(client: TcpStream, to: SocketAddr) -> std::io::Result<()> {
        let (mut client, mut head) = (BufReader::new(client), String::new());
        loop {
            let mut line = String::new();
            client.read_line(&mut line).await?;
            match line.trim() {
                "" => break,
                it if it.to_ascii_lowercase().starts_with("connection:") => {}
                _ => head.push_str(&line),
            }
        }
        let head = head.replacen(PREFIX, "", 1);
        let added = "X-Forwarded-User: ada\r\nConnection: close\r\n\r\n";
        let mut server = TcpStream::connect(to).await?;
        server.write_all(format!("{head}{added}").as_bytes()).await?;
        copy_bidirectional(&mut client, &mut server).await.map(|_| ())
    }

    const TRUSTED: (&str, &str) = ("TAILPOST_ADMIN__TRUSTED_PROXY", "127.0.0.1");

    /// Every link, the stream of changes, and what the script asks for have the prefix.
    #[tokio::test(flavor = "multi_thread")]
    async fn pages_below_a_prefix_are_whole_and_live() {
        let stage = Stage::with(&["--base-path", PREFIX], &[TRUSTED]).await;
        let id = stage.refuse("o-1").await;
        let at = proxy(stage.console_port()).await;
        let browser = Browser::start().await;
        browser.go(&format!("http://{at}{PREFIX}/")).await;
        browser.wait_text(".who", "ada (viewer)").await;
        browser.wait_text(".as-of", "live").await;
        browser.wait_text(".needs", "1 dead letter").await;
        browser.assert_sound("behind a proxy").await;
        for (keys, title) in [("gd", "Dead letters"), ("ga", "Audit"), ("gw", "Work")] {
            browser.press(keys).await;
            browser.wait_text("h1", title).await;
            assert!(browser.address().await.contains(PREFIX), "{}", browser.address().await);
        }
        browser.go(&format!("http://{at}{PREFIX}/dead-letters/inbox/{id}?consumer=billing")).await;
        browser.wait_text("main", "422").await;
        assert_eq!(browser.complaints().await, Vec::<String>::new());
    }

    /// A relay's own pages: all users may do what `admin.proxy_role` says, and the audit has the user.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_user_of_the_proxy_acts_under_a_name_of_their_own() {
        let role = ("TAILPOST_ADMIN__PROXY_ROLE", "operator");
        let stage = Stage::with(&[], &[TRUSTED, role]).await;
        let id = stage.poison("o-1").await;
        let at = proxy(stage.relay_port()).await;
        let browser = Browser::start().await;
        browser.go(&format!("http://{at}/dead-letters/relay/{id}")).await;
        browser.wait_text(".who", "ada (operator)").await;
        browser.type_into("#why", "no good").await;
        browser.click("button[formaction$='/discard']").await;
        browser.wait_text("main", "No dead letters").await;
        let actor = "SELECT actor || ': ' || why FROM outbox_dead_letter_audit";
        assert_eq!(stage.env.query::<String>(actor).await, "console for ada: no good");
    }
}
