//! Condensing a text to a number of tokens.
//!
//! [`Extractive`] keeps sentences as they are, so it invents nothing. Text that is marked verbatim stays. Of the rest it
//! drops repetitions and sentences that a later one supersedes, then chooses sentence by sentence: close to the mean of
//! all, specific, and unlike those already chosen. Sentences keep their order. [`Rewriting`] asks a model for a shorter
//! text, and takes it only if it is shorter.
//!
//! What this is not: it neither reads into a cache nor knows sessions; `rebuild.rs` does.
//!
//! Invariants: the result never has more tokens than asked for, by the caller's count; a text that fits is not changed;
//! the same text gives the same result.

use super::embed::Embed;
use haversack_engine::encoder::{DIMENSIONS, Embedding, similarity};
use haversack_engine::runtime::{GenerateOptions, Runtime, generate};
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_text::chat::encode_chat;
use haversack_text::template::{Message, RenderOptions};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};

/// One piece of the persistent stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CondensePiece {
    pub text: String,
    /// Bytes at its beginning that must not change.
    pub verbatim: usize,
}

/// A text to condense, and to how many tokens.
#[derive(Clone, Copy)]
pub struct CondenseRequest<'a> {
    pub pieces: &'a [CondensePiece],
    /// Most tokens of all pieces together.
    pub tokens_max: usize,
    /// Tokens of piece `i` with this text, markers included; `usize::MAX` where it cannot be encoded.
    pub count: &'a dyn Fn(usize, &str) -> usize,
}

/// How sentences were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CondenseMethod {
    /// Everything fitted.
    Untouched,
    /// By their embeddings.
    Embeddings,
    /// By their words and positions: there was no encoder, or it failed.
    Words,
    /// A model rewrote them.
    Rewritten,
}

/// A condensed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condensed {
    /// (piece): what is left of it; may be empty.
    pub pieces: Vec<String>,
    pub summary: CondenseSummary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CondenseSummary {
    /// By the caller's count.
    pub tokens: usize,
    /// Sentences that are left, and that there were.
    pub kept: usize,
    pub sentences: usize,
    pub how: CondenseMethod,
}

/// `23 of 60 sentences in 298 tokens, by what they are about`
impl std::fmt::Display for CondenseSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kept, sentences, tokens) = (self.kept, self.sentences, self.tokens);
        let how = match self.how {
            CondenseMethod::Untouched => "untouched",
            CondenseMethod::Embeddings => "by what they are about",
            CondenseMethod::Words => "by their words alone, without an encoder",
            CondenseMethod::Rewritten => "written anew by a model",
        };
        write!(
            f,
            "{kept} of {sentences} sentences in {tokens} tokens, {how}"
        )
    }
}

/// Why a text could not be condensed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CondenseError {
    #[error("what is to stay word for word has {tokens} tokens; accepted: at most {max}")]
    Verbatim { tokens: usize, max: usize },
    #[error("condensing ended without a result")]
    Died,
}

/// Condenses texts.
pub trait Condense: Send + Sync {
    fn condense(&self, asked: &CondenseRequest<'_>) -> Result<Condensed, CondenseError>;
}

/// Leaves sentences out.
#[derive(Clone, Default)]
pub struct Extractive {
    /// Without it sentences are judged by their words and positions.
    pub encoder: Option<Arc<dyn Embed>>,
}

impl Condense for Extractive {
    fn condense(&self, asked: &CondenseRequest<'_>) -> Result<Condensed, CondenseError> {
        condense(asked, self.encoder.as_deref())
    }
}

/// Has a model rewrite the text. The result cannot be checked, only counted: it is taken where it is short enough;
/// otherwise sentences are left out as [`Extractive`] does.
pub struct Rewriting {
    runtime: Mutex<Runtime>,
    fallback: Extractive,
}

impl Rewriting {
    /// The runtime is of any model that has a chat template, with a budget of its own.
    pub fn new(runtime: Runtime, fallback: Extractive) -> Rewriting {
        Rewriting {
            runtime: Mutex::new(runtime),
            fallback,
        }
    }

