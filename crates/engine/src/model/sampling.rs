//! How a model's file says that it is best sampled: `general.sampling.*`, as llama.cpp writes it.
//!
//! A recommendation, and not part of the model: what is not of its type or out of range is left out with a warning, and the
//! model loads without it.

use crate::sample::SamplingValues;
use haversack_gguf::{Gguf, Value};

const PREFIX: &str = "general.sampling.";

/// What the metadata recommends.
pub fn from_metadata(gguf: &Gguf) -> SamplingValues {
    let none = SamplingValues::default;
    let number = |name| read(gguf, name, float);
    let count = |name| read(gguf, name, integer);
    // One by one, because each is in range or not by itself.
    let read = [
        SamplingValues {
            temperature: number("temp"),
            ..none()
        },
        SamplingValues {
            top_k: count("top_k"),
            ..none()
        },
        SamplingValues {
            top_p: number("top_p"),
            ..none()
        },
        SamplingValues {
            min_p: number("min_p"),
            ..none()
        },
        SamplingValues {
            xtc_probability: number("xtc_probability"),
            ..none()
        },
        SamplingValues {
            xtc_threshold: number("xtc_threshold"),
            ..none()
        },
        SamplingValues {
            repetition_penalty: number("penalty_repeat"),
            ..none()
        },
        SamplingValues {
            penalty_last_n: count("penalty_last_n"),
            ..none()
        },
    ];
    let is_in_range = |value: &SamplingValues| match value.options().check() {
        Ok(()) => true,
        Err(error) => {
            log::warn!("{PREFIX}*: {error}; ignored");
            false
        }
    };
    let good = read.into_iter().filter(is_in_range);
    good.fold(none(), |all, value| all.or(&value))
}

fn read<T>(gguf: &Gguf, name: &str, convert: fn(&Value<'_>) -> Option<T>) -> Option<T> {
    let key = format!("{PREFIX}{name}");
    let value = gguf.value(&key)?;
    let converted = convert(&value);
    if converted.is_none() {
        let kind = value.kind_name();
        log::warn!("{key} is {value} ({kind}); accepted: a number from 0 on; ignored");
    }
    converted
}

fn float(value: &Value<'_>) -> Option<f32> {
    match *value {
        Value::F32(number) => Some(number),
        Value::F64(number) => Some(number as f32),
        // A writer that has no types of its own writes 1 for 1.0. Whatever is far out of range stays so.
        ref other => other.integer().map(|number| number as f32),
    }
}

fn integer(value: &Value<'_>) -> Option<usize> {
    value
        .integer()
        .and_then(|number| usize::try_from(number).ok())
}
