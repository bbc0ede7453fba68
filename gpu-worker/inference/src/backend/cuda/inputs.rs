//! What a step uploads: its inputs, and the work lists of attention.
//!
//! Every array has a fixed place, so that captured graphs stay valid.

mod shapes;

pub(super) use self::shapes::{Bounds, Cut, HostStep};
use super::driver::{Device, Said};
use super::upload::{Place, Plan, Upload};
use crate::backend::{ShareGroup, StepInputs, StepSequence};

/// Keys of a split of attention: splits begin at multiples of it.
pub(super) const SPLIT_TOKENS: usize = 256;

/// Pages of a split.
const SPLIT_PAGES: usize = SPLIT_TOKENS / super::PAGE_TOKENS;

/// Words of the counters of one head layout.
const COUNTERS: usize = 8;

/// The most head layouts in one model.
pub(super) const LAYOUTS_MAX: usize = 2;

/// Marks a row that is written nowhere.
const NO_SLOT: u32 = u32::MAX;

/// A block item reads its rows from the list of rows.
const INDIRECT: u32 = 1;
/// A block item writes partial results.
const PARTIAL: u32 = 2;

/// One page table's places.
#[derive(Debug, Clone, Copy)]
struct TablePlaces {
    pages: Place,
    starts: Place,
    write_slots: Place,
}

/// The lists of one head layout.
#[derive(Debug, Clone, Copy, Default)]
struct ListPlaces {
    block_items: Place,
    row_list: Place,
}

/// The memory of step inputs.
#[derive(Debug)]
pub(super) struct StepMemory {
    upload: Upload,
    bounds: Bounds,
    counters: Place,
    tokens: Place,
    positions: Place,
    token_types: Place,
    q_pos: Place,
    sequences: Place,
    logit_rows: Place,
    part_base: Place,
    decode_items: Place,
    merge_rows: Place,
    tables: Vec<TablePlaces>,
    lists: [ListPlaces; LAYOUTS_MAX],
    resets: Place,
    reset_tokens: Place,
}

impl StepMemory {
    /// Lays the arrays out and allocates them, or returns the bytes that the device has no room for.
    pub(super) fn new(device: &mut Device, bounds: Bounds) -> Said<Result<Self, usize>> {
        let mut plan = Plan::default();
        let rows = bounds.rows;
        let blocks = rows * bounds.group.div_ceil(32)
            + rows
            + bounds.partials * (bounds.group.div_ceil(32) + 1);
        let counters = plan.place(COUNTERS * LAYOUTS_MAX);
        let [tokens, positions, token_types, q_pos] = [rows; 4].map(|len| plan.place(len));
        let sequences = plan.place(4 * rows);
        let logit_rows = plan.place(bounds.logit_rows);
        let part_base = plan.place(rows);
        let decode_items = plan.place(4 * bounds.partials);
        let merge_rows = plan.place(rows);
        let resets = plan.place(4 * bounds.slots);
        let reset_tokens = plan.place(bounds.slots * bounds.history_tokens);
        let tables = (0..bounds.groups)
            .map(|_| TablePlaces {
                pages: plan.place(bounds.pages),
                starts: plan.place(rows + 1),
                write_slots: plan.place(rows),
            })
            .collect();
        let lists = [(); LAYOUTS_MAX].map(|()| ListPlaces {
            block_items: plan.place(8 * blocks),
            row_list: plan.place(rows),
        });
        let upload = match Upload::new(device, &plan)? {
            Ok(upload) => upload,
            Err(bytes) => return Ok(Err(bytes)),
        };
        Ok(Ok(Self {
            upload,
            bounds,
            counters,
            tokens,
            positions,
            token_types,
            q_pos,
            sequences,
            logit_rows,
            part_base,
            decode_items,
            merge_rows,
            tables,
            lists,
            resets,
            reset_tokens,
        }))
    }

    /// Returns what it was made for.
    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn address(&self, place: Place) -> u64 {
        self.upload.address(place)
    }

    /// Address of the counters of a head layout.
    pub(super) fn counters(&self, layout: usize) -> u64 {
        self.address(self.counters) + (4 * COUNTERS * layout) as u64
    }

