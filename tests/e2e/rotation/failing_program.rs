//! A program that gives no password for a while.

use std::fs;
use std::net::SocketAddr;

use support::{DEADLINE, Relay, TestEnv, until};

use super::not_renewed::{get, listen, wait_ready};
use super::passwords::with_a_role;
use super::{Running, Secrets};

/// Notes its parent and the time of each run, and does what stands in a file: a word, and what it
/// writes.
const PROGRAM: &str = "
    echo $PPID $(date +%s%3N) >> FOLDER/runs
    read mood secret < FOLDER/mood
    echo $secret
    echo leaked-s3cret >&2
    case $mood in
        fail) exit 7 ;;
        hang) sleep 600 ;;
    esac";

/// When this process ran the program, in milliseconds.
fn runs(secrets: &Secrets, of: &Relay) -> Vec<u64> {
    let told = fs::read_to_string(secrets.path("runs")).expect("it ran");
    let pid = of.pid().to_string();
    let own = told.lines().filter_map(|it| it.split_once(' ')).filter(|it| it.0 == pid);
    let mut at: Vec<u64> = own.map(|it| it.1.parse().expect("a time")).collect();
    at.sort_unstable();
    at
}

/// Ends all connections again and again, since some may have been about to be made with the password
/// of before, until `/readyz` says this.
async fn wait_without_connections(env: &TestEnv, address: SocketAddr, words: &str) {
    let end =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'relay'";
    until(DEADLINE, &format!("/readyz says `{words}`"), async || {
        let _ended: i64 = env.query(end).await;
        let told = get(address, "/readyz").await.unwrap_or_default();
        told.starts_with("HTTP/1.1 503 ") && told.contains(words)
    })
    .await;
}

mod long {
    use super::*;

    // proves: G-CRED-4, G-CRED-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_program_that_fails_and_hangs_for_a_while_is_waited_for() {
        let mut env = with_a_role().await;
        let secrets = Secrets::new();
        secrets.renew("mood", "work first-s3cret\n");
        let program = PROGRAM.replace("FOLDER", &secrets.path("").display().to_string());
        let argv = serde_json::json!(["sh", "-c", program]).to_string();
        env.set("TAILPOST_POSTGRES__PASSWORD_COMMAND", &argv);
        let ports = ["TAILPOST_ADMIN__LISTEN", "TAILPOST_ADMIN__INBOX_LISTEN"]
            .map(|variable| listen(&mut env, variable));
        let [relay, inbox] = ports.each_ref().map(lab::Port::addr);
        let running = Running::start(env).await;
        let processes = [&running.relay, &running.inbox];

        secrets.renew("mood", "fail leaked-s3cret\n");
        running.env.execute("ALTER ROLE relay PASSWORD 'second-s3cret'").await;
        let failed = "postgres.password_command (sh) gave no secret: it ended with exit status: 7";
        for address in [relay, inbox] {
            wait_without_connections(&running.env, address, failed).await;
        }
        // From here on, one run at a time: the second, the third and so on.
        fs::write(secrets.path("runs"), "").expect("write");
        let status = get(relay, "/api/v1/status").await.expect("an answer");
        assert!(status.contains(failed) && !status.contains("s3cret"), "{status}");
        let (told, said) = running.env.ends_with(5, &["status"]).await;
        assert!(said.contains(failed) && said.contains("run it by hand"), "{said}");
        assert!(!format!("{told}{said}").contains("s3cret"), "{told}{said}");
        for process in processes {
            let again = async || !runs(&secrets, process).is_empty();
            until(DEADLINE, "it is run again", again).await;
        }

        secrets.renew("mood", "hang leaked-s3cret\n");
        for address in [relay, inbox] {
            wait_without_connections(&running.env, address, "it took more than 8 s").await;
        }
        secrets.renew("mood", "work second-s3cret\n");
        for address in [relay, inbox] {
            wait_ready(address, 200, "").await;
        }
        running.goes_on().await;
        for process in processes {
            let runs = runs(&secrets, process);
            let gaps: Vec<u64> = runs.windows(2).map(|it| it[1] - it[0]).collect();
            eprintln!("between runs, in ms: {gaps:?}");
            assert!(gaps[0] >= 2_000, "{gaps:?}");
            assert!(gaps.iter().any(|it| *it >= 8_000), "one had its 8 s: {gaps:?}");
        }
        running.end(&["s3cret"]).await;
    }
}
