//! The byte tables in the documentation of `store/image.rs` and `store/mapped.rs`, checked against written images.
//!
//! The test interprets the tables: it reads an image field by field as they say, and compares the fields with what the
//! store reports. A table with a wrong type, order or count fails.

use crate::common;

use common::{codec_layer, feed};
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{Codec, KvForm, LayerShape, Store, StoreOptions, Zones};
use std::collections::HashMap;

const IMAGE: &str = include_str!("../src/store/image.rs");
const MAPPED: &str = include_str!("../src/store/mapped.rs");

/// A line of a table.
enum Field {
    /// `name  u64`
    Number(Part),
    /// `name  { a u8, b u8 } × count`
    List {
        name: String,
        parts: Vec<Part>,
        count: String,
    },
    /// `name  bytes of each layer with part > 0`
    Blocks { part: String },
}

struct Part {
    name: String,
    bytes: usize,
}

impl Part {
    fn new(name: &str, kind: &str) -> Part {
        let bits: usize = kind.strip_prefix('u').unwrap().parse().unwrap();
        Part {
            name: name.to_owned(),
            bytes: bits / 8,
        }
    }
}

/// The fields of a section: the indented lines below its name.
fn table(source: &str, section: &str) -> Vec<Field> {
    let lines = source.lines().map(|line| line.strip_prefix("//! "));
    let is_head = |line: &Option<&str>| line.is_some_and(|l| l.split(' ').next() == Some(section));
    let below = lines.skip_while(|line| !is_head(line)).skip(1);
    let fields = below.map_while(|line| line?.strip_prefix("    "));
    fields.map(field).collect()
}

fn field(line: &str) -> Field {
    let (name, rest) = line.split_once(' ').unwrap();
    let rest = rest.trim_start();
    if let Some(list) = rest.strip_prefix("{ ") {
        let (parts, count) = list.split_once(" } × ").unwrap();
        let part = |part: &str| {
            let (name, kind) = part.split_once(' ').unwrap();
            Part::new(name, kind)
        };
        return Field::List {
            name: name.to_owned(),
            parts: parts.split(", ").map(part).collect(),
            count: count.split(' ').next().unwrap().to_owned(),
        };
    }
    if let Some(part) = rest.strip_prefix("bytes of each layer with ") {
        let part = part.split(' ').next().unwrap().to_owned();
        return Field::Blocks { part };
    }
    Field::Number(Part::new(name, rest.split(' ').next().unwrap()))
}

/// Values by field; parts of a list as `list.part`.
type Values = HashMap<String, Vec<u64>>;

/// Reads one record as its table says. `block_bytes` gives the size of a layer's block for the value of its part.
fn read(
    table: &[Field],
    bytes: &mut &[u8],
    layers: usize,
    block_bytes: &dyn Fn(usize, u64) -> usize,
) -> Values {
    fn number(bytes: &mut &[u8], part: &Part) -> u64 {
        let taken = bytes.split_off(..part.bytes).expect("more fields");
        let mut number = [0; 8];
        number[..part.bytes].copy_from_slice(taken);
        u64::from_le_bytes(number)
    }
    let mut values = Values::from([("layers".to_owned(), vec![layers as u64])]);
    for field in table {
        match field {
            Field::Number(part) => {
                values.insert(part.name.clone(), vec![number(bytes, part)]);
            }
            Field::List { name, parts, count } => {
                for _ in 0..values[count][0] {
                    for part in parts {
                        let list = values.entry(format!("{name}.{}", part.name));
                        list.or_default().push(number(bytes, part));
                    }
                }
            }
            Field::Blocks { part } => {
                for (layer, &value) in values[&format!("layer.{part}")].iter().enumerate() {
                    if value > 0 {
                        let size = block_bytes(layer, value);
                        bytes.split_off(..size).expect("a block");
                    }
                }
            }
        }
    }
    values
}

