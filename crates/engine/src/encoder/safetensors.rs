//! The header of a safetensors file: names, types, shapes and extents, all of them checked.
//!
//! ```text
//! 0      u64, length n of the header, little-endian
//! 8      n bytes: {"name": {"dtype": "F32", "shape": [384], "data_offsets": [0, 1536]}, …}
//! 8 + n  the data; offsets count from here
//! ```
//!
//! The header is an object of objects with three known fields, so the parser accepts exactly that and not JSON in
//! general. Numbers are whole, nesting is fixed, sizes are bounded, and nothing is copied: a header costs a small record
//! per tensor. Names are compared as they are written; one with an escape never matches.
//!
//! Invariants of what [`SafeTensorsHeader::parse`] accepts: each tensor has as many bytes as its type and shape
//! say, no two share a byte or a name, and together they are all the data there is.

/// The encoder's header has 11 KB.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// The encoder's file has 104.
const TENSORS_MAX: usize = 4096;
const RANK_MAX: usize = 4;

/// Why a file is not a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafeTensorsError {
    #[error("{0} bytes are too few for a safetensors file")]
    TooShort(usize),
    #[error("the header claims {0} bytes; accepted: at most {HEADER_BYTES_MAX}")]
    HeaderLength(u64),
    #[error("the header claims {length} bytes, the file has {left} after its first 8")]
    HeaderPastEnd { length: u64, left: usize },
    #[error("the header is not UTF-8")]
    NotUtf8,
    #[error("the header should have {wanted} at byte {at}")]
    Unexpected { wanted: String, at: usize },
    #[error("the header ends inside a string")]
    OpenString,
    #[error("{0:.24} is too large a number")]
    Number(String),
    #[error("a list of more than {0} numbers")]
    ListLength(usize),
    #[error("more than {TENSORS_MAX} tensors")]
    TooManyTensors,
    #[error("{0} bytes at the end belong to no tensor")]
    BytesAtEnd(usize),
    #[error("{bytes} bytes before tensor {name:.80} belong to none")]
    Gap { bytes: usize, name: String },
    #[error("tensor {name:.80}{problem}")]
    Tensor {
        name: String,
        problem: TensorProblem,
    },
}

/// What is wrong with one tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    #[error(" is there twice")]
    Twice,
    #[error(" overlaps the one before it")]
    Overlaps,
    #[error(": unknown field {0:.80}")]
    UnknownField(String),
    #[error(": {0} is there twice")]
    FieldTwice(String),
    #[error(": dtype, shape and two data_offsets are needed")]
    MissingField,
    #[error(": dtype {0:.80} is not known")]
    UnknownType(String),
    #[error(": bytes {begin} to {end} are not within the {data} of the file")]
    Outside {
        begin: usize,
        end: usize,
        data: usize,
    },
    #[error(": {dtype} of {shape:?} does not fill {bytes} bytes")]
    Size {
        dtype: String,
        shape: Vec<usize>,
        bytes: usize,
    },
}

impl TensorProblem {
    fn of(self, name: &str) -> SafeTensorsError {
        SafeTensorsError::Tensor {
            name: name.to_owned(),
            problem: self,
        }
    }
}

/// One tensor: its place in the file, type and shape.
#[derive(Clone, Copy, Debug)]
pub struct SafeTensor<'a> {
    pub name: &'a str,
    pub dtype: &'a str,
    dims: [usize; RANK_MAX],
    rank: usize,
    /// Bytes of the file, not of the data.
    pub start: usize,
    pub end: usize,
}

impl SafeTensor<'_> {
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
}

/// All tensors, by name.
#[derive(Debug)]
pub struct SafeTensorsHeader<'a> {
    tensors: Vec<SafeTensor<'a>>,
}

impl<'a> SafeTensorsHeader<'a> {
    /// Reads the header of a whole file.
    pub fn parse(file: &'a [u8]) -> Result<SafeTensorsHeader<'a>, SafeTensorsError> {
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return Err(SafeTensorsError::TooShort(file.len()));
        };
        let length = u64::from_le_bytes(*length);
        if length > HEADER_BYTES_MAX {
            return Err(SafeTensorsError::HeaderLength(length));
        }
        // Below the bound, so it fits.
        let Some((header, data)) = rest.split_at_checked(length as usize) else {
            let left = rest.len();
            return Err(SafeTensorsError::HeaderPastEnd { length, left });
        };
        let text = std::str::from_utf8(header).map_err(|_| SafeTensorsError::NotUtf8)?;
        let mut reader = HeaderReader {
            text,
            at: 0,
            data_at: file.len() - data.len(),
            data_len: data.len(),
        };
        let mut tensors = reader.tensors()?;
        check_cover(&mut tensors, file.len() - data.len(), file.len())?;
        tensors.sort_by_key(|t| t.name);
        if let Some(pair) = tensors.windows(2).find(|p| p[0].name == p[1].name) {
            return Err(TensorProblem::Twice.of(pair[0].name));
        }
        Ok(SafeTensorsHeader { tensors })
    }

