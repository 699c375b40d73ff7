"""Privacy audits: measure what an attacker who reads every release can learn, and compare it with the promise.

``bounds`` turns guesses about canaries into a lower bound on epsilon (Steinke, Nasr and Jagielski 2023), by a theorem
that assumes nothing about the mechanism. ``rehearsal`` makes a contract's releases with the daemon's own parts,
``canaries`` has the updates, ``evidence`` and ``guessing`` the attack, ``auditing`` the whole audit. A bound above what
the ledger claims says that something between clipping and release is broken.
"""
