//! From a backend to the code compiled for it.

/// The public face of a kernel: picks the backend. `$scalar` is the scalar reference; `$body` is
/// generic over [`Simd`] and takes the token first.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
        = $scalar:path, $body:path;) => {
        $(#[$meta])*
        $vis fn $name(backend: $crate::cpu::Backend, $($arg: $ty),*) $(-> $ret)? {
            use $crate::cpu::BackendKind;
            // Runs the body where the features are enabled.
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            macro_rules! enabled {
                ($features:literal, $token:expr) => {{
                    #[target_feature(enable = $features)]
                    fn enabled($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: this function runs only where the features are enabled.
                        let token = unsafe { $token };
                        $body(token, $($arg),*)
                    }
                    // SAFETY: a backend of this kind exists only where the features were found.
                    unsafe { enabled($($arg),*) }
                }};
            }
            match backend.kind() {
                #[cfg(target_arch = "x86_64")]
                BackendKind::Avx512Vbmi => enabled!(
                    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni",
                    $crate::simd::avx512::Avx512::<true>::assume()
                ),
                #[cfg(target_arch = "x86_64")]
                BackendKind::Avx512 => enabled!(
                    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
                    $crate::simd::avx512::Avx512::<false>::assume()
                ),
                #[cfg(target_arch = "x86_64")]
                BackendKind::Avx2 => enabled!(
                    "avx2,fma,f16c",
                    $crate::simd::Pair($crate::simd::avx2::Avx2::assume())
                ),
                #[cfg(target_arch = "aarch64")]
                BackendKind::Neon => enabled!(
                    "neon",
                    $crate::simd::Pair($crate::simd::Pair(
                        $crate::simd::neon::Neon::<false>::assume()
                    ))
                ),
                #[cfg(target_arch = "aarch64")]
                BackendKind::NeonDot => enabled!(
                    "neon,dotprod",
                    $crate::simd::Pair($crate::simd::Pair(
                        $crate::simd::neon::Neon::<true>::assume()
                    ))
                ),
                _ => $scalar($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;
