"""From configuration to the plan: the list of every job with its resolved spec, code hash and cost."""