    /// The model's shorter version of a text; `None` where it fails.
    fn rewrite(&self, text: &str, tokens_max: usize) -> Option<String> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = &mut *runtime;
        let model = runtime.model().clone();
        let ask = format!("{REWRITE}\n\n{text}");
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        let messages = [Message::new("user", &ask)];
        let (template, tokenizer) = (model.template(), model.tokenizer());
        let prompt = encode_chat(template, tokenizer, &messages, &options).ok()?;
        let mut sampler = Sampler::new(SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        })
        .ok()?;
        let options = GenerateOptions {
            tokens_max: Some(tokens_max),
            ..GenerateOptions::default()
        };
        let sequence = runtime.open().ok()?;
        let mut go_on = |_: haversack_engine::runtime::GenerateEvent<'_>| ControlFlow::Continue(());
        let written = generate(
            runtime,
            sequence,
            &prompt,
            &mut sampler,
            &options,
            &mut go_on,
        );
        runtime.close(sequence).ok()?;
        let written = written.ok()?;
        // A truncated answer ends in the middle of a sentence.
        let whole = written.finish == haversack_engine::runtime::Finish::Stop;
        let text = written.text.trim();
        (whole && !text.is_empty()).then(|| text.to_owned())
    }
}

/// The instruction to the model.
const REWRITE: &str = "Rewrite these facts as short sentences, one per line. Keep every name, number, \
    date and instruction exactly. Leave out greetings, small talk and repetitions. Write nothing else.";

impl Condense for Rewriting {
    fn condense(&self, asked: &CondenseRequest<'_>) -> Result<Condensed, CondenseError> {
        let whole = untouched(asked);
        if whole.summary.tokens <= asked.tokens_max {
            return Ok(whole);
        }
        let rewritten = |piece: &CondensePiece| {
            let (kept, rest) = piece.text.split_at(piece.verbatim_end());
            // One sentence is as short as it gets.
            if split(rest).len() < 2 {
                return Some(piece.text.clone());
            }
            let rest = self.rewrite(rest, asked.tokens_max)?;
            let between = if kept.is_empty() { "" } else { "\n" };
            Some(format!("{}{between}{rest}", kept.trim_end()))
        };
        let pieces: Option<Vec<String>> = asked.pieces.iter().map(rewritten).collect();
        if let Some(pieces) = pieces {
            let tokens = total(asked, &pieces);
            if tokens <= asked.tokens_max {
                let summary = CondenseSummary {
                    tokens,
                    kept: pieces.iter().map(|p| split(p).len()).sum(),
                    sentences: whole.summary.sentences,
                    how: CondenseMethod::Rewritten,
                };
                return Ok(Condensed { pieces, summary });
            }
        }
        self.fallback.condense(asked)
    }
}

impl CondensePiece {
    /// End of the verbatim part, at a character boundary.
    fn verbatim_end(&self) -> usize {
        let end = self.verbatim.min(self.text.len());
        (end..=self.text.len())
            .find(|&i| self.text.is_char_boundary(i))
            .unwrap_or(self.text.len())
    }

    /// The verbatim part, trimmed.
    fn marked(&self) -> &str {
        self.text[..self.verbatim_end()].trim()
    }

    /// Bytes of the condensed text that are verbatim.
    pub(super) fn verbatim_in(&self, condensed: &str) -> usize {
        match condensed == self.text {
            true => self.verbatim.min(condensed.len()),
            false => self.marked().len().min(condensed.len()),
        }
    }
}

/// A sentence and its place.
struct Sentence<'a> {
    piece: usize,
    span: Range<usize>,
    text: &'a str,
    is_verbatim: bool,
    words: Vec<String>,
    direction: Option<Embedding>,
}

/// Weights of a sentence's value: closeness to the mean of all, names and numbers, share of content words. The sum is
/// divided by the square root of the length, because two short sentences say more than a long one.
/// docs/how-it-works/conversations.md compares other weights.
const CENTRAL: f32 = 0.5;
const SPECIFIC: f32 = 0.5;
const CONTENT: f32 = 1.0;

/// Penalty for similarity to a chosen sentence, above the similarity of two sentences on one subject.
const NOVEL: f32 = 1.0;
const NOVEL_FROM: f32 = 0.6;

/// Shorter sentences gain nothing from being shorter.
const WORDS_MIN: usize = 3;

/// Sentences more similar than this count as equal.
const SAME: f32 = 0.95;

