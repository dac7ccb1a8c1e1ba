//! The header of a safetensors file: names, types, shapes and extents, all of them checked.
//!
//! ```text
//! 0      u64, length n of the header, little-endian
//! 8      n bytes: {"name": {"dtype": "F32", "shape": [384], "data_offsets": [0, 1536]}, …}
//! 8 + n  the data; offsets count from here
//! ```
//!
//! The header is an object of objects with three known fields, so what reads it here knows exactly
//! that and is no reader of JSON. Numbers are whole, nesting is fixed, sizes are bounded, and nothing
//! is copied: a header costs a small record per tensor. Names are compared as they are written; one
//! with an escape is never the one that is looked for.
//!
//! Invariants of what [`Header::parse`] accepts: each tensor has as many bytes as its type and shape
//! say, no two share a byte or a name, and together they are all the data there is.

/// Ours has 11 KB.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Ours has 104.
const TENSORS_MAX: usize = 4096;
const RANK_MAX: usize = 4;

/// One tensor: where it lies in the file, and as what.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: &'a str,
    dims: [usize; RANK_MAX],
    rank: usize,
    /// Bytes of the file, not of the data.
    pub start: usize,
    pub end: usize,
}

impl Tensor<'_> {
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
}

/// All tensors, by name.
#[derive(Debug)]
pub struct Header<'a> {
    tensors: Vec<Tensor<'a>>,
}

impl<'a> Header<'a> {
    /// Reads the header of a whole file. The error is a sentence without the file's name.
    pub fn parse(file: &'a [u8]) -> Result<Header<'a>, String> {
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return Err(format!(
                "{} bytes are too few for a safetensors file",
                file.len()
            ));
        };
        let length = u64::from_le_bytes(*length);
        if length > HEADER_BYTES_MAX {
            return Err(format!(
                "the header claims {length} bytes, {HEADER_BYTES_MAX} are the most; not a safetensors file?"
            ));
        }
        // Below the bound, so it fits.
        let Some((header, data)) = rest.split_at_checked(length as usize) else {
            return Err(format!(
                "the header claims {length} bytes, the file has {} after its first 8",
                rest.len()
            ));
        };
        let text = std::str::from_utf8(header).map_err(|_| "the header is not UTF-8")?;
        let mut reader = Reader {
            text,
            at: 0,
            data_at: file.len() - data.len(),
            data_len: data.len(),
        };
        let mut tensors = reader.tensors()?;
        check_cover(&mut tensors, file.len() - data.len(), file.len())?;
        tensors.sort_by_key(|t| t.name);
        if let Some(pair) = tensors.windows(2).find(|p| p[0].name == p[1].name) {
            return Err(format!("tensor {:.80} is there twice", pair[0].name));
        }
        Ok(Header { tensors })
    }

    pub fn get(&self, name: &str) -> Option<&Tensor<'a>> {
        let at = self.tensors.binary_search_by_key(&name, |t| t.name).ok()?;
        self.tensors.get(at)
    }
}

/// In order of their bytes, each tensor begins where the one before it ends.
fn check_cover(tensors: &mut [Tensor<'_>], first: usize, end: usize) -> Result<(), String> {
    tensors.sort_by_key(|t| (t.start, t.end));
    let mut at = first;
    for t in tensors {
        if t.start < at {
            return Err(format!("tensor {:.80} overlaps the one before it", t.name));
        }
        if t.start > at {
            return Err(format!(
                "{} bytes before tensor {:.80} belong to none",
                t.start - at,
                t.name
            ));
        }
        at = t.end;
    }
    match end - at {
        0 => Ok(()),
        left => Err(format!("{left} bytes at the end belong to no tensor")),
    }
}

/// Bytes of one value.
fn width(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => 1,
        "U16" | "I16" | "F16" | "BF16" => 2,
        "U32" | "I32" | "F32" => 4,
        "U64" | "I64" | "F64" => 8,
        _ => return None,
    })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    data_at: usize,
    data_len: usize,
}

