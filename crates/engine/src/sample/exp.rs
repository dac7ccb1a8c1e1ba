//! exp for weights. Not the library's, because that differs between systems in the last digit and a seed must give
//! the same text everywhere; and this one has no branch, so a loop over a vocabulary is vectorised.

/// exp(x) for x at most 0, within three units in the last place; 0 below -87, where f32 ends.
///
/// x = n ln 2 + r with |r| at most ln 2 / 2: a polynomial for exp(r), and n into the exponent.
pub fn exp_nonpositive(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: the first has few bits, so n times it is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // The low bits of the shifted number are n: a cast would check its range, and prevent vectorisation.
    let integer = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let scale = f32::from_bits(integer.wrapping_add(127) << 23);
    if x > -87.0 { p * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::exp_nonpositive;

    #[test]
    fn close_to_the_true_exponential() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-1e30), 0.0);
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            let got = f64::from(exp_nonpositive(x));
            assert!(
                (got / want - 1.0).abs() < 4e-7,
                "exp({x}): {got}, not {want}"
            );
        }
    }
}
