//! A model as one packed file: `pack`, `unpack` and `pull --packed`, and every command that opens it.

use crate::common;

use common::server::Server;
use common::{Ended, Sandbox, smollm2, text};
use haversack::kernels::format::WeightType;
use haversack_testing::models::{Mix, Spec};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const DOCUMENT: &str = include_str!("../../../docs/reference/packed-models.md");

fn sha256(path: &Path) -> String {
    let hash = Sha256::digest(fs::read(path).unwrap());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names of all files of a folder.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let names = entries.filter(is_file).map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// A tiny model in a folder of its own.
fn tiny(sandbox: &Sandbox, spec: &Spec) -> PathBuf {
    let dir = sandbox.path(&spec.name);
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("model.gguf");
    spec.write_file(&path).unwrap();
    path
}

fn ids(spec: &Spec, count: usize) -> String {
    let ids: Vec<String> = spec.ids(count).iter().map(u32::to_string).collect();
    ids.join(",")
}

/// Large enough that packing it takes a while: some 20 MB.
fn larger() -> Spec {
    Spec {
        name: "larger".into(),
        layers: 4,
        dim: 512,
        ffn: 2048,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        rope_dim: 64,
        mix: Mix::All(WeightType::Q8_0),
        ..Spec::named("llama").unwrap()
    }
}

/// Every architecture and every weight type, with the output matrix shared and not: one file is left, it computes the same
/// bits, and the GGUF file comes back byte for byte. A model and its packed copy took twice the disk before.
#[test]
fn every_model_is_packed_and_comes_back() {
    let sandbox = Sandbox::new();
    let tied = WeightType::ALL.map(|ty| Spec {
        name: format!("tied-{}", ty.name()),
        tied: true,
        layers: 1,
        ..Spec::of_type(ty)
    });
    let mixed = Spec {
        name: "mixed".into(),
        mix: Mix::Q4KM,
        // Rows that are no whole strips, and an odd number of groups.
        vocab_size: 333,
        ..Spec::of_type(WeightType::Q4_K)
    };
    let specs = Spec::variants().into_iter().chain(tied).chain([mixed]);
    for spec in specs {
        let name = &spec.name;
        let gguf = tiny(&sandbox, &spec);
        let original = fs::read(&gguf).unwrap();
        let before_sha256 = sha256(&gguf);
        let ids = ids(&spec, 24);
        let score = |path: &Path| -> Value {
            let flags = ["--ids", &ids, "--repack", "off", "--threads", "1", "--json"];
            let all = [&["score", text(path)][..], &flags].concat();
            sandbox.run(&all).json()["tokens"].clone()
        };
        let expected = score(&gguf);
        let said = sandbox.run(&["pack", text(&gguf), "--json"]).json();
        let packed = gguf.with_extension("packed");
        assert_eq!(files(gguf.parent().unwrap()), ["model.packed"], "{name}");
        assert_eq!(said["path"], text(&packed), "{name}");
        assert_eq!(said["sha256"], sha256(&packed), "{name}");
        assert_eq!(said["bytes"], fs::metadata(&packed).unwrap().len());
        assert_eq!(said["original"]["sha256"], before_sha256, "{name}");
        assert_eq!(said["original"]["bytes"], original.len(), "{name}");
        assert!(score(&packed) == expected, "{name}: other bits");
        let ended = sandbox.run(&["unpack", text(&packed)]);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        assert_eq!(files(gguf.parent().unwrap()), ["model.gguf"], "{name}");
        assert!(fs::read(&gguf).unwrap() == original, "{name}: other bytes");
    }
}

/// The table of the document, read and compared with a written file.
#[test]
fn the_document_is_what_is_written() {
    let table = |head: &str| -> Vec<(usize, usize, &'static str)> {
        let begin = format!("| {head} | bytes | |");
        let rows = DOCUMENT.lines().skip_while(|line| *line != begin).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        rows.map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let number = |cell: &str| cell.parse().unwrap();
            (number(cells[1]), number(cells[2]), cells[3])
        })
        .collect()
    };
    let number = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(all)
    };
    let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();

    let sandbox = Sandbox::new();
    // Fused matrices, and an embedding that is not packed.
    let spec = Spec::named("phi3").unwrap();
    let gguf = tiny(&sandbox, &spec);
    let original = fs::read(&gguf).unwrap();
    let model = haversack::gguf::Gguf::open(&gguf).unwrap();
    let loaded = haversack::engine::Model::load(&gguf, &Default::default(), &mut |_, _| ());
    let fingerprint = loaded.unwrap().fingerprint();
    sandbox
        .run(&["pack", text(&gguf), "--keep", "--json"])
        .json();
    let file = fs::read(gguf.with_extension("packed")).unwrap();

    let (head, entry) = (table("head"), table("entry"));
    for rows in [&head, &entry] {
        let mut end = 0;
        for (offset, size, words) in rows {
            assert_eq!(*offset, end, "{words}");
            end += size;
        }
    }
    let of = |rows: &[(usize, usize, &str)], bytes: &[u8], words: &str| -> Vec<u8> {
        let row = rows.iter().find(|row| row.2.starts_with(words));
        let &(offset, size, _) = row.unwrap_or_else(|| panic!("no row {words:?}"));
        bytes[offset..offset + size].to_vec()
    };
    let in_head = |words: &str| of(&head, &file, words);
    assert_eq!(in_head("`HAVERMOD`"), b"HAVERMOD");
    assert_eq!(number(&in_head("version, 1")), 1);
    assert_eq!(number(&in_head("bytes of this file")), file.len() as u64);
    assert_eq!(
        number(&in_head("bytes of the GGUF file")),
        original.len() as u64
    );
    assert_eq!(
        in_head("sha256 of the GGUF file"),
        &Sha256::digest(&original)[..]
    );
    assert_eq!(in_head("fingerprint"), fingerprint.as_bytes());
    assert_eq!(in_head("BLAKE3 of bytes 0..160"), hash(&file[..160]));
    assert!(in_head("zero").iter().all(|&byte| byte == 0));
    let head_end = head.last().map(|row| row.0 + row.1).unwrap();
    let entry_bytes = entry.last().map(|row| row.0 + row.1).unwrap();

    let regions = number(&in_head("regions")) as usize;
    let table_at = file.len() - regions * entry_bytes;
    assert_eq!(in_head("BLAKE3 of the table"), hash(&file[table_at..]));
    let mut at = head_end;
    let (mut rows, mut rest) = (vec![0; model.tensors().len()], Vec::new());
    for entry_at in (table_at..file.len()).step_by(entry_bytes) {
        let bytes = &file[entry_at..entry_at + entry_bytes];
        let field = |words: &str| of(&entry, bytes, words);
        let size = number(&field("bytes of the region")) as usize;
        let region = &file[at..at + size];
        assert_eq!(field("BLAKE3 of the region"), hash(region));
        match number(&field("tensor")) {
            4_294_967_295 => rest.push(region),
            tensor => {
                assert_eq!((at % 64, size % 64), (0, 0));
                rows[tensor as usize] += number(&field("rows of the tensor")) as usize;
            }
        }
        at += size;
    }
    assert_eq!(at, table_at);
    // One matrix has all rows of a tensor or none of them; what is left of the GGUF file is there as it was.
    let mut others = 0;
    for (tensor, rows) in model.tensors().iter().zip(rows) {
        let is_packed = rows != 0;
        assert!(!is_packed || rows == tensor.rows(), "{}", tensor.name);
        assert_eq!(
            is_packed,
            tensor.rows() > 1 && tensor.name != "token_embd.weight"
        );
        others += if is_packed { 0 } else { tensor.byte_len() };
    }
    let [metadata, unpacked] = rest[..] else {
        panic!("metadata and others")
    };
    assert_eq!(metadata, &original[..metadata.len()]);
    let embedding = model.bytes(model.tensor("token_embd.weight").unwrap());
    assert!(
        unpacked
            .windows(embedding.len())
            .any(|window| window == embedding)
    );
    let padding = unpacked.len() as u64 - others;
    assert!(padding < 32 * model.tensors().len() as u64, "{padding}");
}

