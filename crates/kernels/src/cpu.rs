//! Backends: which instruction sets this CPU has, and so which kernels may run.

/// One implementation of all kernels. A value other than `Scalar` exists only where
/// [`Backend::available`] found the features, which is what makes the dispatch sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(BackendKind);

/// The backends, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
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

impl BackendKind {
    pub const ALL: [BackendKind; 6] = [
        BackendKind::Scalar,
        BackendKind::Avx2,
        BackendKind::Avx512,
        BackendKind::Avx512Vbmi,
        BackendKind::Neon,
        BackendKind::NeonDot,
    ];

    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Scalar => "scalar",
            BackendKind::Avx2 => "x86-avx2",
            BackendKind::Avx512 => "x86-avx512-vnni",
            BackendKind::Avx512Vbmi => "x86-avx512-vbmi",
            BackendKind::Neon => "arm-neon",
            BackendKind::NeonDot => "arm-neon-dot",
        }
    }

    fn present(self) -> bool {
        match self {
            BackendKind::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx512 => {
                BackendKind::Avx2.present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            BackendKind::Avx512Vbmi => {
                BackendKind::Avx512.present() && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(target_arch = "aarch64")]
            BackendKind::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            BackendKind::NeonDot => {
                std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            _ => false,
        }
    }
}

impl Backend {
    pub const SCALAR: Backend = Backend(BackendKind::Scalar);

    /// The backend, if this CPU can run it.
    pub fn new(kind: BackendKind) -> Option<Backend> {
        kind.present().then_some(Backend(kind))
    }

    /// The fastest backend of this CPU.
    pub fn best() -> Backend {
        BackendKind::ALL
            .into_iter()
            .rev()
            .find_map(Backend::new)
            .unwrap_or(Backend::SCALAR)
    }

    pub fn kind(self) -> BackendKind {
        self.0
    }

    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Every backend this CPU can run. Tests check their properties on each, and print what
    /// [`BackendKind::ALL`] has beyond it.
    pub fn available() -> impl Iterator<Item = Backend> {
        BackendKind::ALL.into_iter().filter_map(Backend::new)
    }
}
