//! The model hub: one HTTPS download with resume.
//!
//! A part that exists is continued with a `Range` request. Whether the server still has the same
//! file is not asked (`If-Range` needs a validator kept from last time): the sha256 at the end
//! decides, and a wrong one starts again from nothing.

use super::FetchOptions;
use super::part::{PartialFile, copy};
use crate::error::FetchFailure;
use crate::progress::DownloadMeter;
use std::io::{self, Read};
use std::thread::sleep;
use std::time::Duration;
use ureq::http::{Response, StatusCode, header};
use ureq::typestate::WithoutBody;
use ureq::{Agent, RequestBuilder};

pub fn fetch(
    url: &str,
    part: &mut PartialFile,
    options: &FetchOptions,
) -> Result<(), FetchFailure> {
    let agent = agent(options);
    let mut progress = DownloadMeter::new(&*options.progress, part.total());
    progress.set(part.len());

    // Attempts count only while nothing new arrives: a bad line that moves is still a line. What
    // counts as new is measured from the farthest byte ever seen, or a server that ignores `Range`
    // and always breaks at the same place would be asked for ever.
    let mut farthest = part.len();
    let mut idle = 0;
    while part.len() < part.total() {
        match attempt(&agent, url, options, part, &mut progress) {
            Ok(()) => {}
            Err(FetchFailure::Cut(reason)) => {
                idle = if part.len() > farthest { 0 } else { idle + 1 };
                farthest = farthest.max(part.len());
                if idle >= options.attempts {
                    return Err(FetchFailure::Source(reason));
                }
                sleep(pause(options, idle));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// A document of at most `bytes_max` bytes.
pub fn get(url: &str, bytes_max: usize, options: &FetchOptions) -> Result<Vec<u8>, FetchFailure> {
    let agent = agent(options);
    for attempt in 1.. {
        match whole(request(&agent, url, options), bytes_max) {
            Err(FetchFailure::Cut(_)) if attempt < options.attempts => {
                sleep(pause(options, attempt));
            }
            Err(FetchFailure::Cut(reason)) => return Err(failed(reason)),
            result => return result,
        }
    }
    Err(failed("it was not asked"))
}

fn whole(request: RequestBuilder<WithoutBody>, bytes_max: usize) -> Result<Vec<u8>, FetchFailure> {
    let host = host(&request);
    let response = request.call().map_err(|error| reason(&error, &host))?;
    if response.status() != StatusCode::OK {
        return Err(refused(&response));
    }
    let mut bytes = Vec::new();
    let body = response.into_body().into_reader();
    body.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(failed(format!(
            "it answered with more than {bytes_max} bytes"
        )));
    }
    Ok(bytes)
}

/// With the token of the user, where there is one. It goes to the hub alone: redirects lead elsewhere, and are followed without it.
fn request(agent: &Agent, url: &str, options: &FetchOptions) -> RequestBuilder<WithoutBody> {
    let request = agent.get(url).header(header::ACCEPT_ENCODING, "identity");
    match &options.token {
        Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    }
}

/// Twice as long each time.
fn pause(options: &FetchOptions, times: u32) -> Duration {
    let doubled = times.saturating_sub(1).min(PAUSE_DOUBLINGS);
    options.pause * (1 << doubled)
}

const PAUSE_DOUBLINGS: u32 = 4;

fn failed(reason: impl Into<String>) -> FetchFailure {
    FetchFailure::Source(reason.into())
}

fn agent(options: &FetchOptions) -> Agent {
    // The proxy is taken from the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY) by default.
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(8)
        .user_agent(concat!("haversack/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(options.connect_timeout))
        .timeout_connect(Some(options.connect_timeout))
        .timeout_recv_response(Some(options.read_timeout))
        .timeout_per_read(Some(options.read_timeout))
        .build()
        .into()
}

fn attempt(
    agent: &Agent,
    url: &str,
    options: &FetchOptions,
    part: &mut PartialFile,
    progress: &mut DownloadMeter<'_>,
) -> Result<(), FetchFailure> {
    let mut request = request(agent, url, options);
    if part.len() > 0 {
        request = request.header(header::RANGE, format!("bytes={}-", part.len()));
    }
    let host = host(&request);
    let response = request.call().map_err(|error| reason(&error, &host))?;
    let begins = begins_at(&response, part)?;
    part.truncate(begins)?;
    progress.set(part.len());

    let mut body = response.into_body().into_reader();
    let copied = copy(&mut body, part, |done| progress.set(done));
    let (len, total) = (part.len(), part.total());
    match copied {
        Ok(()) if len == total => Ok(()),
        Ok(()) => {
            let reason = format!("the connection ended at byte {len} of {total}");
            Err(FetchFailure::Cut(reason))
        }
        Err(FetchFailure::Cut(error)) => {
            let reason = format!("the connection broke at byte {len} of {total}: {error}");
            Err(FetchFailure::Cut(reason))
        }
        Err(failure) => Err(failure),
    }
}

/// The offset of the body's first byte, if the response is one we can use.
fn begins_at<B>(response: &Response<B>, part: &mut PartialFile) -> Result<u64, FetchFailure> {
    let status = response.status();
    let total = part.total();
    let text = |name| {
        let value = response.headers().get(name);
        value.and_then(|value| value.to_str().ok())
    };
    match status {
        StatusCode::OK => {
            let length = text(header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
            match length {
                Some(length) if length != total => Err(failed(format!(
                    "it serves {length} bytes instead of {total}"
                ))),
                _ => Ok(0),
            }
        }
        StatusCode::PARTIAL_CONTENT => {
            match text(header::CONTENT_RANGE).and_then(parse_content_range) {
                Some((start, Some(served))) if served != total => {
                    let reason =
                        format!("it serves {served} bytes instead of {total}, from {start}");
                    Err(failed(reason))
                }
                Some((start, _)) if start == part.len() => Ok(start),
                _ => Err(failed("it answered with a range that was not asked for")),
            }
        }
        // Nothing there to continue; ask for all of it.
        StatusCode::RANGE_NOT_SATISFIABLE if part.len() > 0 => {
            part.restart()?;
            Err(FetchFailure::Cut("it has nothing to continue with".into()))
        }
        _ => Err(refused(response)),
    }
}

/// What a status says that is no answer. The hub says 401 of what does not exist, too.
fn refused<B>(response: &Response<B>) -> FetchFailure {
    let status = response.status();
    let said = format!("it answered {status}");
    match status {
        _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            FetchFailure::Cut(said)
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => failed(format!(
            "{said}: it does not exist, or wants its licence accepted on its page and a token of that account in HF_TOKEN"
        )),
        _ => failed(said),
    }
}

/// `bytes 100-199/200` gives `(100, Some(200))`; `*` for a total that is not known gives `None`.
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start.parse().ok()?, total))
}

fn host(request: &RequestBuilder<WithoutBody>) -> String {
    let host = request.uri_ref().and_then(|uri| uri.host());
    host.unwrap_or("the hub").to_owned()
}

/// Not reaching the hub at all is final: there is another source, and waiting does not help.
fn reason(error: &ureq::Error, host: &str) -> FetchFailure {
    let unresolved = || failed(format!("{host} cannot be resolved (no network?)"));
    match error {
        ureq::Error::HostNotFound => unresolved(),
        ureq::Error::Timeout(timeout @ (ureq::Timeout::Resolve | ureq::Timeout::Connect)) => {
            failed(format!("timed out ({timeout})"))
        }
        ureq::Error::Timeout(timeout) => FetchFailure::Cut(format!("timed out ({timeout})")),
        ureq::Error::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionAborted => FetchFailure::Cut(error.to_string()),
            // The resolver's error has no kind of its own.
            _ if error.to_string().contains("lookup address") => unresolved(),
            _ => failed(error.to_string()),
        },
        other => failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(
            parse_content_range("bytes 100-199/200"),
            Some((100, Some(200)))
        );
        assert_eq!(parse_content_range("bytes 0-9/*"), Some((0, None)));
        for bad in [
            "",
            "bytes",
            "bytes 5",
            "items 0-1/2",
            "bytes -1/2",
            "bytes a-b/c",
            "bytes */9",
        ] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
}
