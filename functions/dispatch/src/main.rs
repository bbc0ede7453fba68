//! The dispatch function on AWS Lambda: for messages, and once a minute for all models.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use batch_core::fleet::{self, Group};
use batch_core::message::{DispatchJob, QueueName, SCHEMA};
use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::aws::Profile;
use dispatch::{Context, ModelBacklog, handle};
use function_runtime::metrics::Unit;
use function_runtime::{
    Event, Function, Inbox, Invocation, SqsBatchResponse, SqsEvent, Ticket, run, serve_events,
    survive,
};

fn main() -> ExitCode {
    run(|function| async move {
        let context = Context {
            platform: function.platform.clone(),
            store: function.store.clone(),
            catalog: Arc::clone(&function.catalog),
        };
        let dispatcher = &Dispatcher { function, context };
        serve_events(|event, invocation| async move {
            match event {
                Event::Messages(messages) => {
                    Ok(Some(dispatcher.serve_messages(messages, invocation).await))
                }
                Event::Tick => {
                    dispatcher.tick(invocation).await?;
                    Ok(None)
                }
            }
        })
        .await
    })
}

struct Dispatcher {
    function: Function,
    context: Context,
}

impl Dispatcher {
    /// Runs once for each model that the messages name, or once for all models.
    async fn serve_messages(&self, messages: SqsEvent, invocation: Invocation) -> SqsBatchResponse {
        let mut inbox = Inbox::read(QueueName::Dispatch, messages);
        for (model, tickets) in coalesce(inbox.take_jobs()) {
            match self.run(model, invocation).await {
                Ok(backlogs) => self.tell(&backlogs),
                Err(error) => {
                    for ticket in tickets {
                        inbox.fail(ticket, &error);
                    }
                }
            }
        }
        inbox.settle(&self.context.platform).await
    }

    /// Runs for all models, and says how many workers all of it wants.
    async fn tick(&self, invocation: Invocation) -> Result<(), IoError> {
        let backlogs = self.run(None, invocation).await?;
        self.tell(&backlogs);
        let now = (self.context.platform.clock)();
        for (profile, wanted) in workers_wanted(&self.function.profiles, &backlogs, now) {
            let wanted = [("WorkersWanted", Unit::Count, u64::from(wanted))];
            self.function.emit(&[("Profile", profile)], &wanted);
        }
        Ok(())
    }

    async fn run(
        &self,
        model: Option<String>,
        invocation: Invocation,
    ) -> Result<Vec<ModelBacklog>, IoError> {
        let job = DispatchJob {
            schema: SCHEMA,
            model,
        };
        let now = (self.context.platform.clock)();
        survive(invocation, now, || handle(&self.context, job, now)).await
    }

    /// Writes what waits for each model.
    fn tell(&self, backlogs: &[ModelBacklog]) {
        for backlog in backlogs {
            let shards = backlog.unreleased_shards + backlog.released_shards;
            let tokens = backlog
                .unreleased_tokens
                .saturating_add(backlog.released_tokens);
            self.function.emit(
                &[("Model", &backlog.model)],
                &[
                    ("BacklogShards", Unit::Count, shards),
                    ("BacklogTokens", Unit::Count, tokens),
                ],
            );
        }
    }
}

/// Returns how many workers each group of machines should have; the groups scale by this metric.
fn workers_wanted<'a>(
    profiles: &'a BTreeMap<String, Profile>,
    backlogs: &[ModelBacklog],
    now: UnixMs,
) -> Vec<(&'a str, u32)> {
    let wanted = |profile: &Profile| {
        let group = Group {
            models: &profile.models,
            workers_min: profile.workers_min,
            workers_max: profile.workers_max,
        };
        fleet::workers_wanted(backlogs.iter().map(|backlog| &backlog.demand), &group, now)
    };
    profiles
        .iter()
        .map(|(name, profile)| (name.as_str(), wanted(profile)))
        .collect()
}

/// Returns the runs that answer all jobs, each with the jobs that it answers.
fn coalesce(jobs: Vec<(Ticket, DispatchJob)>) -> BTreeMap<Option<String>, Vec<Ticket>> {
    let for_all = jobs.iter().any(|(_, job)| job.model.is_none());
    let mut runs: BTreeMap<Option<String>, Vec<Ticket>> = BTreeMap::new();
    for (ticket, job) in jobs {
        let model = job.model.filter(|_| !for_all);
        runs.entry(model).or_default().push(ticket);
    }
    runs
}

#[cfg(test)]
mod tests {
    use batch_core::fleet::{Demand, DueWork};

    use super::*;

    /// Returns the runs for messages that name these models, as models and numbers of jobs.
    fn check(models: &[Option<&str>]) -> Vec<(Option<String>, usize)> {
        let records: Vec<_> = models
            .iter()
            .map(|model| {
                let body = serde_json::json!({"schema": SCHEMA, "model": model}).to_string();
                serde_json::json!({"messageId": "m", "body": body})
            })
            .collect();
        let event = serde_json::from_value(serde_json::json!({"Records": records})).unwrap();
        let jobs = Inbox::read(QueueName::Dispatch, event).take_jobs();
        coalesce(jobs)
            .into_iter()
            .map(|(model, tickets)| (model, tickets.len()))
            .collect()
    }

    #[test]
    fn each_model_is_dispatched_once() {
        let some = |model: &str| Some(model.to_owned());
        assert_eq!(
            check(&[Some("b"), Some("a"), Some("b")]),
            [(some("a"), 1), (some("b"), 2)]
        );
        assert_eq!(check(&[]), []);
    }

    #[test]
    fn one_job_for_all_models_answers_all() {
        assert_eq!(check(&[Some("b"), None, Some("a")]), [(None, 3)]);
    }

    #[test]
    fn a_group_counts_the_work_of_its_own_models() {
        let now = UnixMs(1_790_000_000_000);
        let backlog = |model: &str| ModelBacklog {
            model: model.to_owned(),
            unreleased_shards: 1,
            unreleased_tokens: 1_000,
            released_shards: 0,
            released_tokens: 0,
            leased_shards: 0,
            leased_tokens: 0,
            newly_released: 0,
            demand: Demand {
                model: model.to_owned(),
                work: vec![DueWork::of_tokens(
                    1_000,
                    Some(100),
                    now.plus_ms(86_400_000),
                )],
            },
        };
        let profile = |model: &str| Profile {
            models: vec![model.to_owned()],
            workers_min: 0,
            workers_max: 4,
        };
        let profiles = BTreeMap::from([
            ("busy".to_owned(), profile("a")),
            ("idle".to_owned(), profile("b")),
        ]);
        let wanted = workers_wanted(&profiles, &[backlog("a"), backlog("c")], now);
        assert_eq!(wanted, [("busy", 1), ("idle", 0)]);
    }
}