/// Leaves sentences out until the text fits.
pub fn condense(
    asked: &CondenseRequest<'_>,
    encoder: Option<&dyn Embed>,
) -> Result<Condensed, CondenseError> {
    let whole = untouched(asked);
    if whole.summary.tokens <= asked.tokens_max {
        return Ok(whole);
    }
    let mut sentences = sentences_of(asked.pieces);
    let how = match encoder {
        Some(encoder) if embed(&mut sentences, encoder) => CondenseMethod::Embeddings,
        _ => CondenseMethod::Words,
    };
    let mut chosen: Vec<bool> = sentences.iter().map(|s| s.is_verbatim).collect();
    let mut texts = joined(asked.pieces, &sentences, &chosen);
    let mut counts: Vec<usize> = texts
        .iter()
        .enumerate()
        .map(|(i, text)| (asked.count)(i, text))
        .collect();
    let sum = |counts: &[usize]| counts.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
    if sum(&counts) > asked.tokens_max {
        return Err(CondenseError::Verbatim {
            tokens: sum(&counts),
            max: asked.tokens_max,
        });
    }

    let value = values(&sentences);
    let mut open: Vec<usize> = (0..sentences.len())
        .filter(|&i| !chosen[i] && !is_stale(&sentences, i))
        .collect();
    // (sentence): similarity to the most similar chosen one.
    let mut nearest = vec![0.0f32; sentences.len()];
    let note = |nearest: &mut [f32], new: usize| {
        for (i, nearest) in nearest.iter_mut().enumerate() {
            *nearest = nearest.max(likeness(&sentences[i], &sentences[new]));
        }
    };
    for i in (0..sentences.len()).filter(|&i| chosen[i]) {
        note(&mut nearest, i);
    }
    while !open.is_empty() {
        let told = |i: usize| (nearest[i] - NOVEL_FROM).max(0.0) / (1.0 - NOVEL_FROM);
        let score = |i: usize| value[i] - NOVEL * told(i);
        // Ties go to the first.
        let best = (0..open.len()).fold(0, |best, at| {
            match score(open[at]).total_cmp(&score(open[best])) {
                std::cmp::Ordering::Greater => at,
                _ => best,
            }
        });
        let i = open.remove(best);
        let piece = sentences[i].piece;
        chosen[i] = true;
        let text = joined_piece(asked.pieces, &sentences, &chosen, piece);
        let count = (asked.count)(piece, &text);
        let before = std::mem::replace(&mut counts[piece], count);
        // Token merges make a sentence cost more or less in context: count the whole.
        if sum(&counts) <= asked.tokens_max {
            texts[piece] = text;
            note(&mut nearest, i);
        } else {
            chosen[i] = false;
            counts[piece] = before;
        }
    }
    Ok(Condensed {
        pieces: texts,
        summary: CondenseSummary {
            tokens: sum(&counts),
            kept: chosen.iter().filter(|&&c| c).count(),
            sentences: sentences.len(),
            how,
        },
    })
}

fn total(asked: &CondenseRequest<'_>, pieces: &[String]) -> usize {
    let counts = pieces.iter().enumerate();
    let counts = counts.map(|(i, text)| (asked.count)(i, text));
    counts.fold(0, usize::saturating_add)
}

fn untouched(asked: &CondenseRequest<'_>) -> Condensed {
    let pieces: Vec<String> = asked.pieces.iter().map(|p| p.text.clone()).collect();
    let sentences = pieces.iter().map(|p| split(p).len()).sum();
    let summary = CondenseSummary {
        tokens: total(asked, &pieces),
        kept: sentences,
        sentences,
        how: CondenseMethod::Untouched,
    };
    Condensed { pieces, summary }
}

fn sentences_of(pieces: &[CondensePiece]) -> Vec<Sentence<'_>> {
    let mut sentences = Vec::new();
    for (piece, said) in pieces.iter().enumerate() {
        let end = said.verbatim_end();
        let marked = said.marked();
        let mut add = |span: Range<usize>, is_verbatim| {
            let text = &said.text[span.clone()];
            sentences.push(Sentence {
                piece,
                span,
                text,
                is_verbatim,
                words: words(text),
                direction: None,
            });
        };
        if !marked.is_empty() {
            let start = said.text[..end].len() - said.text[..end].trim_start().len();
            add(start..start + marked.len(), true);
        }
        for span in split(&said.text[end..]) {
            add(span.start + end..span.end + end, false);
        }
    }
    sentences
}

