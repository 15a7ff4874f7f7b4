"""The verbs of `python -m formerlab`: each parses its arguments and calls one function of the package."""
