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
    /// Run a worker of a deployment on AWS; which one, its environment says.
    #[cfg_attr(not(feature = "aws"), command(hide = true))]
    Worker(WorkerArgs),
    /// Serve the API of a deployment on AWS from a container, for uploads of any size.
    #[cfg(feature = "aws")]
    Ingest(IngestArgs),
    /// Make an API key for a deployment on AWS, or check that a deployment works.
    Deploy(DeployArgs),
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
    /// Serve the models of this profile alone; all models of the catalog by default.
    #[arg(long, value_name = "NAME", env = "NIGHTSHIFT_PROFILE")]
    pub(crate) profile: Option<String>,
    /// Threads of the engine; one a core by default.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Sequences that run at once.
    #[arg(long, value_name = "N")]
    pub(crate) sequences: Option<usize>,
    /// Rows of one step: decodes and prompt chunks together.
    #[arg(long, value_name = "N")]
    pub(crate) step_tokens: Option<usize>,
    /// Tokens that the KV cache holds.
    #[arg(long, value_name = "N")]
    pub(crate) kv_tokens: Option<usize>,
    /// How the engine computes; auto is int8 where that is measured to cost less than 1 % of perplexity, else bf16.
    #[arg(long, value_name = "PRECISION", value_enum)]
    pub(crate) precision: Option<Precision>,
    /// Logs as JSON; a worker on AWS does nothing else.
    #[arg(long, hide = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) child: Option<ChildArgs>,
}

/// What `up` gives to the workers that it starts. Together these make the worker one of a single machine.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(long, hide = true, required = false)]
    pub(crate) data: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) config: Option<PathBuf>,
    #[arg(long, hide = true, required = false)]
    pub(crate) id: String,
    #[arg(long, hide = true, required = false)]
    pub(crate) parent: u32,
}

#[cfg(feature = "aws")]
#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    /// Address to serve on; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub(crate) listen: SocketAddr,
}

#[derive(Debug, Args)]
pub(crate) struct DeployArgs {
    #[command(subcommand)]
    pub(crate) command: DeployCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeployCommand {
    /// Make an API key and show it once; the deployment keeps its hash alone.
    Key(KeyArgs),
    /// Call the API as a user would, with a tiny batch, and report each step.
    Check(CheckArgs),
}

/// Where the outputs of Terraform are.
#[derive(Debug, Args)]
pub(crate) struct OutputsArgs {
    /// Folder that Terraform was applied in; the current one by default.
    #[arg(long, value_name = "DIR", conflicts_with = "outputs")]
    pub(crate) terraform: Option<PathBuf>,
    /// File with what `terraform output -json` printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) outputs: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// What the key is for, in words.
    #[arg(long, default_value = "default")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) outputs: OutputsArgs,
    /// Print one JSON line: api_key, key_id and base_url.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) outputs: OutputsArgs,
    /// Address of the API, as an SDK gets it; instead of Terraform's outputs.
    #[arg(long, value_name = "URL", conflicts_with_all = ["terraform", "outputs"])]
    pub(crate) base_url: Option<String>,
    /// Key to call it with.
    #[arg(
        long,
        value_name = "KEY",
        env = "NIGHTSHIFT_API_KEY",
        hide_env_values = true
    )]
    pub(crate) api_key: Option<String>,
    /// Model to run; the first one listed by default.
    #[arg(long, value_name = "ID")]
    pub(crate) model: Option<String>,
    /// Seconds to wait for a worker, which may have to start first, and for its answers.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub(crate) timeout: u64,
    /// Upload a file in two parts of 8 MiB too, and compare what comes back.
    #[arg(long)]
    pub(crate) large: bool,
    /// Print one JSON object a step.
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
    /// How the engine computes; auto is int8 where that is measured to cost less than 1 % of perplexity, else bf16.
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
    /// Measure what bf16 and int8 cost a model in quality; `--precision auto` then heeds it.
    Measure(MeasureArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// A name from the catalog, a file or a folder.
    #[arg(value_name = "PATH_OR_ID")]
    pub(crate) model: String,
    /// Text to measure on, in place of the built-in prose, code and dialogue; may be given again.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Vec<PathBuf>,
    /// Threads; all cores by default.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    /// The fastest whose quality is known to hold.
    Auto,
    /// bfloat16 products, f32 sums.
    Bf16,
    /// 8-bit products, exact sums.
    Int8,
    /// f32 throughout.
    F32,
}
