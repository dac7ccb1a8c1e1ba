//! What a sequence holds: as the `kv` and `context` objects of the contract, in words, and as a bar.

use haversack::engine::runtime::{KvLayout, KvMemory, SequenceUsage};
use haversack::memory::Effect;
use haversack::memory::bytes::human;
use serde_json::{Value as Json, json};
use std::io::{self, IsTerminal};

/// The `kv` object of the contract.
pub fn kv_json(layout: &KvLayout, usage: &SequenceUsage) -> Json {
    let ledger = &usage.ledger;
    json!({
        "codec": layout.kv.name(),
        "policy": layout.bounds.policy_name(),
        "bytes_live": ledger.kv_live,
        "bytes_peak": ledger.peak,
        "bytes_budget": ledger.budget,
        "bits_effective": usage.bits_effective,
        "tokens_seen": usage.tokens_seen,
        "rows_live": usage.rows,
        "rows_peak": usage.rows_peak,
        "rows_evicted": usage.evicted(),
        "quality_debt": usage.quality_debt,
        "ledger": {
            "blocks_bytes": ledger.kv_live,
            "ahead_bytes": ledger.kv_ahead,
            "tables_bytes": ledger.tables,
            "scratch_bytes": ledger.scratch,
            "side_bytes": ledger.side,
            "heap_bytes": ledger.heap,
        },
    })
}

/// The `context` object of the contract. `cached` tokens were not read again.
pub fn context_json(layout: &KvLayout, usage: &SequenceUsage, cached: usize) -> Json {
    let bounds = &layout.bounds;
    let changes: Vec<Json> = usage
        .changes
        .iter()
        .map(|change| {
            json!({
                "position": change.position,
                "window": change.window,
                "reason": change.reason,
            })
        })
        .collect();
    json!({
        "kept": usage.rows,
        "evicted": usage.evicted(),
        "spilled": 0,
        "cached": cached,
        "recomputed": 0,
        "limit": bounds.rows_max,
        "window": usage.window,
        "anchors": bounds.anchors,
        "changes": changes,
    })
}

/// The same in words; `computed` tokens were read for the last answer.
pub fn explain(layout: &KvLayout, usage: &SequenceUsage, cached: usize, computed: usize) -> String {
    let bounds = &layout.bounds;
    let mut text = format!(
        "context: kept {}, evicted {}, spilled 0, cached {cached}, recomputed 0, computed {computed}; {} tokens seen",
        usage.rows,
        usage.evicted(),
        usage.tokens_seen,
    );
    match usage.window {
        Some(_) if bounds.policy.chooses() => text.push_str(&format!(
            "; the first {} tokens stay and of the rest what {} chooses, at most {} rows in a layer, in {}",
            bounds.anchors,
            bounds.policy_name(),
            bounds.rows_max,
            layout.kv.name()
        )),
        Some(window) => text.push_str(&format!(
            "; the first {} tokens and the last {window} stay, at most {} rows in {}",
            bounds.anchors,
            bounds.rows_max,
            layout.kv.name()
        )),
        None => text.push_str(&format!(
            "; everything stays, at most {} rows in {}",
            bounds.rows_max,
            layout.kv.name()
        )),
    }
    if let Some(debt) = usage.quality_debt {
        text.push_str(&format!("; quality debt {debt:.4} nats"));
    }
    for change in &usage.changes {
        text.push_str(&format!(
            "\nwindow {} from position {}: {}",
            change.window, change.position, change.reason
        ));
    }
    text
}

/// The `memory.kv_memory` object of the contract.
pub fn pages_json(pages: &KvMemory) -> Json {
    let words = |effect: &Option<Effect>| effect.as_ref().map(Effect::to_string);
    json!({
        "backing": pages.backing.name(),
        "resident_bytes": pages.resident_bytes,
        "huge_pages": words(&pages.huge_pages),
        "merged": words(&pages.merged),
        "paths": pages.paths,
    })
}

/// The same in words.
pub fn pages(pages: &KvMemory) -> String {
    let resident = pages.resident_bytes.map_or("unknown".to_owned(), human);
    let mut text = format!("kv memory {}, {resident} resident", pages.backing.name());
    if let Some(merged) = &pages.merged {
        text.push_str(&format!("; merged pages: {merged}"));
    }
    for path in &pages.paths {
        text.push_str(&format!("; {}", path.display()));
    }
    text
}

