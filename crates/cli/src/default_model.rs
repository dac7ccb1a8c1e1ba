//! Which model is meant where none is named: the best of the catalogue that suits this device. The choice is made once and
//! remembered in the home folder; `pull NAME --default` makes another.

use crate::fit::{Device, DeviceFit, conversation_bytes};
use crate::machine::{ram_bytes, read_bandwidth, threads_of_machine};
use crate::out;
use anyhow::{Context, Result, anyhow};
use haversack::memory::bytes::human;
use haversack_hub::catalogue::{Catalogue, CatalogueModel, catalogue};
use haversack_hub::default_model::DefaultModel;
use haversack_hub::fetch::free_bytes;
use haversack_hub::home::Home;
use haversack_hub::installed::is_here;
use std::cell::LazyCell;

/// A user who did not ask for it waits for no larger download.
const DOWNLOAD_BYTES_MAX: u64 = 1_500_000_000;
/// Slower than this, an answer is not read but waited for.
const TOKENS_PER_SECOND_MIN: f64 = 10.0;
/// Of the bandwidth, what decoding is counted on to reach: 0.62 to 0.87 was measured (docs/measured/speed.md).
const DECODE_SHARE: f64 = 0.7;
/// Larger than the caches of small machines.
const BUFFER_BYTES: usize = 128 << 20;
/// A packed copy is at most this share of its GGUF file: Q3_K is the type that grows most.
const PACKED_PERCENT_MAX: u64 = 106;

/// What the choice depends on.
#[derive(Clone, Copy)]
struct Facts<'a> {
    ram_bytes: u64,
    /// Where models go.
    free_bytes: Option<u64>,
    /// Asked only where memory and disk have room: measuring takes both time and memory.
    read_bytes_per_second: &'a dyn Fn() -> f64,
    threads: usize,
}

/// Bytes free where models go.
pub fn free_bytes_of(home: &Home) -> Option<u64> {
    free_bytes(&home.models_disk())
}

/// Bytes of the packed copy of a file of this size, at most.
pub fn packed_bytes_max(bytes: u64) -> u64 {
    (bytes / 100).saturating_mul(PACKED_PERCENT_MAX)
}

/// The model that was remembered, or the one that would be chosen now. Remembers nothing.
pub fn current(home: &Home) -> Result<DefaultModel> {
    DefaultModel::read(home).map_or_else(|| suited(home), Ok)
}

/// The model that suits this device.
fn suited(home: &Home) -> Result<DefaultModel> {
    let threads = threads_of_machine();
    let bandwidth = LazyCell::new(|| read_bandwidth(threads, BUFFER_BYTES));
    let facts = Facts {
        ram_bytes: ram_bytes(),
        free_bytes: free_bytes_of(home),
        read_bytes_per_second: &|| *bandwidth,
        threads,
    };
    choose(catalogue(), facts, &|model| is_here(home, model))
}

/// [`current`]; a choice that was made just now is explained, and to be remembered once the model is here.
pub fn chosen(home: &Home) -> Result<(DefaultModel, bool)> {
    if let Some(remembered) = DefaultModel::read(home) {
        return Ok((remembered, false));
    }
    let choice = suited(home)?;
    let DefaultModel { model, why } = &choice;
    let size = catalogue().find(model).map_or(0, CatalogueModel::bytes);
    out::note(&format!(
        "using {model} ({}): {why}; haversack models lists others, haversack pull NAME --default chooses one",
        human(size)
    ));
    Ok((choice, true))
}

/// The error of a choice that could not be fetched, with what can be done about it.
pub fn with_way_out(error: anyhow::Error, choice: &DefaultModel) -> anyhow::Error {
    let smallest = catalogue().defaults().last();
    match smallest.filter(|smallest| smallest.name != choice.model) {
        Some(smallest) => anyhow!(
            "{error:#}; haversack pull tiny --default takes the smallest model instead ({})",
            human(smallest.bytes())
        ),
        None => error,
    }
}

