"""Reduction algorithms as schedules: data that is proved, priced and drawn before it moves a byte."""
