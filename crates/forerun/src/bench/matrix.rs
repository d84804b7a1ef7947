//! What `forerun bench exact` compares: every setting of every request, or a sample that touches all of them.

use forerun_engine::{Depth, DrafterKind};

use crate::drafter_list::Asked;

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
    pub(super) drafters: Asked,
    pub(super) depth: Depth,
}

/// Drafters that run a model and are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Models {
    pub(super) mtp: bool,
    pub(super) dflash: bool,
}

/// The comparisons of `prompts` prompts.
pub(super) fn comparisons(prompts: usize, models: Models, full: bool) -> Vec<Comparison> {
    let settings = settings(models);
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

fn settings(models: Models) -> Vec<Setting> {
    use DrafterKind::{Dflash, Lookup, Mtp, Prediction};
    let lists: [&[DrafterKind]; 6] =
        [&[Mtp], &[Lookup], &[Prediction], &[Lookup, Mtp], &[Prediction, Mtp], &[Dflash]];
    let there = |kind: &DrafterKind| match kind {
        Mtp => models.mtp,
        Dflash => models.dflash,
        _ => true,
    };
    let mut drafters: Vec<Asked> =
        lists.into_iter().filter(|kinds| kinds.iter().all(there)).map(Asked::in_order).collect();
    let all: Vec<DrafterKind> = [Lookup, Mtp, Dflash].into_iter().filter(there).collect();
    if models.dflash {
        drafters.push(Asked::best_of(&all));
    }
    let depths: Vec<Depth> = DEPTHS.map(Depth::Fixed).chain([Depth::Auto]).collect();
    drafters
        .into_iter()
        .flat_map(|drafters| {
            depths
                .iter()
                .map(move |depth| Setting { drafters: drafters.clone(), depth: *depth })
                .collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTP: Models = Models { mtp: true, dflash: false };
    const NONE: Models = Models { mtp: false, dflash: false };
    const BOTH: Models = Models { mtp: true, dflash: true };

    #[test]
    fn the_full_matrix_is_complete() {
        let all = comparisons(40, MTP, true);
        assert_eq!(all.len(), 40 * 3);
        assert!(all.iter().all(|c| c.settings.len() == 9 * 5));
        assert_eq!(comparisons(2, NONE, true)[0].settings.len(), 9 * 2);
        assert_eq!(comparisons(2, BOTH, true)[0].settings.len(), 9 * 7);
    }

    #[test]
    fn the_sample_touches_every_setting_and_temperature() {
        let sample = comparisons(40, MTP, false);
        let count: usize = sample.iter().map(|c| c.settings.len()).sum();
        assert!((90..120).contains(&count), "{count}");
        let drawn: Vec<&Setting> = sample.iter().flat_map(|c| &c.settings).collect();
        assert!(settings(MTP).iter().all(|s| drawn.contains(&s)));
        assert!(TEMPERATURES.iter().all(|t| sample.iter().any(|c| c.temperature == *t)));
        assert!(!comparisons(1, NONE, false).is_empty());
    }
}
