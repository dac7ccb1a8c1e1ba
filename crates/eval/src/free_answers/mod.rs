//! Questions about a long talk, answered freely by sessions that show a model different turns of it.
//!
//! ```text
//! talk ─► history of a session, read once for each capacity ─┬─► a copy for a question: asked, answer judged, deleted
//!                                                            └─► a copy for the next question …
//! ```
//!
//! An answer may be in any words: [`judging`] compares it with the right one. Whether the turns were shown without which a
//! question cannot be answered comes from the session itself, so that a wrong answer is either one that did not see what
//! it needed or one that saw it. [`choices`] are the ways to choose what is shown, [`library`] has the sessions through the
//! library as programs use it, [`table`] is what came of it.

pub mod choices;
pub mod judging;
pub mod library;
pub mod table;
