//! The pages while there is much of everything.

mod long {
    use std::time::{Duration, Instant};

    use support::Browser;

    use crate::console::stage::Stage;

    const LETTERS: i64 = 100_000;
    /// Of several tries the best: other tests run beside this one.
    const TRIES: usize = 10;

    async fn best(browser: &Browser, url: &str) -> Duration {
        let mut best = Duration::MAX;
        for _ in 0..TRIES {
            let began = Instant::now();
            browser.go(url).await;
            best = best.min(began.elapsed());
        }
        best
    }

    /// The first page of a hundred thousand dead letters of each queue comes at once, and so does the
    /// plan for all of them.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_hundred_thousand_dead_letters_are_shown_at_once() {
        let stage = Stage::new(&[]).await;
        let outbox = format!(
            "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload,
                 reason, dead_at)
             SELECT gen_random_uuid(), 'order', 'o-' || n, 'Placed', '{{}}',
                 'payload exceeds ' || n || ' bytes', now() - n * interval '1 ms'
             FROM generate_series(1, {LETTERS}) n"
        );
        let inbox = format!(
            "WITH letters AS (
                 INSERT INTO inbox_dead_letter (consumer, message_id, event_time, subject, stream,
                     stream_seq, headers, payload, attempts, cause, reason, dead_at)
                 SELECT 'billing', gen_random_uuid(), now(), 'outbox.order', 'OUTBOX', n,
                     jsonb_build_object('Aggregate-Type', '[\"order\"]'::jsonb, 'Aggregate-Id',
                         jsonb_build_array('o-' || n)), '{{}}', 1, 'dead',
                     '422 Unprocessable Entity: ' || n, now() - n * interval '1 ms'
                 FROM generate_series(1, {LETTERS}) n RETURNING *
             )
             INSERT INTO inbox_messages (consumer, message_id, event_time, subject, status, attempts)
             SELECT consumer, message_id, event_time, subject, 'DEAD', 1 FROM letters"
        );
        for sql in [&*outbox, &*inbox, "ANALYZE"] {
            stage.env.execute(sql).await;
        }
        let browser = stage.browser("operator").await;
        for (name, path, told) in [
            ("all", "/dead-letters", "Unprocessable"),
            ("outbox", "/dead-letters?source=relay", "exceeds"),
            ("inbox", "/dead-letters?source=inbox", "Unprocessable"),
            ("plan", "/dead-letters/plan?source=inbox&action=requeue&reason=422", "100,000"),
        ] {
            let (plain, took) =
                (best(&browser, &stage.url("/")).await, best(&browser, &stage.url(path)).await);
            let text = browser.text("main").await;
            assert!(text.contains(told), "{name}: {text}");
            // A release build on a machine that is not busy: less than 300 ms.
            eprintln!("{name}: {took:?}, the overview {plain:?}");
        }
    }
}
