"""Runs an exported program in a process that has compiled nothing: python exported.py PROGRAM INPUTS RESULTS"""

import sys

import jax
import numpy as np
from jax import export

import attngrad.jax

jax.config.update("jax_enable_x64", True)
attngrad.jax.register()
program = export.deserialize(open(sys.argv[1], "rb").read())
arrays = np.load(sys.argv[2])
np.savez(sys.argv[3], *(program.call(*(arrays[name] for name in arrays.files))))
