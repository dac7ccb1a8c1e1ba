//! Small vocabularies that real tokenizers accept: byte-level BPE and SentencePiece, with filler up
//! to any size.

use haversack_gguf::write::{GgufWriter, Meta};

/// Which tokenizer a synthetic model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocab {
    /// GPT-2 style, with the pre-tokenizer of this name.
    Bpe(&'static str),
    /// SentencePiece with byte fallback.
    Spm,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// The fewest tokens a vocabulary here can have.
pub const SIZE_MIN: usize = 300;

/// Roles in plain markers; enough for a conversation.
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\\n' }}{% endif %}";

impl Vocab {
    /// All `tokenizer.*` keys for a vocabulary of `size` tokens, at least [`SIZE_MIN`].
    pub fn describe(self, size: usize, w: &mut GgufWriter) {
        match self {
            Vocab::Bpe(pre) => bpe(pre, size, w),
            Vocab::Spm => spm(size, w),
        }
    }
}

/// The character that stands for a byte in byte-level vocabularies: printable ones for themselves,
/// the others from U+0100 on, in order.
fn byte_char(b: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(b) {
        return char::from(b);
    }
    let rank = (0..b).filter(|&x| !printable(x)).count() as u32;
    char::from_u32(256 + rank).unwrap_or('?')
}

/// Filler that no merge produces: `Ġ` and a number in letters.
fn filler(i: usize, lead: char) -> String {
    let mut n = i;
    let mut word = String::from(lead);
    for _ in 0..4 {
        word.push(char::from(b'a' + (n % 26) as u8));
        n /= 26;
    }
    word.push('Q');
    word
}

fn bpe(pre: &str, size: usize, w: &mut GgufWriter) {
    let bytes: Vec<char> = (0..=255).map(byte_char).collect();
    let mut tokens: Vec<String> = bytes.iter().map(char::to_string).collect();
    let mut merges: Vec<String> = Vec::new();
    let words = [
        " the", " a", " of", "ing", "er", "on", " in", "es", "at", "en", " to", " and",
    ];
    for word in words {
        let mut left = String::new();
        for b in word.bytes() {
            let right = bytes[usize::from(b)];
            let joined = format!("{left}{right}");
            if !left.is_empty() && !tokens.contains(&joined) {
                merges.push(format!("{left} {right}"));
                tokens.push(joined.clone());
            }
            left = joined;
        }
    }
    let specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"];
    let plain = size.max(SIZE_MIN) - specials.len();
    tokens.extend((tokens.len()..plain).map(|i| filler(i, bytes[b' ' as usize])));
    let mut types = vec![NORMAL; tokens.len()];
    tokens.extend(specials.map(String::from));
    types.extend([CONTROL; 4]);
    let first = plain as u32;
    w.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", pre)
        .set("tokenizer.ggml.tokens", Meta::array(tokens))
        .set("tokenizer.ggml.token_type", Meta::array(types))
        .set("tokenizer.ggml.merges", Meta::array(merges))
        .set("tokenizer.ggml.bos_token_id", first)
        .set("tokenizer.ggml.eos_token_id", first + 2)
        .set("tokenizer.ggml.unknown_token_id", first + 3)
        .set("tokenizer.ggml.add_bos_token", true)
        .set("tokenizer.chat_template", TEMPLATE);
}

fn spm(size: usize, w: &mut GgufWriter) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![UNKNOWN, CONTROL, CONTROL];
    tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    types.extend([BYTE; 256]);
    let mut scores = vec![0f32; tokens.len()];
    let pieces = [
        "▁", "e", "t", "a", "o", "i", "n", "s", "h", "r", "d", "l", "u", "th", "he", "the", "▁the",
        "in", "an", "er", "▁a", "on", "re", "at", "en", "▁t", "or", "is", "es", "ing", "▁o", "▁of",
        "▁i", "it", "nd", "▁s", "ed", "al", "▁w", "c", "m",
    ];
    let size = size.max(SIZE_MIN);
    let fillers = (tokens.len() + pieces.len()..size).map(|i| filler(i, '▁'));
    for (i, piece) in pieces
        .map(String::from)
        .into_iter()
        .chain(fillers)
        .enumerate()
    {
        tokens.push(piece);
        types.push(NORMAL);
        scores.push(-(i as f32));
    }
    w.set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.pre", "default")
        .set("tokenizer.ggml.tokens", Meta::array(tokens))
        .set("tokenizer.ggml.scores", Meta::array(scores))
        .set("tokenizer.ggml.token_type", Meta::array(types))
        .set("tokenizer.ggml.bos_token_id", 1u32)
        .set("tokenizer.ggml.eos_token_id", 2u32)
        .set("tokenizer.ggml.unknown_token_id", 0u32)
        .set("tokenizer.ggml.add_bos_token", true)
        .set("tokenizer.chat_template", TEMPLATE);
}
