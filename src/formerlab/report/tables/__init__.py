"""Tables, a file for each study; see `formerlab.report.catalogue`."""
