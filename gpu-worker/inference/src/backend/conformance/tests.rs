//! The suite over the host backends.

use super::*;
use crate::backend::cpu::{CpuBackend, CpuConfig, Isa, PackedCache, PackedStatus};
use crate::backend::deferred::Deferred;

const F32: Options = Options {
    recipe: Recipe::F32,
    kv: KvType::F32,
    tolerance: 2e-4,
};
pub(super) const BF16: Options = Options {
    recipe: Recipe::Bf16,
    kv: KvType::Bf16,
    tolerance: 0.12,
};
pub(super) const INT8: Options = Options {
    recipe: Recipe::Int8,
    kv: KvType::Bf16,
    tolerance: 0.5,
};

fn scalar(lookahead: usize) -> ScalarBackend {
    ScalarBackend::new(ScalarConfig {
        max_rows: MAX_ROWS,
        lookahead,
    })
}

fn cpu(threads: usize, recipe: Recipe, isa: Isa) -> CpuBackend {
    CpuBackend::new(config(threads, recipe, isa)).expect("the ISA is available")
}

fn config(threads: usize, recipe: Recipe, isa: Isa) -> CpuConfig {
    CpuConfig {
        threads,
        max_rows: MAX_ROWS,
        recipe,
        isa: Some(isa),
        packed: None,
    }
}

/// Runs the suite on the CPU backend, or says that the machine lacks the instruction set.
fn check_cpu(isa: Isa, options: Options) {
    if !isa.is_available() {
        println!("SKIPPED: this machine does not have {isa:?}");
        return;
    }
    let report = run(|| cpu(2, options.recipe, isa), options);
    assert_eq!(report.skipped, ["experts", "latent"]);
    for threads in [1, 3] {
        assert_same_bits(
            || cpu(2, options.recipe, isa),
            || cpu(threads, options.recipe, isa),
            options,
        );
    }
}

#[test]
fn scalar_passes_with_and_without_lookahead() {
    for lookahead in [0, 1] {
        let report = run(
            || scalar(lookahead),
            Options {
                tolerance: 0.0,
                ..F32
            },
        );
        assert_eq!(report, Report::default());
    }
}

#[test]
fn deferred_scalar_passes() {
    let report = run(
        || Deferred::new(scalar(0)),
        Options {
            tolerance: 0.0,
            ..F32
        },
    );
    assert_eq!(report, Report::default());
}

#[test]
fn deferred_cpu_passes() {
    let report = run(|| Deferred::new(cpu(2, Recipe::F32, Isa::detect())), F32);
    assert_eq!(report.skipped, ["experts", "latent"]);
}

#[test]
fn portable_f32_passes() {
    check_cpu(Isa::Portable, F32);
}

#[test]
fn portable_bf16_passes() {
    check_cpu(Isa::Portable, BF16);
}

#[test]
fn avx2_f32_passes() {
    check_cpu(Isa::Avx2, F32);
}

#[test]
fn avx2_bf16_passes() {
    check_cpu(Isa::Avx2, BF16);
}

#[test]
fn avx512_f32_passes() {
    check_cpu(Isa::Avx512, F32);
}

#[test]
fn avx512_bf16_widened_passes() {
    check_cpu(Isa::Avx512, BF16);
}

#[test]
fn avx512_bf16_passes() {
    check_cpu(Isa::Avx512Bf16, BF16);
}

#[test]
fn amx_bf16_passes() {
    check_cpu(Isa::Amx, BF16);
}

#[test]
fn portable_int8_passes() {
    check_cpu(Isa::Portable, INT8);
}

#[test]
fn avx2_int8_passes() {
    check_cpu(Isa::Avx2, INT8);
}

#[test]
fn avx512_int8_widened_passes() {
    check_cpu(Isa::Avx512, INT8);
}

#[test]
fn avx512_int8_passes() {
    check_cpu(Isa::Avx512Vnni, INT8);
}

#[test]
fn avx512_int8_beside_bf16_passes() {
    check_cpu(Isa::Avx512Bf16, INT8);
}

#[test]
fn amx_int8_passes() {
    check_cpu(Isa::Amx, INT8);
}

#[test]
fn cpu_holds_no_more_memory_after_steps_than_after_load() {
    for options in [F32, BF16, INT8] {
        for shape in shape::shapes() {
            let backend = cpu(2, options.recipe, Isa::detect());
            let mut decoder =
                model::Decoder::load(backend, &shape, options).expect("decoders are supported");
            let loaded = decoder.backend.held_bytes();
            case::alone(&mut decoder, &case::sequences(&shape));
            assert_eq!(decoder.backend.held_bytes(), loaded, "{}", shape.name);
        }
    }
}

#[test]
fn mapped_weights_give_the_bits_of_packed_ones() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    for options in [F32, BF16, INT8] {
        for shape in shape::shapes() {
            let packed = PackedCache {
                path: folder.path().join(shape.name),
                key: options.recipe.name().to_owned(),
            };
            let load = |packed| {
                let config = CpuConfig {
                    packed,
                    ..config(2, options.recipe, Isa::detect())
                };
                let backend = CpuBackend::new(config).expect("the ISA is available");
                model::Decoder::load(backend, &shape, options).expect("decoders are supported")
            };
            let mut unkept = load(None);
            let mut first = load(Some(packed.clone()));
            let mut second = load(Some(packed));
            let statuses = [&unkept, &first, &second].map(|it| it.backend.packed_status());
            assert!(
                matches!(
                    statuses,
                    [
                        PackedStatus::Off,
                        PackedStatus::Written,
                        PackedStatus::Mapped
                    ]
                ),
                "{}: {statuses:?}",
                shape.name
            );
            let sequences = case::sequences(&shape);
            let want = case::alone(&mut unkept, &sequences);
            for decoder in [&mut first, &mut second] {
                step::assert_same_bits(shape.name, &case::alone(decoder, &sequences), &want);
            }
        }
    }
}
