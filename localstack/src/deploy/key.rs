//! `nightshift deploy key`: one API key, shown once and stored as a hash.

use std::os::unix::process::CommandExt as _;

use anyhow::Context as _;
use batch_core::id::{KeyId, TenantId};
use batch_core::settings::Timing;
use batch_core::wire::hash_key;
use batch_io::aws::{Aws, Resources};
use batch_io::store::{KeyRecord, Store};
use batch_io::{IoError, IoKind};
use serde_json::json;

use super::outputs::Outputs;
use crate::cli::KeyArgs;
use crate::failure::usage;
use crate::say::{answer, aside};

/// What our keys start with, so that a leaked one can be found.
const PREFIX: &str = "nsk_";

/// The longest name of a key.
const NAME_CHARS_MAX: usize = 100;

/// What the SDK takes its region from, before all else; the first one wins.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Where a deployment is.
#[derive(Debug)]
struct Place {
    resources: Resources,
    region: Option<String>,
    base_url: Option<String>,
}

/// Makes a key, stores its hash in the deployment's table, and prints it.
pub(super) fn make(args: &KeyArgs) -> anyhow::Result<()> {
    let chars = args.name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX {
        return Err(usage(format!(
            "the name of a key has 1 to {NAME_CHARS_MAX} characters, and this one has {chars}"
        )));
    }
    let place = Place::find(args)?;
    let named = REGIONS
        .into_iter()
        .find_map(|name| std::env::var(name).ok());
    if let (Some(named), Some(region)) = (named, &place.region)
        && named != *region
    {
        return start_again_in(region);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let (secret, key) = runtime.block_on(store(&place.resources, &args.name))?;
    show(args, &secret, key, place.base_url.as_deref())
}

impl Place {
    /// Takes what the arguments name, then this process's own environment, then the current folder.
    fn find(args: &KeyArgs) -> anyhow::Result<Self> {
        let named = args.outputs.terraform.is_some() || args.outputs.outputs.is_some();
        let own = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if !named && own("NIGHTSHIFT_TABLE").is_some() {
            return Ok(Self {
                resources: resources(own).context("read the environment")?,
                region: None,
                base_url: own("NIGHTSHIFT_BASE_URL"),
            });
        }
        let outputs = Outputs::read(&args.outputs)?;
        Ok(Self {
            resources: resources(|name| outputs.variable(name))
                .context("read the Terraform output 'environment'")?,
            region: Some(outputs.wanted("region")?.to_owned()),
            base_url: Some(outputs.wanted("api_base_url")?.to_owned()),
        })
    }
}

fn resources(lookup: impl Fn(&str) -> Option<String>) -> anyhow::Result<Resources> {
    let wanted = |name: &str| lookup(name).ok_or_else(|| usage(format!("{name} is missing")));
    Ok(Resources {
        table: wanted("NIGHTSHIFT_TABLE")?,
        bucket: wanted("NIGHTSHIFT_BUCKET")?,
        queue_url_prefix: wanted("NIGHTSHIFT_QUEUE_URL_PREFIX")?,
    })
}

/// Runs this very command with the deployment's region: the environment names another, which the SDK would
/// take, and a process must not change its own.
fn start_again_in(region: &str) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("find this program")?;
    let failed = std::process::Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(REGIONS[0], region)
        .exec();
    Err(anyhow::Error::new(failed).context("start this program in the deployment's region"))
}

async fn store(resources: &Resources, name: &str) -> anyhow::Result<(String, KeyId)> {
    let aws = Aws::connect(resources).await;
    let platform = aws.platform();
    let secret = format!(
        "{PREFIX}{}{}",
        hex::encode((platform.random)()),
        hex::encode((platform.random)())
    );
    let now = (platform.clock)();
    let record = KeyRecord {
        id: KeyId::new(now, (platform.random)()),
        tenant: TenantId::default_tenant(),
        created_at: now,
        name: name.to_owned(),
    };
    Store::new(platform.records, Timing::AWS)
        .put_key(&hash_key(&secret), &record)
        .await
        .map_err(|error| explain(&error, &resources.table))?;
    Ok((secret, record.id))
}

/// Says what to do about a key that could not be stored.
fn explain(error: &IoError, table: &str) -> anyhow::Error {
    let why = error.source.as_ref().map(ToString::to_string);
    let why = why.unwrap_or_else(|| error.to_string());
    let service_answered = why.contains("Exception");
    if why.contains("credentials") && !service_answered {
        return anyhow::anyhow!(
            "there are no AWS credentials: run 'aws sso login' or 'aws configure', or put those of a profile into the environment with: eval \"$(aws configure export-credentials --format env)\""
        );
    }
    if why.contains("ResourceNotFoundException") {
        return anyhow::anyhow!(
            "there is no table '{table}' in this account and region: look whether the credentials are those of the deployment's account"
        );
    }
    let why = why.lines().next().unwrap_or_default();
    if error.kind == IoKind::Denied && service_answered {
        return anyhow::anyhow!(
            "AWS refused to write to the table '{table}': the credentials must be good, and allow dynamodb:PutItem on it, and kms:Decrypt and kms:GenerateDataKey where it has a key of its own: {why}"
        );
    }
    anyhow::anyhow!("the key was not stored in the table '{table}': {why}")
}

fn show(args: &KeyArgs, secret: &str, key: KeyId, base_url: Option<&str>) -> anyhow::Result<()> {
    if args.json {
        return answer(json!({ "api_key": secret, "key_id": key, "base_url": base_url }));
    }
    let url = base_url.unwrap_or("<the Terraform output api_base_url>");
    answer(format_args!(
        "API key:   {secret}\nKey id:    {key}\nBase URL:  {url}\n\n  client = OpenAI(base_url={url:?}, api_key={secret:?})"
    ))?;
    aside("Keep the key now: only its hash is stored, and it is not shown again.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_says_what_to_do_in_one_line() {
        let no_credentials =
            "dispatch failure: no credentials found in chain. Attempted:\n  Profile: none";
        for (kind, cause, words) in [
            (
                IoKind::Denied,
                no_credentials,
                "aws configure export-credentials",
            ),
            (
                IoKind::Denied,
                "AccessDeniedException: no",
                "dynamodb:PutItem",
            ),
            (
                IoKind::Denied,
                "ExpiredTokenException: the credentials",
                "must be good",
            ),
            (
                IoKind::Denied,
                "ResourceNotFoundException: no",
                "no table 'nightshift'",
            ),
            (
                IoKind::Busy,
                "timeout\nof 5 s",
                "was not stored in the table 'nightshift': timeout",
            ),
        ] {
            let error = IoError::new("write record", "keys/0f", kind).because(cause);
            let said = format!("{:#}", explain(&error, "nightshift"));
            assert!(said.contains(words) && said.lines().count() == 1, "{said}");
            assert!(!said.contains("keys/0f"), "{said}");
        }
    }
}
