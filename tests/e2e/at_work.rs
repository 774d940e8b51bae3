//! PostgreSQL reads its log for long, and has nothing to send meanwhile.

use support::{DEADLINE, TestEnv, until};

mod long {
    use super::*;

    /// Longer than a relay listens to a server that is silent.
    // proves: G-LOSS-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_huge_transaction_elsewhere_ends_no_session() {
        let env = TestEnv::new().await;
        env.setup().await;
        let relay = env.relay();
        env.insert(5).await;
        env.wait_marked().await;
        env.execute(
            "CREATE TABLE elsewhere (n int);
             INSERT INTO elsewhere SELECT generate_series(1, 16000000)",
        )
        .await;
        env.insert(5).await;
        // On a busy machine the server takes minutes to decode it, and nothing moves meanwhile.
        let is_marked = async || env.unmarked().await == 0;
        until(3 * DEADLINE, "every row is marked", is_marked).await;
        let log = relay.log();
        assert!(!log.contains("fell silent"), "{log}");
    }
}
