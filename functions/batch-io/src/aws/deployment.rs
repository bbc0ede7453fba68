//! What a deployment tells its processes, in environment variables that Terraform writes.

use std::collections::BTreeMap;

use batch_core::catalog::{Catalog, InvalidCatalog, Model};
use batch_core::external::ImportLocations;
use batch_core::settings::{Settings, SettingsOverrides};

/// Name of the records table.
pub(super) const TABLE: &str = "NIGHTSHIFT_TABLE";

/// Name of the bucket.
pub(super) const BUCKET: &str = "NIGHTSHIFT_BUCKET";

/// What every queue's address starts with; the queue's own name comes after it.
pub(super) const QUEUE_URL_PREFIX: &str = "NIGHTSHIFT_QUEUE_URL_PREFIX";

/// The models, as a JSON array of [`Model`].
pub(super) const CATALOG: &str = "NIGHTSHIFT_CATALOG";

/// What the operator has set, as JSON of [`SettingsOverrides`]; nothing if it is absent.
pub(super) const SETTINGS: &str = "NIGHTSHIFT_SETTINGS";

/// The deployment's name, which its metrics carry.
pub(super) const NAME: &str = "NIGHTSHIFT_DEPLOYMENT";

/// The groups of workers, as a JSON object of [`Profile`] by name; none if it is absent.
pub(super) const PROFILES: &str = "NIGHTSHIFT_PROFILES";

/// Where `input_s3_uri` may point to, as a JSON array of locations; nowhere if it is absent.
pub(super) const IMPORTS: &str = "NIGHTSHIFT_IMPORTS";

/// One group of like machines.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Ids of the models that its workers serve.
    pub models: Vec<String>,
    /// Workers that run even when nothing waits.
    pub workers_min: u32,
    /// Most workers.
    pub workers_max: u32,
}

/// Where a deployment's state is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// Name of the records table.
    pub table: String,
    /// Name of the bucket.
    pub bucket: String,
    /// What every queue's address starts with.
    pub queue_url_prefix: String,
}

/// Everything that a deployment tells its processes.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// What its metrics carry.
    pub name: String,
    /// Where its state is.
    pub resources: Resources,
    /// Its models.
    pub catalog: Catalog,
    /// Its limits and times.
    pub settings: Settings,
    /// Its groups of workers, by name.
    pub profiles: BTreeMap<String, Profile>,
    /// Where inputs may be imported from.
    pub imports: ImportLocations,
}

/// Why the environment describes no deployment.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDeployment {
    /// A variable is not set, or empty.
    #[error("the environment variable {0} is not set: Terraform sets it for functions and workers")]
    Missing(&'static str),
    /// A variable's JSON is none of ours.
    #[error("the environment variable {variable} is not valid")]
    Json {
        /// Which.
        variable: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// Imports may come from where the files of all tenants are.
    #[error(
        "imports from {location} are not possible: the bucket is the deployment's own, with the files of all tenants"
    )]
    OwnBucket {
        /// As the variable has it.
        location: String,
    },
    /// The models contradict each other.
    #[error("the models are not valid")]
    Catalog(#[from] InvalidCatalog),
}

impl Deployment {
    /// Reads a deployment from variables, which `lookup` gives by name.
    ///
    /// # Errors
    ///
    /// [`InvalidDeployment`] for the first fault.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidDeployment> {
        let lookup = |name| lookup(name).filter(|value| !value.is_empty());
        let wanted = |name| lookup(name).ok_or(InvalidDeployment::Missing(name));
        let models: Vec<Model> = parse(CATALOG, &wanted(CATALOG)?)?;
        let set: SettingsOverrides = optional(SETTINGS, lookup(SETTINGS))?;
        let resources = Resources {
            table: wanted(TABLE)?,
            bucket: wanted(BUCKET)?,
            queue_url_prefix: wanted(QUEUE_URL_PREFIX)?,
        };
        Ok(Self {
            name: wanted(NAME)?,
            imports: imports(lookup(IMPORTS), &resources.bucket)?,
            resources,
            catalog: Catalog::new(models)?,
            settings: Settings::AWS.with(&set),
            profiles: optional(PROFILES, lookup(PROFILES))?,
        })
    }

    /// Reads a deployment from the environment of this process.
    ///
    /// # Errors
    ///
    /// [`InvalidDeployment`] for the first fault.
    pub fn from_env() -> Result<Self, InvalidDeployment> {
        Self::read(|name| std::env::var(name).ok())
    }
}

/// Reads where imports may come from: never the deployment's own bucket, where one tenant could name
/// another's files.
fn imports(json: Option<String>, own_bucket: &str) -> Result<ImportLocations, InvalidDeployment> {
    let imports = optional(IMPORTS, json.clone())?;
    let own = format!("s3://{own_bucket}/");
    let locations: Vec<String> = optional(IMPORTS, json)?;
    match locations.into_iter().find(|at| at.starts_with(&own)) {
        Some(location) => Err(InvalidDeployment::OwnBucket { location }),
        None => Ok(imports),
    }
}

