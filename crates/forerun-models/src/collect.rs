//! What the products of a model read, added up while texts run through it: the raw material of importance matrices.

use std::sync::Arc;

use forerun_tensor::{Backend, Collection, Plan, Sums, SumsId, SumsSpec};

use crate::captures::Taps;
use crate::error::Result;
use crate::model::{Model, StepShape};
use crate::mtp::MtpStep;

/// What a model collects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collecting {
    /// Where plans add up.
    pub(crate) collection: Arc<Collection>,
    /// Tensors whose inputs are added up, and where.
    tensors: Vec<(String, SumsId, SumsSpec)>,
}

/// What the products of a tensor have read.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// Name of the tensor in the model's file.
    pub name: String,
    /// Columns of its input.
    pub cols: usize,
    /// Sums of squares, of each expert by itself.
    pub sums: Sums,
}

impl Model {
    /// Plans that are recorded from now on add up the squares of what the products of the layers read, those of the MTP
    /// block included where one is loaded; with `heads` also what the heads read. What other plans run is not collected.
    /// Weights that share an input share sums.
    ///
    /// # Errors
    /// When memory is short.
    pub fn collect(&mut self, backend: &mut dyn Backend, heads: bool) -> Result<()> {
        self.collecting = Collecting::default();
        let mut found = Collecting::default();
        let mut collection = Collection::default();
        for group in self.plans_of_products(heads)?.iter().flat_map(Plan::ops).flat_map(|op| op.products()) {
            let named = group.iter().filter_map(|id| self.names.iter().find(|(w, _)| w.id == *id));
            let wanted: Vec<_> = named.filter(|(_, name)| is_collected(name, heads)).collect();
            let Some((first, _)) = wanted.first() else { continue };
            let spec = SumsSpec { matrices: first.experts, cols: first.cols };
            let sums = backend.new_sums(&spec)?;
            for (weight, name) in wanted {
                collection.insert(weight.id, sums, spec);
                // Parts of a fused tensor read the same rows, which count once.
                if !found.tensors.iter().any(|(known, ..)| known == name) {
                    found.tensors.push((name.clone(), sums, spec));
                }
            }
        }
        found.collection = Arc::new(collection);
        self.collecting = found;
        Ok(())
    }

    /// A plan of the model and one of its MTP block, with all products that may be collected.
    fn plans_of_products(&self, heads: bool) -> Result<Vec<Plan>> {
        let mut plans = vec![self.record(&StepShape { max_rows: 1, max_out: 1, taps: Taps::default() })?];
        if self.mtp().is_some() {
            plans.push(self.record_mtp(1, 1, self.mtp_through(heads))?);
        }
        Ok(plans)
    }

    /// The step that runs every pair through the MTP block; with `heads` through the block's own head too.
    #[must_use]
    pub fn mtp_through(&self, heads: bool) -> MtpStep {
        let own_head = self.mtp().is_some_and(|block| block.shared_head_head.is_some());
        if heads && own_head { MtpStep::Chain } else { MtpStep::Through }
    }

    /// What was collected so far, in the order of the model.
    ///
    /// # Errors
    /// When the device failed.
    pub fn collected(&self, backend: &mut dyn Backend) -> Result<Vec<Collected>> {
        let fetch = |(name, sums, spec): &(String, SumsId, SumsSpec)| {
            Ok(Collected { name: name.clone(), cols: spec.cols, sums: backend.sums(*sums)? })
        };
        self.collecting.tensors.iter().map(fetch).collect()
    }
}

/// Whether the input of a tensor's products is collected: those of the layers, and of the heads where they are asked for.
fn is_collected(name: &str, heads: bool) -> bool {
    let head = name == "output.weight" || name.ends_with(".shared_head_head.weight");
    if head { heads } else { name.starts_with("blk.") }
}
