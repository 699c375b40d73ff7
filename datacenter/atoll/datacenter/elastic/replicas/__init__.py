"""Recovery in place: when a replica group dies, the others continue, and it comes back with a live group's state.

A *group* is the set of ranks that together hold one copy of the model; each group is a separate process world. Groups
share only the mean of their gradients, after torchft (github.com/pytorch/torchft).

In the launcher: ``quorum`` decides which groups are in a step, and whether its mean counts (pure, over the values of
``standing``); ``coordinator`` connects it to the ranks; ``launch`` starts and restarts groups. In a rank: ``link`` is
the connection, ``average`` the mean over groups, ``healing`` the state from a live group, and ``member`` what the
trainer uses.
"""
