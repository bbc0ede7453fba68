//! The contract, operation by operation.

use super::*;

impl Backend for CudaBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Weight, BackendError> {
        if desc.shard != Shard::Whole {
            return Err(unsupported("sharded weights"));
        }
        let rows = desc.experts * desc.heads * desc.n;
        assert_eq!(
            (source.rows(), source.cols()),
            (rows, desc.k),
            "the source of {} has its shape",
            desc.name
        );
        let stacked = desc.experts > 1 || desc.heads > 1;
        if desc.recipe == Recipe::Int8 && desc.used_as != WeightUse::Vector {
            if stacked {
                return Err(unsupported("experts and heads in int8"));
            }
            self.need(&["gemm_s8"])?;
        }
        if desc.experts > 1 {
            self.need(&["combine", "route"])?;
            let cols = desc.n.next_multiple_of(4);
            self.plan.expert_cols_max = self.plan.expert_cols_max.max(cols);
            self.plan.changed = true;
        }
        self.device.bind().map_err(device_error)?;
        let stored = Loader {
            device: &mut self.device,
            arena: &mut self.arena,
            staging: &mut self.staging,
        }
        .weight(desc, source)?;
        self.weights.push(stored);
        Ok(Weight(self.weights.len() as u32 - 1))
    }

    fn rope_table(&mut self, spec: &RopeSpec) -> Result<RopeTable, BackendError> {
        self.device.bind().map_err(device_error)?;
        let table = Rotations::new(spec);
        let mut addresses = [0; 2];
        for (at, values) in addresses.iter_mut().zip(table.values()) {
            *at = self.take(size_of_val(values), "rotary tables")?;
            self.staging
                .send_floats(&mut self.device, *at, values)
                .map_err(device_error)?;
        }
        self.ropes.push(Rope {
            cosines: addresses[0],
            sines: addresses[1],
            pairs: spec.inv_freq.len(),
            style: spec.style,
        });
        Ok(RopeTable(self.ropes.len() as u32 - 1))
    }

    fn buf(&mut self, rows: usize, cols: usize, role: Role) -> Result<Buf, BackendError> {
        let needed: &[&'static str] = match role {
            Role::Qkv => &["rope", "attend_bf16", "merge"],
            Role::Pooled => &["pool"],
            Role::Residual | Role::InputOf(_) | Role::Routing | Role::Logits => &[],
        };
        self.need(needed)?;
        let int8 = match role {
            Role::InputOf(weight) => self.stored(weight).int8.is_some(),
            Role::Residual | Role::Qkv | Role::Routing | Role::Logits | Role::Pooled => false,
        };
        let (ld, element_bytes) = match role {
            Role::InputOf(_) if int8 => (cols.next_multiple_of(16), 1),
            Role::InputOf(_) | Role::Qkv => (cols.next_multiple_of(8), 2),
            Role::Residual | Role::Logits | Role::Pooled => (cols.next_multiple_of(4), 4),
            Role::Routing => (cols, 4),
        };
        let size = |elements: usize| elements.saturating_mul(element_bytes);
        let at = self.take(size(rows.saturating_mul(ld)), "activations")?;
        let kind = match role {
            Role::InputOf(_) if int8 => Kind::Int8 {
                scales: self.take(4 * rows, "activations")?,
            },
            Role::InputOf(_) | Role::Qkv => Kind::Bf16,
            Role::Residual | Role::Logits | Role::Pooled => Kind::F32,
            Role::Routing => {
                let pairs = rows * cols;
                // Tiles are of one expert each: as many more as there are experts, or pairs.
                let tiles = 1 + 3 * (pairs.div_ceil(64) + pairs);
                Kind::Routing {
                    weights: self.take(4 * pairs, "routing")?,
                    pairs: self.take(4 * pairs, "routing")?,
                    tiles: self.take(4 * tiles, "routing")?,
                }
            }
        };
        let plan = &mut self.plan;
        plan.changed = true;
        let least = |known: usize| if known == 0 { rows } else { known.min(rows) };
        match role {
            Role::Residual | Role::InputOf(_) => plan.rows_min = least(plan.rows_min),
            Role::Qkv => {
                plan.rows_min = least(plan.rows_min);
                plan.qkv_cols_max = plan.qkv_cols_max.max(cols);
            }
            Role::Logits => {
                plan.logit_rows_min = least(plan.logit_rows_min);
                plan.logit_rows_max = plan.logit_rows_max.max(rows);
                plan.vocabulary_max = plan.vocabulary_max.max(cols);
            }
            Role::Pooled => plan.pooled_max = plan.pooled_max.max(rows * ld),
            Role::Routing => plan.pairs_max = plan.pairs_max.max(rows * cols),
        }
        if int8 {
            plan.staging_bytes = plan.staging_bytes.max(2 * rows * ld);
        }
        self.bufs.push(Buffer { at, cols, ld, kind });
        Ok(Buf(self.bufs.len() as u32 - 1))
    }

    fn kv(&mut self, spec: &KvSpec, pages: &[usize]) -> Result<(), BackendError> {
        let (fp8, element_bytes) = match spec.dtype {
            KvType::F32 => return Err(unsupported("a KV cache in f32")),
            KvType::Bf16 => (false, 2),
            KvType::Fp8 => (true, 1),
        };
        let (heads, dk, dv, latent) = match spec.layout {
            KvLayout::Gqa { heads, dk, dv } => (heads, dk, dv, None),
            KvLayout::Latent { rank, rope } => (1, rank + rope, rank, Some(rank)),
        };
        let fits = match latent {
            None => dk.max(dv) <= HEAD_MAX,
            Some(rank) => rank <= LATENT_MAX.0 && dk <= LATENT_MAX.1,
        };
        if !fits {
            return Err(unsupported(format!("heads of {dk} and {dv} values")));
        }
        self.need(match (latent, fp8) {
            (None, false) => &["rope", "attend_bf16", "merge"],
            (None, true) => &["rope", "attend_bf16", "attend_fp8", "merge"],
            (Some(_), false) => &["rope", "latent_bf16", "merge"],
            (Some(_), true) => &["rope", "latent_fp8", "merge"],
        })?;
        let page_bytes =
            |head: usize| element_bytes * heads * PAGE_TOKENS * head.next_multiple_of(16);
        let mut pools = Vec::new();
        for (group, (layers, &pages)) in spec.groups.iter().zip(pages).enumerate() {
            for &layer in &layers.layers {
                if pools.len() <= layer {
                    pools.resize(layer + 1, None);
                }
                let keys = self.take(pages.saturating_mul(page_bytes(dk)), "KV pool")?;
                let values = match latent {
                    None => self.take(pages.saturating_mul(page_bytes(dv)), "KV pool")?,
                    Some(_) => 0,
                };
                pools[layer] = Some(LayerPool {
                    group,
                    keys,
                    values,
                });
            }
        }
        self.pools = pools;
        self.kv_kind = Some(KvKind { fp8, latent });
        self.plan.kv_groups = spec.groups.len();
        self.plan.layout = Some((heads, dk, dv));
        self.plan.changed = true;
        Ok(())
    }

    fn slots(&mut self, slots: usize, history_tokens: usize) -> Result<(), BackendError> {
        self.device.bind().map_err(device_error)?;
        let states_bytes = 16 * slots;
        let history = self.take(
            4usize.saturating_mul(slots).saturating_mul(history_tokens),
            "token histories",
        )?;
        let states = self.take(states_bytes, "token histories")?;
        self.device
            .clear(states, states_bytes)
            .map_err(device_error)?;
        self.slots = Slots {
            count: slots,
            history_tokens,
            history,
            states,
        };
        self.plan.changed = true;
        self.settle()
    }

    fn loaded(&mut self) {
        let done = self
            .settle()
            .map_err(|error| error.to_string())
            .and_then(|()| self.device.drain());
        self.keep(done);
    }

    fn begin(&mut self, inputs: &StepInputs) {
        let begun = self.begin_step(inputs);
        self.keep(begun);
    }

    fn graph(&mut self, key: GraphKey, forward: &mut dyn FnMut(&mut Self)) {
        if self.host.rows == 0 || self.failed.is_some() {
            return;
        }
        let sent = self.send_lists(key.part, forward);
        if self.keep(sent).is_none() {
            return;
        }
        if self.use_graphs && self.host.decodes_only {
            let ran = self.replay(key.part, forward);
            self.keep(ran);
        } else {
            forward(self);
        }
    }

    fn embed(&mut self, op: &Embed) {
        forward::embed(self, op);
    }

    fn norm(&mut self, op: &Norm) {
        forward::norm(self, op);
    }

    fn linear(&mut self, op: &Linear) {
        forward::linear(self, op);
    }

    fn linear_heads(&mut self, op: &LinearHeads) {
        forward::linear_heads(self, op);
    }

    fn rope_store(&mut self, op: &RopeStore) {
        attention::rope_store(self, op);
    }

    fn attend(&mut self, op: &Attend) {
        attention::attend(self, op);
    }

    fn route(&mut self, op: &Route) {
        forward::route(self, op);
    }

    fn linear_experts(&mut self, op: &LinearExperts) {
        forward::linear_experts(self, op);
    }

    fn pool(&mut self, op: &Pool) {
        pool::pool(self, op);
    }

    fn all_reduce(&mut self, _buf: Buf) {}

    fn sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        let logits = self.buffer(logits);
        sample::sample(self, logits, inputs);
    }

    fn end(&mut self) -> Ticket {
        let Some(sampling) = &mut self.sampling else {
            self.fail("a step has ended before load was over".to_owned());
            return Ticket(0);
        };
        let (ticket, copied) = sampling.end(&mut self.device);
        self.keep(copied);
        ticket
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        if let Some(message) = &self.failed {
            return Err(device_error(message.clone()));
        }
        let bound = self.device.bind();
        self.keep(bound);
        let output = match &mut self.sampling {
            Some(sampling) => sampling.wait(&self.device, ticket),
            None => Err("a step is waited for before load was over".to_owned()),
        };
        output.map_err(|message| {
            self.fail(message.clone());
            device_error(message)
        })
    }
}
