"""formerlab: four papers that rethink the Transformer, on one reproducible harness.

`spec` says what a thing is, `layers` and `models` build it, `training` trains it, `evaluation` measures it, `plan`
turns a configuration into the list of all runs, and `results`, `figures` and `tables` read the rows that runs leave.
"""

__version__ = "0.1.0"

from formerlab.huggingface.registration import register_when_imported
from formerlab.timm_hook import register_on_import

register_when_imported()
register_on_import()
