"""The names of what is measured: for those who write rows, and for those who draw them without torch."""

TRAINING, FORWARD, DECODE = "training_step", "forward", "decode"
"""Measures of speed.csv."""
COSINE, PRUNED = "cosine_with_embedding", "pruned_loss_nats"
"""Measures of flow.csv."""
TIMED = ("speed", "decode")
"""Stages that time runs of a study alone on the machine. They need nothing trained, and come first."""
CLAIMS = "claims"
"""The one job of the stage `exact`."""
UNPLANNED = "not in the plan"
"""Why rows of a run are left out that nobody asked for."""
