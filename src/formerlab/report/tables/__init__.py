"""Tables, one package or module per study; see `formerlab.report.catalogue`."""