    pub fn get(&self, name: &str) -> Option<&SafeTensor<'a>> {
        let at = self.tensors.binary_search_by_key(&name, |t| t.name).ok()?;
        self.tensors.get(at)
    }
}

/// In order of their bytes, each tensor begins where the one before it ends.
fn check_cover(
    tensors: &mut [SafeTensor<'_>],
    first: usize,
    end: usize,
) -> Result<(), SafeTensorsError> {
    tensors.sort_by_key(|t| (t.start, t.end));
    let mut at = first;
    for t in tensors {
        if t.start < at {
            return Err(TensorProblem::Overlaps.of(t.name));
        }
        if t.start > at {
            let (bytes, name) = (t.start - at, t.name.to_owned());
            return Err(SafeTensorsError::Gap { bytes, name });
        }
        at = t.end;
    }
    match end - at {
        0 => Ok(()),
        left => Err(SafeTensorsError::BytesAtEnd(left)),
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

struct HeaderReader<'a> {
    text: &'a str,
    at: usize,
    data_at: usize,
    data_len: usize,
}

impl<'a> HeaderReader<'a> {
    fn tensors(&mut self) -> Result<Vec<SafeTensor<'a>>, SafeTensorsError> {
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
                    return Err(SafeTensorsError::TooManyTensors);
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

    /// Strings by strings, which are not used here.
    fn metadata(&mut self) -> Result<(), SafeTensorsError> {
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

    fn tensor(&mut self, name: &'a str) -> Result<SafeTensor<'a>, SafeTensorsError> {
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
                _ => return Err(TensorProblem::UnknownField(field.to_owned()).of(name)),
            };
            if twice {
                return Err(TensorProblem::FieldTwice(field.to_owned()).of(name));
            }
            more = self.goes_on(b'}')?;
        }
        let (Some(dtype), Some((dims, rank)), Some(([begin, end], 2))) = (dtype, shape, offsets)
        else {
            return Err(TensorProblem::MissingField.of(name));
        };
        let Some(width) = width(dtype) else {
            return Err(TensorProblem::UnknownType(dtype.to_owned()).of(name));
        };
        if begin > end || end > self.data_len {
            let data = self.data_len;
            return Err(TensorProblem::Outside { begin, end, data }.of(name));
        }
        let bytes = dims[..rank]
            .iter()
            .try_fold(width, |n, dim| n.checked_mul(*dim));
        if bytes != Some(end - begin) {
            let problem = TensorProblem::Size {
                dtype: dtype.to_owned(),
                shape: dims[..rank].to_vec(),
                bytes: end - begin,
            };
            return Err(problem.of(name));
        }
        Ok(SafeTensor {
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
    fn numbers<const N: usize>(&mut self) -> Result<([usize; N], usize), SafeTensorsError> {
        let mut numbers = [0; N];
        let mut n = 0;
        self.expect(b'[')?;
        let mut more = !self.taken(b']');
        while more {
            let number = self.number()?;
            match numbers.get_mut(n) {
                Some(place) => *place = number,
                None => return Err(SafeTensorsError::ListLength(N)),
            }
            n += 1;
            more = self.goes_on(b']')?;
        }
        Ok((numbers, n))
    }

    fn number(&mut self) -> Result<usize, SafeTensorsError> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        if digits.is_empty() {
            return Err(self.unexpected("a whole number"));
        }
        self.at += digits.len();
        digits
            .parse()
            .map_err(|_| SafeTensorsError::Number(digits.to_owned()))
    }

    /// What stands between the quotes, as it is written.
    fn string(&mut self) -> Result<&'a str, SafeTensorsError> {
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
        Err(SafeTensorsError::OpenString)
    }

    /// After an item: true for a comma, false for the end.
    fn goes_on(&mut self, end: u8) -> Result<bool, SafeTensorsError> {
        if self.taken(b',') {
            return Ok(true);
        }
        self.expect(end)?;
        Ok(false)
    }

    fn expect(&mut self, byte: u8) -> Result<(), SafeTensorsError> {
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

    fn unexpected(&self, wanted: &str) -> SafeTensorsError {
        SafeTensorsError::Unexpected {
            wanted: wanted.to_owned(),
            at: self.at,
        }
    }
}