    /// Address of the tokens.
    pub(super) fn tokens(&self) -> u64 {
        self.address(self.tokens)
    }

    /// Address of the positions.
    pub(super) fn positions(&self) -> u64 {
        self.address(self.positions)
    }

    /// Address of the token types.
    pub(super) fn token_types(&self) -> u64 {
        self.address(self.token_types)
    }

    /// Address of each row's index in its sequence.
    pub(super) fn q_pos(&self) -> u64 {
        self.address(self.q_pos)
    }

    /// Address of the sequences.
    pub(super) fn sequences(&self) -> u64 {
        self.address(self.sequences)
    }

    /// Address of the logit rows.
    pub(super) fn logit_rows(&self) -> u64 {
        self.address(self.logit_rows)
    }

    /// Address of each row's first partial slot.
    pub(super) fn part_base(&self) -> u64 {
        self.address(self.part_base)
    }

    /// Address of the decode items.
    pub(super) fn decode_items(&self) -> u64 {
        self.address(self.decode_items)
    }

    /// Address of the rows that are merged.
    pub(super) fn merge_rows(&self) -> u64 {
        self.address(self.merge_rows)
    }

    /// Addresses of the block items and the row list of a head layout.
    pub(super) fn list(&self, layout: usize) -> (u64, u64) {
        let list = &self.lists[layout];
        (self.address(list.block_items), self.address(list.row_list))
    }

    /// Addresses of the pages, their starts, and the write slots of a KV group.
    pub(super) fn table(&self, group: usize) -> (u64, u64, u64) {
        let table = &self.tables[group];
        (
            self.address(table.pages),
            self.address(table.starts),
            self.address(table.write_slots),
        )
    }

    /// Addresses of the resets and their tokens.
    pub(super) fn resets(&self) -> (u64, u64) {
        (self.address(self.resets), self.address(self.reset_tokens))
    }

    /// Takes the other copy, once the device has read what is in it.
    pub(super) fn turn(&mut self, device: &Device) -> Said<()> {
        self.upload.turn(device)
    }

    /// Marks that the uploads of the step so far are enqueued.
    pub(super) fn uploaded(&mut self, device: &Device) -> Said<()> {
        self.upload.uploaded(device)
    }

    /// Uploads all but the lists of attention, which need to know the head layouts.
    pub(super) fn send_inputs(
        &self,
        device: &mut Device,
        host: &HostStep,
        inputs: &StepInputs,
    ) -> Said<()> {
        let rows = host.rows;
        self.upload
            .send(device, self.tokens, inputs.tokens.iter().copied(), rows, 0)?;
        self.upload.send(
            device,
            self.positions,
            inputs.positions.iter().copied(),
            rows,
            0,
        )?;
        if host.has_types {
            self.upload.send(
                device,
                self.token_types,
                inputs.token_types.iter().copied(),
                rows,
                0,
            )?;
        }
        let paged = host.paged;
        let q_pos = inputs.sequences.iter().flat_map(|sequence| {
            let keys = keys(sequence, paged);
            keys - sequence.q_len..keys
        });
        self.upload.send(device, self.q_pos, q_pos, rows, 0)?;
        let sequences = inputs
            .sequences
            .iter()
            .flat_map(|s| [s.slot, s.q_start, s.q_len, s.kv_len]);
        self.upload.send(
            device,
            self.sequences,
            sequences,
            4 * inputs.sequences.len(),
            0,
        )?;
        self.upload.send(
            device,
            self.logit_rows,
            inputs.logit_rows.iter().copied(),
            host.logit_rows,
            0,
        )?;
        for (group, table) in inputs.page_tables.iter().enumerate() {
            // Without a KV pool nobody reads the tables.
            let Some(&places) = self.tables.get(group) else {
                break;
            };
            self.upload.send_all(device, places.pages, &table.pages)?;
            self.upload.send_all(device, places.starts, &table.starts)?;
            let slots = table.write_slots.iter().copied();
            self.upload
                .send(device, places.write_slots, slots, rows, NO_SLOT)?;
        }
        self.send_resets(device, inputs)
    }

