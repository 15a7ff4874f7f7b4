"""The pre-registered claims (of the four papers, of third parties and of this project), and the code that evaluates
them on result rows.

Version 1 of `claims.yaml` was written before any model of this project was trained for a comparison; the file lists
later changes, with the results known at that time. `registry.py` is the schema of claims.yaml and of the key `claims`
of a study, which maps the arms of a claim to runs. `rows.py` reads their rows, and `conditions.py` checks that the runs
meet the conditions of the claim. `quantity.py` computes means with intervals, `verdict.py` evaluates the criterion, and
`render.py` writes the verdict. `evaluation/exact/` computes the numbers of exact claims, which need no training.
"""
