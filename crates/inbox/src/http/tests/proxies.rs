//! A forward proxy between.

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::*;

/// A proxy that remembers how each request to it begins, and says this to CONNECT. Where that is 200
/// it connects, whatever it was asked for, to `to`.
async fn proxy(says: &'static str, to: SocketAddr) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://ada:s%3Acret@{}", listener.local_addr().expect("an address"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 8192];
            let n = stream.read(&mut request).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&request[..n]).into_owned();
            let is_tunnel = text.starts_with("CONNECT");
            heard.lock().expect("not poisoned").push(text);
            let mut service = TcpStream::connect(to).await.expect("the service");
            if is_tunnel {
                let answer = format!("HTTP/1.1 {says}\r\nVia: test\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            } else {
                let _ = service.write_all(&request[..n]).await;
            }
            tokio::spawn(async move {
                let _ = copy_bidirectional(&mut stream, &mut service).await;
            });
        }
    });
    (url, asked)
}

fn through(proxy: &str, url: &str, tls: Option<ClientConfig>) -> HttpHandler {
    let proxy = Some(proxy.parse().expect("a proxy"));
    HttpHandler::new(HttpOptions { proxy, tls, ..options(url) }).expect("valid options")
}

// "ada:s:cret"
const LOGIN: &str = "Basic YWRhOnM6Y3JldA==";

#[tokio::test]
async fn a_proxy_is_asked_for_each_request_in_the_clear() {
    let service = Service::status(200).await;
    let (proxy, asked) = proxy("200 OK", service.address).await;
    let verdict = deliver(&through(&proxy, "http://orders.example/new", None)).await;
    assert_eq!(kind(&verdict), Kind::Processed, "{verdict:?}");
    let asked = asked.lock().expect("not poisoned")[0].to_lowercase();
    assert!(asked.starts_with("post http://orders.example/new http/1.1\r\n"), "{asked}");
    assert!(asked.contains(&format!("proxy-authorization: {LOGIN}").to_lowercase()), "{asked}");
    assert_eq!(service.seen()[0].headers["host"], "orders.example");
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_tunnel_to_a_service_behind_tls() {
    let (address, trusted) = tls_server().await;
    let (proxy, asked) = proxy("200 Connection established", address).await;
    let url = "https://localhost/new";
    let verdict = deliver(&through(&proxy, url, Some(trusted))).await;
    assert_eq!(kind(&verdict), Kind::Processed, "{verdict:?}");
    let asked = asked.lock().expect("not poisoned")[0].clone();
    let expected = format!(
        "CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\nProxy-Authorization: {LOGIN}\r\n\r\n"
    );
    assert_eq!(asked, expected, "no header of the event's");
}

/// It says nothing about the event.
#[tokio::test]
async fn what_a_proxy_refuses_is_an_outage() {
    let (address, trusted) = tls_server().await;
    for says in ["403 Forbidden", "407 Proxy Authentication Required", "500 Oops", "nonsense"] {
        let (proxy, _) = proxy(says, address).await;
        let verdict = deliver(&through(&proxy, "https://localhost/", Some(trusted.clone()))).await;
        let Verdict::Outage { reason, .. } = verdict else { panic!("{says}: {verdict:?}") };
        assert!(
            reason.contains("the proxy http://127.0.0.1:") && reason.contains(says),
            "{reason}"
        );
        assert!(!reason.contains("cret"), "{reason}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gone = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    for url in ["http://a.example", "https://localhost"] {
        let verdict = deliver(&through(&gone, url, Some(trusted.clone()))).await;
        let Verdict::Outage { reason, .. } = verdict else { panic!("{url}: {verdict:?}") };
        assert!(reason.contains("the proxy") && reason.contains("refused"), "{reason}");
    }
}

#[test]
fn what_is_no_proxy_is_refused() {
    for text in ["", "a:1", "https://a:1", "http://", "http://a/b", "http://a?b", "http://ada:pw@"]
    {
        assert!(text.parse::<Proxy>().is_err(), "{text}");
    }
    let shown = format!("{:?}", "http://ada:s3cret@a:1".parse::<Proxy>());
    assert!(shown.contains("http://a:1") && !shown.contains("s3cret"), "{shown}");
}
