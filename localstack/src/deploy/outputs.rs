//! Terraform's outputs: where a deployment is, and what its processes are told.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::{Map, Value};

use crate::cli::OutputsArgs;
use crate::failure::usage;

/// Programs that can print outputs, the usual one first.
const PROGRAMS: [&str; 2] = ["terraform", "tofu"];

/// The outputs of one root module.
#[derive(Debug)]
pub(super) struct Outputs {
    values: Map<String, Value>,
    /// Where they were read, for messages.
    place: String,
}

impl Outputs {
    /// Reads the outputs that the arguments name: a file, or those of a folder, the current one by default.
    ///
    /// # Errors
    ///
    /// If there are none, and what to do then.
    pub(super) fn read(args: &OutputsArgs) -> anyhow::Result<Self> {
        if let Some(file) = &args.outputs {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("read {}", file.display()))?;
            return Self::parse(&text, file.display().to_string());
        }
        let folder = args.terraform.as_deref().unwrap_or(Path::new("."));
        Self::parse(&ask_terraform(folder)?, folder.display().to_string())
    }

    fn parse(text: &str, place: String) -> anyhow::Result<Self> {
        let Ok(Value::Object(outputs)) = serde_json::from_str(text) else {
            return Err(usage(format!(
                "{place} holds no outputs: it must be what 'terraform output -json' prints"
            )));
        };
        let values: Map<String, Value> = outputs
            .into_iter()
            .filter_map(|(name, output)| Some((name, output.get("value")?.clone())))
            .collect();
        if values.is_empty() {
            return Err(usage(format!(
                "there are no Terraform outputs in {place}: run 'terraform apply' there, or name another place with --terraform or --outputs"
            )));
        }
        Ok(Self { values, place })
    }

    /// Returns a text; none if it is absent, null or empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let text = self.values.get(name)?.as_str()?;
        (!text.is_empty()).then_some(text)
    }

    /// Returns a text that every deployment has.
    ///
    /// # Errors
    ///
    /// If it is absent, and what to do then.
    pub(super) fn wanted(&self, name: &str) -> anyhow::Result<&str> {
        self.text(name).ok_or_else(|| {
            usage(format!(
                "the Terraform outputs in {} have no '{name}': give your root module that output of the module nightshift",
                self.place
            ))
        })
    }

    /// Returns a variable of what functions and workers are told.
    #[cfg(feature = "aws")]
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        let variable = self.values.get("environment")?.get(name)?;
        variable.as_str().map(str::to_owned)
    }

    /// Returns the names of the groups of workers.
    pub(super) fn worker_groups(&self) -> Vec<String> {
        let names: Vec<&Value> = match self.values.get("worker_group_names") {
            Some(Value::Array(names)) => names.iter().collect(),
            Some(Value::Object(names)) => names.values().collect(),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {
                Vec::new()
            }
        };
        let texts = names.into_iter().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }
}

fn ask_terraform(folder: &Path) -> anyhow::Result<String> {
    for program in PROGRAMS {
        let printed = Command::new(program)
            .args(["output", "-json", "-no-color"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .output();
        let output = match printed {
            Ok(output) => output,
            // A folder that is not there looks the same.
            Err(error) if error.kind() == ErrorKind::NotFound && folder.is_dir() => continue,
            Err(error) => {
                return Err(anyhow::Error::new(error))
                    .with_context(|| format!("run {program} in {}", folder.display()));
            }
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.split_whitespace().collect();
        anyhow::bail!(
            "'{program} output' failed in {}: {}",
            folder.display(),
            said.join(" ")
        );
    }
    Err(usage(
        "neither terraform nor tofu is on PATH: write the outputs to a file with 'terraform output -json', and name it with --outputs",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(text: &str) -> anyhow::Result<Outputs> {
        Outputs::parse(text, "here".to_owned())
    }

    #[test]
    fn values_are_found_by_name() {
        let read = outputs(
            r#"{"api_base_url": {"sensitive": false, "type": "string", "value": "https://a/v1"},
                "ingest_base_url": {"value": null},
                "worker_group_names": {"value": {"small": "nightshift-small"}}}"#,
        )
        .unwrap();
        assert_eq!(read.wanted("api_base_url").unwrap(), "https://a/v1");
        assert_eq!(read.text("ingest_base_url"), None);
        assert_eq!(read.worker_groups(), ["nightshift-small"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (text, words) in [
            ("{}", "terraform apply"),
            ("[]", "terraform output -json"),
            ("oh", "terraform output -json"),
        ] {
            let said = outputs(text).unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("here"), "{said}");
        }
        let read = outputs(r#"{"other": {"value": 1}}"#).unwrap();
        let said = read.wanted("api_base_url").unwrap_err().to_string();
        assert!(said.contains("api_base_url"), "{said}");
    }
}
