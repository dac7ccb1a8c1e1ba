//! `inspect`: what is in a model file, from its table alone, and in a session's file. No weight is read.

use crate::args;
use crate::commands::pack::hex;
use crate::commands::session_file;
use crate::error::one_line;
use crate::{out, resolve};
use anyhow::Result;
use haversack::gguf::{Array, Gguf, Value, ValueType};
use haversack::memory::bytes::human;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// Items of an array that are shown; a vocabulary has a hundred thousand.
const ITEMS_SHOWN: usize = 4;
/// Characters of a text that are shown; a template has thousands.
const TEXT_SHOWN: usize = 60;

pub fn inspect(args: &args::InspectArgs, as_json: bool) -> Result<()> {
    if let Some(path) = args.model.as_deref().and_then(session_file::meant) {
        return session_file::inspect(path, as_json);
    }
    let path = resolve::model(args.model.as_deref())?;
    let gguf = Gguf::open(&path)?;
    let summary = Summary::of(&gguf);
    if as_json {
        out::json(&summary.json(&gguf))
    } else {
        summary.print(&gguf, args.tensors)
    }
}

#[derive(Default)]
struct Total {
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

struct Summary {
    architecture: Option<String>,
    name: Option<String>,
    context: Option<u64>,
    total: Total,
    by_type: BTreeMap<&'static str, Total>,
}

impl Summary {
    fn of(gguf: &Gguf) -> Summary {
        // A value of the wrong kind is shown with the metadata; it is no reason to show nothing.
        let text = |key| gguf.str(key).ok().flatten().map(str::to_owned);
        let architecture = text("general.architecture");
        let length = |name: &String| gguf.u64(&format!("{name}.context_length")).ok();
        let context = architecture.as_ref().and_then(length).flatten();
        let mut total = Total::default();
        let mut by_type: BTreeMap<&'static str, Total> = BTreeMap::new();
        for tensor in gguf.tensors() {
            let parameters = tensor.rows() as u64 * tensor.cols() as u64;
            for sum in [&mut total, by_type.entry(tensor.ty.name()).or_default()] {
                sum.tensors += 1;
                sum.parameters = sum.parameters.saturating_add(parameters);
                sum.bytes = sum.bytes.saturating_add(tensor.byte_len());
            }
        }
        Summary {
            architecture,
            name: text("general.name"),
            context,
            total,
            by_type,
        }
    }

