//! The beginning of what may be a call: its wrapping, up to the name of the function. Pure.
//!
//! ```text
//! ```json ⏎ {"name": "…          <tool_call> {"name": "…        [TOOL_CALLS] [{"name": "…
//! {"function": {"name": "…       <function=…>                   [TOOL_CALLS] …[ARGS]
//! ```

/// Around calls, and nothing else: `<tool_call>` and its like.
const TAGS: [&str; 10] = [
    "tool_call",
    "tool_calls",
    "tools",
    "tool",
    "function_call",
    "function_calls",
    "functioncall",
    "function",
    "|python_tag|",
    "|tool_call|",
];
/// Opens a list of calls, or a call whose arguments follow its name.
const LIST: &[u8] = b"[TOOL_CALLS]";
const LIST_ARGUMENTS: &[u8] = b"[ARGS]";
/// Opens a call whose name is in its tag.
const NAME_TAG: &[u8] = b"<function=";
const FENCE: &[u8] = b"```";
/// Languages of code blocks that may hold calls.
const LANGUAGES: [&str; 11] = [
    "",
    "json",
    "jsonc",
    "xml",
    "text",
    "plaintext",
    "tool_call",
    "tool_calls",
    "tool_code",
    "function_call",
    "tool",
];
/// Members of the object that is a call: its name, what is around it, and what may come before.
const NAMES: [&[u8]; 5] = [
    b"name",
    b"function",
    b"tool",
    b"tool_name",
    b"function_name",
];
const AROUND: [&[u8]; 4] = [b"function", b"function_call", b"tool_call", b"tool_calls"];
const BEFORE: [&[u8]; 2] = [b"type", b"id"];
/// Longer beginnings, and those with more tags, are text.
const BYTES: usize = 512;
const TAGS_MAX: usize = 3;

pub fn may_hold_calls(language: &str) -> bool {
    LANGUAGES
        .iter()
        .any(|one| one.eq_ignore_ascii_case(language))
}

/// How a call is written from its name on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// `{"name": "…", "arguments": {…}}`
    Json,
    /// `<function=…>{…}`
    Tag,
    /// `[TOOL_CALLS]…[ARGS]{…}`
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOpening {
    NoCall,
    /// It may become one.
    Undecided,
    /// A name has begun that may become that of a function.
    Naming {
        form: CallForm,
        /// Where the name begins.
        name: usize,
    },
    Call(CallStart),
}

/// A call whose name is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStart {
    pub form: CallForm,
    /// Where the name begins.
    pub name: usize,
    /// The place of the function.
    pub function: usize,
    /// Where the object begins that is the call or its arguments.
    pub object: usize,
    /// Something other than white space, brackets and fences says that it is a call.
    pub is_tagged: bool,
    pub wrapping: Wrapping,
}

/// What may be closed behind a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrapping {
    pub brackets: usize,
    pub is_fenced: bool,
}

/// What is read of an opening, byte by byte.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The bytes end before it is decided, or it is no call.
type Read<T> = Result<T, CallOpening>;

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        let blanks = self.rest().iter().take_while(|b| b.is_ascii_whitespace());
        self.at += blanks.count();
    }

    fn peek(&self) -> Read<u8> {
        self.rest().first().copied().ok_or(CallOpening::Undecided)
    }

    /// Whether these bytes come next, and then past them.
    fn takes(&mut self, expected: &[u8]) -> Read<bool> {
        let rest = self.rest();
        if rest.starts_with(expected) {
            self.at += expected.len();
            return Ok(true);
        }
        match expected.starts_with(rest) {
            true => Err(CallOpening::Undecided),
            false => Ok(false),
        }
    }

    /// Past this byte, which comes next but for blanks.
    fn expect(&mut self, byte: u8) -> Read<()> {
        self.skip_blanks();
        if self.peek()? != byte {
            return Err(CallOpening::NoCall);
        }
        self.at += 1;
        Ok(())
    }

    /// Bytes up to one that is not among these.
    fn word(&mut self, is_part: impl Fn(u8) -> bool) -> Read<&'a [u8]> {
        let rest = self.rest();
        let end = rest.iter().position(|&b| !is_part(b));
        let end = end.ok_or(CallOpening::Undecided)?;
        self.at += end;
        Ok(&rest[..end])
    }

    /// A string behind its quote. Those that matter have nothing escaped in them.
    fn string(&mut self) -> Read<&'a [u8]> {
        let text = self.word(|b| b != b'"' && b != b'\\' && b != b'\n')?;
        match self.peek()? {
            b'"' => self.at += 1,
            _ => return Err(CallOpening::NoCall),
        }
        Ok(text)
    }

    /// A tag around calls, and then past it. `close`: one that closes.
    fn tag(&mut self, close: bool) -> Read<bool> {
        let mut is_undecided = false;
        for tag in TAGS {
            let tag = match close {
                true => format!("</{tag}>"),
                false => format!("<{tag}>"),
            };
            match self.takes(tag.as_bytes()) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(_) => is_undecided = true,
            }
        }
        match is_undecided {
            true => Err(CallOpening::Undecided),
            false => Ok(false),
        }
    }
}

/// How much of `held` closes a call before it: blanks that end it are not part of it.
pub fn closed(held: &[u8], mut wrapping: Wrapping) -> usize {
    let mut cursor = Cursor { bytes: held, at: 0 };
    let mut end = 0;
    loop {
        cursor.skip_blanks();
        let is_closed = match cursor.peek() {
            Ok(b'}' | b']') if wrapping.brackets > 0 => {
                wrapping.brackets -= 1;
                cursor.at += 1;
                true
            }
            // Between two calls, or at the end of the last.
            Ok(b',' | b';') => {
                cursor.at += 1;
                continue;
            }
            Ok(b'<') => cursor.tag(true) == Ok(true),
            Ok(b'`') if wrapping.is_fenced => {
                wrapping.is_fenced = false;
                cursor.takes(FENCE) == Ok(true)
            }
            _ => false,
        };
        if !is_closed {
            return end;
        }
        end = cursor.at;
    }
}

