//! Concatenation, and rings that hand rows from one plan to another.

use super::*;
use crate::RingSpec;
use crate::builder::Ring;
use crate::{Act, Ids, RingId};

/// Plans that write the embedding of every row, or of output rows, to a ring of `capacity` rows, and one that reads it.
struct Bench {
    b: ReferenceBackend,
    ring: Ring,
    keep: PlanId,
    /// Output rows, one position further.
    ahead: PlanId,
    recall: PlanId,
    /// Reads, then writes every row one position further.
    both: PlanId,
}

const TOKENS: u32 = 64;

/// Token t embeds as `[t, −t]`.
fn row(t: u32) -> [f32; 2] {
    [t as f32, -(t as f32)]
}

fn bench(capacity: usize) -> Bench {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, TOKENS as usize, 2, &(0..TOKENS).flat_map(row).collect::<Vec<_>>());
    let spec = RingSpec { slots: 3, capacity, cols: 2 };
    let ring = Ring { id: b.new_ring(&spec).unwrap(), spec };
    let keep = plan(&mut b, &table, |r, x| r.keep(x, &ring, 0));
    let ahead = plan(&mut b, &table, |r, x| {
        let out = r.select(x)?;
        r.keep(out, &ring, 1)
    });
    let recall = plan(&mut b, &table, |r, _| {
        let y = r.recall(&ring);
        r.output(y);
        Ok(())
    });
    let both = plan(&mut b, &table, |r, x| {
        let y = r.recall(&ring);
        r.output(y);
        r.keep(x, &ring, 1)
    });
    Bench { b, ring, keep, ahead, recall, both }
}

fn in_slot(slot: u32, pos: u32, tokens: &[u32]) -> StepRows {
    let mut step = rows(pos, tokens);
    step.seqs[0].slot = slot;
    step
}

impl Bench {
    fn keep(&mut self, slot: u32, pos: u32, tokens: &[u32]) {
        run(&mut self.b, self.keep, &in_slot(slot, pos, tokens));
    }

    /// Tokens whose rows stand at `count` positions from `pos` on.
    fn held(&mut self, slot: u32, pos: u32, count: usize) -> Vec<u32> {
        let taps = run(&mut self.b, self.recall, &in_slot(slot, pos, &vec![0; count])).taps.remove(0);
        let token = |v: &[f32]| {
            assert_eq!(v, row(v[0] as u32));
            v[0] as u32
        };
        taps.chunks(2).map(token).collect()
    }

    #[track_caller]
    fn lacks(&mut self, slot: u32, pos: u32) {
        let step = in_slot(slot, pos, &[0]);
        let error = try_run(&mut self.b, self.recall, &step).unwrap_err().to_string();
        assert!(error.contains(&format!("slot {slot}: position {pos} is not in the ring")), "{error}");
    }
}

#[test]
fn a_ring_holds_the_newest_positions_of_each_slot() {
    let mut t = bench(5);
    t.lacks(0, 0);
    t.keep(0, 0, &[1, 2, 3]);
    t.keep(2, 7, &[11, 12]);
    assert_eq!((t.held(0, 0, 3), t.held(2, 7, 2)), (vec![1, 2, 3], vec![11, 12]));
    t.lacks(0, 3);
    t.lacks(1, 0);
    t.lacks(2, 0);
    // Positions 3 to 6 take the places of −2 to 1.
    t.keep(0, 3, &[4, 5, 6, 7]);
    assert_eq!(t.held(0, 2, 5), [3, 4, 5, 6, 7]);
    t.lacks(0, 1);
    assert_eq!(t.held(2, 7, 2), [11, 12]);
}

/// What a row writes ends its slot's sequence: the positions after it are of rejected rows.
#[test]
fn a_rewritten_position_ends_the_sequence() {
    let mut t = bench(8);
    t.keep(1, 0, &[1, 2, 3, 4]);
    t.keep(1, 1, &[9]);
    assert_eq!(t.held(1, 0, 2), [1, 9]);
    t.lacks(1, 2);
}

