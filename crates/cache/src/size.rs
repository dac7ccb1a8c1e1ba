//! How many bytes a token costs. Planner, ledger and documents all ask here.

use haversack_kernels::attention::{BLOCK_SLOTS, KvShape, Precision};

/// What one layer keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub precision: Precision,
}

impl LayerShape {
    /// The same as the kernels say it.
    pub fn kernel(self) -> KvShape {
        KvShape {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            precision: self.precision,
        }
    }

    /// Values of K (and of V) per token.
    pub fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of one block of 32 slots, K and V.
    pub fn block_bytes(self) -> usize {
        self.kernel().block_bytes()
    }
}

/// Bytes of keys and values per token, over all layers. It counts KV heads, not query heads.
pub fn bytes_per_token(layers: &[LayerShape]) -> usize {
    layers.iter().map(|l| l.block_bytes()).sum::<usize>() / BLOCK_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_models() {
        let layers = |n, kv_heads, head_dim| {
            let precision = Precision::F16;
            vec![
                LayerShape {
                    kv_heads,
                    head_dim,
                    precision
                };
                n
            ]
        };
        assert_eq!(bytes_per_token(&layers(30, 3, 64)), 23_040, "SmolLM2-135M");
        assert_eq!(bytes_per_token(&layers(32, 32, 128)), 512 << 10, "LLaMA-7B");
    }
}
