"""Named checks that run within one job of several ranks, and what each rank saw of them."""