/// Embeds all sentences, or none.
fn embed(sentences: &mut [Sentence<'_>], encoder: &dyn Embed) -> bool {
    for sentence in &mut *sentences {
        match encoder.embed(sentence.text) {
            Ok(direction) => sentence.direction = Some(direction),
            Err(error) => {
                log::warn!("sentences are judged by their words: {error}");
                sentences.iter_mut().for_each(|s| s.direction = None);
                return false;
            }
        }
    }
    true
}

/// (sentence): its value, chosen sentences aside.
fn values(sentences: &[Sentence<'_>]) -> Vec<f32> {
    let central = match sentences.iter().all(|s| s.direction.is_some()) {
        true => centrality(sentences),
        // Without an encoder, early sentences count more.
        false => (0..sentences.len())
            .map(|i| 1.0 - i as f32 / sentences.len() as f32)
            .collect(),
    };
    sentences
        .iter()
        .zip(central)
        .map(|(Sentence { text, words, .. }, central)| {
            let worth = CENTRAL * central + SPECIFIC * specific(text) + CONTENT * content(words);
            worth / (words.len().max(WORDS_MIN) as f32).sqrt()
        })
        .collect()
}

/// (sentence): the cosine with the mean of all.
fn centrality(sentences: &[Sentence<'_>]) -> Vec<f32> {
    let mut mean = [0.0f32; DIMENSIONS];
    for direction in sentences.iter().filter_map(|s| s.direction.as_ref()) {
        for (mean, x) in mean.iter_mut().zip(direction.values()) {
            *mean += x;
        }
    }
    let mean = Embedding::of(mean);
    let near = |s: &Sentence<'_>| Some(similarity(s.direction.as_ref()?, mean.as_ref()?));
    sentences.iter().map(|s| near(s).unwrap_or(0.0)).collect()
}

/// Share of names and numbers among the words, `0..=1`; a capital counts from the second word on. Questions get less.
fn specific(text: &str) -> f32 {
    let mut words = 0;
    let mut named = 0;
    for word in text.split_whitespace() {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        let Some(first) = word.chars().next() else {
            continue;
        };
        words += 1;
        let is_name = first.is_uppercase() && words > 1 && !is_pronoun(word);
        named += usize::from(is_name || word.contains(|c: char| c.is_numeric()));
    }
    let share = named as f32 / words.max(1) as f32;
    // One word in three is the maximum.
    let share = (share * 3.0).min(1.0);
    match text.trim_end().ends_with(['?', '？']) {
        true => share - 0.5,
        false => share,
    }
}

/// English stop words. Sentences of other languages have hardly any and are not affected.
const SMALL_WORDS: &str = " a about after again ago all also always am an and another any anyway are as at away \
    back be because been before being both but by can could did do does doing done down either else even ever \
    every few for from get go going got had has have having he her here hers him his how however i if in into is \
    it its just less let like little ll many may maybe me might mine more most much must my never no nor not now \
    of off often oh ok okay on once one only or other our ours out over own perhaps please quite rather re really \
    s said same say says shall she should since so some something sometimes soon still such than thank thanks \
    that the their them then there these they thing things this those though through to too under until up us ve \
    very was way we well were what when where which while who why will with without would yes yet you your yours ";

/// Share of words that are not stop words, `0..=1`.
fn content(words: &[String]) -> f32 {
    let small = |word: &&String| SMALL_WORDS.contains(&format!(" {word} "));
    let small = words.iter().filter(small).count();
    1.0 - small as f32 / words.len().max(1) as f32
}

/// English capitalises it like a name.
fn is_pronoun(word: &str) -> bool {
    word == "I" || word.starts_with("I'") || word.starts_with("I’")
}

/// Similarity of two sentences, `0..=1`.
fn likeness(a: &Sentence<'_>, b: &Sentence<'_>) -> f32 {
    match (&a.direction, &b.direction) {
        (Some(a), Some(b)) => similarity(a, b).max(0.0),
        _ => {
            let (a, b): (BTreeSet<_>, BTreeSet<_>) =
                (a.words.iter().collect(), b.words.iter().collect());
            let both = a.intersection(&b).count();
            both as f32 / a.union(&b).count().max(1) as f32
        }
    }
}

/// Whether another sentence repeats or supersedes this one.
fn is_stale(sentences: &[Sentence<'_>], i: usize) -> bool {
    let this = &sentences[i];
    sentences.iter().enumerate().any(|(j, other)| {
        let later = j > i;
        // Of two equal sentences the later stays: it may take back one between them.
        let same = this.words == other.words
            || this.direction.is_some()
                && likeness(this, other) > SAME
                && is_contained(this, other);
        i != j && (same && (later || other.is_verbatim) || later && is_superseded(this, other))
    })
}

/// Whether every word of one is in the other.
fn is_contained(a: &Sentence<'_>, b: &Sentence<'_>) -> bool {
    a.words.iter().all(|word| b.words.contains(word))
}

/// A statement supersedes another if they begin with at least this many equal words: `The shop opens at` …
const SAME_BEGINNING: usize = 4;

/// … and differ in at most this many words at the end.
const OTHER_END: usize = 2;

/// Whether a later sentence begins like this one, nearly to its end, and ends differently.
fn is_superseded(this: &Sentence<'_>, later: &Sentence<'_>) -> bool {
    let (a, b) = (&this.words, &later.words);
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let rest = |words: &[String]| (1..=OTHER_END).contains(&(words.len() - same));
    same >= SAME_BEGINNING && rest(a) && rest(b)
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn joined(pieces: &[CondensePiece], sentences: &[Sentence<'_>], chosen: &[bool]) -> Vec<String> {
    (0..pieces.len())
        .map(|piece| joined_piece(pieces, sentences, chosen, piece))
        .collect()
}

/// The chosen sentences of a piece; line breaks between sentences stay.
fn joined_piece(
    pieces: &[CondensePiece],
    sentences: &[Sentence<'_>],
    chosen: &[bool],
    piece: usize,
) -> String {
    let mut out = String::new();
    let mut from = 0;
    let of_piece = sentences
        .iter()
        .zip(chosen)
        .filter(|(s, _)| s.piece == piece);
    for (sentence, _) in of_piece.filter(|(_, chosen)| **chosen) {
        if !out.is_empty() {
            let between = &pieces[piece].text[from..sentence.span.start];
            out.push(if between.contains('\n') { '\n' } else { ' ' });
        }
        out.push_str(sentence.text);
        from = sentence.span.end;
    }
    out
}

/// Words whose full stop does not end a sentence.
const ABBREVIATIONS: [&str; 28] = [
    "dr", "mr", "mrs", "ms", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "no", "nr",
    "approx", "ca", "fig", "vol", "inc", "ltd", "co", "dept", "est", "u.s", "a.m", "p.m", "z.b",
    "bzw",
];

/// Byte ranges of the sentences. A line break ends one, unless the next line continues it.
pub fn split(text: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        let ends = match c {
            '\n' => ends_line(&text[start..at], &text[end..]),
            '。' | '！' | '？' => true,
            '.' | '!' | '?' | '…' => {
                // Closing quotes and brackets belong to the sentence.
                let closing = |c: char| {
                    matches!(
                        c,
                        '.' | '!' | '?' | '"' | '\'' | ')' | ']' | '”' | '’' | '»'
                    )
                };
                let rest = text[end..].trim_start_matches(closing);
                let skipped = text.len() - rest.len();
                let breaks = rest.is_empty() || rest.starts_with(char::is_whitespace);
                let next = rest.trim_start().chars().next();
                let goes_on = next.is_some_and(char::is_lowercase);
                if breaks && !goes_on && !(c == '.' && is_abbreviation(&text[start..at])) {
                    push(&mut spans, text, start..skipped);
                    start = skipped;
                    while chars.next_if(|(i, _)| *i < skipped).is_some() {}
                }
                continue;
            }
            _ => false,
        };
        if ends {
            push(&mut spans, text, start..end);
            start = end;
        }
    }
    push(&mut spans, text, start..text.len());
    spans
}

/// Adds a trimmed span, unless it has no letter or digit.
fn push(spans: &mut Vec<Range<usize>>, text: &str, span: Range<usize>) {
    let said = &text[span.clone()];
    let start = span.end - said.trim_start().len();
    let trimmed = said.trim();
    if trimmed.chars().any(char::is_alphanumeric) {
        spans.push(start..start + trimmed.len());
    }
}

/// Whether a line break ends a sentence: not where the next line begins in lower case.
fn ends_line(line: &str, rest: &str) -> bool {
    let next = rest.chars().next();
    let goes_on = next.is_some_and(char::is_lowercase) && !line.trim_end().ends_with([':', ';']);
    !goes_on
}

/// Whether a full stop here belongs to a title, an initial or a list number.
fn is_abbreviation(before: &str) -> bool {
    let word = before
        .rsplit(char::is_whitespace)
        .next()
        .unwrap_or_default();
    let word = word.trim_start_matches(['(', '"', '\'', '“', '‘']);
    let is_first = before.trim_start() == word;
    let is_number = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
    let mut letters = word.chars();
    let is_initial =
        matches!((letters.next(), letters.next()), (Some(c), None) if c.is_uppercase() && c != 'I');
    is_initial || is_first && is_number || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}