/// A byte changed anywhere: named, exit 1, and not a token. Whole again it runs.
#[test]
fn a_damaged_file_is_named_and_does_not_run() {
    let sandbox = Sandbox::new();
    let spec = Spec::named("llama").unwrap();
    let gguf = tiny(&sandbox, &spec);
    let ids = ids(&spec, 4);
    let packed = gguf.with_extension("packed");
    assert_eq!(sandbox.run(&["pack", text(&gguf)]).code, Some(0));
    let whole = fs::read(&packed).unwrap();
    let run = || sandbox.run(&["run", text(&packed), "--ids", &ids, "-n", "2", "--json"]);
    run().json();
    let refused = |ended: Ended, what: &str| {
        let line = ended.error(1).to_owned();
        assert!(line.contains("model.packed"), "{what}: {line}");
        line
    };
    let mut places: Vec<usize> = (0..12).map(|i| i * whole.len() / 12).collect();
    // The head, its zeros, the first matrix; metadata, others and table stand at the end.
    places.extend([5, 9, 40, 170, 3000, 4096, whole.len() - 1]);
    for at in places {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&packed, &bytes).unwrap();
        let line = refused(run(), &format!("byte {at}"));
        if at >= 16 {
            assert!(line.contains("damaged"), "byte {at}: {line}");
        }
        let off = ["run", text(&packed), "--ids", &ids, "--repack", "off"];
        refused(sandbox.run(&off), &format!("byte {at}, nothing kept"));
        refused(
            sandbox.run(&["verify", text(&packed)]),
            &format!("byte {at}"),
        );
        refused(
            sandbox.run(&["unpack", text(&packed)]),
            &format!("byte {at}"),
        );
        assert_eq!(files(gguf.parent().unwrap()), ["model.packed"]);
    }
    let mut bytes = whole.clone();
    let half = bytes.len() / 2;
    bytes[half..].fill(0);
    for bytes in [&bytes[..], &whole[..half], &whole[..100], &whole[..8]] {
        fs::write(&packed, bytes).unwrap();
        refused(run(), &format!("{} bytes", bytes.len()));
    }
    let matrix = 5000;
    bytes.copy_from_slice(&whole);
    bytes[matrix] ^= 1;
    fs::write(&packed, &bytes).unwrap();
    let line = refused(run(), "a matrix");
    assert!(
        line.contains("tensor output.weight does not match its checksum"),
        "{line}"
    );
    fs::write(&packed, &whole).unwrap();
    run().json();
}

