"""What simulations cost, alone (``simulation``) and beside other simulators (``simulation-peers``)."""
