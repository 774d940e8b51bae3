use crate::cli::DemoArgs;

pub(super) async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let DemoArgs { duration, rate, json, keep } = args;
    anyhow::bail!("the demo is not part of this build ({duration:?} {rate} {json} {keep})")
}
