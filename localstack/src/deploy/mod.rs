//! `nightshift deploy`: what an operator does with a deployment on AWS, besides Terraform.
//!
//! Where a deployment is comes from Terraform's outputs. Nothing here changes its resources.

mod check;
#[cfg(feature = "aws")]
mod key;
mod outputs;

use crate::cli::{DeployArgs, DeployCommand};

/// Makes a key, or checks a deployment.
pub(crate) fn deploy(args: DeployArgs) -> anyhow::Result<()> {
    crate::logging::start("warn", false)?;
    match args.command {
        #[cfg(feature = "aws")]
        DeployCommand::Key(args) => key::make(&args),
        #[cfg(not(feature = "aws"))]
        DeployCommand::Key(_) => Err(crate::failure::usage(
            "this nightshift was built without AWS: build it with 'cargo build --release -p nightshift --features aws'",
        )),
        DeployCommand::Check(args) => check::check(&args),
    }
}
