"""Layers divided among ranks: a plan derived from the model, shown, and applied to it."""
