//! Recording a plan: one method per operator, which checks that the operands' shapes agree, so that no backend has to.

mod handles;

use std::sync::Arc;

use crate::backend::WeightId;
use crate::error::{Result, TensorError};
use crate::liveness::share;
use crate::plan::{
    Act, ActSpec, Activation, AttentionOp, AttentionShape, DeltaNetOp, ExpertSums, ExpertsOp, Factor, Gate,
    Ids, Op, Picks, Plan, Product, RopeId, RopeKvOp, RopeSpec, RouteOp, RouterKind, Routes, RowSet, TokenMap,
};
use crate::sums::Collection;

pub use handles::{Kv, Ring, Scale, State, Weight};

/// Records a [`Plan`].
#[derive(Debug)]
pub struct PlanBuilder {
    plan: Plan,
    collection: Arc<Collection>,
}

fn check(op: &'static str, ok: bool, message: impl FnOnce() -> String) -> Result<()> {
    if ok { Ok(()) } else { Err(TensorError::Plan { op, message: message() }) }
}

impl PlanBuilder {
    /// A plan for steps of up to `max_rows` rows, up to `max_out` of them with output.
    #[must_use]
    pub fn new(max_rows: usize, max_out: usize) -> Self {
        Self {
            plan: Plan {
                ops: Vec::new(),
                acts: Vec::new(),
                routes: Vec::new(),
                ropes: Vec::new(),
                maps: Vec::new(),
                picks: 0,
                taps: 0,
                max_rows,
                max_out,
            },
            collection: Arc::default(),
        }
    }

    /// The products recorded from now on add up the squares of what they read, for the weights of the collection.
    #[must_use]
    pub fn collecting(self, collection: Arc<Collection>) -> Self {
        Self { collection, ..self }
    }

    /// The one hook of collecting: every product passes here with the weights that read `x`.
    fn collect(&mut self, op: &'static str, x: Act, weights: &[&Weight]) -> Result<()> {
        let sums = self.collection.sums_of(op, weights)?;
        self.plan.ops.extend(sums.into_iter().map(|sums| Op::Collect { x, sums }));
        Ok(())
    }

    /// The finished plan. Activation buffers whose lives do not overlap are one in it, so the handles that this builder
    /// gave out name nothing there.
    #[must_use]
    pub fn finish(mut self) -> Plan {
        share(&mut self.plan);
        self.plan
    }

    /// The plan as recorded, every buffer by itself.
    #[cfg(test)]
    pub(crate) fn finish_unshared(self) -> Plan {
        self.plan
    }

    /// A new activation buffer.
    pub fn act(&mut self, rows: RowSet, cols: usize) -> Act {
        self.plan.acts.push(ActSpec { rows, cols });
        Act(self.plan.acts.len() as u32 - 1)
    }

    /// Declares a rotary embedding.
    pub fn rope(&mut self, spec: RopeSpec) -> RopeId {
        self.plan.ropes.push(spec);
        RopeId(self.plan.ropes.len() as u32 - 1)
    }

    fn cols(&self, act: Act) -> usize {
        self.plan.act(act).cols
    }

    fn same_shape(&self, op: &'static str, a: Act, b: Act) -> Result<()> {
        let (a, b) = (self.plan.act(a), self.plan.act(b));
        check(op, a == b, || format!("buffers of different shape: {a:?} and {b:?}"))
    }

    fn has_cols(&self, op: &'static str, what: &str, act: Act, cols: usize) -> Result<()> {
        let found = self.cols(act);
        check(op, found == cols, || format!("{what} has {found} columns, expected {cols}"))
    }

    fn same_rows(&self, op: &'static str, what: &str, act: Act, like: Act) -> Result<()> {
        let (found, expected) = (self.plan.act(act).rows, self.plan.act(like).rows);
        check(op, found == expected, || format!("{what} has {found:?} rows, expected {expected:?} rows"))
    }

