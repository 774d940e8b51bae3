//! How far something is, on a terminal and nowhere else.

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

/// A bar that looks like this.
pub(super) fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::new(0).with_style(style)
}

/// Draws what is reported until nothing more is.
pub(super) async fn draw<T: Clone>(
    template: &str,
    mut reported: watch::Receiver<T>,
    set: impl Fn(&ProgressBar, T),
) {
    let bar = bar(template);
    while reported.changed().await.is_ok() {
        let now = reported.borrow_and_update().clone();
        set(&bar, now);
    }
    bar.finish_and_clear();
}

/// Sets how much of all is done.
pub(super) fn set(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}
