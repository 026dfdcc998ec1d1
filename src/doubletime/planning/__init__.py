"""Measure what a cluster gives."""
