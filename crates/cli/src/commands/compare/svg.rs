//! Drawings for the report: lines over shares of bytes, and maps of what was kept.
//!
//! Plain SVG text without scripts. Colours of text and axes are those of the page (`currentColor`), colours of
//! lines are classes that the page's style sheet sets for light and dark.

use std::fmt::Write;

/// One line of a plot.
pub struct Series {
    pub name: String,
    /// The same line has the same colour in all plots.
    pub colour: usize,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy)]
pub struct Point {
    /// A share of bytes, above 0.
    pub x: f64,
    pub y: f64,
    pub interval: Option<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    Log,
    Linear,
}

/// Different colours; more lines than this share them.
pub const COLOURS: usize = 8;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

/// From a value to a place between 0 and 1.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, scale: Scale) -> Axis {
        let usable = |v: &f64| v.is_finite() && (scale == Scale::Linear || *v > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.1, 1.0);
        }
        match scale {
            Scale::Log => (low, high) = (low / 1.25, high * 1.25),
            Scale::Linear => {
                let room = ((high - low) * 0.06).max(1e-3);
                (low, high) = (low - room, high + room);
            }
        }
        Axis { scale, low, high }
    }

    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Linear => (value - self.low) / (self.high - self.low),
        };
        // What a logarithm has no place for lies at the edge.
        match place.is_nan() {
            true => 0.0,
            false => place.clamp(0.0, 1.0),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        match self.scale {
            Scale::Log => {
                let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
                let few = decades.clone().count() > 4;
                let parts = if few { &[1.0][..] } else { &[1.0, 2.0, 5.0] };
                for decade in decades {
                    ticks.extend(parts.iter().map(|part| part * 10f64.powi(decade)));
                }
            }
            Scale::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let decade = 10f64.powf(rough.log10().floor());
                let parts = [1.0, 2.0, 5.0, 10.0];
                let part = parts.into_iter().find(|part| part * decade >= rough);
                let step = part.unwrap_or(10.0) * decade;
                let first = (self.low / step).ceil();
                ticks.extend((0..12).map(|i| (first + f64::from(i)) * step));
            }
        }
        ticks.retain(|tick| (self.low..=self.high).contains(tick));
        ticks
    }
}

/// Shares of bytes that people ask for.
const SHARES: [f64; 8] = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125];

