//! Pooled rows of encoders.

use super::sample::Pooled;
use super::*;
use crate::backend::PoolKind;

pub(super) fn pool(this: &mut CudaBackend, op: &Pool) {
    let (x, out) = (this.buffer(op.x), this.buffer(op.out));
    let Some(memory) = &this.step else { return };
    let dimensions = op.dimensions.unwrap_or(x.cols).min(x.cols);
    let kind = match op.kind {
        PoolKind::Mean => 0,
        PoolKind::Cls => 1,
        PoolKind::Last => 2,
    };
    use Argument::{Address, U32};
    let arguments = [
        Address(out.at),
        U32(out.ld as u32),
        Address(x.at),
        U32(x.ld as u32),
        Address(memory.sequences()),
        Address(memory.counters(0)),
        U32(x.cols as u32),
        U32(dimensions as u32),
        U32(kind),
        U32(u32::from(op.l2)),
    ];
    let sequences = &this.host.sequences;
    let written: Vec<bool> = sequences
        .iter()
        .map(|sequence| sequence.q_len > 0)
        .collect();
    let shape = Shape::rows(written.len(), 256).with_shared(4 * x.cols);
    if let Some(sampling) = &mut this.sampling {
        sampling.set_pooled(Pooled {
            at: out.at,
            ld: out.ld,
            cols: dimensions,
            written,
        });
    }
    this.launch("pool", shape, &arguments);
}
