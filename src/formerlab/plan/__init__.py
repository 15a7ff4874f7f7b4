"""Planning: turn the configuration into jobs, estimate their costs and find stale results.

- Configuration: `schema` defines the keys of the files, `merging` merges files, `sources` reads them, and `resolve`
  builds the spec of every run.
- Jobs: `build` builds the plan, with the measurements (`measure`) and the checks of public data (`public_data`).
- Costs: `cost` estimates costs in closed form for a processor of `hardware`: a GPU or one CPU thread.
- Staleness: `code` hashes the code of a job, `staleness` compares records with the plan, `attempts` counts retries.
- Display: `locate` finds or creates the plan file, `show` prints the plan, the job states and the commands.
"""
