//! Slots of a block of keys and values: they move as they are.

use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::KvShape;
use haversack_kernels::format::kv::code::{write_k_rows, write_v_rows};
use haversack_kernels::format::kv::slots::{copy_slot, move_slot};
use haversack_kernels::format::kv::{Codec, KvForm};

fn block(shape: KvShape, rows: &[usize]) -> Vec<u8> {
    let values = |side: usize| -> Vec<f32> {
        let value = |row: &usize, i: usize| ((row * 37 + i * 11 + side * 5) % 97) as f32 - 48.0;
        rows.iter()
            .flat_map(|row| (0..shape.row()).map(move |i| value(row, i)))
            .collect()
    };
    let mut block = vec![0; shape.block_bytes()];
    let (k, v) = block.split_at_mut(shape.k_bytes());
    write_k_rows(Backend::best(), shape, k, 0, &values(0));
    write_v_rows(Backend::best(), shape, v, 0, &values(1));
    block
}

/// A block whose slots moved is the block of rows in that order, to the byte.
#[test]
fn slots_move_as_they_are() {
    for codec in Codec::ALL {
        for head_dim in [16, 20, 64, 80, 256] {
            let shape = KvShape {
                kv_heads: 2,
                head_dim,
                form: KvForm {
                    k: codec.form(),
                    v: Codec::Int3.form(),
                },
            };
            for shape in [
                shape,
                KvShape {
                    form: KvForm::both(codec.form()),
                    ..shape
                },
            ] {
                let order: Vec<usize> = (0..32).map(|i| (i * 13 + 5) % 32).collect();
                let from = block(shape, &(0..32).collect::<Vec<_>>());
                let mut to = vec![0xff; from.len()];
                for (slot, &row) in order.iter().enumerate() {
                    copy_slot(shape, &from, row, &mut to, slot);
                }
                assert!(to == block(shape, &order), "{codec} {head_dim}");
                move_slot(shape, &mut to, 31, 4);
                let mut moved = order.clone();
                moved[4] = order[31];
                assert!(to == block(shape, &moved), "{codec} {head_dim}");
            }
        }
    }
}
