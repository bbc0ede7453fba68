//! Errors of AWS as errors of the port: the one place that says what each of them asks of the caller.

use std::error::Error;
use std::fmt;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::RequestId as _;

use crate::{IoError, IoKind};

/// What a call was made to, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// The records table.
    Table(&'a str),
    /// The bucket.
    Bucket(&'a str),
    /// A queue, by its address.
    Queue(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Table(name) => write!(f, "the DynamoDB table '{name}'"),
            Place::Bucket(name) => write!(f, "the S3 bucket '{name}'"),
            Place::Queue(url) => write!(f, "the SQS queue {url}"),
        }
    }
}

/// Makes the port's error of a call that failed for good.
pub(super) fn failed<E>(
    doing: &'static str,
    key: impl Into<String>,
    place: Place<'_>,
    error: &SdkError<E, HttpResponse>,
) -> IoError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let kind = kind(error);
    let why = explanation(error);
    let why = if kind == IoKind::Denied {
        format!("{why}: {}", hint(place, error.code()))
    } else {
        why
    };
    IoError::new(doing, key, kind).because(why)
}

/// Says what the caller should do.
pub(super) fn kind<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> IoKind {
    if let Some(response) = error
        .raw_response()
        .filter(|_| error.as_service_error().is_some())
    {
        return kind_of(error.code(), response.status().as_u16());
    }
    let impossible = match error {
        // The request could not even be made: no credentials, no region, an address that is none.
        SdkError::ConstructionFailure(_) => true,
        // The SDK sees no way in which a repetition could help: there were no credentials.
        SdkError::DispatchFailure(failure) => {
            failure.is_user() || (failure.is_other() && failure.as_other().is_none())
        }
        SdkError::TimeoutError(_) | SdkError::ResponseError(_) | SdkError::ServiceError(_) | _ => {
            false
        }
    };
    if impossible {
        IoKind::Denied
    } else {
        IoKind::Busy
    }
}

/// Says what a service's answer asks of the caller.
///
/// Source: the error lists of the DynamoDB, S3 and SQS API references.
fn kind_of(code: Option<&str>, status: u16) -> IoKind {
    // SQS writes some of its codes with a namespace.
    let code = code.map(|code| code.rsplit(['.', '#']).next().unwrap_or(code));
    match (code, status) {
        (
            Some(
                "OverLimit"
                | "ProvisionedThroughputExceededException"
                | "RequestLimitExceeded"
                | "LimitExceededException"
                | "RequestThrottled"
                | "RequestThrottledException"
                | "Throttling"
                | "ThrottlingException"
                | "ThrottledException"
                | "KmsThrottled"
                | "TooManyRequestsException"
                | "SlowDown"
                | "RequestTimeout"
                | "InternalError"
                | "InternalFailure"
                | "InternalServerError"
                | "ServiceUnavailable"
                | "OperationAborted"
                | "ConditionalRequestConflict"
                | "TransactionConflictException"
                | "TransactionInProgressException"
                | "ReplicatedWriteConflictException",
            ),
            _,
        )
        | (_, 429 | 500..) => IoKind::Busy,
        (Some("PreconditionFailed" | "ConditionalCheckFailedException"), _) | (None, 412) => {
            IoKind::Conflict
        }
        (
            Some(
                "NoSuchBucket"
                | "ResourceNotFoundException"
                | "QueueDoesNotExist"
                | "NonExistentQueue"
                | "AccessDenied"
                | "AccessDeniedException"
                | "UnrecognizedClientException"
                | "InvalidAccessKeyId"
                | "InvalidClientTokenId"
                | "InvalidSignatureException"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "ExpiredTokenException"
                | "InvalidToken"
                | "IncompleteSignature"
                | "MissingAuthenticationToken"
                | "RequestTimeTooSkewed"
                | "RequestExpired"
                | "AuthorizationHeaderMalformed"
                | "KmsAccessDenied"
                | "KmsDisabled"
                | "KmsNotFound"
                | "KmsInvalidState",
            ),
            _,
        )
        | (_, 301 | 307 | 401 | 403) => IoKind::Denied,
        (Some("NoSuchKey" | "NoSuchUpload" | "NoSuchVersion" | "InvalidPart"), _) | (_, 404) => {
            IoKind::NotFound
        }
        // Every other refusal says that the request is one which the port should have refused.
        (_, _) => IoKind::TooLarge,
    }
}

