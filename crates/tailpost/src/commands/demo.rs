use crate::cli::DemoArgs;
use crate::demo;

pub(super) async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    demo::run(args).await
}
