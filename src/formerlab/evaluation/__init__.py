"""Everything measured after training: loss, questions, pruning, text, cost."""