/// Says where to look.
fn hint(place: Place<'_>, code: Option<&str>) -> String {
    let code = code.map_or("", |code| code.rsplit(['.', '#']).next().unwrap_or(code));
    match code {
        "NoSuchBucket" | "ResourceNotFoundException" | "QueueDoesNotExist" | "NonExistentQueue" => {
            format!(
                "{place} does not exist in this account and region; see the NIGHTSHIFT_ variables of the environment"
            )
        }
        "AccessDenied" | "AccessDeniedException" => {
            format!("the role of this process may not do this to {place}")
        }
        _ => format!(
            "{place} cannot be used; see the credentials, the region and the clock of this process"
        ),
    }
}

/// What happened, in one line: never a value of ours, as the services' messages may repeat them only in part.
fn explanation<E>(error: &SdkError<E, HttpResponse>) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if error.as_service_error().is_none() {
        return chain(error);
    }
    let status = error
        .raw_response()
        .map_or(0, |response| response.status().as_u16());
    let code = error.code().unwrap_or("no code");
    let message = error.message().unwrap_or("no message");
    let request = error.request_id().unwrap_or("unknown");
    format!("{code}: {message} (status {status}, request {request})")
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_asks_one_thing_of_the_caller() {
        let table = [
            (Some("SlowDown"), 503, IoKind::Busy),
            (Some("InternalError"), 500, IoKind::Busy),
            (Some("AWS.SimpleQueueService.OverLimit"), 403, IoKind::Busy),
            (
                Some("ProvisionedThroughputExceededException"),
                400,
                IoKind::Busy,
            ),
            (Some("ThrottlingException"), 400, IoKind::Busy),
            (Some("ConditionalRequestConflict"), 409, IoKind::Busy),
            (Some("of a later year"), 503, IoKind::Busy),
            (None, 502, IoKind::Busy),
            (None, 429, IoKind::Busy),
            (Some("PreconditionFailed"), 412, IoKind::Conflict),
            (Some("AccessDenied"), 403, IoKind::Denied),
            (None, 403, IoKind::Denied),
            (Some("NoSuchBucket"), 404, IoKind::Denied),
            (Some("ResourceNotFoundException"), 400, IoKind::Denied),
            (
                Some("AWS.SimpleQueueService.NonExistentQueue"),
                400,
                IoKind::Denied,
            ),
            (
                Some("com.amazonaws.sqs#QueueDoesNotExist"),
                400,
                IoKind::Denied,
            ),
            (Some("ExpiredToken"), 400, IoKind::Denied),
            (Some("PermanentRedirect"), 301, IoKind::Denied),
            (Some("NoSuchKey"), 404, IoKind::NotFound),
            (Some("NoSuchUpload"), 404, IoKind::NotFound),
            (Some("InvalidPart"), 400, IoKind::NotFound),
            (None, 404, IoKind::NotFound),
            (Some("EntityTooSmall"), 400, IoKind::TooLarge),
            (Some("ValidationException"), 400, IoKind::TooLarge),
            (Some("of a later year"), 400, IoKind::TooLarge),
        ];
        for (code, status, kind) in table {
            assert_eq!(kind_of(code, status), kind, "{code:?} {status}");
        }
    }

    #[test]
    fn a_hint_names_what_is_missing() {
        let shown = hint(
            Place::Table("nightshift"),
            Some("ResourceNotFoundException"),
        );
        assert!(
            shown.contains("the DynamoDB table 'nightshift' does not exist"),
            "{shown}"
        );
        let shown = hint(Place::Bucket("b"), Some("AccessDenied"));
        assert!(
            shown.contains("may not do this to the S3 bucket 'b'"),
            "{shown}"
        );
        let shown = hint(
            Place::Queue("https://sqs.example/1/q"),
            Some("ExpiredToken"),
        );
        assert!(
            shown.contains("the SQS queue https://sqs.example/1/q"),
            "{shown}"
        );
    }
}
