"""Privacy audits: measure what an attacker who reads every release can learn, and compare it with the claim.

``bounds`` turns guesses about canaries into a lower bound on epsilon (Steinke, Nasr and Jagielski 2023), by a theorem
that assumes nothing about the mechanism. ``rehearsal`` makes a contract's releases with the daemon's own parts,
``canaries`` makes the updates, ``evidence`` and ``guessing`` attack, and ``auditing`` runs the whole audit. If the
bound exceeds the ledger's claim, something between clipping and release is broken.
"""