    fn json(&self, gguf: &Gguf) -> Json {
        let metadata = gguf
            .metadata()
            .map(|(key, value)| (key, value_json(&value)));
        let types = out::list(&self.by_type, |(name, sum)| {
            json!({
                "type": name,
                "tensors": sum.tensors,
                "parameters": sum.parameters,
                "bytes": sum.bytes,
            })
        });
        let tensors = out::list(gguf.tensors(), |tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.ty.name(),
                "shape": tensor.shape(),
                "bytes": tensor.byte_len(),
            })
        });
        let mut document = json!({
            "path": gguf.path(),
            "parts": gguf.part_paths().collect::<Vec<_>>(),
            "format": "gguf",
            "version": gguf.version(),
            "alignment": gguf.alignment(),
            "architecture": self.architecture,
            "name": self.name,
            "context_length": self.context,
            "parameters": self.total.parameters,
            "file_bytes": gguf.file_bytes(),
            "weights_bytes": self.total.bytes,
            "types": types,
            "metadata": metadata.collect::<Json>(),
            "tensors": tensors,
        });
        if let Some(packed) = gguf.packed() {
            let sha256 = hex(&packed.original.sha256);
            document["format"] = json!("packed");
            document["original"] = json!({ "sha256": sha256, "bytes": packed.original.bytes });
        }
        document
    }

    fn print(&self, gguf: &Gguf, every_tensor: bool) -> Result<()> {
        let shown = |text: &Option<String>| text.as_deref().map_or("-".into(), short);
        let mut page = String::new();
        let mut row = |name: &str, value: String| {
            page.push_str(&format!("{name:16} {value}\n"));
        };
        row("file", gguf.path().display().to_string());
        let (version, files) = (gguf.version(), gguf.parts());
        let size = human(gguf.file_bytes());
        let packed = gguf.packed().map_or(String::new(), |packed| {
            format!(", packed from {}", human(packed.original.bytes))
        });
        row(
            "format",
            format!("GGUF {version}, {files} file(s), {size}{packed}"),
        );
        row("architecture", shown(&self.architecture));
        row("name", shown(&self.name));
        let context = self.context.map(|context| context.to_string());
        row("context", context.unwrap_or_else(|| "-".into()));
        row("parameters", millions(self.total.parameters));
        let (size, tensors) = (human(self.total.bytes), self.total.tensors);
        row("weights", format!("{size} in {tensors} tensors"));
        for (name, sum) in &self.by_type {
            let (tensors, size) = (sum.tensors, human(sum.bytes));
            let parameters = millions(sum.parameters);
            let line = format!("{name:8} {tensors:>5} tensors {parameters:>10} {size:>12}");
            row("", line);
        }
        page.push('\n');
        for (key, value) in gguf.metadata() {
            page.push_str(&format!("{} = {}\n", one_line(key), value_text(&value)));
        }
        if every_tensor {
            page.push('\n');
            for tensor in gguf.tensors() {
                let shape: Vec<String> = tensor.shape().iter().map(u64::to_string).collect();
                let (name, kind) = (short(&tensor.name), tensor.ty.name());
                let (shape, size) = (shape.join(" x "), human(tensor.byte_len()));
                page.push_str(&format!("{name:40} {kind:8} {shape:>20} {size:>12}\n"));
            }
        }
        out::text(&page)
    }
}

fn millions(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} G", count as f64 / 1e9),
    }
}

/// On one line, without what could drive a terminal, and not too long.
fn short(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(TEXT_SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn value_text(value: &Value<'_>) -> String {
    match value {
        Value::Str(bytes) => format!("\"{}\"", short(&String::from_utf8_lossy(bytes))),
        Value::Array(array) => {
            let (length, items) = (array.len(), first_items(array));
            let more = if length > items.len() { ", …" } else { "" };
            let items: Vec<String> = items.iter().map(|item| short(&item.to_string())).collect();
            format!("{length} × {} [{}{more}]", array.elem(), items.join(", "))
        }
        other => one_line(&value_json(other).to_string()),
    }
}

fn value_json(value: &Value<'_>) -> Json {
    match value {
        Value::U8(n) => json!(n),
        Value::I8(n) => json!(n),
        Value::U16(n) => json!(n),
        Value::I16(n) => json!(n),
        Value::U32(n) => json!(n),
        Value::I32(n) => json!(n),
        Value::U64(n) => json!(n),
        Value::I64(n) => json!(n),
        Value::F32(n) => json!(n),
        Value::F64(n) => json!(n),
        Value::Bool(b) => json!(b),
        Value::Str(bytes) => json!(String::from_utf8_lossy(bytes)),
        Value::Array(array) => json!({
            "array_of": array.elem().name(),
            "length": array.len(),
            "first": first_items(array),
        }),
    }
}

fn first_items(array: &Array<'_>) -> Vec<Json> {
    fn take<T: serde::Serialize, E>(items: Result<impl Iterator<Item = T>, E>) -> Vec<Json> {
        let items = items.into_iter().flatten().take(ITEMS_SHOWN);
        items.map(|item| json!(item)).collect()
    }
    match array.elem() {
        ValueType::Str => take(array.strs().map(|items| items.map(String::from_utf8_lossy))),
        ValueType::Bool => take(array.bools()),
        ValueType::F32 => take(array.f32s()),
        ValueType::I32 => take(array.i32s()),
        ValueType::U32 => take(array.u32s()),
        _ => Vec::new(),
    }
}
