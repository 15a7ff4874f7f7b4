"""What a model is trained to do: batches and loss. `Task` is the union that configurations choose from."""

from formerlab.tasks.language import LanguageModeling

Task = LanguageModeling

__all__ = ["LanguageModeling", "Task"]
