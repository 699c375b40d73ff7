"""A run in the files and tools that people have already: TensorBoard, MLflow, a folder with a model card.

``tracked`` turns a run, deployed or simulated, into values; ``card`` into text. Everything else writes what these give.
"""
