"""The verbs of `python -m formerlab`: each parses its arguments and calls one function of the package."""

from formerlab.plan import loaded  # noqa: F401 - before any other module, to know their source as it was then