fn optional<T: serde::de::DeserializeOwned + Default>(
    variable: &'static str,
    json: Option<String>,
) -> Result<T, InvalidDeployment> {
    json.map_or(Ok(T::default()), |json| parse(variable, &json))
}

fn parse<T: serde::de::DeserializeOwned>(
    variable: &'static str,
    json: &str,
) -> Result<T, InvalidDeployment> {
    serde_json::from_str(json).map_err(|source| InvalidDeployment::Json { variable, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#"{"id": "llama", "source": {"s3": "s3://weights/llama.gguf"},
        "endpoints": ["/v1/chat/completions"],
        "price": {"input_per_million": 1.0, "output_per_million": 2.0}}"#;

    fn read_with(changes: &[(&str, &str)]) -> Result<Deployment, InvalidDeployment> {
        let catalog = format!("[{MODEL}]");
        let mut variables = BTreeMap::from([
            (NAME, "nightshift"),
            (TABLE, "nightshift-records"),
            (BUCKET, "nightshift-blobs"),
            (
                QUEUE_URL_PREFIX,
                "https://sqs.eu-west-1.amazonaws.com/123456789012/nightshift-",
            ),
            (CATALOG, catalog.as_str()),
        ]);
        variables.extend(changes.iter().copied());
        Deployment::read(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn the_least_environment_describes_a_deployment() {
        let deployment = read_with(&[]).unwrap();
        assert_eq!(deployment.name, "nightshift");
        assert_eq!(
            deployment.resources,
            Resources {
                table: "nightshift-records".to_owned(),
                bucket: "nightshift-blobs".to_owned(),
                queue_url_prefix: "https://sqs.eu-west-1.amazonaws.com/123456789012/nightshift-"
                    .to_owned(),
            }
        );
        assert_eq!(deployment.settings, Settings::AWS);
        assert!(deployment.profiles.is_empty());
    }

    #[test]
    fn settings_and_profiles_are_read() {
        let deployment = read_with(&[
            (SETTINGS, r#"{"lines_per_file": 7}"#),
            (
                PROFILES,
                r#"{"small": {"models": ["llama"], "workers_min": 0, "workers_max": 3}}"#,
            ),
        ])
        .unwrap();
        assert_eq!(deployment.settings.lines_max, 7);
        let small = Profile {
            models: vec!["llama".to_owned()],
            workers_min: 0,
            workers_max: 3,
        };
        assert_eq!(deployment.profiles["small"], small);
    }

    #[test]
    fn a_variable_that_is_absent_or_empty_is_named() {
        for name in [NAME, TABLE, BUCKET, QUEUE_URL_PREFIX, CATALOG] {
            let error = read_with(&[(name, "")]).unwrap_err();
            assert!(matches!(error, InvalidDeployment::Missing(missing) if missing == name));
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn imports_from_the_deployments_own_bucket_are_refused() {
        for own in [
            "s3://nightshift-blobs/",
            "s3://nightshift-blobs/files/acme/",
        ] {
            let set = format!(r#"["s3://exports/nightly/", "{own}"]"#);
            let error = read_with(&[(IMPORTS, &set)]).unwrap_err();
            assert!(error.to_string().contains(own), "{error}");
            assert!(
                matches!(error, InvalidDeployment::OwnBucket { location } if location == own),
                "{own}"
            );
        }
        let set = r#"["s3://nightshift-blobs-of-others/", "s3://exports/nightshift-blobs/"]"#;
        let deployment = read_with(&[(IMPORTS, set)]).unwrap();
        let object = "s3://nightshift-blobs-of-others/in.jsonl".parse().unwrap();
        assert!(deployment.imports.allow(&object));
    }

    #[test]
    fn a_variable_that_is_not_ours_is_refused() {
        let twice = format!("[{MODEL}, {MODEL}]");
        assert!(matches!(
            read_with(&[(CATALOG, &twice)]).unwrap_err(),
            InvalidDeployment::Catalog(_)
        ));
        for (name, json) in [
            (CATALOG, "{}"),
            (CATALOG, "[{\"id\": 1}]"),
            (SETTINGS, "{\"lines\": 7}"),
            (PROFILES, "{\"small\": {\"models\": []}}"),
            (PROFILES, "[]"),
            (IMPORTS, "[\"s3://exports\"]"),
        ] {
            let error = read_with(&[(name, json)]).unwrap_err();
            assert!(
                matches!(error, InvalidDeployment::Json { variable, .. } if variable == name),
                "{name}={json}"
            );
        }
    }
}
