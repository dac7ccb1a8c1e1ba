//! Every quantity that a client can make larger has its limit here.

use std::time::Duration;

/// Of a request's body.
pub const BODY_BYTES: usize = 4 << 20;
/// Levels of nesting.
pub const JSON_DEPTH: usize = 64;
/// Of all headers together.
pub const HEADER_BYTES: usize = 64 << 10;
/// For the headers, and between two requests of a connection.
pub const HEADER_TIME: Duration = Duration::from_secs(5);
/// For the body, and between two parts of it.
pub const BODY_TIME: Duration = Duration::from_secs(30);
pub const BODY_PAUSE: Duration = Duration::from_secs(5);
/// Requests whose bodies are read or worked on; threads that work on them, and how long a request waits for one.
pub const BODIES: usize = 128;
pub const WORKERS: usize = 2;
pub const WORKER_WAIT: Duration = Duration::from_secs(30);
/// Longer texts are worked on one at a time, by a thread of low priority, and leave this share of the budget free: neither
/// short requests nor the engine wait for them.
pub const LONG_BYTES: usize = 32 << 10;
/// How long such a thread has only what others leave of its core.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
pub const LONG_FREE_SHARE: f64 = 0.25;
/// How long a body waits for room in the budget: an idle engine looks every second.
pub const BODY_ROOM: Duration = Duration::from_secs(2);
/// At the same time, and of one address.
pub const CONNECTIONS: usize = 256;
pub const PER_ADDRESS: usize = 192;
/// Beyond those, for clients that have a key and for `/health`; they send the head of a request within this time.
pub const RESERVE: usize = 32;
pub const RESERVE_TIME: Duration = Duration::from_secs(1);
/// Connections that wait for the reserve, and for how long.
pub const RESERVE_WAITING: usize = 64;
pub const RESERVE_WAIT: Duration = Duration::from_secs(5);
/// For this many bytes of output, or all there is, once the client does not take more at once.
pub const WRITE_TIME: Duration = Duration::from_secs(10);
pub const WRITE_PROGRESS: usize = 16 << 10;
/// Of the words that saved sessions are searched for.
pub const SEARCH_BYTES: usize = 256;
/// From the request to the last token.
pub const REQUEST_TIME: Duration = Duration::from_secs(600);
/// Between a signal to stop and the end of the last answer.
pub const STOP_TIME: Duration = Duration::from_secs(30);
/// How often the server looks whether its engine is still there.
pub const END_CHECK: Duration = Duration::from_millis(100);
/// Tokens that a reader may be behind.
pub const BEHIND: usize = 512;
/// Of an answer where the request names no limit.
pub const TOKENS: usize = 1024;
/// Functions that an answer may call.
pub const TOOLS: usize = 128;
/// Answers to one request.
pub const CHOICES: u64 = 8;
/// Of the names that an answer repeats: the model's, and what comes with a response.
pub const MODEL_BYTES: usize = 256;
pub const METADATA_BYTES: usize = 16 << 10;
pub const STOPS: usize = 16;
pub const STOP_BYTES: usize = 1024;
pub const TOP_LOGPROBS: u64 = 20;
/// Texts of one embeddings request, and bytes of each. The encoder reads the first 256 tokens.
pub const EMBED_TEXTS: usize = 256;
pub const EMBED_BYTES: usize = 64 << 10;
/// Embeddings requests that are computed or wait.
pub const EMBEDDERS: usize = 16;
/// What `Retry-After` tells a refused client.
pub const RETRY_SECONDS: u64 = 1;
/// Clients of `/v1/events`, and how often a comment line keeps a silent stream alive.
pub const SUBSCRIBERS: usize = 32;
pub const SILENCE: Duration = Duration::from_secs(15);
/// A memory report is reused for this long.
pub const REPORT_AGE: Duration = Duration::from_millis(100);
/// How long `/metrics` waits for a memory report: a step of a large model may take a while.
pub const REPORT_WAIT: Duration = Duration::from_secs(2);
/// Sessions that `/metrics` lists by name.
pub const SESSIONS_NAMED: usize = 16;
