//! A batch of two lines: one that is answered, and one that must become an error line.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use ureq::http::Method;

use super::api::Payload;
use super::report::Step;
use super::{Check, FILES_LIVE_S};
use crate::say::aside;

/// The line that is answered.
const GOOD: &str = "check-good";

/// The line that is refused: its temperature is out of range.
const BAD: &str = "check-bad";

/// How long the validation may take.
const VALIDATE_TIME_MAX: Duration = Duration::from_secs(120);

/// Between two looks at the batch.
const LOOK: Duration = Duration::from_secs(1);

/// Which parts of the life of a batch there are for a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Validating,
    Waiting,
    Running,
    Ended,
}

impl Check {
    /// Runs the batch from its upload to its files.
    pub(super) fn run_batch(&mut self, model: &str) -> anyhow::Result<()> {
        let report = self.report;
        let lines = lines(model);
        let file = report.step(Step::Upload, || self.upload(&lines))?;
        self.made.files.push(file.clone());
        let batch = report.step(Step::Create, || self.create(&file))?;
        self.made.batch = Some(batch.clone());
        report.step(Step::Validate, || self.wait_for_validation(&batch))?;
        let until = Instant::now() + self.timeout;
        report.step(Step::Worker, || self.wait_for_worker(&batch, until))?;
        let ended = report.step(Step::Complete, || self.wait_for_end(&batch, until))?;
        self.made.batch = None;
        let files = ["output_file_id", "error_file_id"].map(|name| ended[name].as_str());
        let names = files.into_iter().flatten();
        self.made.files.extend(names.map(str::to_owned));
        report.step(Step::Output, || self.download(&ended))
    }

    fn upload(&self, lines: &str) -> anyhow::Result<(String, String)> {
        let seconds = FILES_LIVE_S.to_string();
        let members = [
            ("purpose", "batch"),
            ("expires_after[anchor]", "created_at"),
            ("expires_after[seconds]", &seconds),
        ];
        let form = Payload::Form(&members, "file", lines.as_bytes());
        let file = self
            .api
            .call(&self.key, &Method::POST, "/files", form)?
            .json(200)?;
        anyhow::ensure!(
            file["bytes"] == lines.len() && file["purpose"] == "batch",
            "{} bytes were sent, and the service has: {file}",
            lines.len()
        );
        let id = id(&file)?;
        Ok((id.clone(), format!("{id}, {} bytes", lines.len())))
    }

    fn create(&self, file: &str) -> anyhow::Result<(String, String)> {
        let wish = json!({
            "input_file_id": file,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "metadata": { "made_by": "nightshift deploy check" },
            "output_expires_after": { "anchor": "created_at", "seconds": FILES_LIVE_S },
        });
        let batch = self
            .api
            .call(&self.key, &Method::POST, "/batches", Payload::Json(&wish))?
            .json(200)?;
        let id = id(&batch)?;
        Ok((id.clone(), id))
    }

    fn wait_for_validation(&self, batch: &str) -> anyhow::Result<((), String)> {
        let until = Instant::now() + VALIDATE_TIME_MAX;
        let (seen, _) = self.follow(batch, until, |stage| stage != Stage::Validating)?;
        match seen["status"].as_str() {
            Some("validating") => anyhow::bail!(
                "still validating after {} s: look at the logs of the validate function, and at the queues 'validate' and 'validate-dead'",
                VALIDATE_TIME_MAX.as_secs()
            ),
            Some("failed") => anyhow::bail!("the batch was refused: {}", seen["errors"]),
            Some(_) | None => {
                let total = &seen["request_counts"]["total"];
                Ok(((), format!("{total} lines")))
            }
        }
    }

    fn wait_for_worker(&self, batch: &str, until: Instant) -> anyhow::Result<((), String)> {
        let picked = |stage| matches!(stage, Stage::Running | Stage::Ended);
        let (seen, stage) = self.follow(batch, until, picked)?;
        if picked(stage) {
            let counts = &seen["request_counts"];
            return Ok((
                (),
                format!("{} done, {} failed", counts["completed"], counts["failed"]),
            ));
        }
        let groups = match self.target.worker_groups.as_slice() {
            [] => "the workers".to_owned(),
            names => format!("the auto-scaling groups {}", names.join(", ")),
        };
        if seen["progress"]["waiting_reason"] == "queued" {
            anyhow::bail!(
                "a worker is registered, and has answered nothing in {} s: it may still load the model (look at its logs), or serve other batches; --timeout waits longer",
                self.timeout.as_secs()
            );
        }
        anyhow::bail!(
            "no worker came in {} s: look at {groups} (a desired size of 0 means that no alarm has scaled up; 'Activity' shows launches that failed), at the account's EC2 quotas ('Running On-Demand' and 'All G and VT Spot Instance Requests' count vCPUs), and at the workers' logs; --timeout waits longer",
            self.timeout.as_secs()
        )
    }

    fn wait_for_end(&self, batch: &str, until: Instant) -> anyhow::Result<(Value, String)> {
        let (seen, stage) = self.follow(batch, until, |stage| stage == Stage::Ended)?;
        anyhow::ensure!(
            stage == Stage::Ended,
            "still {} after {} s: look at the logs of the finalize function, and at the queues 'finalize' and 'finalize-dead'",
            seen["status"],
            self.timeout.as_secs()
        );
        let counts = &seen["request_counts"];
        anyhow::ensure!(
            seen["status"] == "completed" && counts["completed"] == 1 && counts["failed"] == 1,
            "it must be completed with one line done and one failed, and it is: {seen}"
        );
        Ok((seen, "1 done, 1 failed on purpose".to_owned()))
    }