    fn step_rows(&self, op: &'static str, what: &str, act: Act) -> Result<()> {
        let found = self.plan.act(act).rows;
        check(op, found == RowSet::Step, || {
            format!("{what} has {found:?} rows, expected every row of the step")
        })
    }

    fn heads(op: &'static str, s: &AttentionShape) -> Result<()> {
        check(op, s.kv_heads > 0 && s.heads > 0 && s.heads.is_multiple_of(s.kv_heads), || {
            format!("{} query heads for {} KV heads", s.heads, s.kv_heads)
        })?;
        check(op, s.key_dim > 0 && s.value_dim > 0 && s.q_stride >= s.key_dim, || {
            format!("heads of {}/{} elements, {} apart", s.key_dim, s.value_dim, s.q_stride)
        })
    }

    fn vector(op: &'static str, what: &str, w: &Weight, len: usize) -> Result<WeightId> {
        check(op, w.rows * w.cols * w.experts == len, || {
            format!("{what} has {} elements, expected {len}", w.rows * w.cols * w.experts)
        })?;
        Ok(w.id)
    }

    fn like(&mut self, x: Act, cols: usize) -> Act {
        let rows = self.plan.act(x).rows;
        self.act(rows, cols)
    }

    /// [`Op::Embed`].
    ///
    /// # Errors
    /// When the table is a stack of matrices, or lacks a token that may be chosen.
    pub fn embed(&mut self, table: &Weight, ids: Ids, scale: f32) -> Result<Act> {
        const OP: &str = "embed";
        check(OP, table.experts == 1, || "the table is a stack of matrices".into())?;
        if let Ids::Picked(picks) = ids {
            let last = self.plan.last_token(picks);
            check(OP, last.is_some_and(|t| t < table.rows), || {
                format!("token {} may be chosen, the table has {} rows", last.unwrap_or(0), table.rows)
            })?;
        }
        let rows = if ids == Ids::Step { RowSet::Step } else { RowSet::Out };
        let out = self.act(rows, table.cols);
        self.plan.ops.push(Op::Embed { table: table.id, ids, scale, out });
        Ok(out)
    }

    /// [`Op::RmsNorm`] into a new buffer, without residual.
    ///
    /// # Errors
    /// When the gain's length is not the input's columns.
    pub fn rms_norm(&mut self, x: Act, weight: Option<&Weight>, eps: f32) -> Result<Act> {
        self.push_norm(x, weight, self.cols(x), eps, [None, None], None)
    }

