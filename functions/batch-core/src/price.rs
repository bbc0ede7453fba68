//! What lines cost. A batch pays half of the realtime list price.

use crate::batch::TokenCounts;
use crate::catalog::Price;

/// Returns the cost of `tokens` in 10⁻¹² dollars, saturating.
///
/// The price of one token is rounded first: the costs of lines add up to the cost of their batch.
#[must_use]
pub fn cost_picodollars(price: Price, tokens: TokenCounts) -> u64 {
    let input = tokens
        .input
        .saturating_mul(token_picodollars(price.input_per_million));
    let output = tokens
        .output
        .saturating_mul(token_picodollars(price.output_per_million));
    input.saturating_add(output)
}

/// Half of a list price in dollars a million, as 10⁻¹² dollars a token: 1e12 / 1e6 / 2 = 500,000.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float casts saturate, and NaN is 0"
)]
fn token_picodollars(per_million: f64) -> u64 {
    (per_million * 500_000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        input_per_million: f64,
        output_per_million: f64,
        input: u64,
        output: u64,
        picodollars: u64,
    ) {
        let tokens = TokenCounts {
            input,
            cached: input / 2,
            output,
        };
        assert_eq!(
            cost_picodollars(
                Price {
                    input_per_million,
                    output_per_million
                },
                tokens
            ),
            picodollars
        );
    }

    #[test]
    fn batch_pays_half_of_the_list_price() {
        check(1.0, 2.0, 1_000_000, 1_000_000, 1_500_000_000_000);
        check(0.15, 0.6, 1, 0, 75_000);
        check(0.15, 0.6, 0, 1, 300_000);
        check(0.0, 0.0, u64::MAX, u64::MAX, 0);
    }

    #[test]
    fn cost_saturates_when_counts_are_absurd() {
        check(1e300, 1e300, u64::MAX, u64::MAX, u64::MAX);
    }

    #[test]
    fn costs_of_lines_add_up_to_the_cost_of_their_batch() {
        let price = Price {
            input_per_million: 0.037,
            output_per_million: 0.0713,
        };
        let of = |input, output| {
            cost_picodollars(
                price,
                TokenCounts {
                    input,
                    cached: 0,
                    output,
                },
            )
        };
        assert_eq!(
            (0..100).map(|n| of(n, 3 * n)).sum::<u64>(),
            of(4_950, 14_850)
        );
    }
}