/// Two forms, one form, a window of its own.
fn options() -> StoreOptions {
    let windowed = LayerShape {
        window: Some(70),
        ..codec_layer(1, 16, Codec::Int8, Codec::Int4)
    };
    StoreOptions {
        layers: vec![
            codec_layer(1, 32, Codec::Int8, Codec::Int4),
            LayerShape::plain(2, 16, KvForm::F16),
            windowed,
        ],
        zones: Zones {
            sinks: 4,
            recent: 40,
        },
        ..StoreOptions::default()
    }
}

#[test]
fn images_are_as_documented() {
    let options = options();
    let (layers, zones) = (options.layers.clone(), options.zones);
    let form_bytes = |layer: usize, form: u64| match form {
        1 => layers[layer].near_shape().block_bytes(),
        _ => layers[layer].far_shape().block_bytes(),
    };
    let sink_bytes = |layer: usize, _| layers[layer].sink_bytes(zones);
    let (column, outline) = (table(IMAGE, "column"), table(IMAGE, "outline"));
    let index = table(MAPPED, "index");
    assert_eq!((column.len(), outline.len(), index.len()), (3, 8, 2));

    let mut store = Store::new(options).unwrap();
    let id = store.open().unwrap();
    for round in 0..12u32 {
        let tokens: Vec<u32> = (0..37 + round).collect();
        feed(&mut store, id, &tokens).unwrap();
        if round == 8 {
            let params = WindowParams {
                anchors: 40,
                window: 96,
            };
            let plan = plan(&store.snapshot(id).unwrap(), &params);
            assert_eq!(plan.drop.len(), 1);
            store.apply(id, &plan).unwrap();
        }
        let stats = store.stats(id).unwrap();

        let mut bytes = Vec::new();
        store.outline(id, &mut bytes).unwrap();
        let mut rest = &bytes[..];
        let found = read(&outline, &mut rest, layers.len(), &sink_bytes);
        assert!(rest.is_empty(), "{} bytes left", rest.len());
        assert_eq!(found["position"], [stats.position]);
        assert_eq!(found["rows_peak"], [stats.rows_peak as u64]);
        assert_eq!(found["compact"], [1]);
        assert_eq!(found["evicted_at"][0] > 0, round >= 8);
        assert_eq!(found["gaps"], [u64::from(round >= 8)]);
        if round >= 8 {
            assert_eq!(found["gap.start"], [40]);
            assert_eq!(found["gap.end"][0] % 32, 0);
        }
        assert_eq!(found["layer.window_passed"][..2], [0, 0]);
        assert_eq!(found["layer.window_passed"][2] > 0, round > 1);
        assert_eq!(found["layer.sinks"], [1, 0, u64::from(round <= 1)]);

        let mut rows = vec![0; layers.len()];
        for block in store.blocks(id).unwrap() {
            let mut bytes = Vec::new();
            store.column(id, block, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            let found = read(&column, &mut rest, layers.len(), &form_bytes);
            assert!(rest.is_empty(), "{} bytes left", rest.len());
            assert_eq!(found["block"], [block]);
            for (layer, count) in found["layer.rows"].iter().enumerate() {
                rows[layer] += *count as usize;
                assert_eq!(found["layer.form"][layer] > 0, *count > 0);
            }
        }
        for (layer, rows) in rows.iter().enumerate() {
            assert_eq!(store.layer_rows(id, layer).unwrap(), *rows);
        }

        let layout = store.mapped_layout(id).unwrap();
        let mut rest = &layout.index[..];
        let mut full = Vec::new();
        while !rest.is_empty() {
            let found = read(&index, &mut rest, layers.len(), &form_bytes);
            full.extend_from_slice(&found["block"]);
        }
        let mut blocks = store.blocks(id).unwrap();
        blocks.retain(|block| *block < stats.position / 32);
        assert_eq!(full, blocks);
        assert_eq!(
            layout.tail.len(),
            usize::from(!stats.position.is_multiple_of(32))
        );
    }
}
