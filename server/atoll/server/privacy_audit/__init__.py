"""Privacy as found, not as promised: what an attacker who reads every release can be shown to learn.

``bounds`` turns guesses about canaries into a lower bound on epsilon (Steinke, Nasr and Jagielski 2023), a theorem that
knows nothing of our mechanisms. ``rehearsal`` makes a contract's releases with the daemon's own parts, ``canaries`` are
what is sent through it, ``evidence`` and ``guessing`` the attack, ``auditing`` all of it together. A bound above what
the ledger claims says that something between clipping and release is broken.
"""
