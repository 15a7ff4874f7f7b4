"""Figures, a folder or a file for each study; see `formerlab.report.drawings`."""
