"""Exports of a run to TensorBoard, MLflow, and a folder with a model card for Hugging Face.

``tracked`` turns a run, deployed or simulated, into values, ``card`` into text. The other modules write their results.
"""
