"""Data sets that need no download: scikit-learn's own, IDX files (MNIST, Fashion-MNIST) and LEAF's JSON."""
