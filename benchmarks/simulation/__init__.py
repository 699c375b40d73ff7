"""The cost of simulations, alone (``simulation``) and compared with other simulators (``simulation-peers``)."""
