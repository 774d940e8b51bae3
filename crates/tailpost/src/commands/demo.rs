use crate::cli::DemoArgs;

pub(super) async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let DemoArgs { duration: _, rate: _, json: _, keep: _ } = args;
    anyhow::bail!("the demo is not part of this build")
}