/// The ledger for people: one line with a bar, one with what the bar is made of.
pub fn bar(layout: &KvLayout, usage: &SequenceUsage) -> String {
    let ledger = &usage.ledger;
    let kv = &layout.kv;
    let name = kv.name();
    let rest = ledger.tables + ledger.side;
    // Blocks of other sequences, if there are any.
    let own = usage.sinks_bytes + usage.near_bytes + usage.far_bytes;
    let parts = [
        ("sinks f16".to_owned(), usage.sinks_bytes),
        match layout.is_zoned {
            true => (format!("recent {}", kv.near), usage.near_bytes),
            false => (name.clone(), usage.near_bytes),
        },
        (name.clone(), usage.far_bytes),
        (
            "others".to_owned(),
            (ledger.kv_live + ledger.kv_ahead).saturating_sub(own),
        ),
        ("tables".to_owned(), rest),
        ("scratch".to_owned(), ledger.scratch),
        ("heap".to_owned(), ledger.heap),
    ];
    let marks = if plain() { &ASCII } else { &BLOCKS };
    let total = ledger.total();
    let of = match ledger.budget {
        Some(budget) => format!(" of {}", human(budget as u64)),
        None => String::new(),
    };
    let head = format!("kv {name}  {}{of} ", human(total as u64));
    let sizes: Vec<usize> = parts.iter().map(|(_, bytes)| *bytes).collect();
    let drawn = draw(marks, &sizes, ledger.budget.unwrap_or(total));
    let legend: Vec<String> = parts
        .iter()
        .zip(marks.parts)
        .filter(|((_, bytes), _)| *bytes > 0)
        .map(|((name, bytes), mark)| format!("{mark} {name} {}", human(*bytes as u64)))
        .collect();
    format!(
        "{head}{drawn}\n   {}",
        legend.join(&format!(" {} ", marks.between))
    )
}

/// How a bar is drawn.
struct Marks {
    open: char,
    close: char,
    free: char,
    between: char,
    /// One for each part, in order.
    parts: [char; 7],
}

const BLOCKS: Marks = Marks {
    open: '▕',
    close: '▏',
    free: ' ',
    between: '·',
    parts: ['◆', '█', '▓', '▞', '▒', '░', '▪'],
};

const ASCII: Marks = Marks {
    open: '[',
    close: ']',
    free: ' ',
    between: '|',
    parts: ['*', '#', '=', '%', '+', '-', '~'],
};

const BAR_CELLS: usize = 24;

/// Each part from where the one before it ends, rounded to cells; what is left of `full` is free.
fn draw(marks: &Marks, sizes: &[usize], full: usize) -> String {
    let cell = |bytes: usize| {
        let share = bytes as f64 / full.max(1) as f64;
        ((share * BAR_CELLS as f64).round() as usize).min(BAR_CELLS)
    };
    let mut bar = String::from(marks.open);
    let (mut sum, mut cells) = (0usize, 0);
    for (bytes, mark) in sizes.iter().zip(marks.parts) {
        sum = sum.saturating_add(*bytes);
        let end = cell(sum);
        bar.extend(std::iter::repeat_n(mark, end - cells));
        cells = end;
    }
    bar.extend(std::iter::repeat_n(marks.free, BAR_CELLS - cells));
    bar.push(marks.close);
    bar
}

/// Whether nothing but ASCII should be drawn.
fn plain() -> bool {
    !io::stderr().is_terminal() || crate::out::wants_no_style()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_parts() {
        let draw = |sizes: &[usize], full| draw(&ASCII, sizes, full);
        assert_eq!(draw(&[0, 0, 12], 24), "[============            ]");
        assert_eq!(draw(&[1, 11, 0, 0, 6, 6], 24), "[*###########++++++------]");
        // A hair is no cell, and what it adds is not lost.
        assert_eq!(draw(&[1, 1, 23_998], 24_000), "[========================]");
        assert_eq!(draw(&[], 0), "[                        ]");
        assert_eq!(
            draw(&[usize::MAX, usize::MAX], 1),
            format!("[{}]", "*".repeat(24))
        );
    }
}
