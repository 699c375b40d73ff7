"""What the sizes in ``[model]`` come to: parameters by part and FLOPs of a token, as figures that carry their formulas.

The planner and the trainer's MFU count with the same functions.
"""