fn choose(
    catalogue: &Catalogue,
    facts: Facts<'_>,
    is_here: &dyn Fn(&CatalogueModel) -> bool,
) -> Result<DefaultModel> {
    let mut best_unfit = None;
    for model in catalogue.defaults() {
        let Some(why_not) = unfit(model, facts, is_here(model)) else {
            let speed = tokens_per_second(model, facts);
            let why = format!(
                "the best model for this device ({} of memory, about {speed:.0} tokens/s)",
                human(facts.ram_bytes)
            );
            return Ok(named(model, why));
        };
        best_unfit.get_or_insert_with(|| format!("{} {why_not}", model.name));
    }
    let smallest = catalogue.defaults().last();
    let smallest = smallest.context("the catalogue has no default model")?;
    let why = format!(
        "the smallest model, because {}",
        best_unfit.unwrap_or_default()
    );
    Ok(named(smallest, why))
}

fn named(model: &CatalogueModel, why: String) -> DefaultModel {
    let model = model.name.clone();
    DefaultModel { model, why }
}

/// Why a model does not suit the device; `None` if it does.
fn unfit(model: &CatalogueModel, facts: Facts<'_>, is_here: bool) -> Option<String> {
    let bytes = model.bytes();
    let Some(conversation) = conversation_bytes(model, facts.threads) else {
        return Some("is not for this engine".into());
    };
    let device = Device::of(facts.ram_bytes);
    if device.verdict(bytes, conversation) != DeviceFit::Fits {
        let (needed, app) = (human(bytes + conversation), human(device.app_bytes()));
        return Some(format!(
            "needs {needed} of memory and a program here may take {app}"
        ));
    }
    if !is_here && bytes > DOWNLOAD_BYTES_MAX {
        return Some(format!("is a download of {}", human(bytes)));
    }
    let disk = bytes + packed_bytes_max(bytes);
    if let Some(free) = facts.free_bytes.filter(|&free| !is_here && free < disk) {
        let (disk, free) = (human(disk), human(free));
        return Some(format!(
            "needs {disk} of disk with its packed copy and {free} are free"
        ));
    }
    let speed = tokens_per_second(model, facts);
    (speed < TOKENS_PER_SECOND_MIN)
        .then(|| format!("would answer with {speed:.1} tokens/s on this device"))
}

/// Every token reads every weight once.
fn tokens_per_second(model: &CatalogueModel, facts: Facts<'_>) -> f64 {
    (facts.read_bytes_per_second)() * DECODE_SHARE / model.bytes() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAPTOP: Facts<'_> = Facts {
        ram_bytes: 16 << 30,
        free_bytes: Some(100 << 30),
        read_bytes_per_second: &|| 30e9,
        threads: 4,
    };

    fn chosen(facts: Facts<'_>) -> DefaultModel {
        choose(catalogue(), facts, &|_| false).unwrap()
    }

    #[test]
    fn the_best_model_that_suits_the_device() {
        let choice = chosen(LAPTOP);
        assert_eq!(choice.model, "qwen2.5-coder-1.5b-instruct");
        let words = "16.0 GiB of memory, about 19 tokens/s";
        assert!(choice.why.contains(words), "{}", choice.why);

        // Each of the limits alone.
        let small = Facts {
            ram_bytes: 2 << 30,
            ..LAPTOP
        };
        assert_eq!(chosen(small).model, "qwen2.5-0.5b-instruct");
        let slow = Facts {
            read_bytes_per_second: &|| 9e9,
            ..LAPTOP
        };
        assert_eq!(chosen(slow).model, "qwen2.5-0.5b-instruct");
        let full = Facts {
            free_bytes: Some(2 << 30),
            ..LAPTOP
        };
        assert_eq!(chosen(full).model, "qwen2.5-0.5b-instruct");
        let here = choose(catalogue(), full, &|_| true).unwrap();
        let needs_no_disk = "qwen2.5-coder-1.5b-instruct";
        assert_eq!(here.model, needs_no_disk);
        let unknown = Facts {
            free_bytes: None,
            ..LAPTOP
        };
        assert_eq!(chosen(unknown).model, needs_no_disk);
    }

    #[test]
    fn the_smallest_model_where_none_suits_and_why() {
        let nothing = Facts {
            ram_bytes: 0,
            free_bytes: Some(0),
            read_bytes_per_second: &|| panic!("there is no memory to measure with"),
            threads: 1,
        };
        let choice = chosen(nothing);
        assert_eq!(choice.model, "smollm2-135m-instruct");
        let words = "qwen2.5-coder-1.5b-instruct needs";
        assert!(choice.why.contains(words), "{}", choice.why);
        let slow = chosen(Facts {
            read_bytes_per_second: &|| 1e9,
            ..LAPTOP
        });
        assert!(slow.why.contains("0.6 tokens/s"), "{}", slow.why);
    }
}
