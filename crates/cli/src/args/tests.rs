//! What the parser takes and what it says to the rest.

use super::*;

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

fn refusal(line: &str) -> String {
    let words = std::iter::once("haversack").chain(line.split(' '));
    match Cli::try_parse_from(words) {
        Ok(_) => panic!("accepted: {line}"),
        Err(error) => one_line(&error),
    }
}

#[test]
fn refusals_name_the_flag_and_what_it_accepts() {
    for (line, names) in [
        ("run --prompt x -n 0", vec!["max-tokens", "1..=2147483647"]),
        (
            "run --prompt x -n -5",
            vec!["max-tokens", "-5", "1..=2147483647"],
        ),
        (
            "run --prompt x -n 99999999999999999999",
            vec!["max-tokens", "1..=2147483647"],
        ),
        ("run --prompt x --threads 0", vec!["--threads", "1..=256"]),
        ("run --prompt x --memory 4GB", vec!["--memory", "4GiB"]),
        ("run --prompt x --memory -4G", vec!["--memory", "4GiB"]),
        (
            "run --prompt x --kv INT4",
            vec!["--kv", "int4-plain", "auto"],
        ),
        (
            "run --prompt x --kv k=",
            vec!["--kv", "k=int8,v=int4", "auto"],
        ),
        ("run --prompt x --kv=", vec!["--kv"]),
        (
            "run --prompt x --kv k=int4,k=int4",
            vec!["--kv", "k is there twice", "int2"],
        ),
        ("run --prompt x --kv k=int4", vec!["--kv", "v is missing"]),
        ("run --prompt x --group 16", vec!["--group", "32, 64"]),
        (
            "run --prompt x --profile poem",
            vec![
                "--profile",
                "auto, chat, code, summarize, long-form, conservative",
            ],
        ),
        (
            "run --prompt x --probe long",
            vec!["--probe", "short, deep"],
        ),
        (
            "run --prompt x --policy heavy --policy-file f.toml",
            vec!["--policy-file", "--policy"],
        ),
        (
            "run --prompt x --policy Window",
            vec![
                "--policy",
                "auto, full, window, tiers, heavy, snap, turns, adaptive",
            ],
        ),
        (
            "run --prompt x --window 0",
            vec!["--window", "1..=16777216"],
        ),
        (
            "run --prompt x --window -1",
            vec!["--window", "1..=16777216"],
        ),
        (
            "run --prompt x --anchors 1e3",
            vec!["--anchors", "0..=16777216"],
        ),
        ("run --prompt x --sinks 33", vec!["--sinks", "0..=32"]),
        ("run --prompt x --recent 4097", vec!["--recent", "0..=4096"]),
        (
            "run --prompt x --recent-kv int4",
            vec!["--recent-kv", "int8, f16"],
        ),
        (
            "run --prompt x --positions middle",
            vec!["--positions", "auto, compact, original"],
        ),
        ("run --prompt x --guard yes", vec!["--guard", "on, off"]),
        (
            "run --prompt x --weights heavy",
            vec!["--weights", "auto, mapped, prefetch, locked"],
        ),
        (
            "run --prompt x --window-plan 5",
            vec!["--window-plan", "4096:256"],
        ),
        ("run --prompt x --memory NaN", vec!["--memory", "1500M"]),
        ("plan", vec!["--ram"]),
        ("plan --ram 4GB", vec!["--ram", "4GiB"]),
        ("perplexity", vec!["--text-file"]),
        (
            "perplexity --text x --score-from 1",
            vec!["--score-from", "not including, 1"],
        ),
        (
            "perplexity --text x --mode tree",
            vec!["--mode", "chunk, stream"],
        ),
        (
            "perplexity --text x --reference half",
            vec!["--reference", "full, recompute"],
        ),
        (
            "run --prompt x --temperature nan",
            vec!["--temperature", "0 to 100"],
        ),
        (
            "run --prompt x --temperature -1",
            vec!["--temperature", "0 to 100"],
        ),
        (
            "run --prompt x --top-p 1.5",
            vec!["--top-p", "above 0, up to 1"],
        ),
        ("run --prompt x --seed -1", vec!["--seed"]),
        ("run --prompt x --context 0", vec!["--context", "1..="]),
        (
            "run --prompt x --activations f64",
            vec!["--activations", "int8, f32"],
        ),
        ("run --prompt x --ids 1", vec!["--prompt", "--ids"]),
        ("run", vec!["--prompt", "--ids"]),
        (
            "detokenize --ids 1,x",
            vec!["--ids", "'x' is not a token id"],
        ),
        ("detokenize --ids ,", vec!["--ids", "no token ids"]),
        (
            "detokenize --ids -1",
            vec!["--ids", "'-1' is not a token id"],
        ),
        ("score", vec!["--text-file"]),
        ("verify", vec!["FILE"]),
        ("frobnicate", vec!["frobnicate"]),
        ("run --prompt x --windows 5", vec!["'--windows'"]),
    ] {
        let text = refusal(line);
        assert!(text.starts_with("error: "), "{line}: {text}");
        assert!(!text.contains('\n'));
        for name in names {
            assert!(text.contains(name), "{line}: {text}");
        }
    }
}

#[test]
fn what_the_contract_writes_is_accepted() {
    for line in [
        "pull",
        "pull smollm2",
        "run --prompt hello -n 5 --json",
        "run --json model.gguf --prompt-file f --raw --special --no-bos --ignore-eos --stop x --stop y",
        "run m --ids 1,2 --temperature 0.5 --top-k 40 --top-p 0.9 --min-p 0.05 --seed 7 --kv auto --policy full",
        "run m --ids 1,2 --memory 1500M --threads 2 --context 2048 --activations f32 --repack off --log trace",
        "chat m --stats --explain --no-save",
        "score m --text-file f --special --no-bos",
        "score --ids 1,2",
        "tokenize m --text-file f",
        "detokenize m --ids 1,2",
        "inspect f",
        "verify a b",
        "doctor --json",
        "bench m --only prefill_512,decode_d0 --against p --against-kv f16",
        "run --prompt x --presence-penalty -1 --logit-bias 3=-100",
        "run --prompt x --kv int4-plain --group 32 --policy window --anchors 64 --window 512",
        "run --prompt x --kv v=int4,k=int8 --sinks 0 --recent 0 --recent-kv f16 --no-centre --stats",
        "run --prompt x --policy heavy --guard off",
        "chat --positions original --weights prefetch --window-plan 4096:256,8192:512",
        "perplexity m --text-file f --context 2048 --mode chunk --chunks 6 --score-from 0.25 --reference full --activations f32 --no-floor",
        "perplexity --text-file f --mode stream --segment 4096 --offset 7 --reference recompute --reference-stride 32",
        "plan m --ram 4G --context 2048 --threads 2 --json",
    ] {
        let words = std::iter::once("haversack").chain(line.split(' '));
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{line}: {error}");
        }
    }
}
