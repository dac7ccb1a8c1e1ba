//! A text that became too long, made short enough: which of its sentences stay.
//!
//! [`Extractive`] takes sentences as they are, so it invents nothing. What the caller marked stays word for word. Of the
//! rest, what was said twice goes first, and what a later sentence takes back; then the sentences are chosen one by one:
//! near to what all of them are about, saying something that can be looked up, and unlike what is chosen already. They
//! stand in the order they had. [`Rewriting`] asks a model for shorter words, and takes them only if they are.
//!
//! What this is not: it neither reads into a cache nor knows of sessions; see [`super::rebuild`].
//!
//! Invariants: never more tokens than asked for, as the caller's own count says; what fits already is not touched; the
//! same text gives the same answer.

use super::Embed;
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
pub struct Piece {
    pub text: String,
    /// Bytes at its beginning that stay word for word.
    pub verbatim: usize,
}

/// What is to be condensed, and into how much.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub pieces: &'a [Piece],
    /// Of all pieces.
    pub tokens_max: usize,
    /// Tokens of piece `i` if it says this, markers included; `usize::MAX` where it cannot be said.
    pub count: &'a dyn Fn(usize, &str) -> usize,
}

/// How sentences were judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Not at all: everything fitted.
    Untouched,
    /// By what they are about.
    Embeddings,
    /// By their words and places: there was no encoder, or it failed.
    Words,
    /// A model wrote them anew.
    Rewritten,
}

/// A text that is short enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condensed {
    /// (piece): what is left of it; empty where that is nothing.
    pub pieces: Vec<String>,
    /// As the caller counts them.
    pub tokens: usize,
    /// Sentences that are left, and that there were.
    pub kept: usize,
    pub sentences: usize,
    pub how: How,
}

/// `23 of 60 sentences in 298 tokens, by what they are about`
impl std::fmt::Display for Condensed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kept, sentences, tokens) = (self.kept, self.sentences, self.tokens);
        let how = match self.how {
            How::Untouched => "untouched",
            How::Embeddings => "by what they are about",
            How::Words => "by their words alone, without an encoder",
            How::Rewritten => "written anew by a model",
        };
        write!(
            f,
            "{kept} of {sentences} sentences in {tokens} tokens, {how}"
        )
    }
}

/// Why nothing became short enough.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CondenseError {
    #[error("what is to stay word for word has {tokens} tokens; accepted: at most {most}")]
    Verbatim { tokens: usize, most: usize },
    #[error("condensing ended without a result")]
    Died,
}

/// Makes a text short enough.
pub trait Condense: Send + Sync {
    fn condense(&self, asked: &Asked<'_>) -> Result<Condensed, CondenseError>;
}

/// Leaves sentences out.
#[derive(Clone, Default)]
pub struct Extractive {
    /// Without it sentences are judged by their words and places.
    pub encoder: Option<Arc<dyn Embed>>,
}

impl Condense for Extractive {
    fn condense(&self, asked: &Asked<'_>) -> Result<Condensed, CondenseError> {
        condense(asked, self.encoder.as_deref())
    }
}

/// Has a model write the text anew. What it writes cannot be checked, only counted: it is taken where it is shorter
/// and short enough, and otherwise sentences are left out as [`Extractive`] does.
pub struct Rewriting {
    runtime: Mutex<Runtime>,
    otherwise: Extractive,
}

impl Rewriting {
    /// The runtime is of any model that has a chat template, with a budget of its own.
    pub fn new(runtime: Runtime, otherwise: Extractive) -> Rewriting {
        Rewriting {
            runtime: Mutex::new(runtime),
            otherwise,
        }
    }

    /// What the model makes of a text; `None` where it fails.
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
        let mut go_on = |_: haversack_engine::runtime::Event<'_>| ControlFlow::Continue(());
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
        // An answer that was cut off ends in the middle of a sentence.
        let whole = written.finish == haversack_engine::runtime::Finish::Stop;
        let text = written.text.trim();
        (whole && !text.is_empty()).then(|| text.to_owned())
    }
}

