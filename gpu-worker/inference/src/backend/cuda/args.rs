//! The twins of the structures in `kernels/args.cuh`: the same fields in the same order.
#![expect(unsafe_code, reason = "the marker of types that kernels read")]

/// A type that has the layout of a kernel's.
///
/// # Safety
///
/// The type is `repr(C)`, and its fields are those of the structure of the same name.
pub(super) unsafe trait Twin {}

/// Arguments of `norm_rows`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct NormArgs {
    pub(super) x: u64,
    pub(super) add: u64,
    pub(super) gain: u64,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) out_scale: u64,
    pub(super) cols: u32,
    pub(super) ldx: u32,
    pub(super) lda: u32,
    pub(super) ldo: u32,
    pub(super) kind: u32,
    pub(super) out_type: u32,
    pub(super) plus_one: u32,
    pub(super) block: u32,
    pub(super) eps: f32,
    pub(super) zero: u32,
}
// SAFETY: as in args.cuh.
unsafe impl Twin for NormArgs {}

/// Arguments of `gemm_*`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct GemmArgs {
    pub(super) x: u64,
    pub(super) w: u64,
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) x_scale: u64,
    pub(super) w_scale: u64,
    pub(super) x_rows: u64,
    pub(super) tiles: u64,
    pub(super) pairs: u64,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) ldx: u32,
    pub(super) ldw: u32,
    pub(super) ldo: u32,
    pub(super) x_stack: u32,
    pub(super) out_stack: u32,
    pub(super) epilogue: u32,
    pub(super) act: u32,
    pub(super) out_type: u32,
    pub(super) scale_block: u32,
    pub(super) p0: f32,
    pub(super) p1: f32,
    pub(super) x_div: u32,
    pub(super) zero: u32,
}
// SAFETY: as in args.cuh.
unsafe impl Twin for GemmArgs {}

/// Arguments of `rope_store`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct RopeArgs {
    pub(super) qkv: u64,
    pub(super) k_pool: u64,
    pub(super) v_pool: u64,
    pub(super) cosines: u64,
    pub(super) sines: u64,
    pub(super) q_gain: u64,
    pub(super) k_gain: u64,
    pub(super) positions: u64,
    pub(super) write_slots: u64,
    pub(super) ldq: u32,
    pub(super) q_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dk: u32,
    pub(super) dv: u32,
    pub(super) pairs: u32,
    pub(super) style: u32,
    pub(super) latent: u32,
    pub(super) q_gain_len: u32,
    pub(super) k_gain_len: u32,
    pub(super) fp8: u32,
    pub(super) q_eps: f32,
    pub(super) k_eps: f32,
    pub(super) k_scale: f32,
    pub(super) v_scale: f32,
}
// SAFETY: as in args.cuh; the odd word at the end is padding on both sides.
unsafe impl Twin for RopeArgs {}

/// Arguments of `attend_*`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct AttendArgs {
    pub(super) qkv: u64,
    pub(super) k_pool: u64,
    pub(super) v_pool: u64,
    pub(super) sinks: u64,
    pub(super) pages: u64,
    pub(super) starts: u64,
    pub(super) sequences: u64,
    pub(super) q_pos: u64,
    pub(super) counters: u64,
    pub(super) part_base: u64,
    pub(super) items: u64,
    pub(super) row_list: u64,
    pub(super) part_acc: u64,
    pub(super) part_ml: u64,
    pub(super) out: u64,
    pub(super) ldq: u32,
    pub(super) ldo: u32,
    pub(super) q_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) dk: u32,
    pub(super) dv: u32,
    pub(super) bidirectional: u32,
    pub(super) window: u32,
    pub(super) scale: f32,
    pub(super) softcap: f32,
    pub(super) k_scale: f32,
    pub(super) v_scale: f32,
}
// SAFETY: as in args.cuh.
unsafe impl Twin for AttendArgs {}

/// Arguments of `route`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct RouteArgs {
    pub(super) x: u64,
    pub(super) w: u64,
    pub(super) bias: u64,
    pub(super) choice_bias: u64,
    pub(super) experts: u64,
    pub(super) weights: u64,
    pub(super) counters: u64,
    pub(super) expert_count: u32,
    pub(super) k: u32,
    pub(super) ldx: u32,
    pub(super) ldw: u32,
    pub(super) top_k: u32,
    pub(super) sigmoid: u32,
    pub(super) groups: u32,
    pub(super) groups_kept: u32,
    pub(super) renorm: u32,
    pub(super) scale: f32,
}
// SAFETY: as in args.cuh.
unsafe impl Twin for RouteArgs {}

/// Arguments of `sample`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct SampleArgs {
    pub(super) logits: u64,
    pub(super) rows: u64,
    pub(super) runs: u64,
    pub(super) masks: u64,
    pub(super) biases: u64,
    pub(super) history: u64,
    pub(super) slots: u64,
    pub(super) adjusted: u64,
    pub(super) weights: u64,
    pub(super) uses: u64,
    pub(super) out_tokens: u64,
    pub(super) out_logprobs: u64,
    pub(super) out_status: u64,
    pub(super) top_ids: u64,
    pub(super) top_logprobs: u64,
    pub(super) run_count: u32,
    pub(super) ld: u32,
    pub(super) vocabulary: u32,
    pub(super) history_tokens: u32,
}
// SAFETY: as in args.cuh.
unsafe impl Twin for SampleArgs {}
