"""What a project begins with, as package data: the checkout's Snakefile, configuration, workflow and profiles."""
