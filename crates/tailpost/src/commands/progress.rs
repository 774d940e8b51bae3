//! How far something is, on a terminal and nowhere else.

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

/// A bar that looks like this.
pub(super) fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::new(0).with_style(style)
}

/// Does the work, and draws what it reports until it ends.
pub(super) async fn shown<T: Clone + Default, R>(
    template: &str,
    draw: impl Fn(&ProgressBar, T),
    work: impl AsyncFnOnce(&watch::Sender<T>) -> R,
) -> R {
    let (sender, mut reported) = watch::channel(T::default());
    let bar = bar(template);
    let drawn = async {
        while reported.changed().await.is_ok() {
            let now = reported.borrow_and_update().clone();
            draw(&bar, now);
        }
        bar.finish_and_clear();
    };
    let worked = async move { work(&sender).await };
    tokio::join!(worked, drawn).0
}

/// Sets how much of all is done.
pub(super) fn set(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}
