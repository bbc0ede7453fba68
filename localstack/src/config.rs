//! The configuration file: settings and the model catalog, in TOML.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use batch_core::catalog::{Catalog, Engine, Model, Source};
use batch_core::settings::{Settings, SettingsOverrides, TestingOverrides};
use serde::Deserialize;

use crate::cli::Precision;
use crate::failure::usage;

const DEFAULT: &str = include_str!("default-config.toml");

/// Everything that an operator may set.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) catalog: Catalog,
    pub(crate) settings: Settings,
    pub(crate) engine: EngineSection,
    /// Where it was read from; child processes read it again.
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    model: Vec<Model>,
    #[serde(default)]
    limits: LimitsSection,
    #[serde(default)]
    engine: EngineSection,
    #[serde(default)]
    testing: TestingOverrides,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsSection {
    lines_per_file: Option<u64>,
    file_bytes: Option<u64>,
    batches_per_hour: Option<u64>,
    enqueued_tokens: Option<u64>,
}

/// How workers set up their engine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineSection {
    /// Threads of one worker; the machine's cores, shared among the workers, by default.
    pub(crate) threads: Option<usize>,
    /// Sequences that run at once.
    pub(crate) sequences: Option<usize>,
    /// Rows of one step: decodes and prompt chunks together.
    pub(crate) step_tokens: Option<usize>,
    /// Tokens that the KV cache holds.
    pub(crate) kv_tokens: Option<usize>,
    /// How products are computed.
    pub(crate) precision: Option<Precision>,
}

impl Config {
    /// Reads `file`, or the built-in configuration.
    pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else {
            return Self::parse(DEFAULT, None).context("read the built-in configuration");
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text, Some(path))
    }

    fn parse(text: &str, file: Option<&Path>) -> anyhow::Result<Self> {
        let shown = file.map_or_else(
            || "the built-in configuration".to_owned(),
            |path| path.display().to_string(),
        );
        let parsed: ConfigFile = toml::from_str(text).map_err(|error| {
            usage(format!(
                "{shown} is not valid: {}",
                one_line(&error.to_string())
            ))
        })?;
        let mut models = parsed.model;
        if models.is_empty() && file.is_some() {
            let built_in: ConfigFile =
                toml::from_str(DEFAULT).context("read the built-in configuration")?;
            models = built_in.model;
        }
        let folder = file.and_then(Path::parent);
        for model in &mut models {
            if let (Engine::Native(Source::Path(path)), Some(folder)) = (&mut model.engine, folder)
            {
                *path = folder.join(&path).display().to_string();
            }
        }
        let catalog = Catalog::new(models)
            .map_err(|error| usage(format!("{shown} is not valid: {error}")))?;
        let LimitsSection {
            lines_per_file,
            file_bytes,
            batches_per_hour,
            enqueued_tokens,
        } = parsed.limits;
        let settings = Settings::EMBEDDED.with(&SettingsOverrides {
            lines_per_file,
            file_bytes,
            batches_per_hour,
            enqueued_tokens,
            testing: parsed.testing,
        });
        Ok(Self {
            catalog,
            settings,
            engine: parsed.engine,
            file: file.map(Path::to_path_buf),
        })
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_catalog_names_the_default_model_by_each_alias() {
        let config = Config::load(None).unwrap();
        for name in [
            "smollm2-135m-instruct",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "SmolLM2-135M-Instruct",
        ] {
            assert_eq!(
                config.catalog.resolve(name).unwrap().id,
                "smollm2-135m-instruct"
            );
        }
    }

    #[test]
    fn unknown_field_is_named_and_is_a_usage_error() {
        let error = Config::parse("[limits]\nlines = 3\n", Some(Path::new("x.toml"))).unwrap_err();
        assert!(error.is::<crate::failure::Usage>());
        assert!(error.to_string().contains("lines"), "{error}");
    }

    #[test]
    fn file_without_models_keeps_the_built_in_catalog() {
        let config = Config::parse(
            "[testing]\nwindow_seconds = 1.5\n",
            Some(Path::new("x.toml")),
        )
        .unwrap();
        assert_eq!(config.settings.window_override_ms, Some(1500));
        assert_eq!(config.catalog.models().len(), 1);
    }

    #[test]
    fn path_of_a_model_is_relative_to_the_file() {
        let text = "[[model]]\nid = 'm'\nendpoints = []\nsource.path = 'm.gguf'\nprice = { input_per_million = 0, output_per_million = 0 }\n";
        let config = Config::parse(text, Some(Path::new("/etc/nightshift/x.toml"))).unwrap();
        assert_eq!(
            config.catalog.models()[0].engine,
            Engine::Native(Source::Path("/etc/nightshift/m.gguf".to_owned()))
        );
    }

    #[test]
    fn model_of_a_server_is_written_as_the_readme_says() {
        let readme = include_str!("../../README.md");
        let (_, rest) = readme
            .split_once("```toml\n[[model]]\nid = \"llama-70b\"")
            .unwrap();
        let (rest, _) = rest.split_once("```").unwrap();
        let text = format!("[[model]]\nid = \"llama-70b\"{rest}");
        let config = Config::parse(&text, Some(Path::new("x.toml"))).unwrap();
        assert!(matches!(config.catalog.models()[0].engine, Engine::Http(_)));
    }

    #[test]
    fn fault_of_a_model_is_a_usage_error_that_names_the_file_the_model_and_the_field() {
        let model = "[[model]]\nid = 'm'\nengine = 'http'\nendpoints = []\nprice = { input_per_million = 0, output_per_million = 0 }\n";
        for (rest, words) in [
            (
                "",
                "model 'm' has engine = \"http\" and no server: add server.url",
            ),
            (
                "server.url = 'gpu:8000'\n",
                "model 'm': server.url must be http:// or https://",
            ),
            ("server.link = 'http://gpu'\n", "unknown field `link`"),
        ] {
            let text = format!("{model}{rest}");
            let error = Config::parse(&text, Some(Path::new("x.toml"))).unwrap_err();
            assert!(error.is::<crate::failure::Usage>());
            let said = error.to_string();
            assert!(said.contains("x.toml") && said.contains(words), "{said}");
        }
    }
}
