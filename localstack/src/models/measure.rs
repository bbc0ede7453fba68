//! `nightshift models measure`: what bf16 and int8 cost a model in quality, against f32 on the same weights.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use inference::backend::Recipe;
use inference::backend::cpu::available_threads;
use inference::engine::quality::{Reader, WINDOW_TOKENS, compare};
use inference::text::Specials;
use serde_json::json;
use worker::precision::{LOSS_MAX, Measurement, Measurements};

use super::Shelf;
use crate::cli::MeasureArgs;
use crate::failure::usage;
use crate::say::{answer, aside};

/// Text that the model has to predict, unless the user names other files.
const TEXTS: [&str; 3] = [
    include_str!("held_out/prose.txt"),
    include_str!("held_out/code.txt"),
    include_str!("held_out/dialogue.txt"),
];

/// Recipes that are compared with f32.
const CANDIDATES: [Recipe; 2] = [Recipe::Bf16, Recipe::Int8];

/// Measures the model at `path`, shows the result, and keeps it for `--precision auto`.
pub(crate) fn measure(
    name: &str,
    path: &Path,
    args: &MeasureArgs,
    shelf: &Shelf,
    as_json: bool,
) -> anyhow::Result<()> {
    let texts = read_texts(&args.text)?;
    let opened = inference::model::open(path)
        .with_context(|| format!("open the model at {}", path.display()))?;
    let tokenizer = opened
        .tokenizer
        .clone()
        .with_context(|| format!("the model at {} has no tokenizer", path.display()))?;
    let text: Vec<u32> = texts
        .iter()
        .flat_map(|text| tokenizer.encode(text, Specials::Parse))
        .collect();
    if text.len() < 2 {
        return Err(usage("the text to measure on is empty"));
    }
    let threads = args.threads.unwrap_or_else(available_threads);
    let load = |recipe| {
        Reader::load(&opened.config, &opened, recipe, threads)
            .with_context(|| format!("load {name} in {}", Recipe::name(recipe)))
    };
    let mut reference = load(Recipe::F32)?;
    let mut candidates = CANDIDATES
        .into_iter()
        .map(load)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let windows = text.len().div_ceil(WINDOW_TOKENS);
    let qualities = compare(&mut reference, &mut candidates, &text, |read| {
        aside(format_args!(
            "window {} of {windows}",
            read.div_ceil(WINDOW_TOKENS)
        ));
    })
    .with_context(|| format!("run {name}"))?;
    let measurements: Vec<Measurement> = CANDIDATES
        .into_iter()
        .zip(&qualities)
        .map(|(recipe, quality)| Measurement::new(name, &opened.weights_digest, recipe, quality))
        .collect();
    let file = shelf.measurements();
    Measurements::add(&file, &measurements)
        .with_context(|| format!("keep the measurements in {}", file.display()))?;
    if as_json {
        return answer(json!({ "measurements": measurements }));
    }
    answer(table(&measurements))
}

fn read_texts(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    if files.is_empty() {
        return Ok(TEXTS.map(str::to_owned).to_vec());
    }
    files
        .iter()
        .map(|file| {
            std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
        })
        .collect()
}

fn table(measurements: &[Measurement]) -> String {
    let mut text = format!(
        "{:9}  {:>8}  {:>10}  {:>8}  {:>10}  {:>9}",
        "PRECISION", "TOKENS", "PERPLEXITY", "LOSS", "DIVERGENCE", "AGREEMENT"
    );
    if let Some(first) = measurements.first() {
        text.push_str(&format!(
            "\n{:9}  {:>8}  {:>10.4}",
            "f32", first.tokens, first.reference_perplexity
        ));
    }
    for known in measurements {
        text.push_str(&format!(
            "\n{:9}  {:>8}  {:>10.4}  {:>7.2}%  {:>10.5}  {:>8.2}%",
            known.recipe,
            known.tokens,
            known.perplexity,
            known.loss() * 100.0,
            known.divergence,
            known.agreement * 100.0
        ));
    }
    let holds = measurements
        .iter()
        .any(|known| known.recipe == Recipe::Int8.name() && known.loss() <= LOSS_MAX);
    text.push_str(if holds {
        "\n\n--precision auto runs this model in int8."
    } else {
        "\n\n--precision auto runs this model in bf16: int8 costs more than 1 % of perplexity."
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_the_loss_and_what_auto_does() {
        let measurement = |recipe: Recipe, perplexity| Measurement {
            model: "model".to_owned(),
            weights: "digest".to_owned(),
            recipe: recipe.name().to_owned(),
            tokens: 60_000,
            reference_perplexity: 10.0,
            perplexity,
            divergence: 0.01,
            agreement: 0.95,
        };
        let good = table(&[
            measurement(Recipe::Bf16, 10.001),
            measurement(Recipe::Int8, 10.05),
        ]);
        assert!(good.contains("   0.50%"), "{good}");
        assert!(good.ends_with("runs this model in int8."), "{good}");
        let bad = table(&[measurement(Recipe::Int8, 10.2)]);
        assert!(bad.contains("in bf16"), "{bad}");
    }

    #[test]
    fn built_in_text_is_long_enough_to_tell() {
        // Some four bytes a token: 50,000 tokens at the least.
        let bytes: usize = TEXTS.iter().map(|text| text.len()).sum();
        assert!(bytes >= 200_000, "{bytes} bytes");
    }
}
