"""A model cut into stages, one after the other on several ranks, through which microbatches flow."""