/// Killed while it packs and while it compares: the GGUF file is there as it was, and what was left on the way goes with the
/// next use of the model.
#[cfg(unix)]
#[test]
fn a_killed_packing_leaves_the_model() {
    let sandbox = Sandbox::new();
    let spec = larger();
    let gguf = tiny(&sandbox, &spec);
    let original = fs::read(&gguf).unwrap();
    let folder = gguf.parent().unwrap();
    let packed = gguf.with_extension("packed");
    let kill_at = |arguments: &[&str], line: &str| {
        let mut child = sandbox
            .command(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let seen = lines.map_while(Result::ok).any(|said| said.contains(line));
        assert!(seen, "{line}");
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let whole = |path: &Path| {
        let kept = sandbox.path("kept.gguf");
        let ended = sandbox.run(&["unpack", text(path), "--keep", "-o", text(&kept)]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(fs::read(&kept).unwrap() == original, "other bytes");
        fs::remove_file(&kept).unwrap();
    };
    let mut was_left = false;
    for line in ["packing the model", "comparing it"] {
        kill_at(&["pack", text(&gguf)], line);
        was_left |= files(folder).iter().any(|name| name.ends_with(".tmp"));
        // Whoever is fast enough had it done.
        match gguf.exists() {
            true => assert!(fs::read(&gguf).unwrap() == original),
            false => whole(&packed),
        }
        if packed.exists() {
            whole(&packed);
            fs::write(&gguf, &original).unwrap();
            fs::remove_file(&packed).unwrap();
        }
        let ids = ids(&spec, 4);
        sandbox
            .run(&["score", text(&gguf), "--ids", &ids, "--json"])
            .json();
        assert_eq!(files(folder), ["model.gguf"], "after {line}");
    }
    assert!(was_left, "it was never killed in the middle");
    // Both files are there where the last step did not happen any more: packing again ends it.
    assert_eq!(sandbox.run(&["pack", text(&gguf), "--keep"]).code, Some(0));
    assert_eq!(files(folder), ["model.gguf", "model.packed"]);
    let ended = sandbox.run(&["pack", text(&gguf)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        !ended.stderr.contains("packing the model"),
        "{}",
        ended.stderr
    );
    assert_eq!(files(folder), ["model.packed"]);
    // The way back.
    kill_at(&["unpack", text(&packed)], "writing the GGUF file");
    if packed.exists() {
        whole(&packed);
        assert_eq!(sandbox.run(&["unpack", text(&packed)]).code, Some(0));
    }
    assert_eq!(files(folder), ["model.gguf"]);
    assert!(fs::read(&gguf).unwrap() == original);
}

/// What cannot be done is refused before anything is written, and nothing is removed.
#[test]
fn what_cannot_be_packed_is_refused() {
    let sandbox = Sandbox::new();
    let spec = Spec::named("llama").unwrap();
    let gguf = tiny(&sandbox, &spec);
    let folder = gguf.parent().unwrap();
    let original = fs::read(&gguf).unwrap();
    let refuse = |arguments: &[&str], code: i32, why: &[&str]| {
        let ended = sandbox.run(arguments);
        let line = ended.error(code);
        for why in why {
            assert!(line.contains(why), "{line}");
        }
        assert!(fs::read(&gguf).unwrap() == original);
    };
    // A folder without a byte of room.
    #[cfg(target_os = "linux")]
    refuse(
        &["pack", text(&gguf), "--output", "/proc/model.packed"],
        1,
        &["disk full: the model needs", "/proc has 0 B free"],
    );
    refuse(&["unpack", text(&gguf)], 1, &["not a packed model"]);
    refuse(
        &["pack", text(&gguf), "-o", text(&gguf)],
        1,
        &["the model itself"],
    );
    // What is not ours stays.
    let packed = gguf.with_extension("packed");
    fs::write(&packed, "notes").unwrap();
    refuse(
        &["pack", text(&gguf)],
        1,
        &["model.packed is there already"],
    );
    assert_eq!(fs::read(&packed).unwrap(), b"notes");
    let other = Spec {
        seed: 7,
        ..spec.clone()
    };
    let other_path = sandbox.path("other.gguf");
    other.write_file(&other_path).unwrap();
    let flags = ["pack", text(&other_path), "--output", text(&packed)];
    fs::remove_file(&packed).unwrap();
    assert_eq!(sandbox.run(&flags).code, Some(0));
    refuse(
        &["pack", text(&gguf)],
        1,
        &["model.packed is there already"],
    );
    refuse(
        &["pack", text(&packed), "-o", text(&other_path)],
        1,
        &["packed already"],
    );
    refuse(
        &["unpack", text(&packed)],
        1,
        &["model.gguf is there already"],
    );
    // The other program reads GGUF files.
    #[cfg(unix)]
    refuse(
        &["bench", text(&packed), "--against", "/bin/sh"],
        1,
        &["--against needs a GGUF file"],
    );
    // A damaged one of ours is packed again.
    let mut bytes = fs::read(&packed).unwrap();
    bytes[9000] ^= 1;
    fs::write(&packed, &bytes).unwrap();
    let ended = sandbox.run(&["pack", text(&gguf)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("damaged"), "{}", ended.stderr);
    assert_eq!(files(folder), ["model.packed"]);
    fs::write(&gguf, &original).unwrap();
    let parts = spec.write_split(&sandbox.path("split"), 3).unwrap();
    refuse(
        &["pack", text(&parts[0])],
        1,
        &["split.count", "a set of files"],
    );
    assert!(parts.iter().all(|part| part.exists()));
    refuse(&["pull", "minilm", "--packed"], 2, &["is not a GGUF file"]);
    refuse(&["pull", "--list", "--packed"], 2, &["--packed"]);
}

/// A server opens it under the name of the model, and a session that the GGUF file began goes on with the same tokens.
#[test]
fn a_served_session_goes_on_with_the_packed_model() {
    let sandbox = Sandbox::new();
    let spec = Spec {
        context: 2048,
        ..Spec::named("qwen3").unwrap()
    };
    let gguf = tiny(&sandbox, &spec);
    let packed = gguf.with_extension("packed");
    let session = sandbox.home().join("sessions/anna.session");
    let serve = |model: &Path| Server::start_with(Sandbox::at(&sandbox.home()), model, &[]);
    let say = |server: &Server, text: &str| -> Value {
        let body = json!({
            "messages": [{ "role": "user", "content": text }],
            "session_id": "anna", "max_tokens": 8, "temperature": 0, "logprobs": true,
        });
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        json!([answer["choices"], answer["usage"]["prompt_tokens"]])
    };
    let server = serve(&gguf);
    say(&server, "one");
    server.stop();
    let begun = fs::read(&session).unwrap();
    let server = serve(&gguf);
    let name = server.get("/v1/models").1;
    let expected = say(&server, "two");
    server.stop();
    fs::write(&session, begun).unwrap();
    assert_eq!(sandbox.run(&["pack", text(&gguf)]).code, Some(0));
    let server = serve(&packed);
    let id = |models: &str| -> Value {
        let models: Value = serde_json::from_str(models).unwrap();
        models["data"][0]["id"].clone()
    };
    assert_eq!(id(&server.get("/v1/models").1), id(&name));
    assert_eq!(say(&server, "two"), expected);
    server.stop();
}

/// The tiny model: pulled packed, it is found by its name, takes the disk of one copy, answers with the same tokens,
/// goes on with a session that the GGUF file began, and comes back with the sha256 of the catalogue.
#[test]
fn a_catalogue_model_is_kept_packed() {
    let Some(model) = smollm2() else { return };
    let sandbox = Sandbox::new();
    let models = sandbox.home().join("models");
    fs::create_dir_all(&models).unwrap();
    // What was measured of the model is the same, and takes a while.
    #[cfg(unix)]
    {
        let cache = Sandbox::shared().home().join("cache");
        fs::create_dir_all(&cache).unwrap();
        std::os::unix::fs::symlink(cache, sandbox.home().join("cache")).unwrap();
    }
    let gguf = models.join(model.file_name().unwrap());
    fs::copy(&model, &gguf).unwrap();
    let packed = gguf.with_extension("packed");
    let disk = || -> u64 {
        let folders = [models.clone(), sandbox.home().join("packed")];
        let sizes = folders.iter().flat_map(|dir| {
            let names = files(dir).into_iter().filter(|name| name != "known-models");
            names.map(move |name| fs::metadata(dir.join(name)).unwrap().len())
        });
        sizes.sum()
    };
    let run = || {
        let flags = [
            "tiny",
            "--prompt",
            "Name three rivers.",
            "-n",
            "16",
            "--memory",
            "64M",
        ];
        let document = sandbox
            .run(&[&["run"][..], &flags, &["--json"]].concat())
            .json();
        document["token_ids"].clone()
    };
    let say = |sandbox: &Sandbox, text: &str| {
        let flags = [
            "chat",
            "tiny",
            "--session",
            "anna",
            "-n",
            "8",
            "--temperature",
            "0",
            "--memory",
            "64M",
        ];
        let ended = sandbox.run_with(&flags, text);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    let expected = run();
    say(&sandbox, "My name is Nora.\n");
    let session = sandbox.home().join("sessions/anna.session");
    let begun = fs::read(&session).unwrap();
    let second = say(&sandbox, "Who am I?\n");
    fs::write(&session, begun).unwrap();
    let before = disk();

    let said = sandbox
        .run(&["pull", "smollm2", "--packed", "--json"])
        .json();
    let after = disk();
    println!(
        "disk: {before} before, {after} after, GGUF file {}",
        said["original"]["bytes"]
    );
    assert_eq!(said["path"], text(&packed));
    assert_eq!(said["original"]["sha256"], sha256(&model));
    let size = fs::metadata(&packed).unwrap().len();
    assert_eq!(
        (&said["bytes"], &said["after_bytes"]),
        (&size.into(), &size.into())
    );
    assert!(
        said["before_bytes"].as_u64().unwrap() + 4096 > before,
        "{said}"
    );
    assert_eq!(files(&models), [name(&packed)]);
    assert!(after < size + 65536 && size < 100_000_000, "{after} {size}");
    assert!(before > 190_000_000, "{before}");

    assert!(run() == expected, "other tokens");
    assert_eq!(
        say(&sandbox, "Who am I?\n"),
        second,
        "another answer in the session"
    );
    let line = sandbox.run(&["verify", "smollm2"]).stdout;
    assert!(
        line.contains("sha256 as in the catalogue, converts back"),
        "{line}"
    );
    assert_eq!(disk(), after, "a copy was made all the same");
    // It is there already, also without the flag.
    let again = sandbox.run(&["pull", "smollm2"]);
    assert_eq!(again.stdout.trim_end(), text(&packed), "{}", again.stderr);
    // Damaged, it does not run; pulled again, it is packed again. A download that is whole needs no source.
    let mut bytes = fs::read(&packed).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&packed, &bytes).unwrap();
    let refused = sandbox.run(&["run", "tiny", "--prompt", "Hi"]);
    let line = refused.error(1);
    assert!(
        line.contains("q4_1.packed: it is damaged: tensor"),
        "{line}"
    );
    fs::copy(&model, models.join(format!("{}.part", name(&gguf)))).unwrap();
    let again = sandbox.run(&["pull", "smollm2"]);
    assert_eq!(again.stdout.trim_end(), text(&packed), "{}", again.stderr);
    assert!(again.stderr.contains("damaged"), "{}", again.stderr);
    assert_eq!(files(&models), [name(&packed)]);
    bytes[middle] ^= 1;
    assert!(fs::read(&packed).unwrap() == bytes, "not as it was");
    let doctor = sandbox.run(&["doctor", "--json"]).json();
    assert!(doctor["storage"]["models"].to_string().contains("smollm2"));

    let ended = sandbox.run(&["unpack", "smollm2"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(fs::read(&gguf).unwrap() == fs::read(&model).unwrap());
    assert_eq!(files(&models), [name(&gguf)]);
}
