//! Access control. A page of another site must not reach this server through a user's browser: the Host must be one of
//! this server's names, and so must the Origin, where there is one. A server with API keys asks every client for one, and
//! knows by it whose the request is: handlers find the [`Owner`] in the request's extensions.

use super::connections::Reserved;
use super::fail::Fail;
use super::page;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use haversack::Owner;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Auth {
    /// Owners and their keys; without any no key is asked for, and all is the unnamed owner's.
    pub keys: Vec<(Owner, String)>,
    /// Accepted host names besides those of the loopback.
    pub hosts: Vec<String>,
    /// Accepts any IP address as Host, but no other names: a stranger's DNS name can point to this machine.
    pub is_open: bool,
}

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Auth {
    /// Whose request it is. `is_public`: the path needs no key; no owner's then, if there is none.
    fn check(&self, headers: &HeaderMap, is_public: bool) -> Result<Option<Owner>, Fail> {
        let host = headers.get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok());
        let is_ours = |host: &str| self.is_named(host) || self.is_open && is_address(host);
        if !host.is_some_and(is_ours) {
            let why = "the Host header is not one of this server's names";
            return Err(Fail::status(StatusCode::MISDIRECTED_REQUEST, why));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            // The server's own page. Pages of other ports of this machine are strangers too.
            let ours = |origin: &str| {
                let from = origin.split_once("://").map(|(_, rest)| rest);
                from.is_some_and(|from| Some(from) == host || self.is_added(from))
            };
            if !origin.to_str().is_ok_and(ours) {
                let why = "the Origin header is not one of this server's names";
                return Err(Fail::status(StatusCode::FORBIDDEN, why));
            }
        }
        if self.keys.is_empty() {
            return Ok(Some(Owner::default()));
        }
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let mut found = None;
        for (owner, key) in &self.keys {
            if given.is_some_and(|given| is_same(given, key.as_bytes())) {
                found = Some(*owner);
            }
        }
        match found {
            None if !is_public => Err(Fail::no_key()),
            found => Ok(found),
        }
    }

    /// With or without a port.
    fn is_named(&self, host: &str) -> bool {
        let name = without_port(host);
        let is_loopback = LOOPBACK
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name));
        is_loopback || self.is_added(host)
    }

    /// A name that the operator has added.
    fn is_added(&self, host: &str) -> bool {
        let name = without_port(host);
        self.hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
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

pub async fn guard(State(auth): State<Arc<Auth>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_reserved = request.extensions().get::<Reserved>().is_some();
    let is_public = path == "/health" || page::is_public(path) && !is_reserved;
    match auth.check(request.headers(), is_public) {
        Ok(owner) => {
            if let Some(owner) = owner {
                request.extensions_mut().insert(owner);
            }
            next.run(request).await
        }
        Err(fail) => {
            // A client that is not let in has no further requests answered on this connection.
            let mut response = fail.into_response();
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(auth: &Auth, headers: &[(header::HeaderName, &'static str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name, HeaderValue::from_static(value));
        }
        match auth.check(&map, false) {
            Ok(_) => 200,
            Err(fail) => fail.into_response().status().as_u16(),
        }
    }

    #[test]
    fn only_names_of_this_machine_are_accepted() {
        let auth = Auth {
            keys: Vec::new(),
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
                &[(header::HOST, "localhost:8080"), (header::ORIGIN, origin)],
            )
        };
        assert_eq!(from("http://localhost:8080"), 200);
        assert_eq!(from("https://box.local"), 200);
        for origin in [
            // Another server of the same machine.
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "http://localhost",
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
            keys: vec![
                (Owner::default(), "secret".into()),
                (Owner::new("ben").unwrap(), "other".into()),
            ],
            hosts: Vec::new(),
            is_open: true,
        };
        let whose = |key| {
            let mut map = HeaderMap::new();
            map.insert(header::HOST, HeaderValue::from_static("localhost"));
            map.insert(header::AUTHORIZATION, HeaderValue::from_static(key));
            auth.check(&map, false).unwrap().unwrap()
        };
        assert_eq!(whose("Bearer secret"), Owner::default());
        assert_eq!(whose("Bearer other").name(), "ben");
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
