//! The command line: what can be asked for, and how `--help` explains it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// An OpenAI-compatible batch inference service for open models, on your own machine.
#[derive(Debug, Parser)]
#[command(name = "nightshift", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the batch API on this machine, with its workers.
    Up(UpArgs),
    /// Run one batch file without the service. Run again after an interruption, it goes on.
    Run(RunArgs),
    /// Show the models of the catalog, and which are on disk.
    Models(ModelsArgs),
    /// Serve shards to one worker process (started by `up`).
    #[command(hide = true)]
    Worker(WorkerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Folder for all state; made if it is not there.
    #[arg(long, value_name = "DIR", env = "NIGHTSHIFT_DATA")]
    pub(crate) data: Option<PathBuf>,
    /// Address to serve on; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// Worker processes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) workers: u16,
    /// Settings and model catalog (TOML), in place of the built-in one.
    #[arg(long, value_name = "FILE", env = "NIGHTSHIFT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Print one JSON line when ready, and logs as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) data: PathBuf,
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    #[arg(long)]
    pub(crate) id: String,
    #[arg(long)]
    pub(crate) parent: u32,
    #[arg(long)]
    pub(crate) threads: usize,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Batch file: one request a line, as for `POST /v1/batches`.
    #[arg(value_name = "IN.jsonl")]
    pub(crate) input: PathBuf,
    /// Where the answers go.
    #[arg(short = 'o', long = "output", value_name = "OUT.jsonl")]
    pub(crate) output: PathBuf,
    /// Where the error lines go; OUT.errors.jsonl by default, and only if there are any.
    #[arg(short = 'e', long = "errors", value_name = "ERR.jsonl")]
    pub(crate) errors: Option<PathBuf>,
    /// Run every line on this model: a file, a folder, or a name from the catalog.
    #[arg(long, value_name = "PATH_OR_ID")]
    pub(crate) model: Option<String>,
    /// Settings and model catalog (TOML), in place of the built-in one.
    #[arg(long, value_name = "FILE", env = "NIGHTSHIFT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// How the engine computes; auto is bf16.
    #[arg(long, value_name = "PRECISION", value_enum)]
    pub(crate) precision: Option<Precision>,
    /// End with one JSON line that sums up the run.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// Settings and model catalog (TOML), in place of the built-in one.
    #[arg(long, value_name = "FILE", env = "NIGHTSHIFT_CONFIG", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Option<ModelsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// Fetch a model of the catalog onto this machine.
    Pull {
        /// Id or alias.
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    /// The fastest whose quality is known to hold.
    Auto,
    /// bfloat16 products, f32 sums.
    Bf16,
    /// f32 throughout.
    F32,
}
