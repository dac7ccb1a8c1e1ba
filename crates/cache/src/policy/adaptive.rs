//! Adaptive: gives each layer the codecs and the number of rows that it needs, from a probe of the model. Our own.
//!
//! A probe measures for each layer how much its output changes when keys are stored in a codec, when values are, and when
//! only a share of the rows is left ([`DamageCurves`]). Damages are squared relative errors, and those of different layers
//! and causes add up. So the best plan within a number of bytes is the one in which every layer minimises
//! `damage + price · bytes` for itself, at the price for which all of them together fit (Lagrangian rate allocation).
//!
//! [`super::heavy`] then chooses which rows leave a layer that is above its number.
//!
//! Parameters: bytes, tokens of the context, and how much a lost row counts ([`AllotmentTarget::row_weight`]): average
//! distributions hardly show the loss of a fact that the text never asks for.

use crate::error::CannotFit;
use crate::size::{KeptTokens, LayerShape, SLOTS, Zones, kv_bytes};
use haversack_kernels::format::kv::{Codec, Form, KvForm};

/// Codecs to choose from, the smallest first.
pub const CODECS: [Codec; 6] = [
    Codec::Int2,
    Codec::Int3,
    Codec::Int4,
    Codec::Int5,
    Codec::Int8,
    Codec::F16,
];

/// Shares of the rows that a probe measures.
pub const SHARES: [f32; 6] = [0.9, 0.75, 0.5, 0.25, 0.125, 0.0625];

/// Damage to a layer's output by codec and by share of rows: squared relative errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DamageCurves {
    /// Keys in each of [`CODECS`].
    pub k: [f32; CODECS.len()],
    pub v: [f32; CODECS.len()],
    /// With each of [`SHARES`] of the rows.
    pub rows: [f32; SHARES.len()],
}

impl DamageCurves {
    /// The same curves if recent rows are exact. Eight bits have a 64th of the error of five, so the damage that both have
    /// in common is that of the recent rows in eight.
    pub fn with_exact_near(&self) -> DamageCurves {
        let five = CODECS.iter().position(|c| *c == Codec::Int5).unwrap_or(0);
        let eight = CODECS.iter().position(|c| *c == Codec::Int8).unwrap_or(0);
        let without = |curve: [f32; CODECS.len()]| {
            let near = ((64.0 * curve[eight] - curve[five]) / 63.0).clamp(0.0, curve[eight]);
            curve.map(|damage| (damage - near).max(0.0))
        };
        DamageCurves {
            k: without(self.k),
            v: without(self.v),
            rows: self.rows,
        }
    }

    /// Damage with `share` of the rows: linear between logarithms, and a parabola up to the point where all rows are left.
    fn rows_at(&self, share: f32) -> f32 {
        if share >= 1.0 {
            return 0.0;
        }
        if share >= SHARES[0] {
            let gone = (1.0 - share) / (1.0 - SHARES[0]);
            return self.rows[0] * gone * gone;
        }
        let last = SHARES.len() - 1;
        let i = SHARES.iter().rposition(|&s| s >= share).unwrap_or(0);
        let i = i.min(last - 1);
        let (from, to) = (SHARES[i], SHARES[i + 1]);
        let at = (share / from).ln() / (to / from).ln();
        let (a, b) = (self.rows[i].max(TINY), self.rows[i + 1].max(TINY));
        (a.ln() + at * (b.ln() - a.ln())).exp()
    }
}

/// Avoids the logarithm of zero.
const TINY: f32 = 1e-12;

/// The bytes to allot, and for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllotmentTarget {
    /// Bytes of the blocks of one sequence after `tokens` tokens.
    pub bytes: u64,
    pub tokens: u64,
    pub zones: Zones,
    /// Number of first tokens that always stay.
    pub anchors: u64,
    /// Weight of the damage by lost rows against that by codecs; 1 = as measured.
    pub row_weight: f32,
}

/// The allotments of all layers, and their total damage.
#[derive(Clone, Debug, PartialEq)]
pub struct AllotmentPlan {
    pub layers: Vec<Allotment>,
    pub damage: f64,
}

/// What one layer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    pub form: KvForm,
    /// Rows including those of a step, in whole blocks; the whole context if nothing is evicted.
    pub rows: u64,
}

/// A candidate for one layer.
#[derive(Clone, Copy)]
struct Choice {
    allotment: Allotment,
    bytes: u64,
    damage: f64,
}

/// Maximum number of row counts tried per layer.
const ROW_STEPS: u64 = 192;

