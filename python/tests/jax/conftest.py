"""The JAX tests compute in float64; those of narrower dtypes switch it off where they must."""

import jax

jax.config.update("jax_enable_x64", True)
