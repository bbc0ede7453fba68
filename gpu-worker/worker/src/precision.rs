//! Which recipe a model runs with, and what is known of the quality that it costs.
//!
//! `auto` takes int8 for a model whose perplexity it has been measured to raise by no more than [`LOSS_MAX`],
//! and bf16 for all others. Measurements of the catalog's models come with the program; `nightshift models
//! measure` makes those of others.

use std::path::Path;

use inference::backend::Recipe;
use inference::engine::quality::Quality;
use serde::{Deserialize, Serialize};

/// How much greater than in f32 a recipe's perplexity may be, for `auto` to take it.
pub const LOSS_MAX: f64 = 0.01;

/// What comes with the program.
const BUILT_IN: &str = include_str!("measurements.json");

/// How products are to be computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The fastest whose quality is known to hold.
    #[default]
    Auto,
    /// bfloat16 products, f32 sums.
    Bf16,
    /// 8-bit products, exact sums.
    Int8,
    /// f32 throughout.
    F32,
}

impl Precision {
    /// Returns the recipe for the model whose weights have `digest`.
    #[must_use]
    pub fn recipe(self, digest: &str, measurements: &Measurements) -> Recipe {
        match self {
            Precision::Auto if measurements.hold(digest, Recipe::Int8) => Recipe::Int8,
            Precision::Auto | Precision::Bf16 => Recipe::Bf16,
            Precision::Int8 => Recipe::Int8,
            Precision::F32 => Recipe::F32,
        }
    }
}

/// What one recipe costs on one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The model's name, for people.
    pub model: String,
    /// Digest of its weights.
    pub weights: String,
    /// [`Recipe::name`].
    pub recipe: String,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Perplexity in f32.
    pub reference_perplexity: f64,
    /// Perplexity with the recipe.
    pub perplexity: f64,
    /// Mean Kullback-Leibler divergence from f32, nats.
    pub divergence: f64,
    /// Share of positions where both find the same token most likely.
    pub agreement: f64,
}

impl Measurement {
    /// Makes the record of a measurement.
    #[must_use]
    pub fn new(model: &str, weights: &str, recipe: Recipe, quality: &Quality) -> Self {
        Self {
            model: model.to_owned(),
            weights: weights.to_owned(),
            recipe: recipe.name().to_owned(),
            tokens: quality.tokens,
            reference_perplexity: quality.reference_perplexity,
            perplexity: quality.perplexity,
            divergence: quality.divergence,
            agreement: quality.agreement,
        }
    }

    /// Returns how much greater than in f32 the perplexity is: 0.01 is one per cent.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.perplexity / self.reference_perplexity - 1.0
    }

    fn is_of(&self, other: &Self) -> bool {
        self.weights == other.weights && self.recipe == other.recipe
    }
}

/// All measurements that are known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurements(Vec<Measurement>);

impl Measurements {
    /// Returns what comes with the program, and what `file` has besides. A file that is not there has nothing.
    ///
    /// # Errors
    ///
    /// [`std::io::Error`] if the file cannot be read, or is not one of measurements.
    pub fn read(file: Option<&Path>) -> std::io::Result<Self> {
        let mut known = Self(serde_json::from_str(BUILT_IN)?);
        let own = match file.map(std::fs::read) {
            None => return Ok(known),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(known),
            Some(read) => read?,
        };
        let own: Vec<Measurement> = serde_json::from_slice(&own)?;
        for measurement in own {
            known.insert(measurement);
        }
        Ok(known)
    }

    /// Writes `measurements` to `file`, in place of earlier ones of the same weights and recipes.
    ///
    /// # Errors
    ///
    /// [`std::io::Error`] if the file is not one of measurements, or cannot be written.
    pub fn add(file: &Path, measurements: &[Measurement]) -> std::io::Result<()> {
        let mut own = match std::fs::read(file) {
            Ok(bytes) => Self(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error),
        };
        for measurement in measurements {
            own.insert(measurement.clone());
        }
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let unfinished = file.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&unfinished, serde_json::to_vec_pretty(&own.0)?)?;
        std::fs::rename(&unfinished, file)
    }

    fn insert(&mut self, measurement: Measurement) {
        self.0.retain(|other| !other.is_of(&measurement));
        self.0.push(measurement);
    }

    fn hold(&self, digest: &str, recipe: Recipe) -> bool {
        let mut of_recipe = self.0.iter().filter(|known| known.recipe == recipe.name());
        of_recipe.any(|known| known.weights == digest && known.loss() <= LOSS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(weights: &str, perplexity: f64) -> Measurement {
        Measurement {
            model: "model".to_owned(),
            weights: weights.to_owned(),
            recipe: Recipe::Int8.name().to_owned(),
            tokens: 60_000,
            reference_perplexity: 10.0,
            perplexity,
            divergence: 0.01,
            agreement: 0.95,
        }
    }

    #[test]
    fn auto_takes_int8_only_where_it_was_measured_to_hold() {
        let known = Measurements(vec![measurement("good", 10.09), measurement("bad", 10.11)]);
        let recipes = ["good", "bad", "never measured"].map(|w| Precision::Auto.recipe(w, &known));
        assert_eq!(recipes, [Recipe::Int8, Recipe::Bf16, Recipe::Bf16]);
        assert_eq!(Precision::Int8.recipe("bad", &known), Recipe::Int8);
        assert_eq!(Precision::F32.recipe("good", &known), Recipe::F32);
    }

    #[test]
    fn measurement_that_is_no_number_does_not_hold() {
        let known = Measurements(vec![measurement("nan", f64::NAN)]);
        assert_eq!(Precision::Auto.recipe("nan", &known), Recipe::Bf16);
    }

    #[test]
    fn own_measurements_replace_those_of_the_same_weights_and_recipe() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let file = folder.path().join("deep").join("measurements.json");
        let built_in = Measurements::read(Some(&file)).expect("a missing file has nothing");
        for perplexity in [11.0, 10.0] {
            Measurements::add(&file, &[measurement("own", perplexity)]).expect("it is writable");
        }
        let known = Measurements::read(Some(&file)).expect("it was written");
        assert_eq!(known.0.len(), built_in.0.len() + 1);
        assert_eq!(Precision::Auto.recipe("own", &known), Recipe::Int8);
    }

    #[test]
    fn file_of_something_else_is_an_error_and_stays() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let file = folder.path().join("measurements.json");
        std::fs::write(&file, "no JSON").expect("the folder is writable");
        assert!(Measurements::read(Some(&file)).is_err());
        assert!(Measurements::add(&file, &[]).is_err());
        let left = std::fs::read_to_string(&file).expect("it is there");
        assert_eq!(left, "no JSON");
    }
}
