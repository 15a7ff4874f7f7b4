"""The Hugging Face ecosystem: our models as its models, its models and released checkpoints as ours.

Nothing here is imported by `import formerlab`; `registration` says how `AutoModelForCausalLM` still finds our classes.
"""