/// `y` over shares of bytes, which run on a logarithmic axis.
pub fn plot(title: &str, y_label: &str, series: &[Series], y_scale: Scale) -> String {
    let points = || series.iter().flat_map(|line| &line.points);
    let x = Axis::over(points().map(|p| p.x), Scale::Log);
    // Intervals that reach 0 have no place on a logarithm; values give the range there.
    let ends = points().flat_map(|p| match (p.interval, y_scale) {
        (Some((low, high)), Scale::Linear) => vec![p.y, low, high],
        (Some((_, high)), Scale::Log) => vec![p.y, high],
        _ => vec![p.y],
    });
    let y = Axis::over(ends, y_scale);
    let at_x = |value: f64| LEFT + x.place(value) * (WIDTH - LEFT - RIGHT);
    let at_y = |value: f64| HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM);

    let mut svg = String::new();
    let mut draw = |text: String| svg.push_str(&text);
    draw(format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text class=\"title\" x=\"{LEFT}\" y=\"18\">{0}</text>",
        escape(title)
    ));
    for tick in SHARES.into_iter().filter(|s| (x.low..=x.high).contains(s)) {
        let at = at_x(tick);
        draw(format!(
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{0:.1}\"/><text x=\"{at:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2} %</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            short(tick * 100.0)
        ));
    }
    for tick in y.ticks() {
        let at = at_y(tick);
        draw(format!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{0:.1}\" y2=\"{at:.1}\"/><text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        ));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    draw(format!(
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">bytes, of a full f16 cache</text>",
        HEIGHT - 10.0
    ));
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    draw(format!(
        "<text transform=\"rotate(-90 14 {middle:.1})\" x=\"14\" y=\"{middle:.1}\" text-anchor=\"middle\">{}</text>",
        escape(y_label)
    ));
    for (i, line) in series.iter().enumerate() {
        let class = format!("s{}", line.colour % COLOURS);
        let is_dashed = line.colour >= COLOURS;
        let dashed = if is_dashed { " dashed" } else { "" };
        let mut points = line.points.clone();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let place = |point: &Point| format!("{:.1},{:.1}", at_x(point.x), at_y(point.y));
        let path = points.iter().map(place).collect::<Vec<_>>().join(" ");
        draw(format!(
            "<polyline class=\"line {class}{dashed}\" points=\"{path}\"/>"
        ));
        for point in &points {
            let (cx, cy) = (at_x(point.x), at_y(point.y));
            if let Some((low, high)) = point.interval {
                draw(format!(
                    "<line class=\"line thin {class}\" x1=\"{cx:.1}\" y1=\"{:.1}\" x2=\"{cx:.1}\" y2=\"{:.1}\"/>",
                    at_y(low),
                    at_y(high)
                ));
            }
            draw(format!(
                "<circle class=\"dot {class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\"><title>{}: {} at {} %</title></circle>",
                escape(&line.name),
                short(point.y),
                short(point.x * 100.0)
            ));
        }
        let at = TOP + 8.0 + 18.0 * i as f64;
        let from = WIDTH - RIGHT + 14.0;
        draw(format!(
            "<line class=\"line {class}{dashed}\" x1=\"{from}\" y1=\"{at}\" x2=\"{0}\" y2=\"{at}\"/><text x=\"{1}\" y=\"{2}\">{3}</text>",
            from + 18.0,
            from + 24.0,
            at + 4.0,
            escape(&line.name)
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Cells of a map of what was kept.
const CELL_WIDTH: usize = 5;
const CELL_HEIGHT: usize = 5;

/// (layer, bucket of positions): how much of it is kept, of 255. The first layer is on top, the first
/// position left.
pub fn heat(title: &str, kept: &[Vec<u8>]) -> String {
    const HEAD: usize = 16;
    let columns = kept.iter().map(Vec::len).max().unwrap_or(0);
    let (width, height) = (columns * CELL_WIDTH, kept.len() * CELL_HEIGHT);
    let mut svg = format!(
        "<svg class=\"heat\" viewBox=\"0 0 {width} {0}\" role=\"img\" aria-label=\"{1}\"><text class=\"title\" x=\"0\" y=\"11\">{1}</text><rect class=\"gone\" x=\"0\" y=\"{HEAD}\" width=\"{width}\" height=\"{height}\"/>",
        height + HEAD,
        escape(title)
    );
    for (layer, cells) in kept.iter().enumerate() {
        let y = HEAD + layer * CELL_HEIGHT;
        let mut from = 0;
        // Runs of one shade are one rectangle.
        for run in cells.chunk_by(|a, b| shade(*a) == shade(*b)) {
            let shade = shade(run[0]);
            if shade > 0 {
                let _ = write!(
                    svg,
                    "<rect class=\"kept\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{CELL_HEIGHT}\" opacity=\"{:.1}\"/>",
                    from * CELL_WIDTH,
                    run.len() * CELL_WIDTH,
                    f64::from(shade) / 10.0
                );
            }
            from += run.len();
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Tenths; a single row of a bucket can be seen.
fn shade(kept: u8) -> u8 {
    (u32::from(kept) * 10).div_ceil(255) as u8
}

/// A number as short as it can be read.
pub fn short(value: f64) -> String {
    let text = match value.abs() {
        0.0 => return "0".into(),
        a if a >= 100.0 => format!("{value:.0}"),
        a if a >= 1.0 => format!("{value:.2}"),
        a if a >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    };
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

pub fn escape(text: &str) -> String {
    let text = text.replace(char::is_control, " ").replace('&', "&amp;");
    let text = text.replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_a_place_for_everything() {
        let axis = Axis::over([0.01, 0.1, 1.0].into_iter(), Scale::Log);
        let places: Vec<f64> = [0.01, 0.1, 1.0].map(|v| axis.place(v)).to_vec();
        assert!(places.is_sorted() && places[0] > 0.0 && places[2] < 1.0);
        assert!((places[1] - 0.5).abs() < 1e-9);
        assert_eq!((axis.place(0.0), axis.place(f64::NAN)), (0.0, 0.0));
        assert!(axis.ticks().contains(&0.1));
        let flat = Axis::over([3.0, 3.0].into_iter(), Scale::Linear);
        assert!(flat.place(3.0).is_finite() && flat.ticks().len() < 13);
        let none = Axis::over(std::iter::empty(), Scale::Log);
        assert!(none.place(1.0).is_finite());
    }

    #[test]
    fn short_numbers() {
        for (value, text) in [
            (0.0, "0"),
            (12.5, "12.5"),
            (100.0, "100"),
            (0.0021, "0.0021"),
            (0.00021, "2.1e-4"),
            (-3.0, "-3"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(escape("<a&\"b\">\n"), "&lt;a&amp;&quot;b&quot;&gt; ");
        assert_eq!((shade(0), shade(1), shade(255)), (0, 1, 10));
    }
}
