//! The suite over the CUDA backend, on the fake driver of `tests/cuda`, or over a GPU.
//!
//! `tests/cuda/run` builds the fake and sets `NIGHTSHIFT_CUDA_IMAGES`; without a driver the tests say that they
//! are skipped, or fail where `REQUIRE_CUDA` is set.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use super::model::Decoder;
use super::step::{Part, Sequence, assert_same_bits, greedy, sequence};
use super::tests::{BF16, INT8};
use super::{MAX_ROWS, Options, Report, case, run, shape};
use crate::backend::cuda::{CudaBackend, CudaConfig};
use crate::backend::{
    Backend, KvLayout, KvSpec, KvType, Recipe, Role, SampleInputs, SampleRow, ShareGroup,
};

const FP8_CACHE: Options = Options {
    kv: KvType::Fp8,
    tolerance: 0.5,
    ..BF16
};

fn config(recipe: Recipe, graphs: bool) -> CudaConfig {
    CudaConfig {
        device: 0,
        max_rows: MAX_ROWS,
        recipe,
        graphs,
        libraries: Vec::new(),
        images: std::env::var_os("NIGHTSHIFT_CUDA_IMAGES").map(PathBuf::from),
        cache: None,
    }
}

fn cuda(recipe: Recipe, graphs: bool) -> CudaBackend {
    CudaBackend::new(config(recipe, graphs)).expect("the driver was there a moment ago")
}

/// Returns whether there is a driver to test with; says so where there is none.
fn is_present() -> bool {
    match CudaBackend::new(config(Recipe::Bf16, false)) {
        Ok(_) => true,
        Err(error) => {
            assert!(
                std::env::var_os("REQUIRE_CUDA").is_none(),
                "REQUIRE_CUDA is set, but {error}"
            );
            println!("SKIPPED: {error}; gpu-worker/inference/tests/cuda/run builds a fake driver");
            false
        }
    }
}

#[test]
fn bf16_passes() {
    if is_present() {
        let report = run(|| cuda(Recipe::Bf16, true), BF16);
        assert_eq!(report, Report::default());
    }
}

#[test]
fn bf16_without_graphs_passes() {
    if is_present() {
        let report = run(|| cuda(Recipe::Bf16, false), BF16);
        assert_eq!(report, Report::default());
    }
}

#[test]
fn int8_passes() {
    if is_present() {
        let report = run(|| cuda(Recipe::Int8, true), INT8);
        assert_eq!(report.skipped, ["experts", "latent"]);
    }
}

#[test]
fn fp8_cache_passes() {
    if is_present() {
        let report = run(|| cuda(Recipe::Bf16, true), FP8_CACHE);
        assert_eq!(report, Report::default());
    }
}

#[test]
fn nothing_is_allocated_after_load() {
    if !is_present() {
        return;
    }
    for options in [BF16, INT8, FP8_CACHE] {
        for shape in shape::shapes() {
            let backend = cuda(options.recipe, true);
            let mut decoder =
                Decoder::load(backend, &shape, options).expect("decoders are supported");
            let loaded = decoder.backend.allocations();
            case::alone(&mut decoder, &case::sequences(&shape));
            assert_eq!(decoder.backend.allocations(), loaded, "{}", shape.name);
        }
    }
}

