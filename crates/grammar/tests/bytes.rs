//! What a vocabulary takes is said before it is made, and holds; what compiling takes has an end.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{real, tiny};
use haversack_grammar::{Calls, Function, Shape, Vocabulary};
use haversack_testing::heap::{self, CountingAllocator};
use haversack_text::tokenizer::Tokenizer;
use serde_json::{Value as Json, json};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator;

fn holds(name: &str, tokenizer: &Tokenizer) -> (f64, f64) {
    let needs = Vocabulary::needs(tokenizer);
    let before = heap::held_bytes();
    heap::take_peak_bytes();
    let vocabulary = Vocabulary::new(tokenizer).unwrap();
    let (most, kept) = (
        heap::take_peak_bytes() - before,
        heap::held_bytes() - before,
    );
    drop(vocabulary);
    let ids = 0..tokenizer.len() as u32;
    let pieces: usize = ids.map(|id| tokenizer.piece_bytes(id).len()).sum();
    println!(
        "{name}: {} tokens, {pieces} bytes: {most} while it is made, {kept} kept; {needs:?} said",
        tokenizer.len()
    );
    assert!(most <= needs.making && kept <= needs.kept, "{name}");
    (
        needs.making as f64 / most as f64,
        needs.kept as f64 / kept as f64,
    )
}

/// What looking at a shape takes at most that is refused: copies of a schema and its text.
const CHECKING: usize = 2 << 20;

/// Patterns that must hold together, and as many alternatives as are accepted, each as long as the schema: compiling takes no
/// more than is reserved for it, and a few patterns compile.
fn compiling_holds(tokenizer: &Tokenizer) {
    let vocabulary = Vocabulary::new(tokenizer).unwrap();
    let compile_shape = |name: &str, shape: Shape| {
        let before = heap::held_bytes();
        heap::take_peak_bytes();
        let checked = shape.check();
        let said = checked.as_ref().map_or(CHECKING, |s| s.compiling_bytes());
        let compiled = checked.and_then(|shape| vocabulary.compile_checked(shape));
        let error = compiled.err();
        let takes = heap::take_peak_bytes() - before;
        println!("{name}: {takes} of {said} bytes, {error:?}");
        assert!(takes < said, "{name}: {takes} of {said} bytes");
        error
    };
    let compile = |name: &str, schema: Json| compile_shape(name, Shape::Schema(schema));
    let text = |pattern: String| json!({ "type": "string", "pattern": pattern });
    let patterns: [&dyn Fn(usize) -> Json; 6] = [
        &|i| text(format!("^.*x.{{{i}}}$")),
        &|i| text(format!(".*(x|y).*z.{{{i}}}")),
        &|i| text(format!("(a?b?c?){{{i}}}x")),
        &|i| text(format!("^(.*a){{{i}}}.*$")),
        &|i| json!({ "type": "object", "properties": { "a": text(format!(".*x.{{{i}}}")) } }),
        &|i| json!({ "anyOf": [text(format!(".*x.{{{i}}}")), { "type": "null" }] }),
    ];
    for (i, pattern) in patterns.into_iter().enumerate() {
        for n in [1, 2, 4, 6, 7, 8, 12, 16, 20] {
            let all = (1..=n).map(pattern).collect::<Vec<Json>>();
            let error = compile(&format!("pattern {i}, {n} of it"), json!({ "allOf": all }));
            assert_eq!(
                error.is_none(),
                n <= 2 || (i, n) == (2, 4),
                "pattern {i}, {n} of it"
            );
        }
    }
    let names = |n: usize| -> Vec<String> { (0..n).map(|i| format!("name{i}")).collect() };
    let list = |n: usize| {
        let each =
            (0..n).map(|i| json!({ "type": "object", "properties": { (format!("p{i}")): true } }));
        json!({ "anyOf": each.collect::<Vec<Json>>() })
    };
    for required in [10, 100, 1000] {
        for n in (1..=16).step_by(5) {
            let both = [list(n), list(n)];
            let schema = json!({ "allOf": both, "type": "object", "required": names(required) });
            compile(&format!("lists of {n} beside {required} names"), schema);
        }
    }
    let functions = |count: usize, fields: usize| {
        let field = |i: usize| (format!("field{i}"), json!({ "enum": ["a", "b", i] }));
        let properties: serde_json::Map<String, Json> = (0..fields).map(field).collect();
        let function = |i: usize| Function {
            name: format!("function{i}"),
            parameters: Some(json!({ "type": "object", "properties": properties })),
        };
        Shape::Calls(Calls {
            functions: (0..count).map(function).collect(),
            must: false,
            once: false,
        })
    };
    for (count, fields) in [(1, 1), (8, 4), (128, 1), (128, 5), (20, 40), (1, 700)] {
        let name = format!("{count} functions of {fields} fields");
        let error = compile_shape(&name, functions(count, fields));
        assert!(
            error.is_none() || count * fields >= 700,
            "{name}: {error:?}"
        );
    }
    let rules =
        |n: usize| (0..n).map(move |i| format!("r{i} ::= [a-z]+ r{} | \"b{i}\"\n", (i + 7) % n));
    for n in [1, 10, 100, 400] {
        let grammar = format!("root ::= r0\n{}", rules(n).collect::<String>());
        let error = compile_shape(&format!("{n} rules"), Shape::Gbnf(grammar));
        assert_eq!(error, None);
    }
    for unit in [
        "\"a\"{0,2000} ",
        "[a-f]{3,2000} ",
        "(x | \"b\"){0,2000} ",
        "(x \"b\"{7,2000})* ",
    ] {
        for n in [1, 30, 900] {
            let grammar = format!("root ::= {}\nx ::= \"x\" root?\n", unit.repeat(n));
            compile_shape(&format!("{n} of {unit}"), Shape::Gbnf(grammar));
        }
    }
}

/// One test: everything in the process is counted.
#[test]
fn what_is_said_holds() {
    holds("tiny", tiny("llama").tokenizer());
    compiling_holds(tiny("llama").tokenizer());
    for file in [
        "smollm2-135m-instruct-q4_1.gguf",
        "gemma-3-270m-q4_k_m.gguf",
    ] {
        let Some(model) = real(file) else {
            continue;
        };
        let (making, kept) = holds(file, model.tokenizer());
        // Said too much would turn people away for nothing.
        assert!(making < 1.5 && kept < 1.5, "{file}: {making} {kept}");
    }
}
