//! Names of all tensor types other programs write, so that a refusal says what the file holds.

use haversack_kernels::format::WeightType;

/// Types we have no kernel for. Numbers that were given up (4, 5, 31 to 33, 36 to 38) keep the name
/// they had.
const OTHERS: [(u32, &str); 27] = [
    (4, "Q4_2, removed from the format"),
    (5, "Q4_3, removed from the format"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4, removed from the format"),
    (32, "Q4_0_4_8, removed from the format"),
    (33, "Q4_0_8_8, removed from the format"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4, removed from the format"),
    (37, "IQ4_NL_4_8, removed from the format"),
    (38, "IQ4_NL_8_8, removed from the format"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// `IQ2_XXS (16)`, or `unknown (9999)`.
pub fn type_name(id: u32) -> String {
    let name = WeightType::from_id(id).map(WeightType::name).or_else(|| {
        OTHERS
            .iter()
            .find(|&&(other, _)| other == id)
            .map(|&(_, name)| name)
    });
    format!("{} ({id})", name.unwrap_or("unknown"))
}

/// The list for messages.
pub fn supported() -> String {
    WeightType::ALL.map(WeightType::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_has_two_names() {
        let mut ids: Vec<u32> = OTHERS.iter().map(|o| o.0).collect();
        ids.extend(WeightType::ALL.map(WeightType::id));
        ids.sort_unstable();
        // 0..=41 without a hole.
        assert_eq!(ids, (0..42).collect::<Vec<_>>());
        assert_eq!(type_name(16), "IQ2_XXS (16)");
        assert_eq!(type_name(12), "Q4_K (12)");
        assert_eq!(type_name(u32::MAX), "unknown (4294967295)");
    }
}