    /// Looks at a batch until it is where it should be or the time is over, and returns it as it then is.
    fn follow(
        &self,
        batch: &str,
        until: Instant,
        is_there: impl Fn(Stage) -> bool,
    ) -> anyhow::Result<(Value, Stage)> {
        let path = format!("/batches/{batch}");
        let mut told = None;
        loop {
            let seen = self
                .api
                .call(&self.key, &Method::GET, &path, Payload::Nothing)?
                .json(200)?;
            let stage = stage(&seen);
            if is_there(stage) || Instant::now() >= until {
                return Ok((seen, stage));
            }
            if stage == Stage::Waiting {
                self.tell_once(&mut told, &seen["progress"]["waiting_reason"]);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Tells a person, who may wait for minutes, what the service waits for.
    fn tell_once(&self, told: &mut Option<Value>, reason: &Value) {
        if self.report.as_json || told.as_ref() == Some(reason) {
            return;
        }
        let words = match reason.as_str() {
            Some("no_worker") => "no worker is registered yet",
            Some(_) | None => "a worker is registered, and has answered nothing yet",
        };
        aside(format_args!(
            "        {words}; waiting up to {} s",
            self.timeout.as_secs()
        ));
        *told = Some(reason.clone());
    }

    fn download(&self, batch: &Value) -> anyhow::Result<((), String)> {
        let mut from = None;
        for (name, custom_id, status) in
            [("output_file_id", GOOD, 200), ("error_file_id", BAD, 400)]
        {
            let file = batch[name]
                .as_str()
                .with_context(|| format!("the batch has no {name}"))?;
            let (bytes, host) = self.api.content(&self.key, file)?;
            check_record(&bytes, custom_id, status).with_context(|| format!("read {name}"))?;
            from = host.or(from);
        }
        let how = match from {
            Some(host) => format!("redirected to {host}"),
            None => "through the API itself".to_owned(),
        };
        Ok(((), how))
    }
}

fn lines(model: &str) -> String {
    let line = |custom_id: &str, temperature: f64| {
        let body = json!({
            "model": model,
            "messages": [{ "role": "user", "content": "Say hello." }],
            "max_tokens": 8,
            "temperature": temperature,
        });
        json!({
            "custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body,
        })
    };
    format!("{}\n{}\n", line(GOOD, 0.0), line(BAD, 9.0))
}

fn stage(batch: &Value) -> Stage {
    let count = |name: &str| batch["request_counts"][name].as_u64().unwrap_or(0);
    match batch["status"].as_str() {
        Some("validating") => Stage::Validating,
        Some("completed" | "failed" | "expired" | "cancelled") => Stage::Ended,
        Some(_) | None if count("completed") + count("failed") > 0 => Stage::Running,
        Some("finalizing" | "cancelling") => Stage::Running,
        Some(_) | None => Stage::Waiting,
    }
}

/// Checks that a result file holds this line alone, with this status.
fn check_record(bytes: &[u8], custom_id: &str, status: u16) -> anyhow::Result<()> {
    let text = std::str::from_utf8(bytes).context("it is not UTF-8")?;
    let mut records = text.lines();
    let (Some(record), None) = (records.next(), records.next()) else {
        anyhow::bail!("it has {} lines instead of one", text.lines().count());
    };
    let record: Value = serde_json::from_str(record).context("its line is no JSON")?;
    anyhow::ensure!(
        record["custom_id"] == custom_id && record["response"]["status_code"] == status,
        "it should answer '{custom_id}' with {status}, and it has '{}' with {}",
        record["custom_id"],
        record["response"]["status_code"]
    );
    Ok(())
}

/// Returns the id of an object.
pub(super) fn id(object: &Value) -> anyhow::Result<String> {
    let id = object["id"].as_str();
    id.map(str::to_owned)
        .with_context(|| format!("the answer has no id: {object}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_follows_status_and_counts() {
        for (status, done, expected) in [
            ("validating", 0, Stage::Validating),
            ("in_progress", 0, Stage::Waiting),
            ("in_progress", 1, Stage::Running),
            ("finalizing", 0, Stage::Running),
            ("completed", 2, Stage::Ended),
            ("failed", 0, Stage::Ended),
            ("something new", 0, Stage::Waiting),
        ] {
            let batch =
                json!({"status": status, "request_counts": {"completed": done, "failed": 0}});
            assert_eq!(stage(&batch), expected, "{status} {done}");
        }
    }

    #[test]
    fn result_file_must_hold_the_one_line() {
        let good = br#"{"custom_id":"check-good","response":{"status_code":200}}"#;
        assert!(check_record(good, GOOD, 200).is_ok());
        assert!(check_record(good, GOOD, 400).is_err());
        assert!(check_record(good, BAD, 200).is_err());
        assert!(check_record(b"", GOOD, 200).is_err());
        assert!(check_record(b"{}\n{}\n", GOOD, 200).is_err());
        assert!(check_record(&[0xff, b'\n'], GOOD, 200).is_err());
    }
}
