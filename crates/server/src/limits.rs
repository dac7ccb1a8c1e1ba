//! Everything a stranger can make larger ends here.

use std::time::Duration;

/// Of a request's body.
pub const BODY_BYTES: usize = 4 << 20;
/// Brackets inside brackets.
pub const JSON_DEPTH: usize = 64;
/// Of all headers together.
pub const HEADER_BYTES: usize = 64 << 10;
/// For the headers, and between two requests of a connection.
pub const HEADER_TIME: Duration = Duration::from_secs(5);
/// For the body, and between two parts of it.
pub const BODY_TIME: Duration = Duration::from_secs(30);
pub const BODY_PAUSE: Duration = Duration::from_secs(5);
/// At once.
pub const CONNECTIONS: usize = 256;
/// From the request to the last token.
pub const REQUEST_TIME: Duration = Duration::from_secs(600);
/// After a signal to stop.
pub const STOP_TIME: Duration = Duration::from_secs(30);
/// Tokens that a reader may be behind.
pub const BEHIND: usize = 512;
/// Of an answer where the request names none.
pub const TOKENS: usize = 1024;
/// Functions that an answer may call.
pub const TOOLS: usize = 128;
/// Answers to one request.
pub const CHOICES: u64 = 8;
pub const STOPS: usize = 16;
pub const STOP_BYTES: usize = 1024;
pub const TOP_LOGPROBS: u64 = 20;
/// Texts of one request to be embedded, and bytes of each. The encoder looks at 256 tokens.
pub const EMBED_TEXTS: usize = 256;
pub const EMBED_BYTES: usize = 64 << 10;
/// Requests to embed that are computed or wait.
pub const EMBEDDERS: usize = 16;
/// What a client is told to wait who found no place.
pub const RETRY_SECONDS: u64 = 1;
/// Who listens to `/v1/events` at once, and how often a silent one hears that it is still there.
pub const LISTENERS: usize = 32;
pub const SILENCE: Duration = Duration::from_secs(15);
/// A picture of the memory is good for so long, whoever asks.
pub const PICTURE_TIME: Duration = Duration::from_millis(100);
/// How long `/metrics` waits for one: a step of a large model may take a while.
pub const PICTURE_WAIT: Duration = Duration::from_secs(2);
/// Sessions that `/metrics` has by name.
pub const SESSIONS_NAMED: usize = 16;
/// Last turns of a session that are shown.
pub const TURNS_SHOWN: usize = 256;
