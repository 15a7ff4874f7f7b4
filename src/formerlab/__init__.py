"""formerlab: four papers that rethink the Transformer, on one reproducible harness.

`spec` says what a thing is, `layers` and `models` build it, `training` trains it, `evaluation` measures it, `plan`
turns a configuration into the list of all runs, and `results`, `figures` and `tables` read the rows that runs leave.
"""

from formerlab.huggingface import registration  # noqa: F401  (so that transformers finds our models)

__version__ = "0.1.0"
