//! How hot the device is, from Linux's thermal zones and the temperatures at which they act.
//!
//! | | zone with a passive trip point (it slows down there) | zone that only switches off |
//! |---|---|---|
//! | fair | 10 °C below | 30 °C below |
//! | serious | there | 20 °C below |
//! | critical | 5 °C below the one at which it switches off | the same |
//!
//! The hottest zone counts. A zone without trip points is ignored: a battery's 40 °C and a core's 90 °C are
//! both usual. Android and iOS report the state itself; the caller passes it in.

use std::fs;
use std::path::{Path, PathBuf};

/// How hot the device is. Android's and iOS's states map to these one to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thermal {
    #[default]
    Nominal,
    Fair,
    Serious,
    Critical,
}

impl Thermal {
    pub const ALL: [Thermal; 4] = [
        Thermal::Nominal,
        Thermal::Fair,
        Thermal::Serious,
        Thermal::Critical,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Thermal::Nominal => "nominal",
            Thermal::Fair => "fair",
            Thermal::Serious => "serious",
            Thermal::Critical => "critical",
        }
    }
}

/// A zone and its trip points, in thousandths of a degree Celsius.
#[derive(Debug)]
struct Zone {
    temperature: PathBuf,
    passive: Option<i64>,
    off: Option<i64>,
}

/// The zones that have trip points.
#[derive(Debug)]
pub struct ThermalZones(Vec<Zone>);

/// More zones, and more trip points in one, than any device has.
const ENTRIES_MAX: usize = 64;

impl ThermalZones {
    /// The zones of this system; there may be none.
    pub fn open() -> ThermalZones {
        ThermalZones::under(Path::new("/sys/class/thermal"))
    }

    fn under(dir: &Path) -> ThermalZones {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let is_zone = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("thermal_zone"))
        };
        let zones = entries.map(|entry| entry.path()).filter(is_zone);
        ThermalZones(
            zones
                .take(ENTRIES_MAX)
                .filter_map(|path| zone(&path))
                .collect(),
        )
    }

    /// The state of the hottest zone; `None` without a readable one.
    pub fn now(&self) -> Option<Thermal> {
        let heat = |zone: &Zone| Some(heat(number(&zone.temperature)?, zone.passive, zone.off));
        self.0.iter().filter_map(heat).max()
    }
}

fn zone(path: &Path) -> Option<Zone> {
    let (mut passive, mut off) = (None::<i64>, None::<i64>);
    for i in 0..ENTRIES_MAX {
        let Ok(kind) = fs::read_to_string(path.join(format!("trip_point_{i}_type"))) else {
            break;
        };
        // ThermalZones have places that are not set: zero, or far below.
        let at = number(&path.join(format!("trip_point_{i}_temp"))).filter(|&at| at > 0);
        let lowest = match kind.trim() {
            "passive" => &mut passive,
            "hot" | "critical" => &mut off,
            _ => continue,
        };
        *lowest = (*lowest).into_iter().chain(at).min();
    }
    (passive.is_some() || off.is_some()).then(|| Zone {
        temperature: path.join("temp"),
        passive,
        off,
    })
}

fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn heat(at: i64, passive: Option<i64>, off: Option<i64>) -> Thermal {
    const DEGREE: i64 = 1000;
    let from = |border: Option<i64>, below: i64| {
        border.is_some_and(|border| at >= border.saturating_sub(below * DEGREE))
    };
    let (fair, serious) = match passive {
        Some(_) => (from(passive, 10), from(passive, 0)),
        None => (from(off, 30), from(off, 20)),
    };
    if from(off, 5) {
        Thermal::Critical
    } else if serious {
        Thermal::Serious
    } else if fair {
        Thermal::Fair
    } else {
        Thermal::Nominal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Thermal::{Critical, Fair, Nominal, Serious};

    #[test]
    fn borders() {
        let of = |degrees: i64, passive: Option<i64>, off: Option<i64>| {
            let thousand = |t: i64| t * 1000;
            heat(thousand(degrees), passive.map(thousand), off.map(thousand))
        };
        let both = [
            (69, Nominal),
            (70, Fair),
            (79, Fair),
            (80, Serious),
            (94, Serious),
            (95, Critical),
        ];
        for (degrees, expected) in both {
            assert_eq!(of(degrees, Some(80), Some(100)), expected, "{degrees}");
        }
        let off = [(69, Nominal), (70, Fair), (80, Serious), (95, Critical)];
        for (degrees, expected) in off {
            assert_eq!(of(degrees, None, Some(100)), expected, "{degrees}");
        }
        assert_eq!(of(200, Some(80), None), Serious);
        assert_eq!(heat(i64::MAX, Some(i64::MIN), Some(i64::MIN)), Critical);
    }

    #[test]
    fn the_hottest_zone_that_says_something() {
        let dir = tempfile::tempdir().unwrap();
        let write = |zone: &str, files: &[(&str, &str)]| {
            let path = dir.path().join(zone);
            fs::create_dir(&path).unwrap();
            for (name, text) in files {
                fs::write(path.join(name), text).unwrap();
            }
        };
        assert_eq!(ThermalZones::under(dir.path()).now(), None);
        assert_eq!(ThermalZones::under(&dir.path().join("nothing")).now(), None);
        write(
            "thermal_zone0",
            &[("temp", "99000\n"), ("type", "battery\n")],
        );
        write("cooling_device0", &[("temp", "99000\n")]);
        assert_eq!(ThermalZones::under(dir.path()).now(), None);
        write(
            "thermal_zone1",
            &[
                ("temp", "71500\n"),
                ("trip_point_0_type", "critical\n"),
                ("trip_point_0_temp", "105000\n"),
                ("trip_point_1_type", "passive\n"),
                ("trip_point_1_temp", "80000\n"),
                ("trip_point_2_type", "passive\n"),
                ("trip_point_2_temp", "-274000\n"),
            ],
        );
        let zones = ThermalZones::under(dir.path());
        assert_eq!(zones.now(), Some(Fair));
        let temperature = dir.path().join("thermal_zone1/temp");
        fs::write(&temperature, "100000").unwrap();
        assert_eq!(zones.now(), Some(Critical));
        fs::write(&temperature, "warm").unwrap();
        assert_eq!(zones.now(), None);
    }
}
