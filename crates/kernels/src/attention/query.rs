//! A unit's queries: which rows they are, and how keys meet them.

use super::cast::{bytes_mut, bytes_of, words_mut, words_of};
use super::job::AttentionJob;
use super::kernel::{self, QuantizedRows, QuantizedRowsMut, Query, Rows};
use crate::cpu::Backend;
use crate::ops;

/// The rows of a unit: `queries` queries from `first` on, each with the heads of one group.
/// Row `r` is query `r / group`, head `r % group` of the group.
#[derive(Clone, Copy)]
pub(super) struct Unit<'a> {
    pub backend: Backend,
    pub job: &'a AttentionJob<'a>,
    pub kv_head: usize,
    pub first: usize,
    pub queries: usize,
    pub group: usize,
}

impl Unit<'_> {
    pub(super) fn rows(&self) -> usize {
        self.queries * self.group
    }

    pub(super) fn position(&self, query: usize) -> u64 {
        let first = self.job.first_position;
        first.saturating_add((self.first + query) as u64)
    }

    /// Of the first and the last query.
    pub(super) fn positions(&self) -> (u64, u64) {
        (self.position(0), self.position(self.queries - 1))
    }

    /// Where row `r` lies in (row, head, dim).
    pub(super) fn offset(&self, r: usize) -> usize {
        let head = self.kv_head * self.group + r % self.group;
        ((self.first + r / self.group) * self.job.heads + head) * self.job.head_dim
    }
}

/// A unit's queries for the blocks of one segment, in scratch memory:
///
/// ```text
/// q (row, dim)  bias (row)  narrow, wide: row_scale (row)  integers (row, 2 len bytes)  eight_sums (row, len / 8)
/// ```
#[derive(Clone, Copy)]
pub(super) struct QueryLayout {
    pub rows: usize,
    pub dim: usize,
}

impl QueryLayout {
    fn len(self) -> usize {
        self.dim.next_multiple_of(16)
    }

    fn numbers(self) -> usize {
        self.rows * (1 + self.len() / 2 + self.len() / 8)
    }

    /// Floats that queries take: whole cache lines.
    pub(super) fn floats(self) -> usize {
        (self.rows * (self.dim + 1) + 2 * self.numbers()).next_multiple_of(16)
    }

    /// Writes the queries of a unit for a segment: in the basis of the blocks, scaled, with what the mean
    /// adds to every score, and quantised.
    pub(super) fn load(self, unit: &Unit<'_>, segment: usize, floats: &mut [f32]) {
        let Unit { backend, job, .. } = *unit;
        let (rows, dim) = (self.rows, self.dim);
        let (q, floats) = floats.split_at_mut(rows * dim);
        let (bias, floats) = floats.split_at_mut(rows);
        let mean = job.mean.map(|mean| &mean[unit.kv_head * dim..][..dim]);
        for (r, (q, bias)) in q.chunks_exact_mut(dim).zip(bias).enumerate() {
            q.copy_from_slice(&job.q[segment][unit.offset(r)..][..dim]);
            ops::rotation::rotate_head(backend, job.basis.k, q);
            ops::scale(backend, q, job.scale);
            *bias = mean.map_or(0.0, |mean| ops::dot(backend, q, mean));
        }
        let q = Rows {
            values: q,
            stride: dim,
            count: rows,
        };
        let (narrow, wide) = floats.split_at_mut(self.numbers());
        let (mut narrow, mut wide) = (self.numbers_mut(narrow), self.numbers_mut(wide));
        kernel::quantize_queries(backend, q, &mut narrow, &mut wide);
    }

    fn numbers_mut(self, floats: &mut [f32]) -> QuantizedRowsMut<'_> {
        let (rows, len) = (self.rows, self.len());
        let (row_scale, floats) = floats.split_at_mut(rows);
        let (bytes, eight_sums) = floats.split_at_mut(rows * len / 2);
        QuantizedRowsMut {
            bytes: bytes_mut(bytes),
            len,
            row_scale,
            eight_sums: words_mut(&mut eight_sums[..rows * len / 8]),
        }
    }

    /// What was loaded.
    pub(super) fn read(self, floats: &[f32]) -> Query<'_> {
        let (q, floats) = floats.split_at(self.rows * self.dim);
        let (bias, floats) = floats.split_at(self.rows);
        let (narrow, wide) = floats.split_at(self.numbers());
        Query {
            q: Rows {
                values: q,
                stride: self.dim,
                count: self.rows,
            },
            bias,
            narrow: self.numbers_of(narrow),
            wide: self.numbers_of(wide),
        }
    }

    fn numbers_of(self, floats: &[f32]) -> QuantizedRows<'_> {
        let (rows, len) = (self.rows, self.len());
        let (row_scale, floats) = floats.split_at(rows);
        let (bytes, eight_sums) = floats.split_at(rows * len / 2);
        QuantizedRows {
            bytes: bytes_of(bytes),
            len,
            row_scale,
            eight_sums: words_of(&eight_sums[..rows * len / 8]),
        }
    }
}

/// Where a unit finds its queries.
pub(super) enum QuerySource<'a> {
    /// Loaded for one segment at a time. Segments follow each other along the table, so each is loaded
    /// once.
    PerSegment {
        floats: &'a mut [f32],
        segment: Option<usize>,
    },
    /// Loaded for all segments: (segment, kv_head, layout).
    Loaded(&'a [f32]),
}

impl QuerySource<'_> {
    pub(super) fn of_segment(&mut self, unit: &Unit<'_>, wanted: usize) -> Query<'_> {
        let layout = QueryLayout {
            rows: unit.rows(),
            dim: unit.job.head_dim,
        };
        match self {
            QuerySource::PerSegment { floats, segment } => {
                if *segment != Some(wanted) {
                    layout.load(unit, wanted, floats);
                    *segment = Some(wanted);
                }
                layout.read(floats)
            }
            QuerySource::Loaded(floats) => {
                let nth = wanted * unit.job.kv_heads + unit.kv_head;
                layout.read(&floats[nth * layout.floats()..])
            }
        }
    }
}