/// Two prompts with a long prefix in common, and the rows of a decode of each, grouped and not.
#[test]
fn share_groups_give_the_same_bits() {
    if !is_present() {
        return;
    }
    const PREFIX: usize = 256;
    let shape = &shape::shapes()[0];
    let backend = cuda(Recipe::Bf16, false);
    let mut decoder = Decoder::load(backend, shape, BF16).expect("decoders are supported");
    let first = sequence(0, PREFIX + 20, shape.vocabulary, 0..18);
    let mut second = sequence(1, PREFIX + 40, shape.vocabulary, 18..21);
    second.tokens[..PREFIX].copy_from_slice(&first.tokens[..PREFIX]);
    second.pages = (0..16).chain(18..21).collect();
    let sequences = [first, second];
    compute(&mut decoder, &sequences, 0, 0..PREFIX + 20);
    compute(&mut decoder, &sequences, 1, PREFIX..PREFIX + 40);
    let parts: Vec<Part> = sequences
        .iter()
        .enumerate()
        .map(|(i, sequence)| Part {
            sequence: i,
            rows: sequence.tokens.len() - 1..sequence.tokens.len(),
        })
        .collect();
    let mut inputs = decoder.inputs(&sequences, &parts);
    let rows = sequences.iter().map(|sequence| SampleRow {
        logprobs: Some(shape.vocabulary as u32),
        ..greedy(sequence.slot, 0)
    });
    let samples = SampleInputs {
        rows: rows.collect(),
        vocabulary: shape.vocabulary,
    };
    let alone = decoder.step(&inputs, &samples);
    inputs.share_groups = vec![ShareGroup {
        pages: 16,
        members: vec![0, 1],
    }];
    let grouped = decoder.step(&inputs, &samples);
    assert_eq!(alone, grouped);
}

/// Runs rows of one sequence in steps of the most rows.
fn compute(
    decoder: &mut Decoder<CudaBackend>,
    sequences: &[Sequence],
    sequence: usize,
    rows: std::ops::Range<usize>,
) {
    for start in rows.clone().step_by(MAX_ROWS) {
        let part = Part {
            sequence,
            rows: start..rows.end.min(start + MAX_ROWS),
        };
        decoder.observe(sequences, &[part]);
    }
}

/// Replays and launches give the same bits: each sequence decodes from the first token on.
#[test]
fn graphs_give_the_bits_of_launches() {
    if !is_present() {
        return;
    }
    for shape in shape::shapes() {
        let decode = |graphs: bool| {
            let backend = cuda(Recipe::Bf16, graphs);
            let mut decoder = Decoder::load(backend, &shape, BF16).expect("decoders are supported");
            let sequences = case::sequences(&shape);
            let mut trace = BTreeMap::new();
            for row in 0..5 {
                let parts: Vec<Part> = (0..sequences.len())
                    .map(|sequence| Part {
                        sequence,
                        rows: row..row + 1,
                    })
                    .collect();
                // The same part, so that the second step finds the graph of the first.
                decoder.restart_graphs();
                trace.extend(decoder.observe(&sequences, &parts));
            }
            (trace, decoder.backend.replays())
        };
        let (launched, none) = decode(false);
        let (replayed, replays) = decode(true);
        assert_same_bits(shape.name, &replayed, &launched);
        assert_eq!((none, replays), (0, 4), "{}", shape.name);
    }
}

#[test]
fn what_is_not_supported_is_refused_at_load() {
    if !is_present() {
        return;
    }
    let mut backend = cuda(Recipe::Bf16, true);
    let spec = |layout, dtype| KvSpec {
        groups: Vec::new(),
        layout,
        dtype,
    };
    let heads = |dk| KvLayout::Gqa {
        heads: 1,
        dk,
        dv: 16,
    };
    for (spec, want) in [
        (spec(heads(16), KvType::F32), "a KV cache in f32"),
        (spec(heads(257), KvType::Bf16), "heads of 257 and 16 values"),
    ] {
        let error = backend.kv(&spec, &[]).expect_err("it is not supported");
        assert_eq!(
            error.to_string(),
            format!("cuda backend does not support {want}")
        );
    }
}

/// What [`tells_why`] does in a process of its own.
const ASKED: &str = "NIGHTSHIFT_CUDA_TELL";

/// Prints why the backend does not start or run; the environment says what is wrong with the device.
#[test]
fn tells_why() {
    let Some(asked) = std::env::var_os(ASKED) else {
        return;
    };
    let device = if asked == "device 3" { 3 } else { 0 };
    let config = CudaConfig {
        device,
        ..config(Recipe::Bf16, true)
    };
    let mut backend = match CudaBackend::new(config) {
        Ok(backend) => backend,
        Err(error) => return println!("TOLD {error}"),
    };
    if asked == "memory" {
        let error = backend
            .buf(1 << 21, 1 << 10, Role::Residual)
            .expect_err("there is no room");
        return println!("TOLD {error}");
    }
    let shape = &shape::shapes()[0];
    let mut decoder = Decoder::load(backend, shape, BF16).expect("decoders are supported");
    let sequences = case::sequences(shape);
    let parts = [Part {
        sequence: 0,
        rows: 0..5,
    }];
    let inputs = decoder.inputs(&sequences, &parts);
    for step in 0..2 {
        decoder.forward(&inputs);
        let ticket = decoder.backend.end();
        match decoder.backend.wait(ticket) {
            Ok(_) => println!("step {step} ran"),
            Err(error) => println!("TOLD {error}"),
        }
    }
}

