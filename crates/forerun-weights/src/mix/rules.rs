//! The rules themselves, as tables.

use forerun_models::TensorHeader;
use forerun_quant::TensorType;

use crate::file_type::FileType;

/// What a matrix is for, as far as rules tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The head, or the embedding where it is the head too.
    Output,
    /// An embedding.
    Embedding,
    /// Values of attention, alone or with queries and keys.
    AttnV,
    AttnK,
    AttnOutput,
    FfnDown,
    /// Everything else.
    Other,
}

impl Role {
    pub(super) const COUNT: usize = Role::Other as usize + 1;

    /// The role that a name says. Names of experts go with those of dense matrices.
    pub(super) fn of(name: &str) -> Self {
        const NAMES: [(&str, Role); 2] =
            [("token_embd.weight", Role::Embedding), ("per_layer_token_embd.weight", Role::Embedding)];
        const PARTS: [(&str, Role); 6] = [
            ("attn_qkv.weight", Role::AttnV),
            ("attn_kv_b.weight", Role::AttnV),
            ("attn_v.weight", Role::AttnV),
            ("attn_k.weight", Role::AttnK),
            ("attn_output.weight", Role::AttnOutput),
            ("ffn_down", Role::FfnDown),
        ];
        if name == "output.weight" {
            return Role::Output;
        }
        let whole = NAMES.iter().find(|(whole, _)| name == *whole);
        let found = whole.or_else(|| PARTS.iter().find(|(part, _)| name.contains(part)));
        found.map_or(Role::Other, |(_, role)| *role)
    }
}

/// A circumstance.
#[derive(Clone, Copy, Debug)]
pub(super) enum Case {
    /// Rows are no whole blocks of the file's type.
    CutBlocks,
    /// Four query heads or more share a KV head: its matrices are small.
    ManyHeadsPerKv,
    EightExperts,
    NotEightExperts,
    Llama70b,
    /// One of the first n of its role.
    First(usize),
    /// In the first of n shares of the layers.
    FirstShare(usize),
    /// In a layer that mixes give more bits.
    MoreBits,
    Importance,
    NoImportance,
}

/// A type for the matrices of a role.
pub(super) struct Rule {
    /// File types that it is for; none means all.
    pub(super) files: &'static [FileType],
    pub(super) role: Role,
    /// All of these must hold.
    pub(super) cases: &'static [Case],
    pub(super) ty: TensorType,
}

const fn rule(files: &'static [FileType], role: Role, cases: &'static [Case], ty: TensorType) -> Rule {
    Rule { files, role, cases, ty }
}

/// All file types.
const ANY: &[FileType] = &[];

/// The first that fits decides; where none does, the matrix has the file's type.
pub(super) const RULES: &[Rule] = {
    use Case as C;
    use FileType as F;
    use Role as R;
    use TensorType as T;
    &[
        rule(ANY, R::Output, &[C::CutBlocks], T::Q8_0),
        rule(&[F::Q8_0], R::Output, &[], T::Q8_0),
        rule(ANY, R::Output, &[], T::Q6_K),
        rule(ANY, R::AttnV, &[C::EightExperts], T::Q8_0),
        rule(&[F::Q4_K_M, F::Q5_K_M], R::AttnV, &[C::MoreBits], T::Q6_K),
        rule(&[F::Q2_K, F::Q3_K_S, F::Q3_K_M, F::Q4_K_S, F::Q4_K_M], R::AttnV, &[C::Llama70b], T::Q5_K),
        rule(&[F::Q2_K_S, F::IQ3_S], R::AttnV, &[C::Llama70b, C::ManyHeadsPerKv], T::Q5_K),
        rule(&[F::Q2_K, F::Q2_K_S, F::IQ3_S], R::AttnV, &[C::ManyHeadsPerKv], T::Q4_K),
        rule(&[F::Q2_K], R::AttnV, &[], T::Q3_K),
        rule(&[F::Q3_K_M], R::AttnV, &[C::First(2)], T::Q5_K),
        rule(&[F::Q3_K_M], R::AttnV, &[], T::Q4_K),
        rule(&[F::Q3_K_L], R::AttnV, &[], T::Q5_K),
        rule(&[F::IQ4_NL, F::IQ4_XS], R::AttnV, &[C::ManyHeadsPerKv], T::Q5_K),
        rule(&[F::Q4_K_S], R::AttnV, &[C::First(4)], T::Q5_K),
        rule(ANY, R::AttnK, &[C::EightExperts], T::Q8_0),
        rule(&[F::Q2_K], R::FfnDown, &[], T::Q3_K),
        rule(&[F::Q2_K_S], R::FfnDown, &[C::FirstShare(8)], T::Q4_K),
        rule(&[F::Q3_K_M], R::FfnDown, &[C::FirstShare(16)], T::Q5_K),
        rule(&[F::Q3_K_M], R::FfnDown, &[], T::Q4_K),
        rule(&[F::Q3_K_L], R::FfnDown, &[], T::Q5_K),
        rule(&[F::Q4_K_M, F::Q5_K_M], R::FfnDown, &[C::MoreBits], T::Q6_K),
        rule(&[F::Q4_K_S], R::FfnDown, &[C::FirstShare(8)], T::Q5_K),
        rule(&[F::IQ4_NL, F::IQ4_XS], R::FfnDown, &[C::FirstShare(8), C::NoImportance], T::Q5_K),
        rule(&[F::Q4_0], R::FfnDown, &[C::FirstShare(8), C::Importance], T::Q4_1),
        rule(&[F::Q5_0], R::FfnDown, &[C::FirstShare(8), C::Importance], T::Q5_1),
        rule(
            &[F::Q2_K, F::Q3_K_S, F::Q3_K_M, F::Q4_K_S, F::Q4_K_M, F::IQ3_S, F::IQ4_NL, F::IQ4_XS],
            R::AttnOutput,
            &[C::EightExperts],
            T::Q5_K,
        ),
        rule(&[F::Q2_K], R::AttnOutput, &[], T::Q3_K),
        rule(&[F::Q3_K_M], R::AttnOutput, &[], T::Q4_K),
        rule(&[F::Q3_K_L], R::AttnOutput, &[C::NotEightExperts], T::Q5_K),
    ]
};

/// Parts of names of matrices that every mix leaves as they are: norms, routers, taps of convolutions, positions and other
/// small ones.
pub(super) const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Whole names of others.
pub(super) const KEPT_NAMES: &[&str] = &["position_embd.weight", "token_types.weight"];

/// `ty`, or where rows are no whole blocks of it, a type of blocks of 32 with as many bits or more, else F16.
pub(super) fn whole_blocks(ty: TensorType, t: &TensorHeader) -> TensorType {
    use TensorType as T;
    let smaller = match ty {
        T::IQ3_S | T::IQ4_XS => T::IQ4_NL,
        T::Q2_K | T::Q3_K => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        other => other,
    };
    let whole = |ty: &TensorType| t.dims.first().is_some_and(|cols| ty.row_bytes(*cols).is_some());
    [ty, smaller].into_iter().find(whole).unwrap_or(T::F16)
}
