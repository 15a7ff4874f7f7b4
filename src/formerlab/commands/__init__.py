"""The commands of `python -m formerlab`."""

from formerlab.plan import source_hashes  # noqa: F401 - the first import hashes the source files before they can change
