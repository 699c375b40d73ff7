"""Privacy as found, not as promised: what an attacker who reads every release can be shown to learn.

``bounds`` turns guesses about canaries into a lower bound on epsilon (Steinke, Nasr and Jagielski 2023), a theorem that
knows nothing of our mechanisms. A bound above what the ledger claims says that something between clipping and release
is broken.
"""