    /// [`Op::RmsNorm`] of whole rows, with every operand.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn rms_norm_into(
        &mut self,
        x: Act,
        weight: Option<&Weight>,
        eps: f32,
        residual: Option<Act>,
        scale: Option<Scale<'_>>,
        out: Act,
    ) -> Result<()> {
        self.push_norm(x, weight, self.cols(x), eps, [residual, Some(out)], scale).map(|_| ())
    }

    /// [`Op::RmsNorm`] of every run of as many columns as the gain has elements, into a new buffer.
    ///
    /// # Errors
    /// When the gain's length does not divide the input's columns, or shapes disagree.
    pub fn rms_norm_groups(
        &mut self,
        x: Act,
        weight: &Weight,
        eps: f32,
        residual: Option<Act>,
        scale: Option<Scale<'_>>,
    ) -> Result<Act> {
        self.push_norm(x, Some(weight), weight.cols, eps, [residual, None], scale)
    }

    fn push_norm(
        &mut self,
        x: Act,
        weight: Option<&Weight>,
        group: usize,
        eps: f32,
        [residual, out]: [Option<Act>; 2],
        scale: Option<Scale<'_>>,
    ) -> Result<Act> {
        const OP: &str = "rms_norm";
        let cols = self.cols(x);
        check(OP, group > 0 && cols.is_multiple_of(group), || {
            format!("groups of {group} of {cols} columns")
        })?;
        let weight = weight.map(|w| Self::vector(OP, "gain", w, group)).transpose()?;
        let scale = match scale {
            Some(Scale::Weight(w)) => Some(Factor::Weight(Self::vector(OP, "scale", w, 1)?)),
            Some(Scale::Constant(c)) => Some(Factor::Constant(c)),
            None => None,
        };
        let out = out.unwrap_or_else(|| self.like(x, cols));
        self.same_shape(OP, x, out)?;
        if let Some(r) = residual {
            self.same_shape(OP, r, out)?;
        }
        self.plan.ops.push(Op::RmsNorm { x, weight, group, eps, residual, scale, out });
        Ok(out)
    }

    /// [`Op::MatMul`] with several weights of the same input, each into a new buffer.
    ///
    /// # Errors
    /// When a weight's columns are not the input's.
    pub fn mat_mul<const N: usize>(&mut self, x: Act, weights: [&Weight; N]) -> Result<[Act; N]> {
        let outs = weights.map(|w| self.like(x, w.rows));
        let products = weights
            .iter()
            .zip(outs)
            .map(|(w, out)| (**w, Product { weight: w.id, out, residual: None }))
            .collect();
        self.push_products(x, products)?;
        Ok(outs)
    }

    /// `out = out + W·x`.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn mat_mul_add(&mut self, x: Act, weight: &Weight, out: Act) -> Result<()> {
        self.push_products(x, vec![(*weight, Product { weight: weight.id, out, residual: Some(out) })])
    }

    fn push_products(&mut self, x: Act, products: Vec<(Weight, Product)>) -> Result<()> {
        const OP: &str = "mat_mul";
        let spec = self.plan.act(x);
        for (w, p) in &products {
            check(OP, w.cols == spec.cols && w.experts == 1, || {
                format!("weight of {} columns for an input of {}", w.cols, spec.cols)
            })?;
            let want = ActSpec { rows: spec.rows, cols: w.rows };
            let found = self.plan.act(p.out);
            check(OP, found == want && p.out != x, || {
                format!("result {found:?}, expected a {want:?} other than the input")
            })?;
        }
        self.collect(OP, x, &products.iter().map(|(w, _)| w).collect::<Vec<_>>())?;
        let products = products.into_iter().map(|(_, p)| p).collect();
        self.plan.ops.push(Op::MatMul { x, products });
        Ok(())
    }

    /// [`Op::GatedMatMul`].
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn gated_mat_mul(
        &mut self,
        x: Act,
        gate: &Weight,
        up: &Weight,
        activation: Activation,
    ) -> Result<Act> {
        const OP: &str = "gated_mat_mul";
        let cols = self.cols(x);
        let dense = gate.experts == 1 && up.experts == 1;
        check(OP, dense && gate.cols == cols && up.cols == cols && gate.rows == up.rows, || {
            format!(
                "gate [{}, {}] and up [{}, {}] for {cols} columns",
                gate.rows, gate.cols, up.rows, up.cols
            )
        })?;
        self.collect(OP, x, &[gate, up])?;
        let out = self.like(x, gate.rows);
        self.plan.ops.push(Op::GatedMatMul { x, gate: gate.id, up: up.id, activation, out });
        Ok(out)
    }

    /// [`Op::RopeKv`]. `norms` are the gains of queries and keys.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn rope_kv(&mut self, op: RopeKvOp, norms: [Option<&Weight>; 2], kv: &Kv) -> Result<()> {
        const OP: &str = "rope_kv";
        let s = op.shape;
        Self::heads(OP, &s)?;
        check(OP, op.q.is_some() || op.k.is_some(), || "neither q nor k".into())?;
        if let Some(q) = op.q {
            self.has_cols(OP, "q", q, s.heads * s.q_stride)?;
        }
        if let Some(k) = op.k {
            self.has_cols(OP, "k", k, s.kv_heads * s.key_dim)?;
        }
        if let Some(v) = op.v {
            self.has_cols(OP, "v", v, s.kv_heads * s.value_dim)?;
        }
        check(OP, op.k.is_some() == op.v.is_some(), || "k and v must be given together".into())?;
        for (what, other) in [("q", op.q), ("v", op.v)] {
            if let Some((other, k)) = other.zip(op.k) {
                self.same_rows(OP, what, other, k)?;
            }
        }
        for w in norms.into_iter().flatten() {
            Self::vector(OP, "norm gain", w, s.key_dim)?;
        }
        let pairs = self.plan.ropes.get(op.rope.index()).map(|r| r.frequencies.len());
        check(OP, pairs.is_some_and(|pairs| pairs <= s.key_dim / 2), || {
            format!("{pairs:?} rotary pairs in heads of {} elements", s.key_dim)
        })?;
        Self::cache_fits(OP, kv, s.kv_heads, s.key_dim, s.value_dim)?;
        let [q_norm, k_norm] = norms.map(|n| n.map(|w| w.id));
        self.plan.ops.push(Op::RopeKv(RopeKvOp { q_norm, k_norm, kv: kv.id, ..op }));
        Ok(())
    }

    fn cache_fits(op: &'static str, kv: &Kv, heads: usize, key_dim: usize, value_dim: usize) -> Result<()> {
        let c = &kv.spec;
        check(op, (c.heads, c.key_dim, c.value_dim) == (heads, key_dim, value_dim), || {
            format!(
                "cache of {} heads of {}/{} for a layer of {heads} of {key_dim}/{value_dim}",
                c.heads, c.key_dim, c.value_dim
            )
        })
    }

    /// [`Op::Attention`]; `op.out` is ignored and a new buffer returned.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn attention(&mut self, op: AttentionOp, kv: &Kv) -> Result<Act> {
        const OP: &str = "attention";
        let s = op.shape;
        Self::heads(OP, &s)?;
        self.has_cols(OP, "q", op.q, s.heads * s.q_stride)?;
        let window = op.window.map_or(usize::MAX, |w| w as usize);
        check(OP, window > 0 && (!kv.spec.ring || window <= kv.spec.capacity), || {
            format!("window of {:?} over {:?}", op.window, kv.spec)
        })?;
        Self::cache_fits(OP, kv, s.kv_heads, s.key_dim, s.value_dim)?;
        match op.gate {
            Gate::None => {}
            Gate::Interleaved => {
                check(OP, s.q_stride == 2 * s.key_dim && s.value_dim == s.key_dim, || {
                    format!(
                        "heads of {}/{} elements {} apart have no interleaved gates",
                        s.key_dim, s.value_dim, s.q_stride
                    )
                })?;
            }
            Gate::Separate(g) => {
                self.has_cols(OP, "gate", g, s.heads * s.value_dim)?;
                self.same_rows(OP, "gate", g, op.q)?;
            }
        }
        let out = self.like(op.q, s.heads * s.value_dim);
        self.plan.ops.push(Op::Attention(AttentionOp { out, kv: kv.id, ..op }));
        Ok(out)
    }

    /// [`Op::DeltaNet`]; `op.out` is ignored and a new buffer returned. `vectors` are conv, dt_bias, a and norm.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn delta_net(&mut self, op: DeltaNetOp, vectors: [&Weight; 4], state: &State) -> Result<Act> {
        const OP: &str = "delta_net";
        let s = op.shape;
        state.spec.check()?;
        check(OP, state.spec.shape == s, || format!("state of {:?} for {s:?}", state.spec.shape))?;
        let operands = [
            ("qkv", op.qkv, s.conv_cols()),
            ("z", op.z, s.value_cols()),
            ("alpha", op.alpha, s.value_heads),
            ("beta", op.beta, s.value_heads),
        ];
        for (what, act, cols) in operands {
            self.has_cols(OP, what, act, cols)?;
            self.step_rows(OP, what, act)?;
        }
        let [conv, dt_bias, a, norm] = vectors;
        let conv = Self::vector(OP, "conv", conv, s.conv_cols() * s.conv)?;
        let dt_bias = Self::vector(OP, "dt_bias", dt_bias, s.value_heads)?;
        let a = Self::vector(OP, "a", a, s.value_heads)?;
        let norm = Self::vector(OP, "norm", norm, s.value_dim)?;
        let out = self.like(op.qkv, s.value_cols());
        self.plan.ops.push(Op::DeltaNet(DeltaNetOp { conv, dt_bias, a, norm, state: state.id, out, ..op }));
        Ok(out)
    }

    /// [`Op::Route`].
    ///
    /// # Errors
    /// When there are fewer experts than `top_k`.
    pub fn route(&mut self, logits: Act, kind: RouterKind, top_k: usize) -> Result<Routes> {
        let experts = self.cols(logits);
        check("route", top_k > 0 && top_k <= experts, || format!("{top_k} of {experts} experts"))?;
        self.plan.routes.push(top_k);
        let out = Routes(self.plan.routes.len() as u32 - 1);
        self.plan.ops.push(Op::Route(RouteOp { logits, kind, top_k, out }));
        Ok(out)
    }

    /// [`Op::Experts`]; `weights` are gate, up and down, `op.out` must exist.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn experts(&mut self, op: ExpertsOp, weights: [&Weight; 3]) -> Result<()> {
        const OP: &str = "experts";
        let [gate, up, down] = weights;
        let (cols, out) = (self.cols(op.x), self.cols(op.out));
        let fits = gate.cols == cols
            && (up.rows, up.cols, up.experts) == (gate.rows, gate.cols, gate.experts)
            && (down.rows, down.cols, down.experts) == (out, gate.rows, gate.experts);
        check(OP, fits, || format!("gate {gate:?}, up {up:?}, down {down:?} for {cols} → {out} columns"))?;
        self.same_rows(OP, "x", op.x, op.out)?;
        let logits = self.plan.ops.iter().find_map(|o| match o {
            Op::Route(r) if r.out == op.routes => Some(r.logits),
            _ => None,
        });
        let Some(logits) = logits else {
            return Err(TensorError::Plan { op: OP, message: "no router before the experts".into() });
        };
        self.has_cols(OP, "the router", logits, gate.experts)?;
        self.same_rows(OP, "the router", logits, op.x)?;
        if let Some(s) = op.shared {
            self.same_shape(OP, s.out, op.out)?;
            self.has_cols(OP, "the shared expert's gate", s.gate, 1)?;
            self.same_rows(OP, "the shared expert's gate", s.gate, op.out)?;
        }
        if let Some(r) = op.residual {
            self.same_shape(OP, r, op.out)?;
        }
        // Which rows an expert reads is known only while it runs.
        let one =
            |weights: &[&Weight]| self.collection.sums_of(OP, weights).map(|sums| sums.first().copied());
        let sums = ExpertSums { input: one(&[gate, up])?, hidden: one(&[down])? };
        self.plan.ops.push(Op::Experts(ExpertsOp { gate: gate.id, up: up.id, down: down.id, sums, ..op }));
        Ok(())
    }

    /// [`Op::Select`].
    ///
    /// # Errors
    /// When the input has not the step's rows.
    pub fn select(&mut self, x: Act) -> Result<Act> {
        self.step_rows("select", "x", x)?;
        let out = self.act(RowSet::Out, self.cols(x));
        self.plan.ops.push(Op::Select { x, out });
        Ok(out)
    }

    /// [`Op::Softcap`].
    ///
    /// # Errors
    /// When the cap is not positive.
    pub fn softcap(&mut self, x: Act, cap: f32) -> Result<()> {
        check("softcap", cap > 0.0 && cap.is_finite(), || format!("cap {cap}, expected a positive number"))?;
        self.plan.ops.push(Op::Softcap { x, cap });
        Ok(())
    }

    /// [`Op::Multiply`].
    ///
    /// # Errors
    /// When the other buffer has other rows, ends before the last column, or is `x` itself.
    pub fn multiply(&mut self, x: Act, activation: Activation, by: Act, first: usize) -> Result<()> {
        const OP: &str = "multiply";
        let (cols, end) = (self.cols(x), self.cols(by));
        check(OP, x != by, || "a buffer by itself".into())?;
        check(OP, first.checked_add(cols).is_some_and(|last| last <= end), || {
            format!("{cols} columns from {first} on of {end}")
        })?;
        self.same_rows(OP, "the factor", by, x)?;
        self.plan.ops.push(Op::Multiply { x, activation, by, first });
        Ok(())
    }

    /// Declares the token ids of a reduced head's rows.
    ///
    /// # Errors
    /// When they do not ascend.
    pub fn token_map(&mut self, ids: Arc<[u32]>) -> Result<TokenMap> {
        let descent = ids.windows(2).find(|w| w[0] >= w[1]);
        check("sample", descent.is_none(), || format!("token ids {descent:?}, expected ascending ones"))?;
        self.plan.maps.push(ids);
        Ok(TokenMap(self.plan.maps.len() as u32 - 1))
    }

    /// [`Op::Sample`].
    ///
    /// # Errors
    /// When the logits are not those of output rows, or the map has another number of ids.
    pub fn sample(&mut self, logits: Act, map: Option<TokenMap>, result: bool) -> Result<Picks> {
        const OP: &str = "sample";
        check(OP, self.plan.act(logits).rows == RowSet::Out, || "logits of step rows".into())?;
        if let Some(map) = map {
            self.has_cols(OP, "logits", logits, self.plan.token_map(map).len())?;
        }
        let picks = Picks(self.plan.picks as u32);
        self.plan.picks += 1;
        self.plan.ops.push(Op::Sample { logits, map, picks, result });
        Ok(picks)
    }

    /// [`Op::Concat`].
    ///
    /// # Errors
    /// When there are no parts or their rows differ.
    pub fn concat(&mut self, parts: &[Act]) -> Result<Act> {
        const OP: &str = "concat";
        let Some(first) = parts.first() else {
            return Err(TensorError::Plan { op: OP, message: "no parts".into() });
        };
        parts.iter().try_for_each(|p| self.same_rows(OP, "a part", *p, *first))?;
        let out = self.like(*first, parts.iter().map(|p| self.cols(*p)).sum());
        self.plan.ops.push(Op::Concat { parts: parts.to_vec(), out });
        Ok(out)
    }

    /// [`Op::Keep`] of whole rows.
    ///
    /// # Errors
    /// When the ring's rows have another length.
    pub fn keep(&mut self, x: Act, ring: &Ring, ahead: u32) -> Result<()> {
        self.has_cols("keep", "x", x, ring.spec.cols)?;
        self.plan.ops.push(Op::Keep { x, ring: ring.id, first: 0, ahead });
        Ok(())
    }

    /// [`Op::Keep`] of the columns from `first` on.
    ///
    /// # Errors
    /// When the ring's rows end before them.
    pub fn keep_part(&mut self, x: Act, ring: &Ring, first: usize) -> Result<()> {
        let (cols, end) = (self.cols(x), ring.spec.cols);
        check("keep", first.checked_add(cols).is_some_and(|last| last <= end), || {
            format!("{cols} columns from {first} on in a ring of {end}")
        })?;
        self.plan.ops.push(Op::Keep { x, ring: ring.id, first, ahead: 0 });
        Ok(())
    }

    /// [`Op::Recall`].
    pub fn recall(&mut self, ring: &Ring) -> Act {
        let out = self.act(RowSet::Step, ring.spec.cols);
        self.plan.ops.push(Op::Recall { ring: ring.id, out });
        out
    }

    /// [`Op::Output`] into the next free tap; its index is returned.
    pub fn output(&mut self, x: Act) -> usize {
        let slot = self.plan.taps;
        self.plan.taps += 1;
        self.plan.ops.push(Op::Output { x, slot });
        slot
    }
}

#[cfg(test)]
mod tests;
