//! The `nightshift` command: the whole service on one machine, one file without it, models, and deployments on AWS.
//!
//! Wires the crates together and decides nothing. Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted.

#[cfg(feature = "aws")]
mod aws;
mod cli;
mod config;
mod deploy;
mod failure;
mod logging;
mod models;
mod run;
mod say;
mod signals;
mod up;
mod work;

use std::process::ExitCode;

use clap::Parser as _;
use cli::{Cli, Command, ModelsArgs, ModelsCommand};

use crate::config::Config;
use crate::failure::usage;
use crate::models::Shelf;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Up(args) => up::up(args),
        Command::Run(args) => run::run(args),
        Command::Models(args) => models(&args),
        Command::Worker(args) => work::work(args),
        #[cfg(feature = "aws")]
        Command::Ingest(args) => aws::ingest(&args),
        Command::Deploy(args) => deploy::deploy(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

fn models(args: &ModelsArgs) -> anyhow::Result<()> {
    logging::start("warn", args.json)?;
    let config = Config::load(args.config.as_deref())?;
    let shelf = Shelf::open()?;
    let Some(ModelsCommand::Pull { id }) = &args.command else {
        return say::answer(models::list(&config.catalog, &shelf, args.json));
    };
    let Some(model) = config.catalog.resolve(id) else {
        let known: Vec<&str> = config
            .catalog
            .models()
            .iter()
            .map(|model| model.id.as_str())
            .collect();
        return Err(usage(format!(
            "no model '{id}' in the catalog; it has: {}",
            known.join(", ")
        )));
    };
    let path = models::pull(model, &shelf)?;
    if args.json {
        say::answer(serde_json::json!({ "id": model.id, "path": path }))
    } else {
        say::answer(format_args!("{} is at {}", model.id, path.display()))
    }
}
