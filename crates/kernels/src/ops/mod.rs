//! Small vector operations: norms, rope, activations, softmax, rounding to int8.
