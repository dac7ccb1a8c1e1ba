//! The scalar reference: one output at a time, as the definition reads. Every other backend must give
//! its bits.

use super::int8::Line;
use super::kernel::halves;
use super::task::Task;
use crate::format::gguf::{GROUP, float_at};
use crate::format::packed::{STRIP, read_group, strip_bytes};

pub(super) fn strips(task: &Task<'_>) {
    for (i, strip) in task.strips(strip_bytes(task.ty, task.cols)).enumerate() {
        for row in 0..task.x_rows {
            let mut out = [[0.0; STRIP]];
            for (r, out) in out[0].iter_mut().enumerate() {
                let groups = task.cols / GROUP;
                *out = match task.lines {
                    Some(lines) if !task.ty.is_float() => {
                        int8(task, strip, r, &lines[row * groups..][..groups])
                    }
                    _ => f32_dot(task, strip, r, &task.x[row * task.cols..][..task.cols]),
                };
            }
            task.write(i, row, &out);
        }
    }
}

fn int8(task: &Task<'_>, strip: &[u8], r: usize, lines: &[Line]) -> f32 {
    let ty = task.ty;
    let halves = halves(ty);
    let mut acc = 0.0;
    for (group, line) in lines.iter().enumerate() {
        let (codes, scales) = read_group(ty, strip, group, r);
        for half in 0..halves {
            let len = GROUP / halves;
            let (mut dot, mut sum) = (0, 0);
            for k in half * len..(half + 1) * len {
                dot += ty.integer().of(codes[k]) * i32::from(line.codes[k]);
                sum += i32::from(line.codes[k]);
            }
            acc = (dot as f32 * line.scale).mul_add(scales.scale(ty, half), acc);
            if ty.has_min() {
                acc = scales.min(ty, half).mul_add(line.scale * sum as f32, acc);
            }
        }
    }
    acc
}

fn f32_dot(task: &Task<'_>, strip: &[u8], r: usize, x: &[f32]) -> f32 {
    let mut acc = [0.0f32; 4];
    if task.ty.is_float() {
        for (k, x) in x.iter().enumerate() {
            acc[k % 4] = float_at(task.ty, strip, k * STRIP + r).mul_add(*x, acc[k % 4]);
        }
    } else {
        for (group, x) in x.chunks_exact(GROUP).enumerate() {
            let (codes, scales) = read_group(task.ty, strip, group, r);
            for k in 0..GROUP {
                let integer = task.ty.integer().of(codes[k]) as f32;
                let mut w = scales.scale(task.ty, k / 16) * integer;
                if task.ty.has_min() {
                    w += scales.min(task.ty, k / 16);
                }
                acc[k % 4] = w.mul_add(x[k], acc[k % 4]);
            }
        }
    }
    (acc[0] + acc[1]) + (acc[2] + acc[3])
}
