"""Parameters by part and FLOPs of a token, from the sizes in ``[model]``, as figures that carry their formulas.

The planner and the trainer's MFU count with the same functions.
"""