/// What `held` is the beginning of. `is_line`: it begins a line. `wrapping`: of the call just before it.
pub fn opening(
    held: &[u8],
    functions: &[String],
    is_line: bool,
    wrapping: Option<Wrapping>,
) -> CallOpening {
    if held.len() > BYTES {
        return CallOpening::NoCall;
    }
    let mut cursor = Cursor { bytes: held, at: 0 };
    match read(&mut cursor, functions, is_line, wrapping) {
        Ok(call) => CallOpening::Call(call),
        Err(opening) => opening,
    }
}

fn read(
    cursor: &mut Cursor<'_>,
    functions: &[String],
    is_line: bool,
    after: Option<Wrapping>,
) -> Read<CallStart> {
    let mut wrapping = after.unwrap_or_default();
    let (mut tags, mut is_list) = (0, false);
    loop {
        if tags > TAGS_MAX {
            return Err(CallOpening::NoCall);
        }
        let is_tagged = tags > 0;
        cursor.skip_blanks();
        match cursor.peek()? {
            b'}' | b']' if after.is_some() && wrapping.brackets > 0 => {
                wrapping.brackets -= 1;
                cursor.at += 1;
            }
            b',' | b';' if after.is_some() && !is_tagged => cursor.at += 1,
            b'[' if cursor.takes(LIST)? => (tags, is_list) = (tags + 1, true),
            b'{' | b'[' if is_line || is_tagged => {
                let json = json(cursor, functions, wrapping)?;
                return Ok(CallStart { is_tagged, ..json });
            }
            b'`' if wrapping.is_fenced => {
                if !cursor.takes(FENCE)? {
                    return Err(CallOpening::NoCall);
                }
                wrapping.is_fenced = false;
            }
            b'`' if is_line => {
                if !cursor.takes(FENCE)? {
                    return Err(CallOpening::NoCall);
                }
                let language = cursor.word(|b| b.is_ascii_alphanumeric() || b"_+-".contains(&b))?;
                if !may_hold_calls(&String::from_utf8_lossy(language)) {
                    return Err(CallOpening::NoCall);
                }
                wrapping.is_fenced = true;
            }
            b'<' if after.is_some() && cursor.tag(true)? => {}
            b'<' if cursor.takes(NAME_TAG)? => {
                return name(cursor, functions, CallForm::Tag, wrapping);
            }
            b'<' if cursor.tag(false)? => tags += 1,
            _ if is_list => return name(cursor, functions, CallForm::List, wrapping),
            _ => return Err(CallOpening::NoCall),
        }
    }
}

/// Brackets and members up to the name.
fn json(cursor: &mut Cursor<'_>, functions: &[String], mut wrapping: Wrapping) -> Read<CallStart> {
    loop {
        cursor.skip_blanks();
        let object = cursor.at;
        let bracket = cursor.peek()?;
        cursor.at += 1;
        match bracket {
            b'[' => {}
            b'{' => {
                if let Some(call) = members(cursor, functions, wrapping)? {
                    return Ok(CallStart { object, ..call });
                }
            }
            _ => return Err(CallOpening::NoCall),
        }
        wrapping.brackets += 1;
    }
}

/// `None`: the call is the value that comes next.
fn members(
    cursor: &mut Cursor<'_>,
    functions: &[String],
    wrapping: Wrapping,
) -> Read<Option<CallStart>> {
    loop {
        cursor.expect(b'"')?;
        let key = cursor.string()?;
        cursor.expect(b':')?;
        cursor.skip_blanks();
        match cursor.peek()? {
            b'"' if NAMES.contains(&key) => {
                cursor.at += 1;
                return name(cursor, functions, CallForm::Json, wrapping).map(Some);
            }
            b'"' if BEFORE.contains(&key) => {
                cursor.at += 1;
                cursor.string()?;
                cursor.expect(b',')?;
            }
            b'{' | b'[' if AROUND.contains(&key) => return Ok(None),
            _ => return Err(CallOpening::NoCall),
        }
    }
}

fn name(
    cursor: &mut Cursor<'_>,
    functions: &[String],
    form: CallForm,
    wrapping: Wrapping,
) -> Read<CallStart> {
    let start = cursor.at;
    let rest = cursor.rest();
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || b"_-.".contains(b);
    let length = rest.iter().take_while(|b| is_part(b)).count();
    let (found, rest) = rest.split_at(length);
    let function = |name: &[u8]| functions.iter().position(|one| one.as_bytes() == name);
    let may_become = functions
        .iter()
        .any(|one| one.as_bytes().starts_with(found));
    let naming = CallOpening::Naming { form, name: start };
    let end = match (form, rest.first()) {
        (_, None) if may_become => return Err(naming),
        (CallForm::Json, Some(b'"')) | (CallForm::Tag, Some(b'>')) => 1,
        (CallForm::List, Some(b'{')) => 0,
        (CallForm::List, Some(b'[')) if rest.starts_with(LIST_ARGUMENTS) => LIST_ARGUMENTS.len(),
        (CallForm::List, Some(b'[')) if LIST_ARGUMENTS.starts_with(rest) => return Err(naming),
        _ => return Err(CallOpening::NoCall),
    };
    let object = start + length + end;
    Ok(CallStart {
        form,
        name: start,
        function: function(found).ok_or(CallOpening::NoCall)?,
        object,
        is_tagged: true,
        wrapping,
    })
}
