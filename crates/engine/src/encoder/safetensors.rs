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

use super::error::EncoderFileError;

/// The encoder's header has 11 KB.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// The encoder's file has 104.
const TENSORS_MAX: usize = 4096;
const RANK_MAX: usize = 4;

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
    pub fn parse(file: &'a [u8]) -> Result<SafeTensorsHeader<'a>, EncoderFileError> {
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return refused(format!(
                "{} bytes are too few for a safetensors file",
                file.len()
            ));
        };
        let length = u64::from_le_bytes(*length);
        if length > HEADER_BYTES_MAX {
            return refused(format!(
                "the header claims {length} bytes; accepted: at most {HEADER_BYTES_MAX}"
            ));
        }
        // Below the bound, so it fits.
        let Some((header, data)) = rest.split_at_checked(length as usize) else {
            let left = rest.len();
            return refused(format!(
                "the header claims {length} bytes, the file has {left} after its first 8"
            ));
        };
        let Ok(text) = std::str::from_utf8(header) else {
            return refused("the header is not UTF-8");
        };
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
            return refused(format!("tensor {:.80} is there twice", pair[0].name));
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
) -> Result<(), EncoderFileError> {
    tensors.sort_by_key(|t| (t.start, t.end));
    let mut at = first;
    for t in tensors {
        let name = t.name;
        if t.start < at {
            return refused(format!("tensor {name:.80} overlaps the one before it"));
        }
        if t.start > at {
            let bytes = t.start - at;
            return refused(format!(
                "{bytes} bytes before tensor {name:.80} belong to none"
            ));
        }
        at = t.end;
    }
    match end - at {
        0 => Ok(()),
        left => refused(format!("{left} bytes at the end belong to no tensor")),
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, EncoderFileError> {
    Err(EncoderFileError(why.into()))
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
    fn tensors(&mut self) -> Result<Vec<SafeTensor<'a>>, EncoderFileError> {
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
                    return refused(format!("more than {TENSORS_MAX} tensors"));
                }
                tensors.push(self.tensor(name)?);
            }
            more = self.goes_on(b'}')?;
        }
        self.skip_space();
        if self.at < self.text.len() {
            return self.unexpected("the end of the header");
        }
        Ok(tensors)
    }

    /// Strings by strings, which are not used here.
    fn metadata(&mut self) -> Result<(), EncoderFileError> {
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

    fn tensor(&mut self, name: &'a str) -> Result<SafeTensor<'a>, EncoderFileError> {
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
                _ => return refused(format!("tensor {name:.80}: unknown field {field:.80}")),
            };
            if twice {
                return refused(format!("tensor {name:.80}: {field} is there twice"));
            }
            more = self.goes_on(b'}')?;
        }
        let (Some(dtype), Some((dims, rank)), Some(([begin, end], 2))) = (dtype, shape, offsets)
        else {
            let needed = "dtype, shape and two data_offsets are needed";
            return refused(format!("tensor {name:.80}: {needed}"));
        };
        let Some(width) = width(dtype) else {
            return refused(format!("tensor {name:.80}: dtype {dtype:.80} is not known"));
        };
        if begin > end || end > self.data_len {
            let data = self.data_len;
            return refused(format!(
                "tensor {name:.80}: bytes {begin} to {end} are not within the {data} of the file"
            ));
        }
        let (shape, bytes) = (&dims[..rank], end - begin);
        let wanted = shape.iter().try_fold(width, |n, dim| n.checked_mul(*dim));
        if wanted != Some(bytes) {
            return refused(format!(
                "tensor {name:.80}: {dtype} of {shape:?} does not fill {bytes} bytes"
            ));
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
    fn numbers<const N: usize>(&mut self) -> Result<([usize; N], usize), EncoderFileError> {
        let mut numbers = [0; N];
        let mut n = 0;
        self.expect(b'[')?;
        let mut more = !self.taken(b']');
        while more {
            let number = self.number()?;
            match numbers.get_mut(n) {
                Some(place) => *place = number,
                None => return refused(format!("a list of more than {N} numbers")),
            }
            n += 1;
            more = self.goes_on(b']')?;
        }
        Ok((numbers, n))
    }

    fn number(&mut self) -> Result<usize, EncoderFileError> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        if digits.is_empty() {
            return self.unexpected("a whole number");
        }
        self.at += digits.len();
        (digits.parse()).or_else(|_| refused(format!("{digits:.24} is too large a number")))
    }

    /// What stands between the quotes, as it is written.
    fn string(&mut self) -> Result<&'a str, EncoderFileError> {
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
                0..0x20 => return self.unexpected("no control character"),
                _ => self.at += 1,
            }
        }
        refused("the header ends inside a string")
    }

    /// After an item: true for a comma, false for the end.
    fn goes_on(&mut self, end: u8) -> Result<bool, EncoderFileError> {
        if self.taken(b',') {
            return Ok(true);
        }
        self.expect(end)?;
        Ok(false)
    }

    fn expect(&mut self, byte: u8) -> Result<(), EncoderFileError> {
        match self.taken(byte) {
            true => Ok(()),
            false => self.unexpected(&char::from(byte).to_string()),
        }
    }

    fn taken(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_it = self.text.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(is_it);
        is_it
    }

    fn skip_space(&mut self) {
        let is_space = |b: &&u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
        let bytes = self.text.as_bytes().iter().skip(self.at);
        self.at += bytes.take_while(is_space).count();
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T, EncoderFileError> {
        let at = self.at;
        refused(format!("the header should have {wanted} at byte {at}"))
    }
}
