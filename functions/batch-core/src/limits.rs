//! Every bound of the service, with its arithmetic and its source.

/// Requests in a batch file: OpenAI's limit. A setting; the design holds for 1,000,000.
pub const LINES_PER_FILE_DEFAULT: u64 = 50_000;

/// Bytes of a batch file: OpenAI's 200 MB, as its message spells it (200 * 1024 * 1024 = 209,715,200).
pub const FILE_BYTES_DEFAULT: u64 = 200 * 1024 * 1024;

/// Batches that a tenant may create in an hour: OpenAI's limit.
pub const BATCHES_PER_HOUR_DEFAULT: u64 = 2_000;

/// Bytes of one line: 16 MiB (16 * 1024 * 1024). A base64 image of 12 MiB fits.
pub const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Characters of a custom_id.
pub const CUSTOM_ID_CHARS_MAX: usize = 512;

/// Characters of a user's value that an error message shows.
pub const ECHO_CHARS_MAX: usize = 128;

/// Errors that a failed batch lists; one more entry says how many there are beyond.
pub const ERRORS_LISTED_MAX: usize = 100;

/// Lines in a window of validation.
pub const WINDOW_LINES_MAX: usize = 20_000;

/// Bytes in a window of validation: 64 MiB. Two windows are in memory at once: 128 MiB.
pub const WINDOW_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of results that the lines of a window are estimated to have before it is closed: 256 MiB. A finalizer
/// holds one window's results, once, and two parts of 8 MiB that it fills and stores: 256 + 32 MiB, and as much
/// again if answers are twice as long as estimated, fit the 1,769 MB of its function. A line that is estimated
/// at more is the window's last.
pub const WINDOW_RESULT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Bytes that a generated token is estimated to take in a result: some four of text, with escapes.
pub const RESULT_BYTES_PER_TOKEN: u64 = 8;

/// Bytes that the log probability of one token is estimated to take in a result: token, number, bytes, names.
pub const RESULT_BYTES_PER_LOGPROB: u64 = 80;

/// Alternatives of a token whose log probabilities a line may ask for: OpenAI's limit.
pub const TOP_LOGPROBS_MAX: u64 = 20;

/// Lines in a shard.
pub const SHARD_LINES_MAX: usize = 500;

/// Bytes in a shard: 8 MiB. A longer line is a shard alone.
pub const SHARD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Seconds of one worker's time that a shard should take.
pub const SHARD_SECONDS_TARGET: u64 = 120;

/// Shards that the time rule may make of one file: it never cuts below file bytes / 10,000.
pub const SHARDS_BY_TIME_MAX: u64 = 10_000;

/// Shards in one release: a transaction less the actions for the backlog and the batch (100 - 2 = 98).
pub const RELEASE_SHARDS_MAX: u32 = 98;

/// Losses (deaths, lapsed leases) after which a shard's unfinished lines are split.
pub const SHARD_LOSSES_MAX: u32 = 3;

/// Metadata pairs of a batch.
pub const METADATA_PAIRS_MAX: usize = 16;

/// Characters of a metadata key.
pub const METADATA_KEY_CHARS_MAX: usize = 64;

/// Characters of a metadata value.
pub const METADATA_VALUE_CHARS_MAX: usize = 512;

/// Shortest life of a file in seconds: one hour.
pub const EXPIRES_AFTER_S_MIN: u32 = 3_600;

/// Longest life of a file in seconds: 30 days (30 * 86,400 = 2,592,000).
pub const EXPIRES_AFTER_S_MAX: u32 = 2_592_000;

/// Milliseconds of the completion window that every batch may ask for: 24 hours (24 * 3,600,000).
pub const WINDOW_MS_DEFAULT: i64 = 24 * 3_600_000;

/// Hours of the longest completion window: one week.
pub const WINDOW_HOURS_MAX: u32 = 168;

/// Bytes of a JSON request body: 4 MiB of inline requests, and room for the rest.
pub const JSON_BODY_BYTES_MAX: usize = 4 * 1024 * 1024 + 64 * 1024;

/// Bytes at which a list page ends before its limit: 4 MiB, below Lambda's 6 MB.
pub const LIST_PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of an upload: OpenAI's 8 GB.
pub const UPLOAD_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// Bytes of one part of an upload: OpenAI's 64 MB.
pub const UPLOAD_PART_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bytes that completing an upload may copy and read before it answers: 512 MiB. API Gateway waits 29 s, and
/// 512 MiB at 25 MiB/s, the slowest copying that is planned for, take 20.5 s; looking into 64 parts of 8 MiB,
/// 32 at once, takes less than one more. Larger files are put together after the answer.
/// <https://docs.aws.amazon.com/apigateway/latest/developerguide/limits.html>
pub const INLINE_ASSEMBLY_BYTES_DEFAULT: u64 = 512 * 1024 * 1024;

