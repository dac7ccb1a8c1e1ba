//! What a template may use, and the meter that counts it.
//!
//! A template is a program from a stranger's file. Every limit is a count kept by the interpreter
//! itself, none is a clock: the same template and the same messages always end in the same way.
//! Two meters are enough. *Steps* bound time: one for every node evaluated, every element visited
//! and every [`WORK_PER_STEP`] bytes copied, compared or searched. *Live bytes* bound memory: strings,
//! lists and mappings are charged when they are made and credited when they are dropped, so that a
//! long honest conversation is not refused for what it has already given back.

use super::error::TemplateError;
use std::cell::Cell;
use std::rc::Rc;

/// Longest template source. The longest templates in use are about 40 KiB; a parsed template takes up
/// to 60 times its source, so this also bounds the tree at some 15 MiB.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Longest sum of the contents and roles of the messages: more than a million tokens.
pub const INPUT_BYTES_MAX: usize = 4 << 20;
/// What a message counts beyond its text: the mapping it becomes. So a chat has at most 16384 messages.
pub const MESSAGE_BYTES: usize = 256;
/// What each part of a structure counts beyond its text: the value it becomes.
pub const PART_BYTES: usize = 64;
/// Most bytes emitted by one render, captured text (`set` blocks, macros) included; so also the longest output.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Most bytes of values alive at once, the messages themselves not counted.
pub const LIVE_BYTES_MAX: usize = 12 << 20;
/// Most steps of one render; about a third of a second on a slow core. A turn costs about 100.
pub const STEPS_MAX: u64 = 5_000_000;
/// Bytes copied or searched that count as one step.
pub const WORK_PER_STEP: usize = 32;
/// Deepest nesting of an expression, or of blocks, in the source. People write below 20.
pub const SOURCE_DEPTH_MAX: usize = 120;
/// Deepest evaluation: blocks, expressions and macro calls together.
pub const CALL_DEPTH_MAX: usize = 500;
/// Deepest nesting of a value (a list in a list…), so that printing, comparing and dropping may recurse.
pub const VALUE_DEPTH_MAX: usize = 64;
/// Longest `range()`, as in Jinja's own sandbox.
pub const RANGE_MAX: i64 = 100_000;
/// Widest padding of one formatted field.
pub const WIDTH_MAX: usize = 4096;
/// Stack of the render thread: `CALL_DEPTH_MAX` frames of an unoptimised build, with room. Only touched pages count.
pub const STACK_BYTES: usize = 16 << 20;
/// What a list element or a mapping entry is charged, beyond the value's own bytes.
pub const SLOT_BYTES: usize = 32;
pub type Outcome<T> = Result<T, TemplateError>;

/// Refuses what goes over a limit.
pub fn limit(is_over: bool, what: &'static str) -> Outcome<()> {
    if is_over {
        return Err(TemplateError::Limit(what));
    }
    Ok(())
}

pub fn fail<T>(message: impl Into<String>) -> Outcome<T> {
    Err(TemplateError::Render(message.into()))
}

/// A charge on the live bytes; dropping it gives them back.
pub struct Charge {
    live: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.live.set(self.live.get().saturating_sub(self.bytes));
    }
}

/// The two meters of one render.
#[derive(Default)]
pub(super) struct Meter {
    /// Shared with every value so that dropping one credits it.
    live: Rc<Cell<usize>>,
    steps: Cell<u64>,
}

impl Meter {
    pub fn step(&self, count: usize) -> Outcome<()> {
        let steps = self.steps.get().saturating_add(count as u64);
        self.steps.set(steps);
        limit(steps > STEPS_MAX, "too many steps")
    }

    /// Counts work proportional to `bytes`.
    pub fn work(&self, bytes: usize) -> Outcome<()> {
        self.step(1 + bytes / WORK_PER_STEP)
    }

    /// Would a value of `bytes` still fit? Asked before it is built.
    pub fn fits(&self, bytes: usize) -> Outcome<()> {
        let sum = self.live.get().saturating_add(bytes);
        limit(sum > LIVE_BYTES_MAX, "values take too much memory")
    }

    pub fn charge(&self, bytes: usize) -> Outcome<Charge> {
        self.fits(bytes)?;
        // An allocation takes about as long as three nodes.
        self.step(2)?;
        self.work(bytes)?;
        self.live.set(self.live.get() + bytes);
        Ok(Charge {
            live: Rc::clone(&self.live),
            bytes,
        })
    }
}

/// A string under construction that never outgrows the live bytes.
pub struct Buffer<'m> {
    pub meter: &'m Meter,
    text: String,
}

impl<'m> Buffer<'m> {
    pub fn new(meter: &'m Meter) -> Self {
        Buffer {
            meter,
            text: String::new(),
        }
    }

    pub fn push(&mut self, piece: &str) -> Outcome<()> {
        self.grow(piece.len())?;
        self.text.push_str(piece);
        Ok(())
    }

    pub fn push_char(&mut self, c: char) -> Outcome<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub fn pad(&mut self, c: char, count: usize) -> Outcome<()> {
        self.grow(count.saturating_mul(c.len_utf8()))?;
        self.text.extend(std::iter::repeat_n(c, count));
        Ok(())
    }

    /// Writes each of `items`, with `separator` between two.
    pub fn join<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        separator: &str,
        mut write: impl FnMut(&mut Self, T) -> Outcome<()>,
    ) -> Outcome<()> {
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                self.push(separator)?;
            }
            write(self, item)?;
        }
        Ok(())
    }

    /// Asked before growing; the work is counted when the string becomes a value.
    fn grow(&self, bytes: usize) -> Outcome<()> {
        self.meter.fits(self.text.len().saturating_add(bytes))
    }

    pub fn into_string(self) -> String {
        self.text
    }
}
