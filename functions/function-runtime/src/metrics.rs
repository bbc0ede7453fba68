//! Metrics, as lines of the log that CloudWatch takes for metrics: no call, no client, no wait.
//!
//! Source: the CloudWatch embedded metric format,
//! <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html>

use std::io::Write as _;

use batch_core::time::UnixMs;
use serde_json::{Map, Value, json};

/// Where our metrics are in CloudWatch.
pub const NAMESPACE: &str = "Nightshift";

/// What a metric counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Time.
    Milliseconds,
}

impl Unit {
    /// Returns CloudWatch's word.
    fn as_str(self) -> &'static str {
        match self {
            Unit::Count => "Count",
            Unit::Milliseconds => "Milliseconds",
        }
    }
}

/// Values of one moment that share their dimensions.
///
/// Names are CloudWatch's: letters and digits in camel case. A line holds at most 100 values and 30
/// dimensions.
#[derive(Debug, Clone, Copy)]
pub struct Metrics<'a> {
    /// When they were so.
    pub at: UnixMs,
    /// What they are kept by: all of these together.
    pub dimensions: &'a [(&'static str, &'a str)],
    /// Name, unit and value of each.
    pub values: &'a [(&'static str, Unit, u64)],
}

impl Metrics<'_> {
    /// Returns the line, without its newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let names: Vec<&str> = self.dimensions.iter().map(|(name, _)| *name).collect();
        let units: Vec<Value> = self
            .values
            .iter()
            .map(|(name, unit, _)| json!({"Name": name, "Unit": unit.as_str()}))
            .collect();
        let mut line = Map::new();
        line.insert(
            "_aws".to_owned(),
            json!({
                "Timestamp": self.at.0,
                "CloudWatchMetrics": [{"Namespace": NAMESPACE, "Dimensions": [names], "Metrics": units}],
            }),
        );
        for (name, value) in self.dimensions {
            line.insert((*name).to_owned(), json!(value));
        }
        for (name, _, value) in self.values {
            line.insert((*name).to_owned(), json!(value));
        }
        Value::Object(line).to_string()
    }

    /// Writes the line to stdout, where the log goes. None for no value.
    pub fn emit(&self) {
        if self.values.is_empty() {
            return;
        }
        let mut line = self.to_line();
        line.push('\n');
        // Metrics are no reason to fail: a closed log loses them, as it loses the log.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn line_is_in_the_embedded_metric_format() {
        let metrics = Metrics {
            at: UnixMs(1_790_000_000_123),
            dimensions: &[("Deployment", "night\"shift"), ("Model", "qwen3:4b")],
            values: &[
                ("BacklogShards", Unit::Count, 12),
                ("Oldest", Unit::Milliseconds, 0),
            ],
        };
        expect![[r#"{"_aws":{"Timestamp":1790000000123,"CloudWatchMetrics":[{"Namespace":"Nightshift","Dimensions":[["Deployment","Model"]],"Metrics":[{"Name":"BacklogShards","Unit":"Count"},{"Name":"Oldest","Unit":"Milliseconds"}]}]},"Deployment":"night\"shift","Model":"qwen3:4b","BacklogShards":12,"Oldest":0}"#]]
        .assert_eq(&metrics.to_line());
    }
}
