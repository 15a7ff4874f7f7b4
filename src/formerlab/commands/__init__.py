"""The commands of `python -m formerlab`: each parses its arguments and calls one function of the package."""

from formerlab.plan import source_hashes  # noqa: F401 - the first import hashes the source files before they can change
