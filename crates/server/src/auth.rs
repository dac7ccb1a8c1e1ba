//! Who may come in. A page of another site must not talk to this server through somebody's browser: the Host must be
//! this machine's, and an Origin, where there is one, too. With a key everybody needs it.

use super::Shared;
use super::fail::Fail;
use super::page;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Door {
    pub key: Option<String>,
    /// Names by which this server may be called beside those of the loopback.
    pub hosts: Vec<String>,
    /// It may be called by any address, as long as that is no name: names can be made to mean this machine.
    pub is_open: bool,
}

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Door {
    /// `is_public`: there is nothing to protect.
    fn check(&self, headers: &HeaderMap, is_public: bool) -> Result<(), Fail> {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let is_ours = |host: &str| self.is_named(host) || self.is_open && is_address(host);
        if !host.is_some_and(is_ours) {
            let status = StatusCode::MISDIRECTED_REQUEST;
            return Err(Fail::status(status, "the Host is not one of this server's"));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            // Its own page, by whatever name that was called.
            let ours = |origin: &str| {
                let from = origin.split_once("://").map(|(_, rest)| rest);
                from.is_some_and(|from| Some(from) == host || self.is_named(from))
            };
            if !origin.to_str().is_ok_and(ours) {
                return Err(Fail::status(
                    StatusCode::FORBIDDEN,
                    "the Origin is not one of this server's",
                ));
            }
        }
        let Some(key) = self.key.as_ref().filter(|_| !is_public) else {
            return Ok(());
        };
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        match given.is_some_and(|given| is_same(given, key.as_bytes())) {
            true => Ok(()),
            false => Err(Fail::status(
                StatusCode::UNAUTHORIZED,
                "the API key is missing or wrong",
            )),
        }
    }

    /// With or without a port.
    fn is_named(&self, host: &str) -> bool {
        let name = without_port(host);
        let known = LOOPBACK.iter().copied();
        let mut known = known.chain(self.hosts.iter().map(String::as_str));
        known.any(|known| known.eq_ignore_ascii_case(name))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_address(host: &str) -> bool {
    let name = without_port(host);
    let inner = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match inner {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Takes as long wherever they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    a.len() == b.len() && differs == 0
}

pub async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let is_public = page::is_public(request.uri().path());
    match shared.door.check(request.headers(), is_public) {
        Ok(()) => next.run(request).await,
        Err(fail) => fail.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn status(door: &Door, headers: &[(header::HeaderName, &'static str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name, HeaderValue::from_static(value));
        }
        match door.check(&map, false) {
            Ok(()) => 200,
            Err(fail) => fail.into_response().status().as_u16(),
        }
    }

    #[test]
    fn only_this_machine_and_its_names() {
        let door = Door {
            key: None,
            hosts: vec!["Box.local".into()],
            is_open: false,
        };
        let of = |host| status(&door, &[(header::HOST, host)]);
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "[::1]:8080",
            "box.local:80",
        ] {
            assert_eq!(of(host), 200, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "",
            "localhost:80:80",
        ] {
            assert_eq!(of(host), 421, "{host}");
        }
        assert_eq!(status(&door, &[]), 421);
        let from = |origin| {
            status(
                &door,
                &[(header::HOST, "localhost"), (header::ORIGIN, origin)],
            )
        };
        assert_eq!(from("http://localhost:8080"), 200);
        assert_eq!(from("https://box.local"), 200);
        for origin in [
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
        ] {
            assert_eq!(from(origin), 403, "{origin}");
        }
    }

    #[test]
    fn a_key_is_asked_for_where_there_is_one() {
        let door = Door {
            key: Some("secret".into()),
            hosts: Vec::new(),
            is_open: true,
        };
        let with = |key| {
            status(
                &door,
                &[(header::HOST, "localhost"), (header::AUTHORIZATION, key)],
            )
        };
        assert_eq!(with("Bearer secret"), 200);
        for key in [
            "Bearer secre",
            "Bearer secrets",
            "secret",
            "Bearer ",
            "Basic secret",
        ] {
            assert_eq!(with(key), 401, "{key}");
        }
        assert_eq!(status(&door, &[(header::HOST, "localhost")]), 401);
        let by = |host| {
            status(
                &door,
                &[
                    (header::HOST, host),
                    (header::AUTHORIZATION, "Bearer secret"),
                ],
            )
        };
        for host in ["192.168.1.7:8080", "[fe80::1]:8080", "10.0.0.1"] {
            assert_eq!(by(host), 200, "{host}");
        }
        assert_eq!(by("evil.example"), 421);
        // The page itself needs none, but still comes from here.
        for (host, public) in [("localhost", true), ("evil.example", false)] {
            let mut map = HeaderMap::new();
            map.insert(header::HOST, HeaderValue::from_static(host));
            assert_eq!(door.check(&map, true).is_ok(), public, "{host}");
        }
    }
}
