//! What a shape may cost. All of it is counted, none is a clock, so the same shape always ends in the same way.

use llguidance::api::ParserLimits;

/// Of a schema as JSON without blanks and annotations. What people write for one answer has 1 to 8 KiB.
pub const SCHEMA_BYTES: usize = 32 << 10;
/// The same with annotations: they are left out in a copy.
pub const ANNOTATED_BYTES: usize = 4 * SCHEMA_BYTES;
/// What closing its objects may add.
pub const CLOSING_BYTES: usize = SCHEMA_BYTES / 2;
/// What is added to each alternative counts as this many times its bytes: a property has few of them.
pub const CLOSED_PER_BYTE: usize = 32;
/// Of a regular expression.
pub const REGEX_BYTES: usize = 4 << 10;
/// Of a Lark or GBNF grammar.
pub const GRAMMAR_TEXT_BYTES: usize = 32 << 10;
/// Its rules, terminals and groups.
pub const GRAMMAR_LEVELS: usize = 1_000;
/// Groups in each other.
pub const GROUPS: usize = 64;
/// Of one part, counted out.
pub const REPETITIONS: u32 = 2_000;
/// Alternatives of a schema (`anyOf`, `oneOf`, `enum`, lists of types) times its bytes. Where alternatives meet others each
/// pair is written out, and each copy may be as long as the schema: this is what bounds their sum. Two lists of 60 that
/// meet beside 1,000 required names, 15 KiB in all, took 280 MiB and 6 s before pairs were counted.
pub const ALTERNATIVE_BYTES: usize = 4 << 20;
/// Ways in which regular expressions that must hold together can go on (`allOf`, references, lengths).
pub const WAYS: usize = 4096;
/// Of a format, which is a regular expression of the compiler's.
pub const FORMAT_WAYS: usize = 8;
/// What compiling takes beside the vocabulary, measured on the worst shapes that are accepted: this, a grammar by the bytes
/// of the shape and of its alternatives up to the largest one, and the alternatives written out.
pub const COMPILING_BYTES: usize = 1 << 20;
pub const GRAMMAR_PER_BYTE: (usize, usize) = (2 << 10, 320);
pub const GRAMMAR_BYTES: usize = 20 << 20;
pub const WRITTEN_PER_BYTE: usize = 5;
/// Of an error.
pub const MESSAGE_CHARS: usize = 200;
/// Longer pieces never come: the trie is as deep as the longest. The longest of SmolLM2 has 162 bytes.
pub const PIECE_BYTES: usize = 512;
/// Tokens of the same bytes that may come; more would make the trie quadratic.
pub const TWINS: u8 = 8;
/// Bytes of all pieces: nodes of a trie have numbers of 22 bits.
pub const PIECES_BYTES: usize = (1 << 22) - 1;
/// What a vocabulary keeps of each token, and of each byte of its piece: offsets and order of the tokens, bytes and nodes, in
/// the tries of all tokens, of those of each slice and of the others. Measured, with a tenth to spare; pieces of which no two
/// begin alike would take up to twice that.
pub const KEPT_BYTES: (usize, usize) = (40, 25);
/// The same while it is made.
pub const MAKING_BYTES: (usize, usize) = (60, 33);
/// Beside that.
pub const VOCABULARY_BYTES: usize = 256 << 10;
/// Spaces or tabs behind a line break between two parts of JSON; without one there is a single space. A small model that
/// likes line breaks would go on with them: with any 24 blanks SmolLM2 spent 200 tokens on `{"name":…,"pets":[`.
pub const INDENT: usize = 20;
/// Of the thread that compiles. Only touched pages count.
pub const STACK_BYTES: usize = 16 << 20;

/// Fuel of the lexer is 14,000 a millisecond, items of the parser 20,000, states a kilobyte or two.
pub fn parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 1_000,
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 30_000,
        max_lexer_states: 8_000,
        max_grammar_size: 25_000,
        // Its cost is not counted per step; what it would save is a little of the first one.
        precompute_large_lexemes: false,
        // They would hold what was generated.
        verbose_errors: false,
    }
}