    fn send_resets(&self, device: &mut Device, inputs: &StepInputs) -> Said<()> {
        let mut offset = 0;
        let resets = inputs.resets.iter().flat_map(|reset| {
            let (prompt, output) = (reset.prompt.len() as u32, reset.output.len() as u32);
            let entry = [reset.slot, prompt, output, offset];
            offset += prompt + output;
            entry
        });
        self.upload
            .send(device, self.resets, resets, 4 * inputs.resets.len(), 0)?;
        let tokens = inputs
            .resets
            .iter()
            .flat_map(|reset| reset.prompt.iter().chain(&reset.output).copied());
        let len = tokens.clone().count();
        self.upload.send(device, self.reset_tokens, tokens, len, 0)
    }

    /// Builds and uploads the lists of attention and the counters.
    pub(super) fn send_lists(
        &self,
        device: &mut Device,
        host: &mut HostStep,
        cuts: &[Cut],
    ) -> Said<()> {
        self.send_decodes(device, host)?;
        let mut counters = [0; COUNTERS * LAYOUTS_MAX];
        for (layout, cut) in cuts.iter().enumerate() {
            let (items, row_list) = block_items(host, *cut);
            host.block_items[layout] = items.len();
            let places = self.lists[layout];
            let len = 8 * items.len();
            self.upload.send(
                device,
                places.block_items,
                items.into_iter().flatten(),
                len,
                0,
            )?;
            self.upload.send_all(device, places.row_list, &row_list)?;
        }
        for (layout, &block_items) in host.block_items.iter().enumerate() {
            let counts = [
                host.own_rows,
                host.sequences.len(),
                host.own_logit_rows,
                host.decode_items,
                block_items,
                host.merge_rows,
            ];
            for (counter, count) in counters[COUNTERS * layout..].iter_mut().zip(counts) {
                *counter = count as u32;
            }
        }
        self.upload.send_all(device, self.counters, &counters)
    }

    /// Gives sequences of one row their places among the partial results, as long as there are any.
    fn send_decodes(&self, device: &mut Device, host: &mut HostStep) -> Said<()> {
        let (mut items, mut merge_rows) = (Vec::new(), Vec::new());
        let mut part_base = vec![0; host.own_rows];
        let mut slots = 0;
        host.decoding.clear();
        host.decoding.resize(host.sequences.len(), false);
        if host.paged {
            for (i, sequence) in host.sequences.iter().enumerate() {
                let splits = (sequence.kv_len as usize).div_ceil(SPLIT_TOKENS);
                if sequence.q_len != 1 || slots + splits > self.bounds.partials {
                    continue;
                }
                host.decoding[i] = true;
                part_base[sequence.q_start as usize] = slots as u32;
                slots += splits;
                merge_rows.push(sequence.q_start);
                for split in host.shared_splits(i)..splits {
                    items.push([sequence.q_start, i as u32, split as u32, 0]);
                }
            }
        }
        host.decode_items = items.len();
        host.merge_rows = merge_rows.len();
        self.upload.send_all(device, self.part_base, &part_base)?;
        self.upload.send_all(device, self.merge_rows, &merge_rows)?;
        let len = 4 * items.len();
        self.upload.send(
            device,
            self.decode_items,
            items.into_iter().flatten(),
            len,
            0,
        )
    }
}

/// Returns the keys that a sequence's rows may see.
fn keys(sequence: &StepSequence, paged: bool) -> u32 {
    if paged {
        sequence.kv_len
    } else {
        sequence.q_len
    }
}

impl HostStep {
    /// Takes the shape of a step, whose operations run on `rows` and `logit_rows` rows.
    pub(super) fn begin(&mut self, inputs: &StepInputs, rows: usize, logit_rows: usize) {
        self.rows = rows;
        self.logit_rows = logit_rows;
        self.own_rows = inputs.tokens.len();
        self.own_logit_rows = inputs.logit_rows.len();
        self.sequences.clone_from(&inputs.sequences);
        self.share_groups.clone_from(&inputs.share_groups);
        self.has_types = !inputs.token_types.is_empty();
        self.paged = !inputs.page_tables.is_empty();
        self.decodes_only = is_decode(inputs);
        self.decode_items = 0;
        self.block_items = [0; LAYOUTS_MAX];
        self.merge_rows = 0;
    }