/// Allots codecs and rows. `shape` gives heads and window of a layer and the near form that goes with a far one.
/// `CannotFit` says what the smallest plan would take.
pub fn allot(
    curves: &[DamageCurves],
    shape: &dyn Fn(usize, KvForm) -> LayerShape,
    ask: &AllotmentTarget,
) -> Result<AllotmentPlan, CannotFit> {
    let hulls = curves.iter().enumerate().map(|(layer, curves)| {
        let forms = forms(curves, &|form| shape(layer, form));
        hull(choices(curves, &forms, ask))
    });
    share_out(&hulls.collect::<Vec<_>>(), ask.bytes)
}

/// Allots rows only; each layer keeps its codecs.
pub fn allot_rows(
    curves: &[DamageCurves],
    shapes: &[LayerShape],
    ask: &AllotmentTarget,
) -> Result<AllotmentPlan, CannotFit> {
    let layers = curves.iter().zip(shapes);
    let hulls = layers.map(|(curves, &shape)| hull(choices(curves, &[(shape, 0.0)], ask)));
    share_out(&hulls.collect::<Vec<_>>(), ask.bytes)
}

/// Highest number of bytes of all layers while they fill the last block of `rows` rows.
pub fn rows_bytes(shapes: &[LayerShape], zones: Zones, rows: u64) -> u64 {
    let bytes = shapes.iter().map(|&shape| max_bytes(shape, zones, rows));
    bytes.fold(0, u64::saturating_add)
}

fn share_out(hulls: &[Vec<Choice>], bytes: u64) -> Result<AllotmentPlan, CannotFit> {
    let total = |picks: &[usize]| -> u64 {
        let bytes = picks.iter().zip(hulls).map(|(&i, hull)| hull[i].bytes);
        bytes.fold(0, u64::saturating_add)
    };
    // Greedy: every layer starts with its smallest choice, and the step with the largest gain per byte is taken while it
    // fits. Along a convex hull gains decrease, so this is the plan of one price for all layers.
    let mut picks = vec![0; hulls.len()];
    let mut used = total(&picks);
    if used > bytes {
        let clamp = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        return Err(CannotFit {
            short_by: clamp(used - bytes),
            budget_bytes: clamp(bytes),
        });
    }
    loop {
        let mut best: Option<(f64, usize, u64)> = None;
        for (layer, hull) in hulls.iter().enumerate() {
            let at = picks[layer];
            let Some(next) = hull.get(at + 1) else {
                continue;
            };
            let more = next.bytes - hull[at].bytes;
            if used.saturating_add(more) > bytes {
                continue;
            }
            let gain = (hull[at].damage - next.damage) / more as f64;
            if best.is_none_or(|(max, ..)| gain > max) {
                best = Some((gain, layer, more));
            }
        }
        let Some((_, layer, more)) = best else {
            break;
        };
        picks[layer] += 1;
        used += more;
    }
    let chosen = || picks.iter().zip(hulls).map(|(&i, hull)| &hull[i]);
    Ok(AllotmentPlan {
        layers: chosen().map(|choice| choice.allotment).collect(),
        damage: chosen().map(|choice| choice.damage).sum(),
    })
}

/// All combinations of codecs, and the damage of each.
fn forms(curves: &DamageCurves, shape: &dyn Fn(KvForm) -> LayerShape) -> Vec<(LayerShape, f64)> {
    let mut forms = Vec::new();
    for (k, k_damage) in CODECS.iter().zip(curves.k) {
        for (v, v_damage) in CODECS.iter().zip(curves.v) {
            let (k, v) = (k.form(), v.form());
            let damage = f64::from(k_damage) + f64::from(v_damage);
            forms.push((shape(KvForm { k, v }), damage));
        }
    }
    forms
}

/// `forms` are the shapes to choose from, and the damage of each.
fn choices(
    curves: &DamageCurves,
    forms: &[(LayerShape, f64)],
    ask: &AllotmentTarget,
) -> Vec<Choice> {
    let all = ask.tokens.next_multiple_of(SLOTS).max(SLOTS);
    let floor = rows_floor(ask.zones, ask.anchors).min(all);
    let step = ((all - floor) / ROW_STEPS).next_multiple_of(SLOTS);
    let step = step.max(SLOTS) as usize;
    let mut choices = Vec::new();
    for &(shape, damage) in forms {
        // A layer with a window of its own drops rows by itself.
        let fewer = floor..shape.window.map_or(all, |_| floor);
        for rows in fewer.step_by(step).chain([all]) {
            let share = (rows as f32 / ask.tokens.max(1) as f32).min(1.0);
            let lost = f64::from(curves.rows_at(share)) * f64::from(ask.row_weight);
            let form = shape.far;
            choices.push(Choice {
                allotment: Allotment { form, rows },
                bytes: max_bytes(shape, ask.zones, rows),
                damage: damage + lost,
            });
        }
    }
    choices
}

