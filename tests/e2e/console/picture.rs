//! The picture in README.md and docs/console.md.

use std::time::Duration;

use super::stage::Stage;

mod long {
    use super::*;

    /// A relay with load, one cause of dead letters, and a consumer whose service is away. With
    /// `UPDATE_PAGES=1` it is the picture of the documentation.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_picture_of_the_first_screen_is_taken() {
        let updates = std::env::var_os("UPDATE_PAGES").is_some();
        // The charts of the documentation have something to show.
        let seconds = if updates { 75 } else { 12 };
        let stage = Stage::new(&[]).await;
        for number in 0..3 {
            stage.poison(&format!("o-{number}")).await;
        }
        let browser = stage.browser("operator").await;
        for second in 0..seconds {
            let many = 60 + (second * 37) % 90 + second;
            let sql = format!(
                "SELECT outbox_emit('order', 'c-' || n, 'OrderPaid', '{{}}')
                 FROM generate_series(1, {many}) n"
            );
            stage.env.execute(&sql).await;
            if second == seconds - 10 {
                stage.service.answer(503);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        browser.wait_text(".needs", "breaker open").await;
        browser.size(1280, 860).await;
        browser.screenshot("picture").await;
        if updates {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            let (from, to) = ("target/screenshots/picture.png", "docs/images/console.png");
            let copied = std::fs::copy(format!("{root}/{from}"), format!("{root}/{to}"));
            copied.expect("docs/images/ is there");
        }
    }
}
