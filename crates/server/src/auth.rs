//! Access control. A page of another site must not reach this server through a user's browser: the Host must be one of
//! this server's names, and so must the Origin, where there is one. A server with an API key asks every client for it.

use super::fail::Fail;
use super::page;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Auth {
    pub key: Option<String>,
    /// Accepted host names besides those of the loopback.
    pub hosts: Vec<String>,
    /// Accepts any IP address as Host, but no other names: a stranger's DNS name can point to this machine.
    pub is_open: bool,
}

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Auth {
    /// `is_public`: the path needs no key.
    fn check(&self, headers: &HeaderMap, is_public: bool) -> Result<(), Fail> {
        let host = headers.get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok());
        let is_ours = |host: &str| self.is_named(host) || self.is_open && is_address(host);
        if !host.is_some_and(is_ours) {
            let why = "the Host header is not one of this server's names";
            return Err(Fail::status(StatusCode::MISDIRECTED_REQUEST, why));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            // The server's own page, by any name of the server.
            let ours = |origin: &str| {
                let from = origin.split_once("://").map(|(_, rest)| rest);
                from.is_some_and(|from| Some(from) == host || self.is_named(from))
            };
            if !origin.to_str().is_ok_and(ours) {
                let why = "the Origin header is not one of this server's names";
                return Err(Fail::status(StatusCode::FORBIDDEN, why));
            }
        }
        let Some(key) = self.key.as_ref().filter(|_| !is_public) else {
            return Ok(());
        };
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        match given.is_some_and(|given| is_same(given, key.as_bytes())) {
            true => Ok(()),
            false => Err(Fail::no_key()),
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
    let inner = name.strip_prefix('[');
    match inner.and_then(|rest| rest.strip_suffix(']')) {
        Some(six) => six.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Takes the same time wherever they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    a.len() == b.len() && differs == 0
}

pub async fn guard(State(auth): State<Arc<Auth>>, request: Request, next: Next) -> Response {
    let is_public = page::is_public(request.uri().path());
    match auth.check(request.headers(), is_public) {
        Ok(()) => next.run(request).await,
        Err(fail) => fail.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn status(auth: &Auth, headers: &[(header::HeaderName, &'static str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name, HeaderValue::from_static(value));
        }
        match auth.check(&map, false) {
            Ok(()) => 200,
            Err(fail) => fail.into_response().status().as_u16(),
        }
    }

    #[test]
    fn only_names_of_this_machine_are_accepted() {
        let auth = Auth {
            key: None,
            hosts: vec!["Box.local".into()],
            is_open: false,
        };
        let of = |host| status(&auth, &[(header::HOST, host)]);
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
        assert_eq!(status(&auth, &[]), 421);
        let from = |origin| {
            status(
                &auth,
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
    fn a_server_with_a_key_asks_for_it() {
        let auth = Auth {
            key: Some("secret".into()),
            hosts: Vec::new(),
            is_open: true,
        };
        let with = |key| {
            status(
                &auth,
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
        assert_eq!(status(&auth, &[(header::HOST, "localhost")]), 401);
        let by = |host| {
            status(
                &auth,
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
        // The page itself needs no key, but still one of the server's names.
        for (host, public) in [("localhost", true), ("evil.example", false)] {
            let mut map = HeaderMap::new();
            map.insert(header::HOST, HeaderValue::from_static(host));
            assert_eq!(auth.check(&map, true).is_ok(), public, "{host}");
        }
    }
}
