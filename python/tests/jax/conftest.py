"""The JAX tests compute in float64; those of narrower dtypes switch it off where they must. They compile many
programs and run each once, so XLA does not optimise them."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