/// Highest number of bytes of a layer while it fills the last block of `rows` rows. Its own window may begin inside a
/// block.
fn max_bytes(shape: LayerShape, zones: Zones, rows: u64) -> u64 {
    let first = match shape.window {
        Some(_) => rows.saturating_sub(SLOTS),
        None => rows,
    };
    let bytes = (first..=rows).map(|at| kv_bytes(&[shape], zones, KeptTokens::All, at));
    bytes.max().unwrap_or(0)
}

/// Minimum rows of a layer: the anchors (at least one block), the recent blocks, the one that leaves them next and the one
/// of the step. With fewer, new tokens would be evicted at once.
pub fn rows_floor(zones: Zones, anchors: u64) -> u64 {
    let anchors = anchors.clamp(1, 1 << 40).next_multiple_of(SLOTS);
    anchors + (zones.recent_blocks() + 2) * SLOTS
}

/// The lower convex hull of the choices: bytes grow, damage shrinks, and each step gains less per byte than the one before.
fn hull(mut choices: Vec<Choice>) -> Vec<Choice> {
    choices.sort_by(|a, b| {
        let by_bytes = a.bytes.cmp(&b.bytes);
        by_bytes.then(a.damage.total_cmp(&b.damage))
    });
    let mut hull: Vec<Choice> = Vec::new();
    for next in choices {
        if hull.last().is_some_and(|last| next.damage >= last.damage) {
            continue;
        }
        while let [.., a, b] = &hull[..] {
            let before = (a.damage - b.damage) * (next.bytes - b.bytes) as f64;
            let after = (b.damage - next.damage) * (b.bytes - a.bytes) as f64;
            if before > after {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

/// The name of a form in printed plans.
pub fn form_name(form: KvForm) -> String {
    let name = |form: Form| form.codec.name();
    if form.k.codec == form.v.codec {
        name(form.k).to_owned()
    } else {
        format!("k={},v={}", name(form.k), name(form.v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones() -> Zones {
        Zones {
            sinks: 4,
            recent: 64,
        }
    }

    fn shape(_: usize, form: KvForm) -> LayerShape {
        let near = |far: Form| match far.codec {
            Codec::F16 | Codec::Int8 => far,
            _ => Codec::Int8.form(),
        };
        LayerShape {
            near: KvForm {
                k: near(form.k),
                v: near(form.v),
            },
            ..LayerShape::plain(3, 64, form)
        }
    }

    fn curves(scale: f32) -> DamageCurves {
        DamageCurves {
            k: [160.0, 40.0, 10.0, 2.5, 0.1, 0.0].map(|x| x * scale),
            v: [80.0, 20.0, 5.0, 1.2, 0.05, 0.0].map(|x| x * scale),
            rows: [20.0, 60.0, 200.0, 600.0, 1500.0, 4000.0].map(|x| x * scale),
        }
    }

    fn ask(share: f64) -> AllotmentTarget {
        let full = kv_bytes(&[shape(0, KvForm::F16); 4], zones(), KeptTokens::All, 2048);
        AllotmentTarget {
            bytes: (full as f64 * share) as u64,
            tokens: 2048,
            zones: zones(),
            anchors: 32,
            row_weight: 1.0,
        }
    }

    fn bytes(plan: &[Allotment]) -> u64 {
        let of = |a: &Allotment| kv_bytes(&[shape(0, a.form)], zones(), KeptTokens::All, a.rows);
        plan.iter().map(of).sum()
    }

    #[test]
    fn plans_use_the_bytes_and_never_exceed_them() {
        let curves = [1.0, 0.1, 10.0, 1.0].map(curves);
        for share in [1.0, 0.5, 0.25, 0.125, 0.07] {
            let plan = allot(&curves, &shape, &ask(share)).unwrap().layers;
            let used = bytes(&plan);
            assert!(used <= ask(share).bytes, "{share}");
            assert!(
                used as f64 >= 0.97 * ask(share).bytes as f64,
                "{share}: {used}"
            );
            for allotment in &plan {
                assert!(allotment.rows >= rows_floor(zones(), 32));
                assert!(allotment.rows.is_multiple_of(SLOTS));
            }
        }
        let all = allot(&curves, &shape, &ask(1.1)).unwrap().layers;
        let exact = Allotment {
            form: KvForm::F16,
            rows: 2048,
        };
        assert_eq!(all, [exact; 4]);
    }

    #[test]
    fn sensitive_layers_get_more() {
        let curves = [1.0, 0.01, 100.0, 1.0].map(curves);
        let plan = allot(&curves, &shape, &ask(0.125)).unwrap().layers;
        let each: Vec<u64> = plan.iter().map(|a| bytes(&[*a])).collect();
        assert!(each[1] < each[0] && each[0] < each[2], "{each:?}");
        assert_eq!(plan, allot(&curves, &shape, &ask(0.125)).unwrap().layers);
    }

    /// With many bytes bits are given up before rows, and a higher row weight keeps more rows.
    #[test]
    fn bits_before_rows() {
        let curves = [curves(1.0); 4];
        let quarter = allot(&curves, &shape, &ask(0.25)).unwrap().layers;
        assert!(quarter.iter().all(|a| a.rows >= 1700), "{quarter:?}");
        let rows = |weight| -> u64 {
            let ask = AllotmentTarget {
                row_weight: weight,
                ..ask(0.125)
            };
            let plan = allot(&curves, &shape, &ask).unwrap().layers;
            plan.iter().map(|a| a.rows).sum()
        };
        assert!(rows(30.0) > rows(1.0));
    }

    /// With fixed codecs the total number of rows is that of an even split, and sensitive layers have more.
    #[test]
    fn rows_alone_are_allotted() {
        let curves = [1.0, 0.01, 100.0, 1.0].map(curves);
        let shapes = [shape(0, KvForm::both(Codec::Int4.form())); 4];
        let bytes = rows_bytes(&shapes, zones(), 512);
        let ask = AllotmentTarget { bytes, ..ask(1.0) };
        let plan = allot_rows(&curves, &shapes, &ask).unwrap().layers;
        assert!(plan.iter().all(|a| a.form == shapes[0].far));
        let rows: Vec<u64> = plan.iter().map(|a| a.rows).collect();
        // One of two equal layers may get the last block.
        assert!(rows[0].abs_diff(rows[3]) <= SLOTS, "{rows:?}");
        let (less, more) = (rows[0].min(rows[3]), rows[0].max(rows[3]));
        assert!(rows[1] < less && more < rows[2], "{rows:?}");
        let sum: u64 = rows.iter().sum();
        assert!((4 * 512 - 3 * SLOTS..=4 * 512).contains(&sum), "{rows:?}");
    }

    #[test]
    fn cannot_fit_names_the_smallest_plan() {
        let curves = [curves(1.0); 4];
        let error = allot(&curves, &shape, &ask(0.01)).unwrap_err();
        let min = AllotmentTarget {
            bytes: error.minimum_bytes() as u64,
            ..ask(0.01)
        };
        let plan = allot(&curves, &shape, &min).unwrap().layers;
        assert_eq!(bytes(&plan), min.bytes);
        let less = AllotmentTarget {
            bytes: min.bytes - 1,
            ..min
        };
        assert_eq!(allot(&curves, &shape, &less).unwrap_err().short_by, 1);
    }

    #[test]
    fn exact_recent_rows_leave_the_damage_of_far_rows() {
        let far = [16384.0, 4096.0, 1024.0, 64.0, 1.0, 0.0];
        let both = DamageCurves {
            k: far.map(|x| if x > 0.0 { x + 100.0 } else { x }),
            v: far,
            ..DamageCurves::default()
        };
        let exact = both.with_exact_near();
        for (found, far) in exact.k.iter().chain(&exact.v).zip(far.iter().chain(&far)) {
            assert!((found - far).abs() < 0.01, "{exact:?}");
        }
    }

    #[test]
    fn damage_grows_as_rows_shrink() {
        let curves = curves(1.0);
        let mut last = 0.0;
        for percent in (1..=100).rev() {
            let damage = curves.rows_at(percent as f32 / 100.0);
            assert!(damage >= last, "{percent}");
            last = damage;
        }
        assert_eq!(curves.rows_at(1.0), 0.0);
        let near = |a: f32, b: f32| (a / b - 1.0).abs() < 1e-4;
        assert!(
            SHARES
                .iter()
                .zip(curves.rows)
                .all(|(&s, d)| near(curves.rows_at(s), d))
        );
    }
}
