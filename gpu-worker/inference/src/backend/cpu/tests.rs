//! What the backend refuses, and how it names itself; what it computes is for the conformance suite.

use super::*;
use crate::backend::{KvGroup, KvLayout, KvType, Shard, WeightUse};
use crate::model::ModelError;

struct Broken;

impl WeightSource for Broken {
    fn rows(&self) -> usize {
        70
    }

    fn cols(&self) -> usize {
        8
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        out.fill(0.0);
        if first_row < 64 {
            return Ok(());
        }
        Err(ModelError::Corrupt {
            path: "weights".to_owned(),
            what: "too short".to_owned(),
        })
    }
}

fn config(recipe: Recipe) -> CpuConfig {
    CpuConfig {
        threads: 2,
        max_rows: 4,
        recipe,
        isa: Some(Isa::Portable),
        packed: None,
    }
}

fn backend() -> CpuBackend {
    CpuBackend::new(config(Recipe::F32)).expect("every machine has the portable ISA")
}

fn desc() -> WeightDesc {
    WeightDesc {
        name: "w".to_owned(),
        n: 70,
        k: 8,
        experts: 1,
        heads: 1,
        used_as: WeightUse::Linear,
        recipe: Recipe::F32,
        shard: Shard::Whole,
        salient: Vec::new(),
    }
}

fn check_refused<T: std::fmt::Debug>(result: Result<T, BackendError>, want: &str) {
    let error = result.expect_err("the backend does not support it");
    assert_eq!(
        error.to_string(),
        format!("cpu backend does not support {want}")
    );
}

#[test]
fn what_is_not_supported_is_refused_at_load() {
    let mut cpu = backend();
    check_refused(
        cpu.weight(
            &WeightDesc {
                experts: 2,
                ..desc()
            },
            &Broken,
        ),
        "stacked weights",
    );
    check_refused(
        cpu.weight(&WeightDesc { heads: 2, ..desc() }, &Broken),
        "stacked weights",
    );
    let shard = Shard::Rows { index: 0, count: 2 };
    check_refused(
        cpu.weight(&WeightDesc { shard, ..desc() }, &Broken),
        "sharded weights",
    );
    check_refused(cpu.buf(1, 1, Role::Routing), "mixtures of experts");
    let groups = vec![KvGroup {
        layers: vec![0],
        window: None,
    }];
    let layout = KvLayout::Gqa {
        heads: 1,
        dk: 16,
        dv: 16,
    };
    let spec = KvSpec {
        groups,
        layout,
        dtype: KvType::Fp8,
    };
    check_refused(cpu.kv(&spec, &[1]), "a KV cache in fp8");
    let layout = KvLayout::Latent { rank: 8, rope: 8 };
    check_refused(cpu.kv(&KvSpec { layout, ..spec }, &[1]), "latent attention");
}

#[test]
fn unreadable_weight_is_an_error_that_names_it() {
    let error = backend()
        .weight(&desc(), &Broken)
        .expect_err("the source ends early");
    assert!(
        matches!(&error, BackendError::Weight { name, .. } if name == "w"),
        "{error:?}"
    );
}

#[test]
fn fingerprint_names_version_instruction_set_and_recipe() {
    let expected = format!("{}-cpu{KERNELS}-portable-f32", env!("CARGO_PKG_VERSION"));
    assert_eq!(backend().caps().fingerprint, expected);
}

#[test]
fn memory_beyond_the_address_space_is_an_error() {
    let error = backend()
        .buf(usize::MAX / 16, 8, Role::Residual)
        .expect_err("no machine has it");
    assert!(
        matches!(error, BackendError::OutOfMemory { .. }),
        "{error:?}"
    );
}