#[test]
fn output_rows_are_kept_one_position_further() {
    let mut t = bench(8);
    t.keep(0, 0, &[1, 2, 3]);
    t.keep(1, 4, &[4, 5]);
    // Row 2 of the first sequence, row 0 of the second.
    let step = StepRows {
        seqs: vec![seq(0, 0, 3, 0, true), seq(1, 4, 1, 0, true)],
        tokens: vec![30, 31, 32, 33],
        out: vec![],
    };
    run(&mut t.b, t.ahead, &with_out(with_out(step, 2, Pick::None), 3, Pick::None));
    assert_eq!((t.held(0, 0, 4), t.held(1, 4, 2)), (vec![1, 2, 3, 32], vec![4, 33]));
}

/// A step reads what was there before it where the plan reads first.
#[test]
fn rows_are_read_before_the_plan_writes_them() {
    let mut t = bench(8);
    t.keep(0, 0, &[1, 2, 3]);
    let out = run(&mut t.b, t.both, &in_slot(0, 0, &[40, 41, 42]));
    assert_eq!(out.taps[0], [row(1), row(2), row(3)].concat());
    assert_eq!(t.held(0, 1, 3), [40, 41, 42]);
    assert_eq!(t.held(0, 0, 1), [1]);
}

#[test]
fn copied_rows_stand_at_their_position() {
    let mut t = bench(4);
    t.keep(0, 3, &[1, 2, 3]);
    t.keep(2, 2, &[7, 8, 9]);
    t.b.copy_ring(RingId(0), 0, 2, 5).unwrap();
    assert_eq!(t.held(2, 2, 4), [7, 8, 9, 3]);
    t.b.copy_ring(RingId(0), 0, 1, 4).unwrap();
    assert_eq!(t.held(1, 4, 1), [2]);
    t.lacks(1, 3);
    t.b.copy_ring(RingId(0), 0, 0, 4).unwrap();
    assert_eq!(t.held(0, 3, 3), [1, 2, 3]);
    for (from, to) in [(0, 3), (3, 0)] {
        let error = t.b.copy_ring(RingId(0), from, to, 4).unwrap_err().to_string();
        assert!(error.contains("expected slots below 3"), "{error}");
    }
}

#[test]
fn slots_and_rings_that_do_not_exist_are_refused() {
    let mut t = bench(4);
    let error = try_run(&mut t.b, t.keep, &in_slot(3, 0, &[1])).unwrap_err().to_string();
    assert!(error.contains("slot 3, expected one of the ring's 3"), "{error}");
    assert!(try_run(&mut t.b, t.recall, &in_slot(3, 0, &[1])).is_err());
    for spec in [
        RingSpec { slots: 0, ..t.ring.spec.clone() },
        RingSpec { capacity: 0, ..t.ring.spec.clone() },
        RingSpec { cols: 0, ..t.ring.spec.clone() },
    ] {
        assert!(t.b.new_ring(&spec).is_err(), "{spec:?}");
    }
    let far = Ring { id: RingId(1), spec: t.ring.spec.clone() };
    type Record = fn(&mut PlanBuilder, Act, &Ring) -> Result<()>;
    let records: [(&str, Record); 2] = [
        ("keep", |r, x, ring| r.keep(x, ring, 0)),
        ("recall", |r, _, ring| {
            r.recall(ring);
            Ok(())
        }),
    ];
    let table = matrix(&mut t.b, 1, 2, &[0.0; 2]);
    for (name, record) in records {
        let mut builder = PlanBuilder::new(1, 1);
        let x = builder.embed(&table, Ids::Step, 1.0).unwrap();
        record(&mut builder, x, &far).unwrap();
        let error = t.b.prepare(builder.finish()).unwrap_err().to_string();
        assert!(error.contains(&format!("operator {name}: unknown RingId(1), expected one of 1")), "{error}");
    }
}

#[test]
fn concatenated_columns_stand_left_to_right() {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 2, 2, &[1.0, 2.0, 3.0, 4.0]);
    let w = matrix(&mut b, 1, 2, &[10.0, 1.0]);
    let p = plan(&mut b, &table, |r, x| {
        let [y] = r.mat_mul(x, [&w])?;
        let all = r.concat(&[y, x, y])?;
        r.output(all);
        let (x, y) = (r.select(x)?, r.select(y)?);
        let out = r.concat(&[x, y])?;
        r.output(out);
        Ok(())
    });
    let out = run(&mut b, p, &with_out(rows(0, &[0, 1]), 1, Pick::None));
    assert_eq!(out.taps[0], [12.0, 1.0, 2.0, 12.0, 34.0, 3.0, 4.0, 34.0]);
    assert_eq!(out.taps[1], [3.0, 4.0, 34.0]);
}
