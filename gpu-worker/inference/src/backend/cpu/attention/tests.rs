//! Grouping decides who reads what together: no row is lost, and no bit depends on it.

use std::sync::Mutex;

use proptest::prelude::*;

use super::schedule::PAIRS;
use super::*;
use crate::backend::conformance::weights::Noise;
use crate::backend::cpu::storage::Buffer;
use crate::backend::cpu::{CpuBackend, CpuConfig, lock};
use crate::backend::state::StepState;
use crate::backend::{
    Backend, Buf, Embed, HeadLayout, KvFrom, KvGroup, KvLayout, KvSpec, Mask, Recipe, Role,
    RopeStore, Shard, ShareGroup, StepInputs, WeightDesc, WeightUse,
};

const HEADS: HeadLayout = HeadLayout {
    q_heads: 6,
    kv_heads: 2,
    dk: 32,
    dv: 48,
};
const COLS: usize = HEADS.q_heads * HEADS.dk + HEADS.kv_heads * (HEADS.dk + HEADS.dv);
/// Distinct rows of queries, keys and values.
const TOKENS: usize = 97;
const ROWS: usize = 512;
const PREFIX_PAGES: usize = 12;
const OWN_PAGES: usize = 10;
const MEMBERS: usize = 12;

/// A sequence that begins with the first `prefix` tokens of a common one.
#[derive(Debug, Clone)]
struct Member {
    /// Pages of the common prefix.
    prefix: usize,
    /// Tokens that it has after them.
    own: usize,
    /// How many of the last ones are rows of the step.
    rows: usize,
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    let member =
        (0..=PREFIX_PAGES, 1..=OWN_PAGES * 16, 1usize..20).prop_map(|(prefix, own, rows)| Member {
            prefix,
            own,
            rows: rows.min(own),
        });
    prop::collection::vec(member, 1..=MEMBERS)
}

/// Returns a step over `members` (index and member); those of `group` are a share group.
fn step(members: &[(usize, &Member)], group: &[u32]) -> StepInputs {
    let mut inputs = StepInputs::default();
    let mut table = PageTable {
        starts: vec![0],
        ..PageTable::default()
    };
    for &(index, member) in members {
        let len = member.prefix * 16 + member.own;
        inputs.sequences.push(StepSequence {
            slot: 0,
            q_start: inputs.tokens.len() as u32,
            q_len: member.rows as u32,
            kv_len: len as u32,
        });
        let own_page = |page: usize| PREFIX_PAGES + index * OWN_PAGES + page - member.prefix;
        let pages: Vec<u32> = (0..len.div_ceil(16))
            .map(|page| if page < member.prefix { page } else { own_page(page) } as u32)
            .collect();
        for position in len - member.rows..len {
            inputs
                .tokens
                .push(((position * 7 + index * 31) % TOKENS) as u32);
            inputs.positions.push(position as u32);
            table
                .write_slots
                .push(pages[position / 16] * 16 + position as u32 % 16);
        }
        table.pages.extend(pages);
        table.starts.push(table.pages.len() as u32);
    }
    if let Some(pages) = group.iter().map(|&i| members[i as usize].1.prefix).min() {
        inputs.share_groups.push(ShareGroup {
            pages: pages as u32,
            members: group.to_vec(),
        });
    }
    inputs.page_tables = vec![table];
    inputs.bucket = inputs.exact_bucket();
    inputs
}

struct Rig {
    backend: CpuBackend,
    embed: Embed,
    attend: Attend,
}

impl Rig {
    fn new(isa: Isa, recipe: Recipe, threads: usize) -> Self {
        let mut backend = CpuBackend::new(CpuConfig {
            threads,
            max_rows: ROWS,
            recipe,
            isa: Some(isa),
            packed: None,
        })
        .expect("the ISA is available");
        let desc = WeightDesc {
            name: "noise".to_owned(),
            n: TOKENS,
            k: COLS,
            experts: 1,
            heads: 1,
            used_as: WeightUse::Embedding,
            recipe,
            shard: Shard::Whole,
            salient: Vec::new(),
        };
        let noise = Noise {
            seed: 1,
            rows: TOKENS,
            cols: COLS,
            spread: 2.0,
            centre: 0.0,
            poisoned_row: None,
        };
        let table = backend.weight(&desc, &noise).expect("the weight fits");
        let mut buf = |cols| {
            backend
                .buf(ROWS, cols, Role::Residual)
                .expect("the buffer fits")
        };
        let (qkv, out) = (buf(COLS), buf(HEADS.q_heads * HEADS.dv));
        let spec = KvSpec {
            groups: vec![KvGroup {
                layers: vec![0],
                window: None,
            }],
            layout: KvLayout::Gqa {
                heads: HEADS.kv_heads,
                dk: HEADS.dk,
                dv: HEADS.dv,
            },
            dtype: recipe.kv_type(),
        };
        let pages = PREFIX_PAGES + MEMBERS * OWN_PAGES;
        backend.kv(&spec, &[pages]).expect("the cache fits");
        let mut rig = Self {
            backend,
            embed: Embed {
                out: qkv,
                table,
                scale: 1.0,
                positions: None,
                token_types: None,
            },
            attend: attend(qkv, out),
        };
        for first in (0..pages * 16).step_by(16) {
            let mut fill = step(
                &[(
                    0,
                    &Member {
                        prefix: 0,
                        own: 16,
                        rows: 16,
                    },
                )],
                &[],
            );
            fill.tokens = (first..first + 16)
                .map(|slot| (slot * 5 % TOKENS) as u32)
                .collect();
            fill.page_tables[0].write_slots = (first as u32..first as u32 + 16).collect();
            rig.run(&fill);
        }
        rig
    }

