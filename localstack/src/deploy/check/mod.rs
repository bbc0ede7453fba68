//! `nightshift deploy check`: calls the API as a user would, with a tiny batch, and reports each step.
//!
//! Works against any Nightshift, `nightshift up` included: all it knows is a base URL and a key.

mod api;
mod batch;
mod large;
mod report;

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use ureq::http::Method;

use super::outputs::Outputs;
use crate::cli::CheckArgs;
use crate::failure::usage;
use crate::say::aside;
use api::{Api, Payload};
use report::{Report, Step};

/// Seconds after which the service itself removes what this made, should this not live to do it.
const FILES_LIVE_S: u32 = 3600;

/// Looks like one of our keys, and is none.
const WRONG_KEY: &str = "nsk_0000000000000000000000000000000000000000000000000000000000000000";

/// What is checked.
#[derive(Debug)]
struct Target {
    base_url: String,
    /// For files that a gateway does not take, if there is one.
    ingest: Option<String>,
    worker_groups: Vec<String>,
}

/// One run of the check.
#[derive(Debug)]
struct Check {
    api: Api,
    key: String,
    report: Report,
    target: Target,
    timeout: Duration,
    model: Option<String>,
    large: bool,
    made: Made,
}

/// What must go again.
#[derive(Debug, Default)]
struct Made {
    files: Vec<String>,
    /// The batch, until it has ended.
    batch: Option<String>,
}

/// Runs all steps; the first one that fails ends the check.
pub(super) fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let target = Target::find(args)?;
    let key = args.api_key.as_deref().map(str::trim).unwrap_or_default();
    if key.is_empty() {
        return Err(usage(
            "no API key: give one with --api-key or NIGHTSHIFT_API_KEY; 'nightshift deploy key' makes one",
        ));
    }
    let mut check = Check {
        api: Api::new(&target.base_url)?,
        key: key.to_owned(),
        report: Report { as_json: args.json },
        target,
        timeout: Duration::from_secs(args.timeout),
        model: args.model.clone(),
        large: args.large,
        made: Made::default(),
    };
    let done = check.run();
    if done.is_err() {
        check.leave();
    }
    done
}

impl Target {
    fn find(args: &CheckArgs) -> anyhow::Result<Self> {
        if let Some(base_url) = &args.base_url {
            return Ok(Self {
                base_url: base_url.clone(),
                ingest: None,
                worker_groups: Vec::new(),
            });
        }
        let outputs = Outputs::read(&args.outputs)?;
        Ok(Self {
            base_url: outputs.wanted("api_base_url")?.to_owned(),
            ingest: outputs.text("ingest_base_url").map(str::to_owned),
            worker_groups: outputs.worker_groups(),
        })
    }
}

impl Check {
    fn run(&mut self) -> anyhow::Result<()> {
        let report = self.report;
        report.step(Step::Reach, || self.reach())?;
        let models = report.step(Step::Key, || self.present_key())?;
        let model = report.step(Step::Models, || self.pick_model(&models))?;
        report.step(Step::WrongKey, || self.present_wrong_key())?;
        self.run_batch(&model)?;
        report.step(Step::Limits, || Ok(((), self.sizes())))?;
        if self.large {
            report.step(Step::Large, || self.send_large())?;
        }
        report.step(Step::CleanUp, || self.clean_up())
    }

    /// Whatever the answer is, it shows that name, connection and certificate are right.
    fn reach(&self) -> anyhow::Result<((), String)> {
        let answer = self
            .api
            .send(None, &Method::GET, "/models", Payload::Nothing)?;
        let url = self.api.base_url();
        match answer.status {
            401 => Ok(((), url.to_owned())),
            403 | 404 => anyhow::bail!(
                "{url} answers with {} ({}): the base URL ends with the stage, /v1",
                answer.status,
                answer.said()
            ),
            500..=599 => anyhow::bail!(
                "{url} answers with {} ({}): look at the logs of the api function",
                answer.status,
                answer.said()
            ),
            status => anyhow::bail!(
                "{url} answers a call without a key with {status} ({}): this is no Nightshift",
                answer.said()
            ),
        }
    }

    fn present_key(&self) -> anyhow::Result<(Value, String)> {
        let answer = self
            .api
            .call(&self.key, &Method::GET, "/models", Payload::Nothing)?;
        if answer.status == 401 {
            anyhow::bail!(
                "{}; 'nightshift deploy key' makes a key for this deployment",
                answer.said()
            );
        }
        Ok((answer.json(200)?, String::new()))
    }

    fn pick_model(&self, models: &Value) -> anyhow::Result<(String, String)> {
        let data = models["data"]
            .as_array()
            .context("read the list of models")?;
        let ids: Vec<&str> = data
            .iter()
            .filter_map(|model| model["id"].as_str())
            .collect();
        let listed = ids.join(", ");
        let Some(first) = ids.first() else {
            anyhow::bail!(
                "the catalog is empty: give the variable 'models' a model, and apply again"
            );
        };
        let model = match &self.model {
            Some(wanted) if ids.contains(&wanted.as_str()) => wanted,
            Some(wanted) => anyhow::bail!("there is no model '{wanted}'; there is: {listed}"),
            None => *first,
        };
        Ok((model.to_owned(), listed))
    }

    fn present_wrong_key(&self) -> anyhow::Result<((), String)> {
        let answer = self
            .api
            .call(WRONG_KEY, &Method::GET, "/models", Payload::Nothing)?
            .json(401)
            .context("a wrong key must be refused")?;
        let error = &answer["error"];
        let members = ["message", "type", "param", "code"];
        let whole = members.iter().all(|name| error.get(name).is_some());
        anyhow::ensure!(
            whole && error["code"] == "invalid_api_key",
            "the refusal is not in OpenAI's form: {answer}"
        );
        Ok(((), "401 invalid_api_key".to_owned()))
    }

    fn sizes(&self) -> String {
        let ingest = match &self.target.ingest {
            Some(url) => format!("files.create of any size: base_url={url}"),
            None => "files.create of any size: needs the module's ingest".to_owned(),
        };
        format!(
            "through API Gateway files.create takes 4.4 MiB; above that uploads.upload_file_chunked(part_size=8 * 1024 * 1024); {ingest}"
        )
    }

    /// Removes what this made. A file that is gone already is fine.
    fn clean_up(&mut self) -> anyhow::Result<((), String)> {
        let count = self.made.files.len();
        while let Some(file) = self.made.files.last() {
            let path = format!("/files/{file}");
            let answer = self
                .api
                .call(&self.key, &Method::DELETE, &path, Payload::Nothing)?;
            if answer.status != 404 {
                answer.expect(200)?;
            }
            self.made.files.pop();
        }
        Ok(((), format!("{count} files")))
    }

    /// Stops and removes what this made as well as it can.
    fn leave(&mut self) {
        if let Some(batch) = self.made.batch.take() {
            let path = format!("/batches/{batch}/cancel");
            // It may have ended, or the service may be gone: the check has failed and was reported.
            let _ = self
                .api
                .send(Some(&self.key), &Method::POST, &path, Payload::Nothing);
        }
        if self.clean_up().is_err() {
            aside(format_args!(
                "the check's files could not be deleted now ({}); the service removes them in an hour",
                self.made.files.join(", ")
            ));
        }
    }
}
