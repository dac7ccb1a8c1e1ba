//! Templates that attack: each must end in text or in an error of one line, never in a panic, a runaway or
//! more memory than the limits promise. One test in its own process, because it reads the peak of the process.

use haversack_text::template::{ChatTemplate, Message, RenderOptions, TemplateError};
use std::time::Instant;

/// What a render may add to the peak of the process.
const EXTRA_KIB_MAX: u64 = 64 << 10;

fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn attacks() -> Vec<(&'static str, String)> {
    let mut all: Vec<(&'static str, String)> = [
        ("range", "{% for i in range(1000000000) %}x{% endfor %}"),
        ("nested loops", "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}x{% endfor %}{% endfor %}{% endfor %}"),
        ("empty loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        ("doubling ~", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"),
        ("doubling +", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"),
        ("doubling a list", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"),
        ("doubling by join", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}"),
        ("doubling by format", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}"),
        ("doubling by str.format", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}"),
        ("doubling by capture", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}"),
        ("doubling by macro", "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}x{% endif %}{% endmacro %}{{ m(60) }}"),
        ("doubling by replace", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}"),
        ("doubling by repr", "{% set ns = namespace(s='\\\\') %}{% for i in range(60) %}{% set ns.s = [ns.s]|string %}{% endfor %}"),
        ("doubling by json", "{% set ns = namespace(s='\\\\') %}{% for i in range(60) %}{% set ns.s = ns.s|tojson %}{% endfor %}"),
        ("doubling by escape", "{% set ns = namespace(s='&') %}{% for i in range(9999) %}{% set ns.s = ns.s|replace('&', '&&&&')|e %}{% endfor %}"),
        ("a shared tree printed", "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}"),
        ("a shared tree compared", "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"),
        ("a shared tree ordered", "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a < ns.b }}"),
        ("a shared tree as JSON", "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a|tojson }}"),
        ("a shared tree searched", "{% set ns = namespace(a=[1], b=[2]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.a, ns.b] %}{% endfor %}{{ ns.a in ns.b }}{{ ns.b|unique|list|length }}"),
        ("a shared mapping compared", "{% set ns = namespace(a={'k': 1}, b={'k': 1}) %}{% for i in range(60) %}{% set ns.a = {'l': ns.a, 'r': ns.a} %}{% set ns.b = {'l': ns.b, 'r': ns.b} %}{% endfor %}{{ ns.a == ns.b }}"),
        ("a deep value", "{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}"),
        ("deep methods", "{% set ns = namespace(a={}) %}{% for i in range(99999) %}{% set ns.a = {'k': ns.a.items} %}{% endfor %}"),
        ("deep loops", "{% set ns = namespace(a=[1]) %}{% for i in range(9999) %}{% for j in ns.a %}{% set ns.a = [loop] %}{% endfor %}{% endfor %}"),
        ("a chain of namespaces", "{% set ns = namespace(n=none) %}{% for i in range(99999) %}{% set m = namespace(n=ns.n) %}{% set ns.n = m %}{% endfor %}"),
        ("a namespace in itself", "{% set ns = namespace(s='x' * 9000000) %}{% set ns.me = ns %}{{ ns.me.me.me.s|length }}{{ ns }}"),
        ("a list of itself", "{% set ns = namespace(l=[]) %}{% set ns.l = [ns, ns] %}{{ ns.l }}{{ ns.l == ns.l }}{{ ns.l|tojson }}"),
        ("string times", "{{ 'x' * 1000000000000 }}"),
        ("string times again", "{{ 9223372036854775807 * 'xy' }}"),
        ("empty string times", "{{ '' * 9223372036854775807 }}"),
        ("list times", "{{ [1] * 1000000000000 }}"),
        ("list times in a loop", "{% for i in range(9999) %}{% set x = [1] * 300000 %}{% endfor %}"),
        ("many strings", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ['x' * 100000] %}{% endfor %}"),
        ("long lives", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [i ~ ''] %}{% endfor %}"),
        ("center", "{{ 'x'|center(10000000000) }}"),
        ("ljust", "{{ 'x'.ljust(1000000000000) }}{{ 'x'.rjust(9223372036854775807, 'é') }}{{ '1'.zfill(99999999999) }}"),
        ("format width", "{{ '%999999999d' % 1 }}"),
        ("format width again", "{{ '%99999999999999999999999s' % 'x' }}"),
        ("format precision", "{{ '%.999999999f' % 1.5 }}"),
        ("format widths", "{% set f = '%4096d' * 9999 %}{{ f % (1, 2) }}"),
        ("format filter", "{{ '%999999999s'|format('x') }}"),
        ("str.format spec", "{{ '{:>999999999}'.format('x') }}"),
        ("indent", "{{ 'a\\nb'|indent(1000000000000) }}"),
        ("indent lines", "{{ ('a\\n' * 1000000)|indent('x' * 1000000) }}"),
        ("JSON indent", "{{ [[[[1]]]]|tojson(indent=9223372036854775807) }}"),
        ("JSON separators", "{{ ([1] * 100000)|tojson(separators=('x' * 100000, ':')) }}"),
        ("replace", "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}"),
        ("replace of nothing", "{{ ('x' * 1000000)|replace('', 'y' * 1000) }}"),
        ("join", "{{ ('x' * 1000000)|list|join('y' * 1000000) }}"),
        ("split", "{% set l = ('a ' * 5000000).split() %}{{ l|length }}"),
        ("split in a loop", "{% set s = 'a,' * 100000 %}{% for i in range(9999) %}{{ s.split(',')|length }}{% endfor %}"),
        ("upper in a loop", "{% set s = 'ΐ' * 2000000 %}{% for i in range(9999) %}{% set t = s.upper() %}{% endfor %}"),
        ("search in a loop", "{% set s = 'a' * 8000000 %}{% for i in range(99999) %}{{ 'b' in s }}{% endfor %}"),
        ("strip a set", "{% set s = 'a' * 4000000 %}{{ s.strip('b' * 4000000 ~ 'a') }}"),
        ("index in a loop", "{% set s = 'é' * 4000000 %}{% for i in range(99999) %}{{ s[-1] }}{{ s[3999999] }}{% endfor %}"),
        ("reversing", "{% set s = 'a' * 2900000 %}{% for i in range(99999) %}{% set t = s[::-1] %}{% endfor %}"),
        ("slice of everything", "{{ 'abc'[0:9223372036854775807:-9223372036854775808] }}"),
        ("slices", "{{ 'abc'[9223372036854775807:-9223372036854775807:-1] }}{{ [1,2][::9223372036854775807] }}{{ messages[-9223372036854775807:9223372036854775807:-9223372036854775807] }}"),
        ("slice step zero", "{{ 'abc'[::0] }}"),
        ("negative index", "{{ messages[-999999999].content }}"),
        ("overflow", "{{ 9223372036854775807 * 9223372036854775807 }}"),
        ("more overflow", "{{ -9223372036854775807 - 1 - 1 }}"),
        ("the least integer", "{{ (-9223372036854775807 - 1) // -1 }}"),
        ("its rest", "{{ (-9223372036854775807 - 1) % -1 }}"),
        ("its absolute value", "{{ (-9223372036854775807 - 1)|abs }}"),
        ("powers", "{{ 10 ** 10 ** 10 ** 10 }}"),
        ("a large power", "{{ 2 ** 9223372036854775807 }}"),
        ("float ends", "{{ 1e308 * 10 }}{{ (1e308 * 10)|int }}{{ (1e308 * 10)|round }}{{ 1e18|round(300) }}{{ (1e308 * 10) // 1 }}"),
        ("division by zero", "{{ 1 // 0 }}{{ 1 % 0 }}"),
        ("float division by zero", "{{ 1.0 / 0.0 }}"),
        ("divisible by zero", "{{ 1 is divisibleby 0 }}"),
        ("range ends", "{{ range(-9223372036854775807, 9223372036854775807) }}"),
        ("range step zero", "{{ range(1, 5, 0) }}"),
        ("range with long steps", "{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}"),
        ("batch", "{{ [1]|batch(9223372036854775807, 'x')|list }}"),
        ("recursion", "{% macro x() %}{{ x() }}{% endmacro %}{{ x() }}"),
        ("mutual recursion", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"),
        ("recursion by default", "{% macro a(x=a()) %}{% endmacro %}{{ a() }}"),
        ("recursion by argument", "{% macro a(f) %}{{ f(f) }}{% endmacro %}{{ a(a) }}"),
        ("recursion by call", "{% macro a() %}{% call a() %}x{% endcall %}{% endmacro %}{{ a() }}"),
        ("raise", "{{ raise_exception('no\\nsecond line\\u001b[31m' ~ 'x' * 5000000) }}"),
        ("raise nothing", "{{ raise_exception() }}"),
        ("a huge format of time", "{{ strftime_now('%c' * 4000000) }}"),
        ("time directives", "{{ strftime_now('%Q') }}"),
        ("time ends", "{{ strftime_now('%') }}"),
        ("include", "{% include '/etc/passwd' %}"),
        ("import", "{% import 'x' as y %}"),
        ("extends", "{% extends 'x' %}"),
        ("python", "{{ ''.__class__.__mro__[1].__subclasses__()[132].__init__.__globals__['popen']('id').read() }}"),
        ("unclosed", "{% for m in messages %}{{ m.content "),
        ("unclosed string", "{{ 'abc }}"),
        ("unclosed comment", "{# abc"),
        ("unclosed raw", "{% raw %}abc"),
        ("unknown filter", "{{ messages|frobnicate }}"),
        ("undefined call", "{{ frobnicate(messages) }}"),
        ("unknown test", "{{ 1 is frob }}"),
        ("a long number", "{{ 99999999999999999999999999 }}"),
        ("a name nobody set", "{{ a.b.c }}"),
        ("sorting", "{% set l = range(99999)|list %}{% for i in range(99) %}{% set x = l|sort(reverse=true) %}{% endfor %}"),
        ("sorting mixed", "{{ [1, 'a', none]|sort }}"),
        ("sorting NaN", "{{ [1e308 * 10 - 1e308 * 10, 1.0, 2.0, 0.5]|sort }}"),
        ("unique", "{{ range(99999)|list|unique|list|length }}"),
        ("many keys", "{% set ns = namespace(d=[]) %}{{ dict(a=1) }}{% for i in range(99999) %}{% set x = {i: i, i + 1: i} %}{% endfor %}"),
        ("long attribute", "{{ ([{}] * 100000)|map(attribute='x' * 1000000)|list|length }}"),
        ("long keys", "{{ namespace({'x' * 9000000: 1}) }}"),
        ("undefined names", "{% for i in range(99999) %}{% set x = {}['x' * 100000] %}{% endfor %}"),
        ("a surrogate", "{{ '\\ud800' }}"),
        ("odd escapes", "{{ '\\x' }}{{ '\\u12' }}{{ '\\U99999999' }}"),
        ("break", "{% break %}"),
        ("a macro breaks", "{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{{ m() }}{% endfor %}"),
        ("assign to none", "{% set none = 1 %}"),
        ("unpack", "{% set a, b = [1] %}"),
        ("autoescape", "{% autoescape true %}{% endautoescape %}"),
    ]
    .into_iter()
    .map(|(name, source)| (name, source.to_owned()))
    .collect();
    let n = 60_000;
    let nest = |open: &str, middle: &str, close: &str| {
        format!("{}{middle}{}", open.repeat(n), close.repeat(n))
    };
    all.push(("parentheses", format!("{{{{ {} }}}}", nest("(", "1", ")"))));
    all.push(("brackets", format!("{{{{ {} }}}}", nest("[", "1", "]"))));
    all.push(("braces", format!("{{{{ {} }}}}", nest("{1:", "1", "}"))));
    all.push(("subscripts", format!("{{{{ {} }}}}", nest("a[", "1", "]"))));
    all.push(("calls", format!("{{{{ {} }}}}", nest("a(", "1", ")"))));
    all.push(("negations", format!("{{{{ {}1 }}}}", "-".repeat(n))));
    all.push(("nots", format!("{{{{ {}1 }}}}", "not ".repeat(n))));
    all.push(("sums", format!("{{{{ 1{} }}}}", "+1".repeat(n))));
    all.push((
        "powers of powers",
        format!("{{{{ 1{} }}}}", "**1".repeat(n)),
    ));
    all.push(("attributes", format!("{{{{ a{} }}}}", ".b".repeat(n))));
    all.push(("empty calls", format!("{{{{ a{} }}}}", "()".repeat(n))));
    all.push(("filters", format!("{{{{ 'a'{} }}}}", "|e".repeat(n))));
    all.push(("tests", format!("{{{{ 1{} }}}}", " is odd".repeat(n / 2))));
    all.push((
        "conditions",
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(n / 4)),
    ));
    all.push(("ands", format!("{{{{ 1{} }}}}", " and 1".repeat(n / 2))));
    all.push(("comparisons", format!("{{{{ 1{} }}}}", "<1".repeat(n))));
    all.push(("strings", format!("{{{{ {} }}}}", "'a'".repeat(n))));
    all.push((
        "targets",
        format!("{{% set {} = 1 %}}", nest("(", "a", ")")),
    ));
    all.push((
        "ifs",
        nest("{%if 1%}", "", "{%endif%}")
            .chars()
            .take(250_000)
            .collect(),
    ));
    all.push((
        "elifs",
        format!("{{% if 0 %}}{}{{% endif %}}", "{%elif 0%}".repeat(20_000)),
    ));
    all.push(("fors", "{%for a in b%}".repeat(15_000)));
    all.push(("macros", "{%macro a()%}".repeat(15_000)));
    all.push(("raws", "{%raw%}".repeat(30_000)));
    all.push(("endraws", format!("{{%raw%}}{}", "{%".repeat(100_000))));
    all.push(("opens", "{{".repeat(100_000)));
    all.push(("comments", "{#".repeat(100_000)));
    all.push((
        "a wide list",
        format!("{{{{ [{}] }}}}", "1,".repeat(100_000)),
    ));
    all.push((
        "a wide list of lists",
        format!("{{{{ [{}]|length }}}}", "[],".repeat(80_000)),
    ));
    all.push((
        "a wide mapping",
        format!("{{{{ {{{}}} }}}}", "1:1,".repeat(60_000)),
    ));
    all.push(("a mapping of many keys", {
        let keys: String = (0..25_000).map(|i| format!("{i}:1,")).collect();
        format!("{{{{ {{{keys}}} }}}}")
    }));
    all.push(("many names", {
        let sets: String = (0..9_000).map(|i| format!("{{%set v{i}=1%}}")).collect();
        format!("{sets}{{% for i in range(99999) %}}{{{{ v0 }}}}{{{{ w }}}}{{% endfor %}}")
    }));
    all.push((
        "maps of maps",
        format!("{{{{ 'x'|map({}'upper')|list }}}}", "'map',".repeat(30_000)),
    ));
    all.push((
        "many arguments",
        format!(
            "{{{{ range(99999)|map('default',{}1)|list|length }}}}",
            "1,".repeat(30_000)
        ),
    ));
    all.push((
        "a long text in a loop",
        format!(
            "{{% for i in range(99999) %}}{}{{% endfor %}}",
            "x".repeat(200_000)
        ),
    ));
    all.push(("a long text captured", {
        let text = "x".repeat(200_000);
        format!("{{% for i in range(99999) %}}{{% set t %}}{text}{{% endset %}}{{% endfor %}}")
    }));
    all.push(("too long", "x".repeat(16 << 20)));
    all.push(("a null", "a\0b{{ '\0' }}{{ messages[0]['\0'] }}".to_owned()));
    all
}

#[test]
fn attacks_end_in_one_line_and_bounded_memory() {
    let messages = [
        Message::new("system", "be brief"),
        Message::new("user", "hello"),
    ];
    let options = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let before = peak_kib();
    let mut slowest = (0.0, "");
    for (name, source) in attacks() {
        let start = Instant::now();
        let template = ChatTemplate::new(Some(&source), "<s>", "</s>");
        let result = template.render(&messages, &options);
        drop(template);
        let seconds = start.elapsed().as_secs_f64();
        if seconds > slowest.0 {
            slowest = (seconds, name);
        }
        match result {
            Ok(text) => println!("{name}: {} bytes, {seconds:.3} s", text.len()),
            Err(error) => {
                assert_ne!(
                    error,
                    TemplateError::Internal,
                    "{name}: contained, but a bug"
                );
                let line = error.to_string();
                println!("{name}: {line}, {seconds:.3} s");
                assert!(
                    !line.contains(['\n', '\r', '\u{1b}', '\0']),
                    "{name}: more than a line"
                );
                assert!(line.chars().count() < 300, "{name}: a long line");
            }
        }
        if let (Some(before), Some(now)) = (before, peak_kib()) {
            assert!(
                now < before + EXTRA_KIB_MAX,
                "{name}: the peak grew by {} KiB",
                now - before
            );
        }
    }
    println!(
        "slowest: {} in {:.3} s; peak grew by {:?} KiB",
        slowest.1,
        slowest.0,
        peak_kib().zip(before).map(|(a, b)| a - b)
    );
}