/// What a model is asked to do.
const REWRITE: &str = "Rewrite these facts as short sentences, one per line. Keep every name, number, \
    date and instruction exactly. Leave out greetings, small talk and repetitions. Write nothing else.";

impl Condense for Rewriting {
    fn condense(&self, asked: &Asked<'_>) -> Result<Condensed, CondenseError> {
        let whole = untouched(asked);
        if whole.tokens <= asked.tokens_max {
            return Ok(whole);
        }
        let rewritten = |piece: &Piece| {
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
                return Ok(Condensed {
                    kept: pieces.iter().map(|p| split(p).len()).sum(),
                    pieces,
                    tokens,
                    sentences: whole.sentences,
                    how: How::Rewritten,
                });
            }
        }
        self.otherwise.condense(asked)
    }
}

impl Piece {
    /// Where what stays word for word ends, between two characters.
    fn verbatim_end(&self) -> usize {
        let end = self.verbatim.min(self.text.len());
        (end..=self.text.len())
            .find(|&i| self.text.is_char_boundary(i))
            .unwrap_or(self.text.len())
    }

    /// What stays word for word, without the space around it.
    pub(super) fn marked(&self) -> &str {
        self.text[..self.verbatim_end()].trim()
    }
}

/// A sentence and where it stands.
struct Sentence<'a> {
    piece: usize,
    span: Range<usize>,
    text: &'a str,
    is_verbatim: bool,
    words: Vec<String>,
    direction: Option<Embedding>,
}

/// What a sentence is worth: how near it is to what all are about, names and numbers, words that say something. By its
/// length, because two short sentences say more than a long one; the square root is half way to counting each token.
/// docs/conversations.md has what other weights keep.
const CENTRAL: f32 = 0.5;
const SPECIFIC: f32 = 0.5;
const CONTENT: f32 = 1.0;

/// What likeness to a chosen sentence takes away, from a likeness on that is more than having the same subject.
const NOVEL: f32 = 1.0;
const NOVEL_FROM: f32 = 0.6;

/// A sentence with fewer words says no more for it.
const WORDS_MIN: usize = 3;

/// Sentences more similar than this say the same.
const SAME: f32 = 0.95;

/// Leaves sentences out until the text is short enough.
pub fn condense(
    asked: &Asked<'_>,
    encoder: Option<&dyn Embed>,
) -> Result<Condensed, CondenseError> {
    let whole = untouched(asked);
    if whole.tokens <= asked.tokens_max {
        return Ok(whole);
    }
    let mut sentences = sentences_of(asked.pieces);
    let how = match encoder {
        Some(encoder) if embed(&mut sentences, encoder) => How::Embeddings,
        _ => How::Words,
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
            most: asked.tokens_max,
        });
    }

    let value = values(&sentences);
    let mut open: Vec<usize> = (0..sentences.len())
        .filter(|&i| !chosen[i] && !is_stale(&sentences, i))
        .collect();
    // (sentence): how near the nearest that is chosen is.
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
        // Of equals the first.
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
        // Markers and merges make a sentence cost more or less than it does alone: the whole is counted.
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
        tokens: sum(&counts),
        kept: chosen.iter().filter(|&&c| c).count(),
        sentences: sentences.len(),
        how,
    })
}

fn total(asked: &Asked<'_>, pieces: &[String]) -> usize {
    let counts = pieces.iter().enumerate();
    let counts = counts.map(|(i, text)| (asked.count)(i, text));
    counts.fold(0, usize::saturating_add)
}

fn untouched(asked: &Asked<'_>) -> Condensed {
    let pieces: Vec<String> = asked.pieces.iter().map(|p| p.text.clone()).collect();
    let sentences = pieces.iter().map(|p| split(p).len()).sum();
    Condensed {
        tokens: total(asked, &pieces),
        pieces,
        kept: sentences,
        sentences,
        how: How::Untouched,
    }
}

fn sentences_of(pieces: &[Piece]) -> Vec<Sentence<'_>> {
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

