//! The accept core: which of a round's rows count.

use std::ops::ControlFlow;

/// What became of a round's drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Drafts that equalled the token the model chose in their place.
    pub drafts: usize,
    /// Tokens the request got: the accepted drafts and the model's own token after them, fewer when the request ended.
    pub tokens: usize,
}

/// Walks the rows of a round. Row i holds the model's logits after the drafts before it; `choose(i)` gives the token that
/// the request takes there, and breaks with it when that token ends the request. A draft is accepted exactly when it is the
/// token that was chosen in its place; the walk ends at the first that is not, since later rows follow a token that is not
/// part of the text.
///
/// # Errors
/// The first error of `choose`. Tokens that were chosen before it stand.
pub fn accept<E>(
    drafts: &[u32],
    mut choose: impl FnMut(usize) -> Result<ControlFlow<u32, u32>, E>,
) -> Result<Accepted, E> {
    let mut accepted = Accepted { drafts: 0, tokens: 0 };
    loop {
        let row = accepted.drafts;
        let chosen = choose(row)?;
        accepted.tokens += 1;
        let (ControlFlow::Continue(token) | ControlFlow::Break(token)) = chosen;
        if drafts.get(row) != Some(&token) {
            return Ok(accepted);
        }
        accepted.drafts += 1;
        if chosen.is_break() {
            return Ok(accepted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts, what is chosen row by row, and what becomes of them.
    type Case = (&'static [u32], &'static [ControlFlow<u32, u32>], Accepted);
    type Chosen = Result<ControlFlow<u32, u32>, &'static str>;

    #[test]
    fn drafts_count_up_to_the_first_that_differs() {
        const fn go(token: u32) -> ControlFlow<u32, u32> {
            ControlFlow::Continue(token)
        }
        const fn end(token: u32) -> ControlFlow<u32, u32> {
            ControlFlow::Break(token)
        }
        const TABLE: &[Case] = &[
            (&[], &[go(7)], Accepted { drafts: 0, tokens: 1 }),
            (&[7], &[go(7), go(8)], Accepted { drafts: 1, tokens: 2 }),
            (&[6, 8], &[go(7)], Accepted { drafts: 0, tokens: 1 }),
            (&[7, 8, 9], &[go(7), go(8), go(1)], Accepted { drafts: 2, tokens: 3 }),
            // A later draft that happens to fit does not count once an earlier one failed.
            (&[7, 6, 9], &[go(7), go(8)], Accepted { drafts: 1, tokens: 2 }),
            // The request ends inside the run, with a draft or with the model's own token.
            (&[7, 8, 9], &[go(7), end(8)], Accepted { drafts: 2, tokens: 2 }),
            (&[7, 8, 9], &[go(7), end(5)], Accepted { drafts: 1, tokens: 2 }),
            (&[7], &[end(7)], Accepted { drafts: 1, tokens: 1 }),
        ];
        for (drafts, chosen, want) in TABLE {
            let mut asked = 0;
            let got = accept(drafts, |row| -> Chosen {
                assert_eq!(row, asked, "rows in order");
                asked += 1;
                Ok(chosen[row])
            });
            assert_eq!(got, Ok(*want), "{drafts:?} {chosen:?}");
            assert_eq!(asked, chosen.len(), "{drafts:?}: every row that matters, none beyond");
        }
    }

    #[test]
    fn errors_end_the_walk() {
        let got = accept(&[1, 2], |row| -> Chosen {
            if row == 1 { Err("no number") } else { Ok(ControlFlow::Continue(1)) }
        });
        assert_eq!(got, Err("no number"));
    }
}
