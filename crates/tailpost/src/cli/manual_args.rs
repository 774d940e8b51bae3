//! `tailpost completions` and `tailpost man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to write the pages; is created if it is not there
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) dir: PathBuf,
}