    /// Returns the bits of every row's attention.
    fn run(&mut self, inputs: &StepInputs) -> Vec<Vec<u32>> {
        self.backend.begin(inputs);
        self.backend.embed(&self.embed);
        self.backend.rope_store(&RopeStore {
            qkv: self.embed.out,
            heads: HEADS,
            layer: 0,
            rope: None,
            q_norm: None,
            k_norm: None,
            store: true,
        });
        self.backend.attend(&self.attend);
        let out: &Buffer = &self.backend.bufs[self.attend.out.0 as usize];
        let bits = |row| out.f32().row(row).iter().map(|x| x.to_bits()).collect();
        (0..inputs.tokens.len()).map(bits).collect()
    }
}

fn attend(qkv: Buf, out: Buf) -> Attend {
    Attend {
        qkv,
        heads: HEADS,
        layer: 0,
        scale: 0.2,
        mask: Mask::Causal,
        window: None,
        softcap: None,
        sinks: None,
        from: KvFrom::Pages,
        out,
    }
}

/// Checks `members` alone, side by side, and with the members whose bit in `grouped` is set as a share group.
fn check_bits(rigs: &[Mutex<Rig>], members: &[Member], grouped: u16) {
    let indexed: Vec<_> = members.iter().enumerate().collect();
    let group: Vec<u32> = (0..members.len() as u32)
        .filter(|&i| grouped >> i & 1 == 1)
        .collect();
    for rig in rigs {
        let mut rig = lock(rig);
        let alone: Vec<_> = indexed
            .iter()
            .flat_map(|&one| rig.run(&step(&[one], &[])))
            .collect();
        assert!(rig.run(&step(&indexed, &[])) == alone, "side by side");
        assert!(rig.run(&step(&indexed, &group)) == alone, "as a group");
    }
}

#[test]
fn groups_change_no_bit() {
    for recipe in [Recipe::F32, Recipe::Bf16] {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let rigs = [1, 3].map(|threads| Mutex::new(Rig::new(isa, recipe, threads)));
            proptest!(ProptestConfig::with_cases(12), |(members in members(), grouped: u16)| {
                check_bits(&rigs, &members, grouped);
            });
        }
    }
}

proptest! {
    /// Every row is in one unit, units are small and come largest first, and a long prefix is read together.
    #[test]
    fn schedule_places_each_row_once(
        members in members(),
        grouped: u16,
        q_heads in prop::sample::select(vec![2usize, 6, 18, 90, 200]),
        workers in 1usize..5,
    ) {
        let indexed: Vec<_> = members.iter().enumerate().collect();
        let group: Vec<u32> = (0..members.len() as u32)
            .filter(|&i| grouped >> i & 1 == 1)
            .collect();
        let inputs = step(&indexed, &group);
        let mut state = StepState::with_rows(ROWS);
        state.begin(&inputs);
        let op = Attend {
            heads: HeadLayout { q_heads, ..HEADS },
            ..attend(Buf(0), Buf(1))
        };
        let mut schedule = Schedule::with_rows(ROWS);
        schedule.prepare(&op, &state, workers);
        let prefix = group.iter().map(|&i| members[i as usize].prefix).min().unwrap_or(0);
        let mut seen = vec![0; inputs.tokens.len() * q_heads];
        prop_assert_eq!(schedule.first_task(0), 0);
        for task in 0..schedule.first_task(workers) {
            let assignment = schedule.task(task);
            let rows: usize = assignment.parts.iter().map(|part| part.rows().len()).sum();
            prop_assert!(rows > 0 && rows * assignment.heads.len() <= PAIRS);
            prop_assert_eq!(assignment.heads.start / (q_heads / HEADS.kv_heads), assignment.kv_head);
            for part in assignment.parts {
                let in_group = group.contains(&(part.sequence as u32));
                prop_assert_eq!(assignment.common, if in_group { prefix / BLOCK_PAGES } else { 0 });
                for row in part.rows() {
                    let row = inputs.sequences[part.sequence].q_start as usize + row;
                    for head in assignment.heads.clone() {
                        seen[row * q_heads + head] += 1;
                    }
                }
            }
        }
        prop_assert!(seen.iter().all(|&times| times == 1));
    }
}
