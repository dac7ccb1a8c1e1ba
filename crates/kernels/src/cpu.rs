//! Which instruction sets this machine has, and so which tables may run.

/// One implementation of all kernels. A value other than `Scalar` exists only where
/// [`Table::available`] found the features, which is what makes the dispatch sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table(Kind);

/// The tables there are, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// With VBMI as well.
    Avx512Vbmi,
    /// Armv8 NEON without dot product (Cortex-A53).
    Neon,
    /// NEON with the dot-product instructions.
    NeonDot,
}

impl Kind {
    pub const ALL: [Kind; 6] = [
        Kind::Scalar,
        Kind::Avx2,
        Kind::Avx512,
        Kind::Avx512Vbmi,
        Kind::Neon,
        Kind::NeonDot,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Scalar => "scalar",
            Kind::Avx2 => "x86-avx2",
            Kind::Avx512 => "x86-avx512-vnni",
            Kind::Avx512Vbmi => "x86-avx512-vbmi",
            Kind::Neon => "arm-neon",
            Kind::NeonDot => "arm-neon-dot",
        }
    }

    fn present(self) -> bool {
        match self {
            Kind::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                Kind::Avx2.present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vbmi => Kind::Avx512.present() && is_x86_feature_detected!("avx512vbmi"),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => {
                std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            _ => false,
        }
    }
}

impl Table {
    pub const SCALAR: Table = Table(Kind::Scalar);

    /// The table, if this CPU can run it.
    pub fn new(kind: Kind) -> Option<Table> {
        kind.present().then_some(Table(kind))
    }

    /// The fastest table of this CPU.
    pub fn best() -> Table {
        Kind::ALL
            .into_iter()
            .rev()
            .find_map(Table::new)
            .unwrap_or(Table::SCALAR)
    }

    pub fn kind(self) -> Kind {
        self.0
    }

    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Every table this CPU can run. Tests stamp their properties over it, and print what
    /// [`Kind::ALL`] has beyond it.
    pub fn available() -> impl Iterator<Item = Table> {
        Kind::ALL.into_iter().filter_map(Table::new)
    }
}
