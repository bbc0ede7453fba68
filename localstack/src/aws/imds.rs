//! The machine's metadata service: whether this machine is about to be taken away.
//!
//! Two things take a machine: EC2, which wants a spot machine back and says so two minutes before, and its
//! auto-scaling group, which shrinks or replaces it.
//!
//! Source: EC2 user guide, "Use the Instance Metadata Service" (version 2: a token first), "Spot Instance
//! interruption notices"; EC2 Auto Scaling user guide, "Retrieve the target lifecycle state".

use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;

/// Turns the metadata service off for every SDK, and here.
const DISABLED: &str = "AWS_EC2_METADATA_DISABLED";

/// Another place for the metadata service, for every SDK, and here.
const ENDPOINT: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";

/// Where it is on every machine of EC2.
const ENDPOINT_DEFAULT: &str = "http://169.254.169.254";

/// How long a token is good for, in seconds: the most that there is.
const TOKEN_LIFE_S: &str = "21600";

/// Bytes of the longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// How long one request may take: the service is on the same host.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);

/// How often the service is asked for at the start, before this counts as no machine of EC2.
const TRIES: u32 = 3;

/// Between two looks. A notice comes two minutes ahead.
pub(super) const LOOK: Duration = Duration::from_secs(5);

/// Why this machine goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// EC2 takes a spot machine back.
    Spot,
    /// The auto-scaling group ends it, or puts it to sleep.
    AutoScaling,
}

/// A client of the metadata service.
#[derive(Debug)]
pub(super) struct Imds {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SpotAction {
    action: String,
}

impl Imds {
    /// Makes a client as the environment says; none where it turns the service off.
    pub(super) fn from_env() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        if variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return None;
        }
        let endpoint = variable(ENDPOINT).unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned());
        Some(Self::at(&endpoint))
    }

    fn at(endpoint: &str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(REQUEST_TIME_MAX))
            // It is never behind a proxy, whatever the environment says.
            .proxy(None)
            .build()
            .into();
        Self {
            agent,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: None,
        }
    }

    /// Gets a token, and with it the proof that this machine is one of EC2.
    fn renew_token(&mut self) -> anyhow::Result<String> {
        let url = format!("{}/latest/api/token", self.endpoint);
        let sent = self
            .agent
            .put(url)
            .header("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_LIFE_S)
            .send_empty()?;
        let token = match read(sent)? {
            (200, token) => token,
            (status, _) => anyhow::bail!("the metadata service answers with {status}"),
        };
        self.token = Some(token.clone());
        Ok(token)
    }

    /// Reads one value; none if there is none now. A token that is too old is renewed once.
    fn value(&mut self, path: &str) -> anyhow::Result<Option<String>> {
        let url = format!("{}/latest/meta-data/{path}", self.endpoint);
        let mut may_renew = true;
        loop {
            let token = match self.token.clone() {
                Some(token) => token,
                None => self.renew_token()?,
            };
            let sent = self
                .agent
                .get(&url)
                .header("x-aws-ec2-metadata-token", token)
                .call()?;
            match read(sent)? {
                (200, text) => return Ok(Some(text)),
                (404, _) => return Ok(None),
                (401, _) if may_renew => {
                    may_renew = false;
                    self.token = None;
                }
                (status, _) => anyhow::bail!("the metadata service answers with {status}"),
            }
        }
    }

    /// Looks for a notice.
    fn notice(&mut self) -> anyhow::Result<Option<Notice>> {
        if let Some(action) = self.value("spot/instance-action")?
            && takes_the_machine(&action)
        {
            return Ok(Some(Notice::Spot));
        }
        let state = self.value("autoscaling/target-lifecycle-state")?;
        Ok(state
            .is_some_and(|state| leaves_service(&state))
            .then_some(Notice::AutoScaling))
    }
}

/// Looks for a notice again and again on a thread of its own, and calls `tell` with the first one. Ends at once
/// where there is no metadata service.
pub(super) fn watch(
    mut imds: Imds,
    between: Duration,
    tell: impl FnOnce(Notice) + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let name = "metadata".to_owned();
    std::thread::Builder::new().name(name).spawn(move || {
        let answers = (0..TRIES).any(|_| imds.renew_token().is_ok());
        if !answers {
            tracing::info!(
                endpoint = %imds.endpoint,
                "no metadata service answers: no notice of EC2 or its auto-scaling will be seen"
            );
            return;
        }
        tracing::info!("watch for notices of EC2 and its auto-scaling");
        tell(wait(&mut imds, between));
    })
}

fn wait(imds: &mut Imds, between: Duration) -> Notice {
    let mut known = None;
    loop {
        match imds.notice() {
            Ok(Some(notice)) => return notice,
            Ok(None) => known = None,
            Err(error) => {
                let why = format!("{error:#}");
                if known.as_ref() != Some(&why) {
                    tracing::warn!(error = %why, "look for a notice; it is tried again");
                }
                known = Some(why);
            }
        }
        std::thread::sleep(between);
    }
}

fn read(sent: ureq::http::Response<ureq::Body>) -> anyhow::Result<(u16, String)> {
    let status = sent.status().as_u16();
    let body = sent
        .into_body()
        .with_config()
        .limit(ANSWER_BYTES_MAX)
        .read_to_string()?;
    Ok((status, body))
}

/// Hibernate, stop and terminate all end what runs here. An answer that cannot be read is taken for one, too:
/// the path exists only when there is a notice.
fn takes_the_machine(action: &str) -> bool {
    match serde_json::from_str::<SpotAction>(action) {
        Ok(SpotAction { action }) => action != "none",
        Err(_) => true,
    }
}

/// `Terminated`, or one of the states of a warm pool.
fn leaves_service(state: &str) -> bool {
    let state = state.trim();
    state == "Terminated" || state.starts_with("Warmed:")
}

#[cfg(test)]
mod tests;
