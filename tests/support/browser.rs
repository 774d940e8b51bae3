//! A real browser without a window, driven over WebDriver.
//!
//! The protocol is JSON over HTTP, of which tests need ten requests: no client library.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::{Port, Process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::wait::{DEADLINE, until};

/// Pinned in scripts/servers.
const AXE: &str = "axe-core-4.14.1/axe.min.js";

/// How long the driver may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// What the browser says while it goes from one page to another.
const BETWEEN_PAGES: [&str; 2] = ["Not attached to an active page", "with 0 width"];

/// The browser ends when the driver does, however that ends: it asks the browser through a pipe.
const PIPE: &str = "--remote-debugging-pipe";

/// How an element is named in an answer.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page. It is gone when this is dropped.
pub struct Browser {
    process: Process,
    pid: u64,
    driver: SocketAddr,
    _port: Port,
    session: String,
}

/// Cargo's target folder, in which `scripts/servers` puts what it fetches.
fn servers() -> PathBuf {
    let program = std::env::current_exe().expect("the test has a path");
    program.ancestors().nth(3).expect("cargo's target folder").join("servers")
}

/// The folder of `chromium` and `chromedriver`, in the places where `scripts/servers` looks.
fn binaries() -> PathBuf {
    let given = std::env::var_os("TAILPOST_CHROMIUM_BIN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).collect::<Vec<_>>();
    let places = given.into_iter().chain([servers().join("chromium")]).chain(on_path);
    let is_there =
        |it: &PathBuf| it.join("chromium").is_file() && it.join("chromedriver").is_file();
    places.into_iter().find(is_there).expect(
        "Chromium and its driver are missing: run `scripts/servers --chromium`, or `make servers-all`",
    )
}

impl Browser {
    /// Starts one.
    ///
    /// # Panics
    ///
    /// When there is none, or it does not start.
    pub async fn start() -> Self {
        Self::with(json!({})).await
    }

    /// Starts one that runs no script of a page.
    ///
    /// # Panics
    ///
    /// When there is none, or it does not start.
    pub async fn without_scripts() -> Self {
        Self::with(json!({ "profile.managed_default_content_settings.javascript": 2 })).await
    }

    async fn with(preferences: Value) -> Self {
        let folder = binaries();
        let port = Port::reserve().expect("a free port");
        let driver = port.addr();
        let args = [format!("--port={}", driver.port())];
        let process = Process::start(&folder.join("chromedriver"), &[&args[0]], &[]);
        let process = process.expect("start the driver");
        until(DEADLINE, "the driver is ready", async || {
            let told = exchange(driver, "GET", "/status", "").await;
            told.is_ok_and(|(_, it)| String::from_utf8_lossy(&it).contains("\"ready\":true"))
        })
        .await;
        // The tests may run as root, where there is no sandbox, and where /dev/shm is small.
        let args =
            ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", PIPE];
        let options = json!({
            "binary": folder.join("chromium"), "args": args, "prefs": preferences,
        });
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let mut browser = Self { process, pid: 0, driver, _port: port, session: String::new() };
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let begun = browser.send("POST", "/session", Some(&wanted)).await;
        let session = begun["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{session}");
        browser.pid = begun["capabilities"]["goog:processID"].as_u64().expect("a process");
        browser
    }

    /// Kills the driver, as its guard does when the test is killed, and waits until the browser is gone.
    ///
    /// # Panics
    ///
    /// When the browser stays.
    pub async fn kill_driver(mut self) {
        self.process.kill().await.expect("kill the driver");
        // One that has ended and waits for its parent has none.
        let arguments = format!("/proc/{}/cmdline", self.pid);
        let is_gone = || std::fs::read(&arguments).unwrap_or_default().is_empty();
        until(DEADLINE, "the browser ends", async || is_gone()).await;
    }

    /// Asks the driver, which has to do it.
    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let done = self.try_send(method, path, body).await;
        done.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Asks the driver, which may say why it cannot.
    async fn try_send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let asked = exchange(self.driver, method, path, &body);
        let answer = tokio::time::timeout(ANSWER_MAX, asked).await;
        let (head, json) = answer.expect("the driver answers").expect("an answer");
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        match head.contains(" 200 ") {
            true => Ok(json["value"].clone()),
            false => Err(json["value"]["message"].to_string()),
        }
    }

    async fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        self.send(method, &path, (method == "POST").then_some(body)).await
    }

    /// Asks Chromium's own protocol.
    async fn devtools(&self, command: &str, params: Value) -> Value {
        let body = json!({ "cmd": command, "params": params });
        let path = format!("{}/goog/cdp/execute", self.session);
        loop {
            match self.try_send("POST", &path, Some(&body)).await {
                Ok(answer) => return answer,
                // The page that was left is not gone yet, or that to which it goes has no size.
                Err(error) if BETWEEN_PAGES.iter().any(|it| error.contains(it)) => {}
                Err(error) => panic!("{command}: {error}"),
            }
        }
    }

    /// Goes to an address, and waits until the page is there.
    pub async fn go(&self, url: &str) {
        self.command("POST", "/url", &json!({ "url": url })).await;
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        self.command("POST", "/refresh", &json!({})).await;
    }

    /// Where the browser is.
    ///
    /// # Panics
    ///
    /// When the driver does not say.
    pub async fn address(&self) -> String {
        self.command("GET", "/url", &json!({})).await.as_str().expect("an address").to_owned()
    }

    /// Runs a script in the page, and returns what it returns.
    pub async fn script(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.command("POST", "/execute/sync", &body).await
    }

    /// Does something to the element that a CSS selector finds first; again to another that the page
    /// has put in its place.
    async fn act(&self, selector: &str, action: &str, body: &Value) {
        let find = json!({ "using": "css selector", "value": selector });
        loop {
            let found = self.command("POST", "/element", &find).await;
            let element = found[ELEMENT].as_str().expect("an element");
            let path = format!("{}/element/{element}/{action}", self.session);
            match self.try_send("POST", &path, Some(body)).await {
                Ok(_) => return,
                Err(error) if error.contains("stale") => {}
                Err(error) => panic!("{selector}: {error}"),
            }
        }
    }

    /// Clicks the element that a CSS selector finds first.
    pub async fn click(&self, selector: &str) {
        self.act(selector, "click", &json!({})).await;
    }

    /// Clicks, and waits until another document is there.
    pub async fn click_through(&self, selector: &str) {
        self.script("window.isLeft = true").await;
        self.click(selector).await;
        until(DEADLINE, "another page is there", async || {
            let script = "return !window.isLeft && document.readyState === 'complete'";
            self.script(script).await == json!(true)
        })
        .await;
    }

    /// Types into it.
    pub async fn type_into(&self, selector: &str, text: &str) {
        self.act(selector, "value", &json!({ "text": text })).await;
    }

    /// Presses keys, one after the other.
    pub async fn press(&self, keys: &str) {
        let press = |key: char| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        };
        let actions: Vec<Value> = keys.chars().flat_map(press).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.command("POST", "/actions", &json!({ "actions": [keyboard] })).await;
    }

    /// The text that somebody sees of the element that a CSS selector finds first; nothing if there is
    /// none.
    pub async fn text(&self, selector: &str) -> String {
        loop {
            let body = json!({ "using": "css selector", "value": selector });
            let path = format!("{}/element", self.session);
            let found = self.try_send("POST", &path, Some(&body)).await.unwrap_or_default();
            let Some(element) = found[ELEMENT].as_str() else { return String::new() };
            let path = format!("{}/element/{element}/text", self.session);
            match self.try_send("GET", &path, None).await {
                Ok(text) => return text.as_str().unwrap_or_default().to_owned(),
                // The page has put another in its place.
                Err(error) if error.contains("stale") => {}
                Err(error) => panic!("{selector}: {error}"),
            }
        }
    }

    /// Waits until the page has this text.
    pub async fn wait_text(&self, selector: &str, text: &str) {
        let what = format!("{selector} says {text:?}");
        until(DEADLINE, &what, async || self.text(selector).await.contains(text)).await;
    }

    /// Makes the window so large.
    pub async fn size(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// What the system says of its colours: `light` or `dark`.
    pub async fn colours(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": [feature] })).await;
    }

    /// Writes a picture of the whole page to `target/screenshots`, where a person can look at it.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub async fn screenshot(&self, name: &str) {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let taken = self.devtools("Page.captureScreenshot", whole).await;
        let picture = STANDARD.decode(taken["data"].as_str().expect("a picture"));
        let folder = servers().parent().expect("the target folder").join("screenshots");
        std::fs::create_dir_all(&folder).expect("a folder for pictures");
        let path = folder.join(format!("{name}.png"));
        std::fs::write(path, picture.expect("Base64")).expect("write a picture");
    }

    /// What the console of the browser has said since the last time: errors of scripts, violations
    /// of the policy, failed requests.
    ///
    /// # Panics
    ///
    /// When the driver does not say.
    pub async fn complaints(&self) -> Vec<String> {
        let said = self.command("POST", "/se/log", &json!({ "type": "browser" })).await;
        let said = said.as_array().expect("a list");
        let is_complaint = |it: &&Value| matches!(it["level"].as_str(), Some("SEVERE" | "WARNING"));
        said.iter().filter(is_complaint).map(|it| it["message"].to_string()).collect()
    }

    /// That the page is sound: the browser complains about nothing, the page asks no other origin and
    /// does not scroll sideways, and axe finds nothing that keeps somebody from using it.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub async fn assert_sound(&self, what: &str) {
        let complaints = self.complaints().await;
        assert!(complaints.is_empty(), "{what}: {complaints:#?}");
        let foreign = "return performance.getEntriesByType('resource').map((it) => it.name)
            .filter((it) => !it.startsWith(location.origin + '/'))";
        let foreign = self.script(foreign).await;
        assert_eq!(foreign, json!([]), "{what} asks others");
        let wide = "const limit = innerWidth + 1;
            if (document.documentElement.scrollWidth <= limit) return [];
            return [...document.querySelectorAll('body *')]
                .filter((it) => it.getBoundingClientRect().right > limit)
                .slice(0, 5).map((it) => it.outerHTML.slice(0, 160))";
        let wide = self.script(wide).await;
        assert_eq!(wide, json!([]), "{what} scrolls sideways");
        let findings = self.axe().await;
        assert_eq!(findings, json!([]), "{what}: axe");
    }

    async fn axe(&self) -> Value {
        let path = servers().join(AXE);
        let script = read(&path);
        let run = "const done = arguments[arguments.length - 1];
            axe.run().then((found) => done(found.violations.map((it) =>
                [it.id, it.help, it.nodes.slice(0, 3).map((node) => node.html + ' ' + node.failureSummary)])))";
        let body = json!({ "script": format!("{script}\n{run}"), "args": [] });
        self.command("POST", "/execute/async", &body).await
    }
}

/// The head of an answer, and its body. The driver keeps its connections, whatever it is asked.
async fn exchange(
    driver: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(String, Vec<u8>)> {
    let mut stream = BufReader::new(TcpStream::connect(driver).await?);
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {driver}\r\n");
    let kind = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
    stream.write_all(format!("{head}{kind}\r\n\r\n{body}").as_bytes()).await?;
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((head, body))
}

fn read(path: &Path) -> String {
    let missing = |_| panic!("{} is missing: run `scripts/servers --chromium`", path.display());
    std::fs::read_to_string(path).unwrap_or_else(missing)
}

impl Drop for Browser {
    /// The driver, asked to end the session, ends the browser. Killed, it would leave it.
    fn drop(&mut self) {
        let Ok(mut stream) = BlockingStream::connect(self.driver) else { return };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        let request = format!("DELETE {} HTTP/1.1\r\nHost: {}\r\n", self.session, self.driver);
        if stream.write_all(format!("{request}\r\n").as_bytes()).is_ok() {
            // The answer's first byte comes when it is done.
            let _ = stream.read(&mut [0; 1]);
        }
    }
}