/// Whether every sentence has a direction now.
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

/// What sentences are worth by themselves.
fn values(sentences: &[Sentence<'_>]) -> Vec<f32> {
    let central = match sentences.iter().all(|s| s.direction.is_some()) {
        true => centrality(sentences),
        // Without an encoder: what was said early frames the rest.
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

/// How much of a sentence can be looked up, `0..=1`: numbers, and names where the first word alone does not count, for
/// each word. A question asks for something instead.
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
    // Two in a short sentence are as good as it gets.
    let share = (share * 3.0).min(1.0);
    match text.trim_end().ends_with(['?', '？']) {
        true => share - 0.5,
        false => share,
    }
}

/// English words that say little by themselves. Sentences of other languages have hardly any, so this says nothing of them.
const SMALL_WORDS: &str = " a about after again ago all also always am an and another any anyway are as at away \
    back be because been before being both but by can could did do does doing done down either else even ever \
    every few for from get go going got had has have having he her here hers him his how however i if in into is \
    it its just less let like little ll many may maybe me might mine more most much must my never no nor not now \
    of off often oh ok okay on once one only or other our ours out over own perhaps please quite rather re really \
    s said same say says shall she should since so some something sometimes soon still such than thank thanks \
    that the their them then there these they thing things this those though through to too under until up us ve \
    very was way we well were what when where which while who why will with without would yes yet you your yours ";

/// The share of words that say something, `0..=1`.
fn content(words: &[String]) -> f32 {
    let small = |word: &&String| SMALL_WORDS.contains(&format!(" {word} "));
    let small = words.iter().filter(small).count();
    1.0 - small as f32 / words.len().max(1) as f32
}

/// English writes it as if it were a name.
fn is_pronoun(word: &str) -> bool {
    word == "I" || word.starts_with("I'") || word.starts_with("I’")
}

/// How alike two sentences are, `0..=1`.
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

/// Whether another sentence makes this one needless: it says the same, or something else about the same later.
fn is_stale(sentences: &[Sentence<'_>], i: usize) -> bool {
    let this = &sentences[i];
    sentences.iter().enumerate().any(|(j, other)| {
        let later = j > i;
        // Of two that say the same the later one stays: it may take back what was said between them.
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

/// Words that two statements about one thing begin with, at least, where one takes the other back: `The shop opens at` …
const SAME_BEGINNING: usize = 4;

/// And at most so many that they end with.
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

fn joined(pieces: &[Piece], sentences: &[Sentence<'_>], chosen: &[bool]) -> Vec<String> {
    (0..pieces.len())
        .map(|piece| joined_piece(pieces, sentences, chosen, piece))
        .collect()
}

/// What is left of a piece: sentences as they were, on lines of their own where they were.
fn joined_piece(
    pieces: &[Piece],
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

/// Words with a full stop that ends nothing.
const ABBREVIATIONS: [&str; 28] = [
    "dr", "mr", "mrs", "ms", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "no", "nr",
    "approx", "ca", "fig", "vol", "inc", "ltd", "co", "dept", "est", "u.s", "a.m", "p.m", "z.b",
    "bzw",
];

/// Where the sentences of a text are, in bytes. A line ends one, unless the next goes on in the middle of it.
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
                // Quotes and brackets behind it belong to it.
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

/// Without the space around it, if anything is left.
fn push(spans: &mut Vec<Range<usize>>, text: &str, span: Range<usize>) {
    let said = &text[span.clone()];
    let start = span.end - said.trim_start().len();
    let trimmed = said.trim();
    if trimmed.chars().any(char::is_alphanumeric) {
        spans.push(start..start + trimmed.len());
    }
}

/// Whether a line break ends a sentence: not where a line is full and the next begins with a small letter.
fn ends_line(line: &str, rest: &str) -> bool {
    let next = rest.chars().next();
    let goes_on = next.is_some_and(char::is_lowercase) && !line.trim_end().ends_with([':', ';']);
    !goes_on
}

/// Whether a full stop behind this ends no sentence: a title, an initial, the number of a list.
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
