//! Measures what the cores do when every operand is in a register: the peak that kernels are held against.
//!
//! `cargo run --release -p inference --example peak` prints one JSON line, all cores together, a multiplication and
//! an addition counted as two: `{"bf16_gflops":469.0,"int8_gops":938.0,"instructions":"VDPBF16PS, VPDPBUSD"}`.
//! Without AVX-512, products of bf16 are those of f32 (FMA), and products of int8 are VPMADDUBSW, VPMADDWD and VPADDD.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "loops of chosen instructions")
)]
#![expect(clippy::print_stdout, reason = "it is a measurement for a person")]

use std::process::ExitCode;

#[cfg(target_arch = "x86_64")]
fn main() -> ExitCode {
    use loops::{avx2, avx512};

    let wide = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vnni");
    let narrow = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let (bf16_gflops, int8_gops, instructions) = if wide {
        // SAFETY: the processor has just said that it has AVX-512 with BF16.
        let bf16 = || unsafe { avx512::bf16() };
        // SAFETY: the processor has just said that it has AVX-512 with VNNI.
        let int8 = || unsafe { avx512::int8() };
        (
            giga_per_second(bf16, avx512::BF16_OPERATIONS),
            giga_per_second(int8, avx512::INT8_OPERATIONS),
            "VDPBF16PS, VPDPBUSD",
        )
    } else if narrow {
        // SAFETY: the processor has just said that it has AVX2 and FMA.
        let f32 = || unsafe { avx2::f32() };
        // SAFETY: the processor has just said that it has AVX2.
        let int8 = || unsafe { avx2::int8() };
        (
            giga_per_second(f32, avx2::F32_OPERATIONS),
            giga_per_second(int8, avx2::INT8_OPERATIONS),
            "VFMADD231PS, VPMADDUBSW",
        )
    } else {
        return refuse();
    };
    println!(
        r#"{{"bf16_gflops":{bf16_gflops:.1},"int8_gops":{int8_gops:.1},"instructions":"{instructions}"}}"#
    );
    ExitCode::SUCCESS
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> ExitCode {
    refuse()
}

fn refuse() -> ExitCode {
    println!("this processor has neither AVX-512 nor AVX2");
    ExitCode::FAILURE
}

/// Runs `rounds` on every core at once, and returns its operations in 10^9 a second, of the best repetition.
#[cfg(target_arch = "x86_64")]
fn giga_per_second(rounds: impl Fn() + Sync, operations: usize) -> f64 {
    use std::sync::Barrier;
    use std::time::Instant;

    /// Each takes less than 1 ms, and the best one counts: another process cannot spoil them all.
    const REPETITIONS: usize = 500;

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (start, end) = (Barrier::new(cores), Barrier::new(cores));
    let repeat = || {
        let mut best_s = f64::INFINITY;
        for _ in 0..REPETITIONS {
            start.wait();
            let started = Instant::now();
            rounds();
            end.wait();
            best_s = best_s.min(started.elapsed().as_secs_f64());
        }
        best_s
    };
    // A thread that leaves the first barrier late sees too short a time: the longest of all threads is the true one.
    let best_s = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(repeat)).collect();
        let seconds = threads
            .into_iter()
            .map(|thread| thread.join().expect("the loops cannot panic"));
        seconds.fold(0.0, f64::max)
    });
    (cores * loops::ROUNDS * loops::SUMS * operations) as f64 / best_s / 1e9
}

#[cfg(target_arch = "x86_64")]
mod loops {
    //! Each sum depends on itself alone, and what it comes to is kept from the optimiser.

    /// Independent sums: more than an instruction's latency times how many start in a cycle, fewer than registers.
    pub(super) const SUMS: usize = 12;

    pub(super) const ROUNDS: usize = 200_000;

    pub(super) mod avx512 {
        use std::arch::x86_64::*;
        use std::hint::black_box;

        use super::{ROUNDS, SUMS};

        /// Sixteen lanes of two products.
        pub(crate) const BF16_OPERATIONS: usize = 16 * 2 * 2;

        /// Sixteen lanes of four products.
        pub(crate) const INT8_OPERATIONS: usize = 16 * 4 * 2;

        #[target_feature(enable = "avx512f,avx512bf16")]
        pub(crate) fn bf16() {
            let factors = black_box(_mm512_cvtne2ps_pbh(
                _mm512_set1_ps(1.0),
                _mm512_set1_ps(1.0),
            ));
            let mut sums = [_mm512_setzero_ps(); SUMS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, factors, factors);
                }
            }
            black_box(sums);
        }

        #[target_feature(enable = "avx512f,avx512vnni")]
        pub(crate) fn int8() {
            let factors = black_box(_mm512_set1_epi8(1));
            let mut sums = [_mm512_setzero_si512(); SUMS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, factors, factors);
                }
            }
            black_box(sums);
        }
    }

    pub(super) mod avx2 {
        use std::arch::x86_64::*;
        use std::hint::black_box;

        use super::{ROUNDS, SUMS};

        /// Eight lanes of one product.
        pub(crate) const F32_OPERATIONS: usize = 8 * 2;

        /// Eight lanes of four products.
        pub(crate) const INT8_OPERATIONS: usize = 8 * 4 * 2;

        #[target_feature(enable = "avx2,fma")]
        pub(crate) fn f32() {
            let factors = black_box(_mm256_set1_ps(1.0));
            let mut sums = [_mm256_setzero_ps(); SUMS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(factors, factors, *sum);
                }
            }
            black_box(sums);
        }

        #[target_feature(enable = "avx2")]
        pub(crate) fn int8() {
            let (factors, ones) = black_box((_mm256_set1_epi8(1), _mm256_set1_epi16(1)));
            let mut sums = [_mm256_setzero_si256(); SUMS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    // A product that did not depend on the sum would be taken out of the loop.
                    let pairs = _mm256_maddubs_epi16(*sum, factors);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
            black_box(sums);
        }
    }
}
