#!/usr/bin/env python3
"""Writes unpacked.bin: for each quantised type, in the order of WeightType::ALL, the f32 values
that the public `gguf` package reads from blocks of pseudo-random bytes (see matmul_formats.rs for
the same hash). NaNs are written as 0x7fc00000. Needs: pip install gguf numpy."""
import pathlib
import numpy as np
from gguf import GGMLQuantizationType as T, quants

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()
BLOCK_BYTES = [18, 20, 22, 24, 34, 84, 110, 144, 176, 210, 18, 136]
VALUES = 512

def hashed(seed, n):
    i = np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(1_000_003)
    with np.errstate(over="ignore"):
        i ^= i >> np.uint64(15)
        i = (i * np.uint64(0x2C1B3C6D)) & np.uint64(0xFFFFFFFF)
        i ^= i >> np.uint64(12)
        i = (i * np.uint64(0x297A2D39)) & np.uint64(0xFFFFFFFF)
    return (i >> np.uint64(24)).astype(np.uint8)

out = bytearray()
for name, size in zip(TYPES, BLOCK_BYTES):
    blocks = VALUES // (256 if "K" in name or name == "IQ4_XS" else 32)
    raw = hashed(int(T[name]), blocks * size).reshape(1, -1)
    values = quants.dequantize(raw, T[name]).astype("<f4").reshape(-1)
    assert values.size == VALUES, name
    values[np.isnan(values)] = np.float32("nan")
    bits = values.view("<u4").copy()
    bits[np.isnan(values)] = 0x7FC00000
    out += bits.tobytes()
    print(name, int(np.isnan(values).sum()), "NaN of", VALUES)
pathlib.Path(__file__).with_name("unpacked.bin").write_bytes(out)