impl<'a> Reader<'a> {
    fn tensors(&mut self) -> Result<Vec<Tensor<'a>>, String> {
        let mut tensors = Vec::new();
        self.expect(b'{')?;
        let mut more = !self.taken(b'}');
        while more {
            let name = self.string()?;
            self.expect(b':')?;
            if name == "__metadata__" {
                self.metadata()?;
            } else {
                if tensors.len() == TENSORS_MAX {
                    return Err(format!("more than {TENSORS_MAX} tensors"));
                }
                tensors.push(self.tensor(name)?);
            }
            more = self.goes_on(b'}')?;
        }
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.unexpected("the end of the header"));
        }
        Ok(tensors)
    }

    /// Strings by strings, of no use here.
    fn metadata(&mut self) -> Result<(), String> {
        self.expect(b'{')?;
        let mut more = !self.taken(b'}');
        while more {
            self.string()?;
            self.expect(b':')?;
            self.string()?;
            more = self.goes_on(b'}')?;
        }
        Ok(())
    }

    fn tensor(&mut self, name: &'a str) -> Result<Tensor<'a>, String> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        self.expect(b'{')?;
        let mut more = !self.taken(b'}');
        while more {
            let field = self.string()?;
            self.expect(b':')?;
            let twice = match field {
                "dtype" => dtype.replace(self.string()?).is_some(),
                "shape" => shape.replace(self.numbers::<RANK_MAX>()?).is_some(),
                "data_offsets" => offsets.replace(self.numbers::<2>()?).is_some(),
                _ => return Err(format!("tensor {name:.80}: unknown field {field:.80}")),
            };
            if twice {
                return Err(format!("tensor {name:.80}: {field} is there twice"));
            }
            more = self.goes_on(b'}')?;
        }
        let (Some(dtype), Some((dims, rank)), Some(([begin, end], 2))) = (dtype, shape, offsets)
        else {
            return Err(format!(
                "tensor {name:.80}: dtype, shape and two data_offsets are needed"
            ));
        };
        let Some(width) = width(dtype) else {
            return Err(format!("tensor {name:.80}: dtype {dtype:.80} is not known"));
        };
        if begin > end || end > self.data_len {
            return Err(format!(
                "tensor {name:.80}: bytes {begin} to {end} are not within the {} of the file",
                self.data_len
            ));
        }
        let bytes = dims[..rank]
            .iter()
            .try_fold(width, |n, dim| n.checked_mul(*dim));
        if bytes != Some(end - begin) {
            return Err(format!(
                "tensor {name:.80}: {dtype} of {:?} does not fill {} bytes",
                &dims[..rank],
                end - begin
            ));
        }
        Ok(Tensor {
            name,
            dtype,
            dims,
            rank,
            // Within the file, as just seen.
            start: self.data_at + begin,
            end: self.data_at + end,
        })
    }

    /// `[1, 2, …]`, at most `N`; how many there were.
    fn numbers<const N: usize>(&mut self) -> Result<([usize; N], usize), String> {
        let mut numbers = [0; N];
        let mut n = 0;
        self.expect(b'[')?;
        let mut more = !self.taken(b']');
        while more {
            let number = self.number()?;
            match numbers.get_mut(n) {
                Some(place) => *place = number,
                None => return Err(format!("a list of more than {N} numbers")),
            }
            n += 1;
            more = self.goes_on(b']')?;
        }
        Ok((numbers, n))
    }

    fn number(&mut self) -> Result<usize, String> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        if digits.is_empty() {
            return Err(self.unexpected("a whole number"));
        }
        self.at += digits.len();
        digits
            .parse()
            .map_err(|_| format!("{:.24} is too large a number", digits))
    }

    /// What stands between the quotes, as it is written.
    fn string(&mut self) -> Result<&'a str, String> {
        self.expect(b'"')?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => {
                    self.at += 1;
                    return Ok(&self.text[start..self.at - 1]);
                }
                b'\\' => self.at += 2,
                0..0x20 => return Err(self.unexpected("no control character")),
                _ => self.at += 1,
            }
        }
        Err("the header ends inside a string".into())
    }

    /// After an item: true for a comma, false for the end.
    fn goes_on(&mut self, end: u8) -> Result<bool, String> {
        if self.taken(b',') {
            return Ok(true);
        }
        self.expect(end)?;
        Ok(false)
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.taken(byte) {
            return Ok(());
        }
        Err(self.unexpected(&char::from(byte).to_string()))
    }

    fn taken(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_it = self.text.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(is_it);
        is_it
    }

    fn skip_space(&mut self) {
        let bytes = self.text.as_bytes().iter().skip(self.at);
        self.at += bytes
            .take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'))
            .count();
    }

    fn unexpected(&self, wanted: &str) -> String {
        format!("the header should have {wanted} at byte {}", self.at)
    }
}
