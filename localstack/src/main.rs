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

use std::path::Path;
use std::process::ExitCode;

use batch_core::catalog::Model;
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
    match &args.command {
        None => say::answer(models::list(&config.catalog, &shelf, args.json)),
        Some(ModelsCommand::Pull { id }) => {
            let model = find(&config, id)?;
            let path = models::pull(model, &shelf)?;
            if args.json {
                return say::answer(serde_json::json!({ "id": model.id, "path": path }));
            }
            say::answer(format_args!("{} is at {}", model.id, path.display()))
        }
        Some(ModelsCommand::Measure(measure)) => {
            let path = Path::new(&measure.model);
            if path.exists() {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                return models::measure(&name, path, measure, &shelf, args.json);
            }
            let model = find(&config, &measure.model)?;
            let path = models::pull(model, &shelf)?;
            models::measure(&model.id, &path, measure, &shelf, args.json)
        }
    }
}

fn find<'a>(config: &'a Config, id: &str) -> anyhow::Result<&'a Model> {
    config.catalog.resolve(id).ok_or_else(|| {
        let models = config.catalog.models().iter();
        let known: Vec<&str> = models.map(|model| model.id.as_str()).collect();
        usage(format!(
            "no model '{id}' in the catalog; it has: {}",
            known.join(", ")
        ))
    })
}