/// Runs [`tells_why`] with this environment, and returns what it told.
fn told(environment: &[(&str, &str)]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().expect("tests are a program"));
    command
        .args([
            "--exact",
            "backend::conformance::cuda::tells_why",
            "--nocapture",
        ])
        .env(ASKED, "device 0")
        .envs(environment.iter().copied());
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines()
        .filter_map(|line| line.split_once("TOLD ").map(|told| told.1.to_owned()))
        .collect()
}

#[test]
fn missing_driver_is_told_in_one_line() {
    let told = told(&[("LD_LIBRARY_PATH", "")]);
    if std::env::var_os("NIGHTSHIFT_CUDA_IMAGES").is_some() {
        assert_eq!(told, ["this machine has no NVIDIA driver (libcuda.so.1)"]);
    } else {
        assert!(told.len() <= 2, "one line, or two steps: {told:?}");
    }
}

/// These need the fake driver, which takes its faults from the environment.
#[test]
fn each_fault_of_a_device_is_told_in_one_line() {
    if std::env::var_os("NIGHTSHIFT_CUDA_IMAGES").is_none() {
        println!("SKIPPED: no fake driver; gpu-worker/inference/tests/cuda/run builds one");
        return;
    }
    let faults: [(&str, &str, &str); 6] = [
        ("FAKE_CUDA_DEVICES", "0", "the NVIDIA driver finds no GPU"),
        (
            "FAKE_CUDA_DRIVER_VERSION",
            "11080",
            "the NVIDIA driver is of CUDA 11.8, and 12.0 is the oldest that works",
        ),
        (
            "FAKE_CUDA_SM",
            "75",
            "fake device (CPU) is of architecture sm_75, and sm_80 is the oldest that works",
        ),
        (
            ASKED,
            "device 3",
            "there is no GPU 3: this machine has 1, counted from 0",
        ),
        (ASKED, "memory", "activations needs 8589934592 bytes, "),
        (
            "FAKE_CUDA_FAIL_LAUNCH",
            "9",
            "cuda device error: an illegal memory access was encountered",
        ),
    ];
    for (name, value, want) in faults {
        let told = told(&[(name, value)]);
        assert!(!told.is_empty(), "{name}={value} is told");
        for line in told {
            assert!(line.starts_with(want), "{name}={value}: {line}");
        }
    }
}

/// NVRTC needs no driver; where it is installed, its cubins load under the fake driver, and are kept.
#[test]
#[ignore = "NVRTC 13.5 crashes in a process that has the fake driver"]
fn compiled_kernels_are_kept_between_starts() {
    let library = std::env::var_os("NIGHTSHIFT_CUDA_LIBS").map(PathBuf::from);
    let library = library.expect("NIGHTSHIFT_CUDA_LIBS says where NVRTC is");
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let names = || {
        let entries = std::fs::read_dir(folder.path()).expect("the cache is a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("the cache can be listed").file_name())
            .collect();
        names.sort();
        names
    };
    let start = |libraries: Vec<PathBuf>| {
        CudaBackend::new(CudaConfig {
            libraries,
            images: None,
            cache: Some(folder.path().to_owned()),
            ..config(Recipe::Bf16, true)
        })
        .expect("NVRTC compiles the kernels")
    };
    drop(start(vec![library.clone()]));
    let kept = names();
    assert!(!kept.is_empty(), "the first start keeps what it compiles");
    drop(start(vec![library]));
    assert_eq!(names(), kept, "the second start compiles nothing");
}