    /// Splits at the front of a sequence that its share group reads for it.
    fn shared_splits(&self, sequence: usize) -> usize {
        self.share_groups
            .iter()
            .find(|group| group.members.contains(&(sequence as u32)))
            .map_or(0, |group| group.pages as usize / SPLIT_PAGES)
    }
}

/// Returns whether every sequence has one row, and each row's logits are needed.
pub(super) fn is_decode(inputs: &StepInputs) -> bool {
    let rows = inputs.tokens.len();
    !inputs.page_tables.is_empty()
        && inputs.sequences.len() == rows
        && inputs.logit_rows.len() == rows
        && inputs.sequences.iter().all(|sequence| sequence.q_len == 1)
}

/// Cuts the rows that do not decode, and the shared parts of those that do.
fn block_items(host: &HostStep, cut: Cut) -> (Vec<[u32; 8]>, Vec<u32>) {
    let (mut items, mut row_list) = (Vec::new(), Vec::new());
    for (i, sequence) in host.sequences.iter().enumerate() {
        if sequence.q_len == 0 || host.decoding[i] {
            continue;
        }
        let keys = keys(sequence, host.paged) as usize;
        let first_position = keys - sequence.q_len as usize;
        let packed = sequence.q_len as usize * cut.group;
        for first in (0..packed).step_by(cut.block_rows) {
            let count = cut.block_rows.min(packed - first);
            let last_row = (first + count - 1) / cut.group;
            let seen = if cut.causal {
                first_position + last_row + 1
            } else {
                keys
            };
            let end = seen.div_ceil(SPLIT_TOKENS);
            items.push([
                sequence.q_start,
                first as u32,
                count as u32,
                i as u32,
                0,
                end as u32,
                0,
                0,
            ]);
        }
    }
    for group in &host.share_groups {
        let splits = group.pages as usize / SPLIT_PAGES;
        let base = row_list.len() as u32;
        let mut reader = None;
        for &member in &group.members {
            if host.decoding[member as usize] {
                reader = Some(member);
                row_list.push(host.sequences[member as usize].q_start);
            }
        }
        let Some(reader) = reader else { continue };
        let packed = (row_list.len() - base as usize) * cut.group;
        for split in 0..splits {
            for first in (0..packed).step_by(cut.block_rows) {
                items.push([
                    base,
                    first as u32,
                    cut.block_rows.min(packed - first) as u32,
                    reader,
                    split as u32,
                    split as u32 + 1,
                    INDIRECT | PARTIAL,
                    0,
                ]);
            }
        }
    }
    (items, row_list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut {
        group: 3,
        block_rows: 64,
        causal: true,
    };

    fn sequence(q_start: u32, q_len: u32, kv_len: u32) -> StepSequence {
        StepSequence {
            slot: 0,
            q_start,
            q_len,
            kv_len,
        }
    }

    #[test]
    fn rows_of_a_chunk_end_at_the_split_that_they_see() {
        let host = HostStep {
            sequences: vec![sequence(0, 40, 270)],
            decoding: vec![false],
            paged: true,
            ..HostStep::default()
        };
        let (items, rows) = block_items(&host, CUT);
        // Rows 0 to 21 are at positions 230 to 251, the others reach past 256.
        assert_eq!(
            items,
            [[0, 0, 64, 0, 0, 1, 0, 0], [0, 64, 56, 0, 0, 2, 0, 0]]
        );
        assert!(rows.is_empty());
    }

    #[test]
    fn shared_splits_are_read_once_for_all_members_that_decode() {
        let host = HostStep {
            sequences: vec![
                sequence(0, 1, 600),
                sequence(1, 1, 700),
                sequence(2, 5, 600),
            ],
            share_groups: vec![ShareGroup {
                pages: 33,
                members: vec![0, 1, 2],
            }],
            decoding: vec![true, true, false],
            paged: true,
            ..HostStep::default()
        };
        assert_eq!(host.shared_splits(1), 2);
        let (items, rows) = block_items(&host, CUT);
        assert_eq!(rows, [0, 1]);
        assert_eq!(
            items,
            [
                [2, 0, 15, 2, 0, 3, 0, 0],
                [0, 0, 6, 1, 0, 1, 3, 0],
                [0, 0, 6, 1, 1, 2, 3, 0]
            ]
        );
    }
}
