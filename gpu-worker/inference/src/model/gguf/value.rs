//! Metadata values of a GGUF file, borrowed from its bytes.
//!
//! Arrays stay encoded: they are walked once when read, so that iterating them later cannot fail.

use super::Fault;
use super::reader::Reader;

/// Arrays inside arrays, at most.
const NESTING_MAX: usize = 4;

/// One metadata value. Integers are widened, their width has no meaning here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// `f32` or `f64`.
    Float(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// Bytes that should be UTF-8.
    String(&'a [u8]),
    /// Values of one kind.
    Array(Array<'a>),
}

/// An array of the file, not yet decoded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array<'a> {
    kind: Kind,
    len: usize,
    bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let at = reader.at();
        Ok(match reader.u32("value type")? {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            other => {
                return Err(Fault::corrupt(format!(
                    "value type at offset {at} is {other}"
                )));
            }
        })
    }

    /// Returns the size of every value of this kind, if they are all of one size.
    fn bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Returns the fewest bytes that a value of this kind takes.
    fn bytes_min(self) -> u64 {
        let header = if self == Self::Array { 12 } else { 8 };
        self.bytes().unwrap_or(header)
    }
}

impl<'a> Value<'a> {
    /// Reads a type and a value.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let kind = Kind::read(reader)?;
        Self::read_kind(reader, kind, NESTING_MAX)
    }

    fn read_kind(reader: &mut Reader<'a>, kind: Kind, nesting: usize) -> Result<Self, Fault> {
        let at = reader.at();
        if let Some(bytes) = kind.bytes() {
            return Ok(scalar(kind, reader.take(bytes, "value")?)).and_then(|value| {
                value.ok_or_else(|| {
                    Fault::corrupt(format!("boolean at offset {at} is neither 0 nor 1"))
                })
            });
        }
        if kind == Kind::String {
            return reader.string("string").map(Value::String);
        }
        if nesting == 0 {
            return Err(Fault::corrupt(format!(
                "arrays at offset {at} are nested deeper than {NESTING_MAX}"
            )));
        }
        let kind = Kind::read(reader)?;
        let len = reader.count(kind.bytes_min(), u64::MAX, "array length")?;
        let start = reader.at();
        match kind.bytes() {
            Some(bytes) if kind != Kind::Bool => {
                reader.take(bytes * len as u64, "array")?;
            }
            _ => {
                for _ in 0..len {
                    Self::read_kind(reader, kind, nesting - 1)?;
                }
            }
        }
        Ok(Value::Array(Array {
            kind,
            len,
            bytes: reader.since(start),
        }))
    }

    /// Returns what kind of value this is, for messages.
    pub(super) fn kind_name(&self) -> &'static str {
        match self {
            Value::Unsigned(_) => "an unsigned integer",
            Value::Signed(_) => "a signed integer",
            Value::Float(_) => "a number",
            Value::Bool(_) => "a boolean",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
        }
    }

    /// Returns the value if it is an integer that is not negative.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => u64::try_from(value).ok(),
            Value::Float(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        }
    }

    /// Returns the value if it is a floating-point number.
    pub(crate) fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::Float(value) => Some(value),
            Value::Unsigned(_)
            | Value::Signed(_)
            | Value::Bool(_)
            | Value::String(_)
            | Value::Array(_) => None,
        }
    }

    /// Returns the value if it is a boolean.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(value) => Some(value),
            Value::Unsigned(_)
            | Value::Signed(_)
            | Value::Float(_)
            | Value::String(_)
            | Value::Array(_) => None,
        }
    }

    /// Returns the value if it is a string of UTF-8.
    pub(crate) fn as_str(&self) -> Option<&'a str> {
        match *self {
            Value::String(value) => std::str::from_utf8(value).ok(),
            Value::Unsigned(_)
            | Value::Signed(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Array(_) => None,
        }
    }

    /// Returns the value if it is an array.
    pub(crate) fn as_array(&self) -> Option<&Array<'a>> {
        match self {
            Value::Array(value) => Some(value),
            Value::Unsigned(_)
            | Value::Signed(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::String(_) => None,
        }
    }
}

impl<'a> Array<'a> {
    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Decodes the values one by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut reader) = (self.kind, Reader::new(self.bytes));
        (0..self.len).map(move |_| {
            Value::read_kind(&mut reader, kind, NESTING_MAX)
                .expect("the array was walked when it was read")
        })
    }
}

/// Decodes a value of fixed size; none if it is a boolean that is neither 0 nor 1.
fn scalar<'a>(kind: Kind, bytes: &[u8]) -> Option<Value<'a>> {
    fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes
            .try_into()
            .expect("the caller takes as many bytes as the kind has")
    }
    Some(match kind {
        Kind::U8 => Value::Unsigned(bytes[0].into()),
        Kind::I8 => Value::Signed(i8::from_le_bytes(fixed(bytes)).into()),
        Kind::U16 => Value::Unsigned(u16::from_le_bytes(fixed(bytes)).into()),
        Kind::I16 => Value::Signed(i16::from_le_bytes(fixed(bytes)).into()),
        Kind::U32 => Value::Unsigned(u32::from_le_bytes(fixed(bytes)).into()),
        Kind::I32 => Value::Signed(i32::from_le_bytes(fixed(bytes)).into()),
        Kind::U64 => Value::Unsigned(u64::from_le_bytes(fixed(bytes))),
        Kind::I64 => Value::Signed(i64::from_le_bytes(fixed(bytes))),
        Kind::F32 => Value::Float(f32::from_le_bytes(fixed(bytes)).into()),
        Kind::F64 => Value::Float(f64::from_le_bytes(fixed(bytes))),
        Kind::Bool => match bytes[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            _ => return None,
        },
        Kind::String | Kind::Array => return None,
    })
}
