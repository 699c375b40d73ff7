"""Issued certificates, named operators, and the operator's credential on this machine."""