/// Records that hold the pieces of a file to be: 10,000 pieces of at most 85 bytes, 1,000 a record, make ten
/// records of 85 kB. A record may have 400 KB.
pub const PIECES_PER_RECORD: usize = 1_000;

/// Bytes of an object outside that are copied as one part: 64 MiB; 10,000 of them are 625 GiB.
pub const IMPORT_PART_BYTES: u64 = 64 * 1024 * 1024;

/// Seconds until a pending upload is gone: one hour.
pub const UPLOAD_LIFE_S: i64 = 3_600;

/// Actions in one records transaction: DynamoDB's limit.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/transaction-apis.html>
pub const TRANSACTION_ACTIONS_MAX: usize = 100;

/// Bytes of every part but the last in a multipart blob: S3's 5 MiB.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>
pub const BLOB_PART_BYTES_MIN: usize = 5 * 1024 * 1024;

/// Parts of a multipart blob: S3's 10,000.
pub const BLOB_PARTS_MAX: usize = 10_000;

/// Bytes of the parts that the finalizer writes: 8 MiB; 10,000 of them are 78 GiB.
pub const OUTPUT_PART_BYTES: usize = 8 * 1024 * 1024;

/// Tries of a conditional update of the records; each failed one means that another process got on.
pub const UPDATE_TRIES_MAX: u32 = 16;

/// Entries that one look at the work index takes: the earliest, so that the rest come later.
pub const WORK_LISTED_MAX: usize = 1_000;

/// Backlogs written with the publication itself; a batch of more models writes the others before. The
/// transaction also holds the batch, its input file and the quota: 100 - 3, rounded down.
pub const BACKLOGS_WITH_PUBLICATION_MAX: usize = 90;

/// Milliseconds in which a retried create finds its batch: 10 minutes, as long as clients wait for a reply.
pub const CREATE_RETRY_MS: i64 = 10 * 60 * 1000;

/// Milliseconds for which an idempotency key is remembered: 24 hours.
pub const IDEMPOTENCY_MS: i64 = 24 * 60 * 60 * 1000;

/// Seconds of the longest `retry-after`: clients ignore longer ones.
pub const RETRY_AFTER_S_MAX: u32 = 60;

/// Requests that one worker has in flight at a model's server, unless set: the sequences that vLLM runs at once
/// by default.
pub const SERVER_REQUESTS_DEFAULT: u32 = 256;

/// Requests that one worker may be told to have in flight. Each is a connection, and so an open file, of which a
/// process may usually have 1,024 on Linux and 256 on macOS: who wants more raises that limit, too.
pub const SERVER_REQUESTS_MAX: u32 = 4_096;

/// Requests in flight at a server that nothing is known of: doubled with each round of good answers, 256 are reached
/// in five rounds.
pub const SERVER_REQUESTS_FIRST: u32 = 8;

/// Seconds until a request to a server is given up, unless set: 2,000 tokens at 4 a second are 500.
pub const SERVER_TIMEOUT_S_DEFAULT: u32 = 600;

/// Seconds that an operator may let a request to a server take: two hours.
pub const SERVER_TIMEOUT_S_MAX: u32 = 7_200;

/// Seconds until a connection to a server, or an answer about its health, is given up.
pub const SERVER_CONNECT_S: u64 = 10;

/// Bytes of a server's answer to one line: those of a line, 16 MiB. Longer ones are an error of the line.
pub const SERVER_ANSWER_BYTES_MAX: usize = LINE_BYTES_MAX;

/// Bytes of a server's list of models that are read.
pub const SERVER_MODELS_BYTES_MAX: usize = 1024 * 1024;

/// Times that a line is sent again because its answer was a failure: the design's five.
pub const SERVER_RETRIES_MAX: u32 = 5;

/// Times that a line is sent again because the server took no request: with pauses of 30 s on average, 50 minutes.
pub const SERVER_BUSY_RETRIES_MAX: u32 = 100;

/// Milliseconds of the longest pause before the first retry; doubled with each further one.
pub const SERVER_BACKOFF_MS: u64 = 500;

/// Milliseconds of the longest pause before any retry: one minute.
pub const SERVER_BACKOFF_MS_MAX: u64 = 60_000;

/// Seconds of a server's `retry-after` that are heeded: ten minutes. A longer one is cut to this.
pub const SERVER_RETRY_AFTER_S_MAX: u64 = 600;

/// Requests that must fail in a row, with no good answer between, before a server's health is looked at.
pub const SERVER_TROUBLES_MAX: u32 = 3;
