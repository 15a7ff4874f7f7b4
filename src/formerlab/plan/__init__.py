"""The plan: configuration becomes jobs, jobs have costs, records say what is stale, people see all of it.

- configuration: `schema` says what the files may hold, `layers` lays them over each other and names the file of every
  mistake, `sources` reads them, `resolve` makes the spec of every run.
- jobs: `build`, with what is measured (`measure`) and data that must be the published ones (`public_data`).
- costs: `cost` in closed form, for a processor of `hardware`.
- what is stale: `code` hashes what a job runs, `judge` compares records with the plan, `attempts` tries again.
- found and shown: `locate` finds or makes the plan's file, `show` prints it, what is done, and its commands.
"""
