//! What `forerun bench exact` compares: every setting of every request, or a sample that touches all of them.

use forerun_engine::{Depth, DrafterKind};

use super::args::Drafters;

/// Temperatures: the arg max, and noise that is small or large beside the logits.
const TEMPERATURES: [f32; 3] = [0.0, 0.6, 1.0];
/// Fixed depths.
const DEPTHS: std::ops::RangeInclusive<usize> = 1..=8;
/// Without `--full`: every so many prompts, and of their settings every so many. The second has no factor in common with
/// the number of depths, so that every depth and every drafter comes up.
const SAMPLE: (usize, usize) = (7, 8);

/// A request that is decoded plainly once, and the settings it is compared under.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    /// Index of the prompt.
    pub(super) prompt: usize,
    pub(super) temperature: f32,
    pub(super) settings: Vec<Setting>,
}

/// How a request is drafted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) drafters: Drafters,
    pub(super) depth: Depth,
}

/// The comparisons of `prompts` prompts, with or without drafters that need an MTP block.
pub(super) fn comparisons(prompts: usize, mtp: bool, full: bool) -> Vec<Comparison> {
    let settings = settings(mtp);
    let (prompt_step, setting_step) = if full { (1, 1) } else { SAMPLE };
    let requests = (0..prompts)
        .step_by(prompt_step)
        .flat_map(|prompt| TEMPERATURES.map(|temperature| (prompt, temperature)));
    let compare = |(index, (prompt, temperature)): (usize, (usize, f32))| {
        let settings = settings.iter().skip(index % setting_step).step_by(setting_step).cloned().collect();
        Comparison { prompt, temperature, settings }
    };
    requests.enumerate().map(compare).collect()
}

fn settings(mtp: bool) -> Vec<Setting> {
    use DrafterKind::{Lookup, Mtp, Prediction};
    let drafters: [&[DrafterKind]; 5] =
        [&[Mtp], &[Lookup], &[Prediction], &[Lookup, Mtp], &[Prediction, Mtp]];
    let depths: Vec<Depth> = DEPTHS.map(Depth::Fixed).chain([Depth::Auto]).collect();
    let there = drafters.into_iter().filter(|kinds| mtp || !kinds.contains(&Mtp));
    there
        .flat_map(|kinds| {
            depths.iter().map(|depth| Setting { drafters: Drafters(kinds.to_vec()), depth: *depth })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_matrix_is_complete() {
        let all = comparisons(40, true, true);
        assert_eq!(all.len(), 40 * 3);
        assert!(all.iter().all(|c| c.settings.len() == 9 * 5));
        assert_eq!(comparisons(2, false, true)[0].settings.len(), 9 * 2);
    }

    #[test]
    fn the_sample_touches_every_setting_and_temperature() {
        let sample = comparisons(40, true, false);
        let count: usize = sample.iter().map(|c| c.settings.len()).sum();
        assert!((90..120).contains(&count), "{count}");
        let drawn: Vec<&Setting> = sample.iter().flat_map(|c| &c.settings).collect();
        assert!(settings(true).iter().all(|s| drawn.contains(&s)));
        assert!(TEMPERATURES.iter().all(|t| sample.iter().any(|c| c.temperature == *t)));
        assert!(!comparisons(1, false, false).is_empty());
    }
}
