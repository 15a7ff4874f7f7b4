#!/usr/bin/env python3
"""Prune the key-value cache of a causal language model of transformers while it generates.

    python examples/prune_a_model.py MODEL "Once upon a time" [--budget 0.4]

MODEL is a folder that `save_pretrained` wrote, including the tokenizer, or a name on the hub.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from formerlab import prune
from formerlab.cache import H2O, Decay, Local


def main() -> None:
    """Continue a prompt with the whole cache and under three policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("--budget", type=float, default=0.4, help="fraction of the prompt's keys that are retained")
    parser.add_argument("--tokens", type=int, default=40, help="tokens to generate")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    prompt = tokenizer(arguments.prompt, return_tensors="pt")
    length = prompt.input_ids.shape[1]

    def continued() -> str:
        ids = model.generate(**prompt, max_new_tokens=arguments.tokens, do_sample=False)
        return str(tokenizer.decode(ids[0, length:], skip_special_tokens=True))

    print(f"whole cache: {continued()}")
    for policy in (Local(), H2O(), Decay(alpha=0.2)):
        with prune(model, policy, budget=arguments.budget):
            print(f"{type(policy).__name__}, {arguments.budget:.0%} of {length} tokens: {continued()}")


if __name__ == "__main__":
    main()
