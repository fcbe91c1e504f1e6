"""What can be said of our dependencies without a network, and what can with one: `python -m audit`, in make check."""
