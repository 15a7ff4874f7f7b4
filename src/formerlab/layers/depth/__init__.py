"""Mixers over depth: what a block reads of the blocks before it, one file each."""
